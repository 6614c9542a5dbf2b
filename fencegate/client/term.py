"""A term of this process, and what is bound to it: its end, its clients, its grant."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from fencegate.client.aio import FencedClient
from fencegate.client.failures import LeadershipLost
from fencegate.client.grants import Grants
from fencegate.lease import LeaseTimings

Clock = Callable[[], float]


class LeaderTerm:
    """One term of this process. ``lost`` is set when it is over, for whatever reason; ``reason`` says which."""

    def __init__(
        self,
        role: str,
        token: int,
        timings: LeaseTimings,
        renewed_at: float,
        clock: Clock,
        grants: Grants | None = None,
    ) -> None:
        self.role = role
        self.token = token
        self.lost = asyncio.Event()
        self.reason = ""
        self._timings = timings
        self._renewed_at = renewed_at
        self._clock = clock
        self._grants = grants
        self._settled = True
        self._clients: weakref.WeakSet[FencedClient] = weakref.WeakSet()
        self._when_lost: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[], object]] = []
        self._when_renewed: Callable[[], None] = lambda: None

    @property
    def believed_until(self) -> float:
        """The instant, on the term's own clock, at which the term is over here unless it is renewed before."""
        return self._renewed_at + self._timings.renew_deadline

    @property
    def lease_ends(self) -> float:
        """The instant, on the term's own clock, from which the election may give the role to another.

        What must not outlive the term has to be gone by then, less the drift of clocks. It means nothing once
        ``reason`` is ``"lost"``: then the election has said that the lease is over already.
        """
        return self._renewed_at + self._timings.lease_duration

    def on_loss(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` in the very step in which the term ends; now, if it has ended."""
        self._listeners.append(tell)
        if self.lost.is_set():
            tell()

    def on_renewal(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` after each renewal that counts."""
        self._when_renewed = tell

    def remaining(self) -> float:
        """Seconds for which this process may still take itself for the leader; 0 when the term is over."""
        if self.lost.is_set():
            return 0.0
        return max(0.0, self.believed_until - self._clock())

    def check(self) -> None:
        """Raise :class:`LeadershipLost` if the term is over by now. It looks at the clock, not only at ``lost``."""
        if self.remaining() <= 0:
            self.end("renew_deadline")
            raise self.loss()

    def grant(self) -> str | None:
        """The value of ``X-Fencing-Grant`` that goes with the token now; ``None`` without ``grants``."""
        return None if self._grants is None else self._grants.of(self.role, self.token)

    def client(self, urls: Sequence[str], **options: Any) -> FencedClient:
        """A client that presents this term's token and can present no other.

        ``options`` are those of :class:`FencedClient`. When a gateway says that the token no longer leads, the
        term is marked lost and the request raises :class:`LeadershipLost` (:class:`OutcomeUnknown` where an
        earlier try of it may have been applied).
        """
        made = FencedClient(urls, self.role, _pin=self, **options)
        self._clients.add(made)
        return made

    def over(self, code: str) -> LeadershipLost:
        """A gateway refused the token with this problem code: the term is over."""
        self.end(code)
        return self.loss()

    def end(self, reason: str) -> None:
        """Mark the term as over. The first reason stays."""
        if self.lost.is_set():
            return
        self.reason = reason
        self.lost.set()
        with ExitStack() as all_are_told:  # whatever one of them raises
            for tell in (self._when_lost, *reversed(self._listeners)):
                all_are_told.callback(tell)

    def renewed(self, started: float) -> None:
        """A renewal that began at ``started`` has succeeded. It counts only if the term has not run out meanwhile."""
        if self.remaining() <= 0:
            self.end("renew_deadline")
            return
        self._renewed_at = max(self._renewed_at, started)
        self._when_renewed()

    def unsettled(self) -> None:
        """A write of one of the term's own clients was cancelled, or its answer lost."""
        self._settled = False

    def idle(self) -> bool:
        """No request of the term's own clients is under way, nor may one be that nobody waits for any more."""
        return self._settled and all(client.in_flight == 0 for client in self._clients)

    def loss(self) -> LeadershipLost:
        """The exception that says how the term ended."""
        message = f"{self.role!r}: the term with token {self.token} is over ({self.reason}); lead() again for a new one"
        return LeadershipLost(message, role=self.role, token=self.token, reason=self.reason)
