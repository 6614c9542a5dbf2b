"""Writes that leave the store: marks in flight, admissions and settlements (rule R12).

A mark is one committed row per (role, token, gateway). It is kept while this gateway has writes of
that term under way, lingers a moment, and is removed once the last outcome is known; a write whose
outcome is unknown keeps it until the upstream's limit has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import asyncpg
import orjson

from fencegate.errors import FencegateError, Unavailable
from fencegate.fence import Admission, Effect, Forward, StoredAnswer, Verdict
from fencegate.observations import Observer, OrphanedMarkExpired
from fencegate.store.lane import Group, Lane, check_commit_time, group, in_order
from fencegate.store.link import Link

_ADMIT: Final = "SELECT * FROM fencegate.admit($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_SETTLE: Final = "SELECT fencegate.settle($1, $2, $3, $4, $5, $6)"
_TAKE_BACK: Final = "SELECT fencegate.take_back($1, $2)"
_UNMARK: Final = """
    DELETE FROM fencegate.mark m USING fencegate.fence f
     WHERE m.role_id = f.role_id AND f.role = $1 AND m.token = $2 AND m.gateway = $3"""
_NO_DIGEST: Final = bytes(16)
_LINGER: Final = 0.1
_DRAIN_POLL: Final = 0.02
_SETTLE_TRIES: Final = 3

Term = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Ticket:
    term: Term
    key_digest: bytes
    ends: float
    """Monotonic: when the upstream's limit has passed."""


@dataclass(frozen=True, slots=True)
class _Settlement:
    role: str
    key_digest: bytes
    answer: StoredAnswer | None
    """``None``: never sent, take the key back."""


