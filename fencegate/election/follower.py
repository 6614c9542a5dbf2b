"""The follower: raises the fence of a shared store to a term that somebody else campaigned for (``mode = "follow"``).

In token mode the leaders are application processes and the store is one. The fence must stand at the
newest announced term before a write of an older one can come: the follower looks every retry period
and at each hint, and every gateway runs one. It closes nothing and never seals.
"""

from __future__ import annotations

import asyncio
import math

from fencegate.errors import Unavailable
from fencegate.fence import ClaimRefused, FenceStore
from fencegate.lease import ElectionBackend, LeaseTimings, Term
from fencegate.observations import ClaimWasRefused, LeaderObserved, Observer, SourceUnavailable, TokenRegressed


class Follower:
    """Follows the term of ``role`` in ``backend`` and claims it in ``store``."""

    def __init__(
        self, role: str, backend: ElectionBackend, store: FenceStore, timings: LeaseTimings, observe: Observer
    ) -> None:
        self.role = role
        self._backend = backend
        self._store = store
        self._timings = timings
        self._observe = observe
        self._claimed = (0, "")
        """The token that stands in the fence by our claim, and the server incarnation it stands on."""
        self._refused: tuple[int, str] | None = None
        self._failing = False
        self._wake = asyncio.Event()

    @property
    def token(self) -> int:
        """The highest token claimed so far, 0 for none."""
        return self._claimed[0]

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take_hints())
            group.create_task(self._poll())

    async def look(self) -> None:
        """One look: the store's clock and incarnation, then a linearizable read, then a claim where one is due.

        In this order (rules R3 and R9): what the quorum said before a promotion must not seed the
        promoted server. Raises :class:`~fencegate.errors.Unavailable`.
        """
        clock = await self._store.clock()
        term = await self._backend.read(self.role, self._timings.renew_deadline / 2)
        if term is None or not term.active or (term.token, clock.incarnation) == self._claimed:
            return
        if term.token < self.token:
            self._refuse(term, "regressed", self.token)
            return
        refused = await self._store.claim(self.role, term.token, f"{term.region}/{term.node}", clock, math.inf)
        if refused is None:
            if term.token != self.token:
                self._observe(LeaderObserved(self.role, term.token, term.region, term.node))
            self._claimed, self._refused = (term.token, clock.incarnation), None
            return
        row = await self._store.read(self.role) if refused is ClaimRefused.SUPERSEDED else None
        self._refuse(term, str(refused), row.max_token_seen if row else 0)

    def _refuse(self, term: Term, reason: str, max_token_seen: int) -> None:
        """Say it once per term and reason, not at every look."""
        if self._refused == (term.token, reason):
            return
        self._refused = (term.token, reason)
        self._observe(ClaimWasRefused(self.role, term.token, reason))
        if term.token < max_token_seen:
            self._observe(TokenRegressed(self.role, term.token, max_token_seen))

    async def _poll(self) -> None:
        while True:
            self._wake.clear()
            await self._try_to_look()
            try:
                async with asyncio.timeout(self._timings.retry_period):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _try_to_look(self) -> None:
        try:
            async with asyncio.timeout(self._timings.renew_deadline):
                await self.look()
            self._failing = False
        except (Unavailable, TimeoutError) as error:
            if not self._failing:
                detail = str(error) or f"no answer within {self._timings.renew_deadline:g} s"
                self._observe(SourceUnavailable(self.role, self._backend.name, detail))
            self._failing = True

    async def _take_hints(self) -> None:
        while True:
            async for _ in self._backend.changes(self.role):
                self._wake.set()
            await asyncio.sleep(self._timings.retry_period)
