"""A handoff as an operator asks for it: is there anybody to hand to, the elector's part, and who has opened since.

Nothing is stopped before the target is known to stand for the role (where the election can tell). From the seal on
nothing is taken back: then the successor opens, or after its time another candidate does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from fencegate.election.elector import Elector
from fencegate.errors import Unavailable
from fencegate.lease import ElectionBackend, LeaseTimings, Term

LOOK_PACE: Final = 0.02
"""Seconds between two looks at whether the successor has opened."""

Outcome = Literal[
    "done", "already", "pending", "undone", "lapsing", "abandoned", "busy", "no_candidate", "not_here", "other_term"
]
"""done: the successor has opened. already: it led before. pending: released, nobody has been seen to open yet.
undone: the old leader goes on. lapsing: sealed perhaps, not released: the lease runs out by itself. abandoned: the
term ended for another reason meanwhile. Refused before anything was stopped: busy (another handoff is under way),
no_candidate, not_here (this node does not lead), other_term (not the one that was meant)."""


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """``paused``: seconds, at most, from the last admitted write to the opening of the next term, ``token``."""

    outcome: Outcome
    detail: str
    token: int | None = None
    paused: float | None = None


class Handoffs:
    """The handoffs that this node's ``elector`` of one role can make."""

    def __init__(self, elector: Elector, backend: ElectionBackend, timings: LeaseTimings) -> None:
        self._elector = elector
        self._backend = backend
        self._timings = timings

    async def to(self, region: str, limit: float, token: int | None = None) -> HandoffResult:
        """Hand the role to ``region``; undone unless sealed within ``limit`` seconds. Asking twice is one handoff.

        ``token``: only if this is the term. Raises :class:`fencegate.errors.Unavailable` where the election cannot be
        asked first: nothing has happened.
        """
        elector = self._elector
        handing = elector.handing
        led = elector.token if handing is None else handing.token
        if _is_another(token, led):
            return _other_term(token, led)
        if handing is not None and handing.to != region:
            return _busy(handing.to)
        if handing is None and (refused := await self._refusal(region)):
            return refused
        if handing is None and elector.token is None:
            return HandoffResult("not_here", "This node does not lead the role any more.")
        if _is_another(token, elector.token):  # it has begun while the election was asked
            return _other_term(token, elector.token)
        ended = await elector.hand_over(region, limit)
        if ended is None:
            return HandoffResult("not_here", "This node lost the role before the handoff began.")
        if ended.to != region:
            return HandoffResult("busy", f"A handoff to region {ended.to} came first; it has ended: {ended.outcome}.")
        if ended.outcome == "released":
            return await self._opening(region, ended.token)
        return HandoffResult(ended.outcome, _DETAILS[ended.outcome])

    async def _refusal(self, region: str) -> HandoffResult | None:
        limit, role = self._timings.renew_deadline / 2, self._elector.role
        term = await self._backend.read(role, limit)
        if term is not None and term.region == region and term.active:
            if term.draining_to is not None:
                return _busy(term.draining_to)
            return HandoffResult("already", f"Region {region} leads already.", term.token)
        if self._elector.token is None:
            return HandoffResult("not_here", f"This node does not lead the role; {_who(term)}.")
        try:
            waiting = await self._backend.candidates(role, limit)
        except NotImplementedError:
            return None  # unknown: the undo, and the others' holding back for a while only, are relied on
        if any(candidate.region == region for candidate in waiting):
            return None
        regions = sorted({candidate.region for candidate in waiting})
        known = f"those who do: {', '.join(regions)}" if regions else "nobody does"
        return HandoffResult("no_candidate", f"Region {region} does not stand for the role ({known}).")

    async def _opening(self, region: str, token: int) -> HandoffResult:
        """Wait until the next term is announced, for no longer than another candidate would be kept waiting."""
        stopped, ends = self._elector.stopped_writes_at, self._elector.now() + self._timings.lease_duration
        while (left := ends - self._elector.now()) > 0:
            term = None
            try:
                term = await self._backend.read(self._elector.role, left)
            except Unavailable:
                await asyncio.sleep(self._timings.retry_period / 4)
            if term is not None and term.token > token and term.active:
                paused = self._elector.now() - stopped
                if term.region == region:
                    return HandoffResult("done", f"Region {region} leads.", term.token, paused)
                return HandoffResult("abandoned", f"Sealed and released, but {_who(term)}.", term.token, paused)
            await asyncio.sleep(LOOK_PACE)
        return HandoffResult("pending", f"Sealed and released; region {region} has not been seen to open yet.")


_DETAILS: Final = {
    "undone": "Taken back: the writes under way, the store or the election did not come to an end in time. "
    "This node leads on.",
    "lapsing": "The seal or the release is not known to stand: the lease runs out by itself, then any region may win.",
    "abandoned": "The term ended for another reason during the handoff.",
}


def _is_another(meant: int | None, led: int | None) -> bool:
    return None not in (meant, led) and meant != led


def _other_term(meant: int | None, led: int | None) -> HandoffResult:
    return HandoffResult("other_term", f"The term under way is {led}, not {meant}.", led)


def _busy(to: str) -> HandoffResult:
    return HandoffResult("busy", f"The role is being handed to region {to} already.")


def _who(term: Term | None) -> str:
    return "nobody does" if term is None else f"region {term.region}, node {term.node} does"
