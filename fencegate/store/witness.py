"""What this gateway knows its store to have acknowledged, so that a store that went back in time is found out.

Two numbers that no crash takes back, by the server's own word and within one incarnation: how far its log was flushed,
and the newest transaction whose commit was answered. Each batch brings them along, and the store compares inside the
transaction, before anything is written (``migrations/0006_find_rollback.sql``); so does each look of the monitor. A
store that has less lacks what it had acknowledged: files of an earlier moment were put in place of its own. Where the
server was started since, it is also asked from where it set out: others may have written as much as is lacking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import asyncpg

from fencegate.errors import Unavailable
from fencegate.store.link import Link

GONE_BACK: Final = "ZF503"
"""The SQLSTATE with which a store says that it lacks what is known of it, or that it was found to."""

WHY: Final = "the store went back in time: it lacks writes that it had acknowledged, and is closed until it is reopened"

_POSITION: Final = {
    "here": "fencegate.incarnation()",
    "started": "fencegate.started()",
    "lsn": "fencegate.log_end()",
    "xact": "fencegate.own_xact()",
}


def position(of_row: str = "true") -> str:
    """Columns of a statement that writes: what its commit, once answered, has made durable. For :meth:`Witness.saw`.

    ``of_row``: a condition that only the last row meets, where there are many.
    """
    return ", ".join(f"CASE WHEN {of_row} THEN {value} END AS {name}" for name, value in _POSITION.items())


def guarded(roles: str, first: int) -> str:
    """SQL for the parameter ``roles`` of a function: refused where the store has gone back.

    ``first`` is the number of the first of five more parameters, :meth:`Witness.arguments`.
    """
    names = ", ".join(f"${first + place}" for place in range(5))
    return f"fencegate.unless_gone_back({roles}, {names})"


@dataclass(frozen=True, slots=True)
class Known:
    """How far a store has been seen to come: ``lsn`` bytes of its log, transaction ``xact``.

    ``started``: when its server was. ``reopened``: how many times an operator had opened it as it was.
    """

    incarnation: str = ""
    reopened: int = 0
    started: datetime | None = None
    lsn: int = 0
    xact: int = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """A look at the store. ``flushed`` is on disk; ``lsn`` and ``next_xact`` are where it is now.

    In portability mode nothing is told of it: ``started`` is ``None``, and it is never behind.

    ``start_lsn`` and ``start_xact``: where its newest checkpoint was, soon after a start the place that it set out
    from. ``gone_back``: somebody has found that it did, and no operator has reopened it.
    """

    incarnation: str
    started: datetime | None
    flushed: int
    lsn: int
    next_xact: int
    start_lsn: int
    start_xact: int
    reopened: int
    gone_back: bool


def behind(known: Known, sight: Sight) -> bool:
    """Whether the store, at ``sight``, lacks what was ``known`` before. The rule of ``fencegate.judge_gone_back``."""
    if sight.incarnation != known.incarnation or sight.reopened > known.reopened:
        return False  # rule R9 judges it, or an operator has
    now = sight.lsn >= known.lsn and sight.next_xact > known.xact and sight.reopened == known.reopened
    at_start = sight.started == known.started or (sight.start_lsn >= known.lsn and sight.start_xact > known.xact)
    return not (now and at_start)


def is_older(incarnation: str, known: str) -> bool:
    """Whether this is the server of ``known`` on an earlier timeline: what is written after a promotion is not in it.

    A promotion only ever leads to a later one. The identifiers of portability mode have no timeline.
    """
    (server, _, timeline), (known_server, _, known_timeline) = incarnation.partition("/"), known.partition("/")
    return server == known_server and timeline < known_timeline  # both of eight hexadecimal digits


def compared(known: Known, sight: Sight) -> str:
    """What is known and what was seen, in words: of the log the bytes, and the newest transaction."""
    if is_older(sight.incarnation, known.incarnation):
        return f"it was {known.incarnation} (system/timeline), and is {sight.incarnation}, as before a promotion"
    same = sight.started == known.started
    lsn, xact = (sight.lsn, sight.next_xact) if same else (sight.start_lsn, sight.start_xact)
    found = "is at" if same else "set out from"
    return (
        f"its log had come to byte {known.lsn}, transaction {known.xact}; it {found} byte {lsn}, transaction {xact - 1}"
    )


class Witness:
    """Of one store. ``known`` only grows, but for another incarnation and a store that an operator has reopened."""

    def __init__(self) -> None:
        self.known = Known()
        self.gone_back = False
        """It has less than it had acknowledged to us: nothing is admitted, until it is reopened, or has it again."""
        self.closed = False
        """And that is written in it, so that it is told from the store that it should be."""
        self._older: tuple[str, int] | None = None
        """A server of before a promotion that was found in the store's place, and how often it had been reopened."""

    def arguments(self, enforced: bool = True) -> tuple[str, int, datetime | None, int, int]:
        """The parameters of :func:`guarded`. Not ``enforced``: of what is let in whatever the fence says."""
        known = self.known if enforced else _NOTHING
        return known.incarnation, known.reopened, known.started, known.lsn, known.xact

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Around a guarded statement. Raises :class:`Unavailable` where the store refused it as one that went back."""
        try:
            yield
        except asyncpg.PostgresError as error:
            if error.sqlstate != GONE_BACK:
                raise
            self.gone_back = True
            raise Unavailable(WHY) from error

    async def fetch(
        self, link: Link, limit: float, query: str, arguments: Sequence[Any], *, enforced: bool
    ) -> list[asyncpg.Record]:
        """As :meth:`Link.fetch`, of a guarded statement whose last row has the columns of :func:`position`."""
        before = self.known
        with self.judging():
            rows = await link.fetch(limit, query, *arguments, *self.arguments(enforced))
        if enforced:
            self.saw(rows[-1], before)
        self.leave_another(link, rows[-1])
        return rows

    def leave_another(self, link: Link, row: asyncpg.Record) -> None:
        """The store's sessions are made anew where this one has met another server than the monitor knows: one of the
        two is an old primary that is still up."""
        if self.known.incarnation not in ("", row["here"]):
            link.leave()

    def saw(self, row: asyncpg.Record, before: Known) -> None:
        """The commit of a guarded statement was answered. ``before``: what was known when it was sent."""
        known, xact, started = self.known, row["xact"], row["started"]
        same = row["here"] == known.incarnation and before.reopened == known.reopened
        # Of a server that was started since, the statement has found that it has what was known before; and no more.
        judged = started == known.started or known == before
        if xact is not None and same and judged and not self.gone_back:
            lsn, newest = max(known.lsn, row["lsn"]), max(known.xact, xact)
            self.known = Known(known.incarnation, known.reopened, started, lsn, newest)

    def look(self, before: Known, sight: Sight) -> bool:
        """Compare ``sight`` with what was known ``before`` it was taken. Whether the store is closed."""
        known = self.known
        if self._finds_older(sight):
            return True
        # What a batch taught meanwhile came after the sight; but not where it can only be the server's before this one.
        before = before if sight.started == known.started else known
        if sight.incarnation != known.incarnation or sight.reopened > known.reopened:
            self.known = Known(sight.incarnation, sight.reopened, sight.started, sight.flushed)
            self.gone_back = self.closed = False
        elif behind(before, sight):
            self.gone_back = True
        elif self.gone_back and self.closed and not sight.gone_back:
            self.gone_back = self.closed = False  # the newest files were put back: these are not those that we closed
        elif not self.gone_back:
            self.known = replace(known, started=sight.started, lsn=max(known.lsn, sight.flushed))
        self.closed = self.closed or (self.gone_back and sight.gone_back)
        return self.gone_back or sight.gone_back

    def _finds_older(self, sight: Sight) -> bool:
        """The server of before a promotion is taken for the store only where an operator says so (``reopened``)."""
        found, here = self._older, sight.incarnation
        reopened = self.known.reopened if found is None or found[0] != here else found[1]
        if is_older(here, self.known.incarnation) and sight.reopened <= reopened:
            self._older, self.gone_back, self.closed = (here, sight.reopened), True, sight.gone_back
            return True
        if found is not None:
            self._older, self.gone_back, self.closed = None, False, False
            if is_older(here, self.known.incarnation):
                self.known = Known(here, sight.reopened, sight.started, sight.flushed)
        return False


_NOTHING: Final = Known()
UNKNOWING: Final = Witness()
"""It never learns, and no store is behind it: for batches beside a gateway's own."""
