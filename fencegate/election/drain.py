"""A drain as an operator asks for it: no write begins for a while, then writes are taken again by themselves.

The term goes on and is renewed meanwhile. A drain never outlives its time (while the store answers) nor its term:
whatever ends the term ends the drain, and the next claim takes writes. Only the node that leads can drain, since its
death ends both.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from fencegate.election.elector import Elector
from fencegate.election.errands import DRAIN_PACE
from fencegate.errors import Unavailable
from fencegate.fence import FenceStore
from fencegate.leadership.handing import CLOSE
from fencegate.lease import LeaseTimings
from fencegate.observations import DrainBegan, DrainEnded, Observer

Outcome = Literal["drained", "draining", "resumed", "undone", "busy", "not_here", "not_draining", "other_term"]
"""drained: no write is under way, and none begins. draining: writes are still under way, or the store has not yet said
that it takes writes again. resumed: it does. undone: the store did not answer, or the drain ended before the writes
under way: nothing is stopped. Refused before anything was stopped: busy (a handoff is under way), not_here (this node
does not lead, or not any more), other_term, not_draining."""

_NOT_HERE: Final = "This node does not lead the role."
_TERM_OVER: Final = "The term ended meanwhile."


@dataclass(frozen=True, slots=True)
class DrainResult:
    """``left``: seconds until writes are taken again."""

    outcome: Outcome
    detail: str
    token: int | None = None
    left: float | None = None


class Drains:
    """The drains that this node's ``elector`` of one role can make, one at a time."""

    def __init__(self, elector: Elector, store: FenceStore, timings: LeaseTimings, observe: Observer) -> None:
        self._elector = elector
        self._store = store
        self._timings = timings
        self._observe = observe
        self._token = 0
        self._ends = 0.0
        self._moved = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def begin(self, limit: float, token: int | None = None) -> DrainResult:
        """Stop writes for ``limit`` seconds from now, and wait until those under way have ended.

        Asking again moves the end. ``token``: only if this is the term. Whoever asks may go away: the drain goes on.
        """
        led = self._elector.token
        if led is None:
            return DrainResult("not_here", _NOT_HERE)
        if token is not None and token != led:
            return DrainResult("other_term", f"Token {token} is not the term under way, which is {led}.", led)
        if self._elector.handing is not None:
            return DrainResult("busy", f"The role is being handed to region {self._elector.handing.to}.", led)
        self._ends = self._elector.now() + limit
        self._moved.set()
        self._elector.keep_drained(True)  # also where an earlier drain is just being ended
        if self._keeper is None or self._keeper.done() or self._token != led:
            self._token = led
            self._observe(DrainBegan(self._elector.role, led, limit))
            self._keeper = asyncio.create_task(self._keep(), name=f"drain of {self._elector.role}")
        return await self._stopped(led)

    async def resume(self) -> DrainResult:
        """Take writes again now."""
        if self._keeper is None or self._keeper.done():
            return DrainResult("not_draining", "No drain of this role is under way here.")
        self._ends = self._elector.now()
        self._moved.set()
        token = self._token
        await asyncio.wait([self._keeper], timeout=self._timings.renew_deadline)
        if self._elector.token != token:
            return DrainResult("not_here", _TERM_OVER, token)
        if self._left:
            return DrainResult("draining", "A drain was asked for meanwhile.", token, self._left)
        if self._keeper.done():
            return DrainResult("resumed", "Writes are taken again.", token)
        return DrainResult("draining", "The store does not answer; writes are taken again once it does.", token)

    async def _stopped(self, token: int) -> DrainResult:
        store, role = self._store, self._elector.role
        under_way = 0
        try:
            async with asyncio.timeout(min(self._left, self._timings.renew_deadline)):
                if not await self._elector.stop_writes(token):
                    self._end()
                    return DrainResult("not_here", "The store's row is another term's by now.", token)
        except (Unavailable, TimeoutError) as error:
            self._end()
            return DrainResult("undone", f"The store does not answer: {error or 'time-out'}.", token)
        try:
            async with asyncio.timeout(self._left):
                while under_way := await store.in_flight(role, token):  # noqa: ASYNC110 - the store tells nobody
                    await asyncio.sleep(DRAIN_PACE)
        except (Unavailable, TimeoutError) as error:
            if self._left and self._elector.token == token:
                told = f"Writes still under way: {under_way or error or 'not known'}."
                return DrainResult("draining", f"No write begins. {told}", token, self._left)
        if self._elector.token != token:
            return DrainResult("not_here", _TERM_OVER, token)
        if not self._left and under_way:
            return DrainResult("undone", f"It ended with {under_way} writes under way; writes are taken again.", token)
        if not self._left:
            return DrainResult("resumed", "Writes were taken again meanwhile.", token)
        return DrainResult("drained", "No write is under way, and none begins.", token, self._left)

    @property
    def _left(self) -> float:
        left = self._ends - self._elector.now()
        return left if left > CLOSE else 0.0  # a timer may ring a tick early, and must not be set anew for it

    def _end(self) -> None:
        self._ends = self._elector.now()
        self._moved.set()

    async def _keep(self) -> None:
        """Waits for the end of the time or of the term, then sees to it that writes are taken again."""
        elector, token = self._elector, self._token
        while True:
            while elector.token == token and self._left > 0:
                await self._something(self._left)
            if self._token != token:
                break  # the next term has a drain of its own
            elector.keep_drained(False)
            while await self._is_to_be_ended(token):
                await self._something(self._timings.retry_period)
            if elector.token != token or not self._left:
                break
            elector.keep_drained(True)  # asked for again meanwhile
        self._observe(DrainEnded(elector.role, token, "resumed" if elector.token == token else "term_over"))

    async def _is_to_be_ended(self, token: int) -> bool:
        """Whether the drain is still to be ended, after a try at it.

        A handoff that has begun meanwhile needs the writes stopped; if it is undone, they are taken again.
        """
        if self._elector.token != token or self._left:
            return False
        if self._elector.handing is not None:
            return True
        try:
            async with asyncio.timeout(self._timings.renew_deadline):
                # A row that is not this term's any more has no drain of ours.
                await self._elector.take_writes(token)
        except (Unavailable, TimeoutError):
            return True
        return False

    async def _something(self, limit: float) -> None:
        """Returns after ``limit`` seconds, or as soon as the end is moved or the elector's state changes."""
        self._moved.clear()
        waits = [asyncio.create_task(self._moved.wait()), asyncio.create_task(self._elector.changed())]
        try:
            await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
