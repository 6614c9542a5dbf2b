"""Compares two copies of a role's ledger: bisects for the fork, and tells what each side wrote behind it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum

from fencegate.errors import Unavailable
from fencegate.fence import Entry
from fencegate.gameday.fork import Decision, Fate, bisect_fork, match
from fencegate.store.chain import BrokenLink
from fencegate.store.copies import LedgerCopy, TermShare, agree, open_copy


class Outcome(StrEnum):
    """What two copies are to each other."""

    SAME = "same"
    BEHIND = "behind"
    FORKED = "forked"


@dataclass(frozen=True, slots=True)
class Side:
    """One copy: how long it is, and who wrote its entries behind the last common one."""

    last_seq: int
    terms: tuple[TermShare, ...]
    broken: BrokenLink | None = None
    """The first entry whose hash does not fit, where the chain was computed anew."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``common`` is the sequence number of the last entry that both have, 0 for none; ``last_common`` that entry.

    ``fates`` counts the idempotency keys behind it, by what became of them.
    """

    role: str
    common: int
    last_common: Entry | None
    sides: tuple[Side, Side]
    fates: Counter[Fate]
    verified: bool

    @property
    def outcome(self) -> Outcome:
        ends = {side.last_seq for side in self.sides}
        if self.common < min(ends):
            return Outcome.FORKED
        return Outcome.SAME if len(ends) == 1 else Outcome.BEHIND

    @property
    def without_key(self) -> tuple[int, int]:
        """Entries of each side behind the last common one that carry no key, and so cannot be matched."""
        first, second = (sum(term.without_key for term in side.terms) for side in self.sides)
        return first, second


async def compare(
    dsns: tuple[str, str],
    role: str,
    *,
    each: Callable[[Decision], None] = lambda _: None,
    alone: Callable[[int, Entry], None] | None = None,
    verify: bool = False,
) -> Comparison:
    """Compare the ledgers of ``role`` in two databases. ``each`` is given every key behind a fork, in the keys' order.

    ``alone`` is given the entries behind it that have no key, with 0 or 1 for the side. What either raises is raised.
    ``verify`` computes both hash chains anew first, which reads every entry: the bisection trusts the hashes as they
    are stored. Raises :class:`~fencegate.errors.Unavailable`, naming which of the two.
    """
    async with AsyncExitStack() as stack:
        copies = (await _open(stack, "first", dsns[0], role), await _open(stack, "second", dsns[1], role))
        broken = await asyncio.gather(*(copy.verify() for copy in copies)) if verify else [None, None]
        common = await _last_common(copies)
        terms = await asyncio.gather(*(copy.terms(common) for copy in copies))
        sides = [Side(c.last_seq, tuple(t), b) for c, t, b in zip(copies, terms, broken, strict=True)]
        fates: Counter[Fate] = Counter()
        found = Comparison(role, common, await copies[0].entry_at(common), (sides[0], sides[1]), fates, verify)
        if found.outcome is Outcome.FORKED:
            async for decision in match(copies[0].by_key(common), copies[1].by_key(common)):
                fates[decision.fate] += 1
                each(decision)
            if alone is not None:
                for side, copy in enumerate(copies):
                    async for entry in copy.without_key(common):
                        alone(side, entry)
        return found


async def _open(stack: AsyncExitStack, which: str, dsn: str, role: str) -> LedgerCopy:
    try:
        return await stack.enter_async_context(open_copy(dsn, role))
    except Unavailable as error:
        raise Unavailable(f"the {which} ledger: {error}") from error


async def _last_common(copies: tuple[LedgerCopy, LedgerCopy]) -> int:
    search = bisect_fork(min(copy.last_seq for copy in copies))
    try:
        seq = next(search)
        while True:
            seq = search.send(await agree(copies, seq))
    except StopIteration as end:
        return int(end.value)
