"""The follower of one role: raises the fence of a shared store to a term that somebody else campaigned for.

In token mode (``mode = "follow"``) the leaders are application processes, or a system that elects for itself, and the
store is one. The fence must stand at the newest announced term before a write of an older one can come. When a look is
made, and that many roles are looked at together, is :mod:`fencegate.election.followers`'s part.

It closes the fence in one case (rule R10): the source's number has fallen, or another holder has the same number. Then
neither of the two terms can be told to be the right one. The fence is sealed at the highest token it has
seen, and a higher one opens it again.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from fencegate.election.strange_answers import asking
from fencegate.errors import Unavailable
from fencegate.fence import ClaimRefused, Fence, FenceStore, StoreClock
from fencegate.lease import LeadershipSource, LeaseTimings, Term
from fencegate.observations import (
    ClaimWasRefused,
    LeaderObserved,
    Observer,
    SourceUnavailable,
    TermSealed,
    TokenRegressed,
)

_NOTHING: Final = (0, "", "", "")
_NEVER: Final = -math.inf


class Follower:
    """Follows the term of ``role`` in ``source`` and claims it in ``store``. One look at a time."""

    __slots__ = (
        "_claimed",
        "_compared_at",
        "_failing",
        "_observe",
        "_refused",
        "_source",
        "_store",
        "_timings",
        "role",
    )

    def __init__(
        self, role: str, source: LeadershipSource, store: FenceStore, timings: LeaseTimings, observe: Observer
    ) -> None:
        self.role = role
        self._source = source
        self._store = store
        self._timings = timings
        self._observe = observe
        self._claimed = _NOTHING
        """The token that stands in the fence by our claim, its holder, and of the server incarnation and start."""
        self._compared_at = _NEVER
        """When the row was last compared with the source, on the loop's clock."""
        self._refused: tuple[int, str, int] | None = None
        self._failing = False

    @property
    def token(self) -> int:
        """The highest token claimed so far, 0 for none."""
        return self._claimed[0]

    async def look(self) -> None:
        """One look: the store's clock and incarnation, then a linearizable read, then a claim where one is due.

        In this order (rules R3 and R9): what the quorum said before a promotion must not seed the
        promoted server. Raises :class:`~fencegate.errors.Unavailable`.
        """
        clock = await self._store.clock()
        term = await self._read()
        if term is None or not term.active:
            return
        if not self.stands(term, clock):
            await self.follow(term, clock)
        elif self.is_to_be_compared():
            await self.compare(term, clock, await self._store.read(self.role))

    def stands(self, term: Term, clock: StoreClock) -> bool:
        """Whether the fence stands at ``term`` by our claim, on this server."""
        return (term.token, term.holder, clock.incarnation, clock.started) == self._claimed

    async def follow(self, term: Term, clock: StoreClock) -> None:
        """An active term that does not :meth:`stand <stands>`, read after ``clock``. Raises ``Unavailable``."""
        if term.token < self.token or (term.token == self.token and term.holder != self._claimed[1]):
            await self._doubt(term, clock, "regressed")
        else:
            await self._claim(term, clock)

    def is_to_be_compared(self) -> bool:
        """Once a lease. Another gateway may have claimed a later term, and the source gone back to ours since; or the
        row has gone back, where a dump was loaded into the store.
        """
        now = asyncio.get_running_loop().time()
        return self._claimed is not _NOTHING and now - self._compared_at >= self._timings.lease_duration

    async def compare(self, term: Term, clock: StoreClock, row: Fence | None) -> None:
        """``row`` was read after ``term``, which stands by our claim. Raises ``Unavailable``."""
        self._compared_at = asyncio.get_running_loop().time()
        if row is not None and row.max_token_seen > term.token:
            await self._doubt(term, clock, "regressed")
        elif row is not None and row.max_token_seen < term.token:
            await self._claim(term, clock)

    def succeeded(self) -> None:
        """A look has ended well: the next failure is a new one."""
        self._failing = False

    def failed(self, detail: str) -> None:
        """A look has failed. It is said once; the fence stays as it was."""
        if not self._failing:
            self._observe(SourceUnavailable(self.role, self._source.name, detail))
        self._failing = True

    async def _claim(self, term: Term, clock: StoreClock) -> None:
        try:
            refused = await self._store.claim(self.role, term.token, term.holder, clock, math.inf)
        except Unavailable:
            await self._let_older_ones_end(term)
            raise
        if refused in (ClaimRefused.SUPERSEDED, ClaimRefused.SEALED):
            await self._doubt(term, clock, str(refused))
        elif refused is not None:
            self._say_refused(term, str(refused), 0)
        else:
            if term.token != self.token:
                self._observe(LeaderObserved(self.role, term.token, term.region, term.node))
            self._claimed, self._refused = (term.token, term.holder, clock.incarnation, clock.started), None
            self._compared_at = asyncio.get_running_loop().time()

    async def _let_older_ones_end(self, term: Term) -> None:
        """Rule R14: a raise waits for guarded transactions under way (R6), and gives up where they take longer than a
        statement may. Those that came meanwhile would hold up the next one: so no more may begin in the older term.
        """
        row = await self._store.read(self.role)
        if row is not None and 0 < row.max_token_seen < term.token and not row.draining:
            await self._store.set_draining(self.role, row.max_token_seen, True)

    async def _doubt(self, term: Term, clock: StoreClock, reason: str) -> None:
        """The source's number is below the fence's, or is another holder's there: has it fallen, or was it read early?

        Only a read that began after the row was seen can tell: another gateway may have claimed a newer term
        between our read and our claim.
        """
        row = await self._store.read(self.role)
        seen = row.max_token_seen if row else 0
        if self._refused == (term.token, reason, seen):
            return
        again = await self._read()
        if row is None or again is None or not again.active:
            return
        if not _has_fallen(again, row):
            if again.token <= row.sealed:
                self._say_refused(again, reason, seen)
            return
        try:
            await self._seal(row, seen, clock)
        finally:
            # Said after the seal: who reads the alarm finds the fence closed. Said also where the seal failed.
            self._observe(TokenRegressed(self.role, again.token, seen))
        self._say_refused(again, reason, seen)  # and with that remembered: not before the fence is known to be sealed

    async def _seal(self, row: Fence, seen: int, clock: StoreClock) -> None:
        if row.sealed < seen:
            known = await self._store.seal(self.role, seen, clock.incarnation)
            self._observe(TermSealed(self.role, seen, known))

    def _say_refused(self, term: Term, reason: str, seen: int) -> None:
        """Say it once per term and reason, not at every look."""
        if self._refused != (term.token, reason, seen):
            self._observe(ClaimWasRefused(self.role, term.token, reason))
        self._refused = (term.token, reason, seen)

    async def _read(self) -> Term | None:
        with asking(self._source.name):
            return await self._source.read(self.role, self._timings.renew_deadline / 2)


def _has_fallen(term: Term, row: Fence) -> bool:
    """A term that a write brought into the row has no holder there yet: the same number is then the same term."""
    same_number_of_another = term.token == row.max_token_seen and row.holder not in ("", term.holder)
    return term.token < row.max_token_seen or same_number_of_another