class Forwards:
    """Admits, counts what is under way, settles. ``gateway`` is unique among all processes that share the store."""

    def __init__(self, admit_link: Link, settle_link: Link, gateway: str, limit: float, observe: Observer) -> None:
        self._link = admit_link
        self._gateway = gateway
        self._limit = limit
        self._observe = observe
        self._admissions: Lane[Forward, Admission] = Lane(admit_link, self._send_admit, lambda _: None, max_items=256)
        self._settlements: Lane[_Settlement, None] = Lane(
            settle_link, self._send_settle, lambda s: s.answer is None, max_items=256
        )
        self._tickets: dict[int, _Ticket] = {}
        self._next = 1
        self._under_way: dict[Term, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    async def admit(self, forward: Forward, time_limit: float) -> Admission:
        ends = monotonic() + time_limit
        term = (forward.role, forward.token)
        while True:
            # Counted before the mark is asked for: nobody removes it in between.
            self._enter(term)
            admission = None
            try:
                admission = await self._admissions.submit(forward, 64, max(0.0, ends - monotonic()))
            finally:
                if admission is None or admission.effect is not Effect.APPLIED:
                    self._leave(term)
            if admission.effect is Effect.APPLIED:
                return self._issue_ticket(admission, forward)
            if admission.verdict is not Verdict.UNDRAINED:
                return admission
            if monotonic() + _DRAIN_POLL >= ends:
                return Admission(Verdict.DRAINING, None, admission.max_token_seen)
            await asyncio.sleep(_DRAIN_POLL)

    async def settle(self, number: int, answer: StoredAnswer | None, *, sent: bool) -> None:
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            return
        if answer is None and sent:
            self._later(max(0.0, ticket.ends - monotonic()), ticket.term)
            return
        stored = not ticket.key_digest or await self._store(_Settlement(ticket.term[0], ticket.key_digest, answer))
        if stored:
            self._leave(ticket.term)
        else:
            self._later(max(0.0, ticket.ends - monotonic()), ticket.term)

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Marks of writes that have all ended need not block the next term until they expire.
        for term, count in list(self._under_way.items()):
            if count == 0:
                await self._unmark(term)
        await asyncio.gather(self._admissions.close(), self._settlements.close())

    # -- counting -------------------------------------------------------------------------------

    def _enter(self, term: Term) -> None:
        self._under_way[term] = self._under_way.get(term, 0) + 1

    def _leave(self, term: Term) -> None:
        self._under_way[term] -= 1
        if self._under_way[term] == 0:
            self._call_later(_LINGER, lambda: self._start_unmark(term))

    def _later(self, seconds: float, term: Term) -> None:
        self._call_later(seconds, lambda: self._leave(term))

    def _call_later(self, seconds: float, callback: Any) -> None:
        def run() -> None:
            self._timers.discard(timer)
            callback()

        timer = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(timer)

    def _start_unmark(self, term: Term) -> None:
        if self._under_way.get(term) == 0:
            task = asyncio.get_running_loop().create_task(self._unmark(term))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _unmark(self, term: Term) -> None:
        # No admission is under way while the lane is held, so a count of 0 stays 0 until the row is gone.
        async with self._admissions.exclusive:
            if self._under_way.get(term) != 0:
                return
            del self._under_way[term]
            # Where this fails the mark expires by itself; until then it blocks the next term, which is safe.
            with contextlib.suppress(Unavailable):
                await self._link.read(self._limit, _UNMARK, *term, self._gateway)

    def _issue_ticket(self, admission: Admission, forward: Forward) -> Admission:
        number, self._next = self._next, self._next + 1
        self._tickets[number] = _Ticket(
            (forward.role, forward.token), forward.key_digest, monotonic() + forward.upstream_limit
        )
        return Admission(admission.verdict, admission.effect, admission.max_token_seen, ticket=number)

    # -- the two statements ---------------------------------------------------------------------

    async def _store(self, settlement: _Settlement) -> bool:
        size = len(settlement.answer.body or b"") if settlement.answer else 0
        for _ in range(_SETTLE_TRIES):
            try:
                await self._settlements.submit(settlement, size + 64, self._limit)
            except FencegateError:
                continue  # setting the same answer twice is harmless
            return True
        return False

    async def _send_settle(self, link: Link, settlements: list[_Settlement]) -> Sequence[None]:
        roles = [s.role for s in settlements]
        keys = b"".join(s.key_digest for s in settlements)
        answers = [s.answer for s in settlements if s.answer is not None]
        if not answers:
            await link.fetch(self._limit, _TAKE_BACK, roles, keys)
        else:
            await link.fetch(
                self._limit,
                _SETTLE,
                roles,
                keys,
                b"".join(a.payload_digest or _NO_DIGEST for a in answers),
                [a.status for a in answers],
                [orjson.dumps(a.headers).decode() for a in answers],
                [a.body for a in answers],
            )
        return [None] * len(settlements)

    async def _send_admit(self, link: Link, forwards: list[Forward]) -> list[Admission]:
        groups: list[Group[Any]] = group(forwards)
        ordered: list[Forward] = [forward for g in groups for forward in g.items]
        began = monotonic()
        rows = await link.fetch(
            self._limit,
            _ADMIT,
            self._gateway,
            [g.role for g in groups],
            [g.token for g in groups],
            [g.issued for g in groups],
            [g.enforce for g in groups],
            [max(f.upstream_limit for f in g.items) for g in groups],
            [len(g.items) for g in groups],
            [bool(f.key_digest) for f in ordered],
            b"".join(f.key_digest or _NO_DIGEST for f in ordered),
        )
        check_commit_time(rows[-1]["seconds_left"], monotonic() - began)
        shares, base = [], 0
        for g in groups:
            share = rows[base : base + len(g.items)]
            base += len(g.items)
            for _ in range(share[0]["orphans"] or 0):
                self._observe(OrphanedMarkExpired(g.role, g.token))
            shares.append([_admission(row) for row in share])
        return in_order(groups, shares)


def _admission(row: asyncpg.Record) -> Admission:
    effect = None if row["effect"] is None else Effect(row["effect"])
    stored = None
    if effect is Effect.REPLAYED:
        headers = tuple((name, value) for name, value in orjson.loads(row["headers"] or "[]"))
        stored = StoredAnswer(row["status"], headers, row["answer"], row["payload"])
    return Admission(Verdict(row["verdict"]), effect, row["max_token_seen"], stored=stored)
