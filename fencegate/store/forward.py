"""Writes that leave the store: admissions and settlements (rule R12). The marks are in :mod:`fencegate.store.marks`.

An admission is one transaction: the mark, the check, and the key's row, which carries the admission's
own number (``owner``), so that a settlement or a take-back that runs late touches no other try's row.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final

import orjson

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import SETTLED, Admission, Effect, Forward, StoredAnswer, Verdict
from fencegate.observations import Observer
from fencegate.store.admissions import Admissions, Asked
from fencegate.store.batch import NoAnswer, TooBusy
from fencegate.store.lane import Lane, checks_told_to
from fencegate.store.link import Link
from fencegate.store.marks import Marks, Term
from fencegate.store.validity import check_forward
from fencegate.store.witness import Witness
from fencegate.telling import Tell, give, tell_safely

_SETTLE: Final = "SELECT fencegate.settle($1, $2, $3, $4, $5, $6, $7)"
_TAKE_BACK: Final = "SELECT fencegate.take_back($1, $2, $3)"
_NO_DIGEST: Final = bytes(16)
_DRAIN_POLL: Final = 0.02
_SETTLE_TRIES: Final = 3
_ALIKE: Final = 0.02
"""Seconds by which the time of writes that share a question may end apart: they hear with the first that it is over."""
_GRACE: Final = 1.0
"""Seconds after the upstream's limit for which a mark stands at least; migrations/ has the same."""
_TURNS: Final = 12
"""Of the event loop, for admissions: the way to the upstream and back costs more than they do, so that few others would
come while they are under way, and each batch would be small. Bounded, since a busy loop brings some in every turn."""


@dataclass(slots=True)
class _Ticket:
    term: Term
    key_digest: bytes
    owner: bytes
    ends: float
    """Monotonic: when the upstream's limit has passed."""


@dataclass(frozen=True, slots=True)
class _Settlement:
    role: str
    key_digest: bytes
    owner: bytes
    answer: StoredAnswer | None = None
    """``None``: never sent, take the key back."""
    headers: str = ""


class Forwards:
    """Admits, counts what is under way, settles. ``gateway`` is unique among all processes that share the store.

    ``portable``, ``clock_offset``: see :class:`~fencegate.store.admissions.Admissions`.
    """

    def __init__(
        self,
        admit_link: Link,
        settle_link: Link,
        gateway: str,
        limit: float,
        observe: Observer,
        witness: Witness,
        *,
        portable: bool = False,
        clock_offset: float = 0.0,
    ) -> None:
        self._limit = limit
        self._admissions: Lane[Asked, Admission] = Lane(
            admit_link,
            self._send_admit,
            role=lambda a: a.forward.role,
            max_items=256,
            took=checks_told_to(observe),
            turns=_TURNS,
            late=self._tell_nobody,
        )
        self._settlements: Lane[_Settlement, None] = Lane(
            settle_link, self._send_settle, lambda s: s.answer is None, role=lambda s: s.role, max_items=256
        )
        self._marks = Marks(admit_link, self._admissions.exclusive, gateway, limit)
        self._statements = Admissions(
            self._marks, limit, observe, witness, portable=portable, clock_offset=clock_offset
        )
        self._open: dict[Term, Asked] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._next = 1
        self._life = secrets.token_bytes(8)
        self._owners = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def admit(self, forward: Forward, time_limit: float) -> Admission:
        ends, left = monotonic() + time_limit, time_limit
        draining: Admission | None = None
        while True:
            answer: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
            try:
                self.ask(forward, left, partial(self._give, answer))
                admission = await answer
            except (OutcomeUnknown, Unavailable):
                if draining is None or monotonic() + _DRAIN_POLL + _ALIKE < ends:  # clocks may differ by a tick
                    raise
                return draining  # its time ended between two looks, and what it waited for is known
            # No effect though admitted: the key's row expired at this very moment.
            again = admission.effect is None and admission.verdict in (Verdict.UNDRAINED, Verdict.ADMIT)
            if not again:
                return admission
            draining = Admission(Verdict.DRAINING, None, admission.max_token_seen)
            if monotonic() + _DRAIN_POLL >= ends or forward.has_left():
                return draining
            await asyncio.sleep(_DRAIN_POLL)
            left = max(0.0, ends - monotonic())

    def _give(self, answer: asyncio.Future[Admission], found: Admission | Exception) -> None:
        if not answer.done():
            give(answer, found)
        elif isinstance(found, Admission) and found.ticket:  # Whoever asked has gone: nothing will be sent.
            ticket = self._tickets.pop(found.ticket)
            self._start(self._settle(ticket, None, sent=False))

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        """One look, whatever it says. Raises ``ValueError`` as :func:`check_forward`."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        term, due = (forward.role, forward.token), loop.time() + time_limit
        alike = not forward.key_digest and not forward.issued and forward.enforce
        asked = self._open.get(term) if alike else None
        if asked is not None and 0 <= due - asked.due < _ALIKE and 0 <= forward.upstream_limit < inf:
            if forward.upstream_limit > asked.upstream_limit:
                asked.upstream_limit = forward.upstream_limit
            self._admissions.joined()
        else:
            check_forward(forward)
            asked = Asked(forward, term, self._owner(), due, forward.upstream_limit)
            self._admissions.put(asked, 64, time_limit, partial(self._tell, asked))
            if alike:
                self._open[term] = asked
        # Counted before the mark is asked for: nobody removes it in between.
        self._marks.enter(term)
        asked.listeners.append(tell)

    def _tell(self, asked: Asked, found: Admission | Exception) -> None:
        """What became of a question: a ticket is issued to each who still waits, and to nobody else."""
        listeners, asked.listeners = asked.listeners, []
        if isinstance(found, TooBusy | NoAnswer):
            self._close(asked)
            asked.unheard = len(listeners)  # They wait no longer: what becomes of it is seen to once it is known.
        elif isinstance(found, Admission) and found.effect is Effect.APPLIED:
            ends = monotonic() + asked.upstream_limit + _GRACE
            ticket = _Ticket(asked.term, asked.forward.key_digest, asked.owner, ends)
            for tell in listeners:
                tell_safely(tell, self._with_ticket(found, ticket))
            return
        else:
            self._over(asked, len(listeners), found)
        for tell in listeners:
            tell_safely(tell, found)

    def _tell_nobody(self, asked: Asked, found: Admission | FencegateError) -> None:
        self._over(asked, asked.unheard, found)

    def _over(self, asked: Asked, count: int, found: Admission | Exception) -> None:
        """So many will send nothing."""
        self._close(asked)
        for _ in range(count):
            self._marks.leave(asked.term)
        if isinstance(found, OutcomeUnknown) or (isinstance(found, Admission) and found.effect is Effect.APPLIED):
            self._forget(asked)

    def _close(self, asked: Asked) -> None:
        """It is put to the store now, or will never be: nobody joins it any more."""
        if self._open.get(asked.term) is asked:
            del self._open[asked.term]

    def settle(self, number: int, answer: StoredAnswer | None, *, sent: bool) -> Awaitable[None]:
        ticket = self._tickets.pop(number, None)
        if ticket is None:
            return SETTLED
        if ticket.key_digest or (answer is None and sent):
            return self._settle(ticket, answer, sent=sent)
        self._marks.leave(ticket.term)
        return SETTLED

    async def _settle(self, ticket: _Ticket, answer: StoredAnswer | None, *, sent: bool) -> None:
        known = answer is not None or not sent
        if known and (not ticket.key_digest or await self._store(_settlement(ticket, answer))):
            self._marks.leave(ticket.term)
        else:
            self._marks.leave_later(ticket.term, max(0.0, ticket.ends - monotonic()))

    async def close(self) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._limit)
            for task in late:
                task.cancel()
        await self._marks.close()
        await asyncio.gather(self._admissions.close(), self._settlements.close())

    def _owner(self) -> bytes:
        self._owners += 1
        return self._life + self._owners.to_bytes(8, "big")

    def _with_ticket(self, found: Admission, ticket: _Ticket) -> Admission:
        number, self._next = self._next, self._next + 1
        self._tickets[number] = ticket
        return Admission(found.verdict, found.effect, found.max_token_seen, number, found.stored, found.good_until)

    def _forget(self, asked: Asked) -> None:
        """The admission may have been committed unseen; nothing will be sent, so its key must not look taken."""
        if asked.forward.key_digest:
            settlement = _Settlement(asked.forward.role, asked.forward.key_digest, asked.owner)
            self._start(self._take_back(settlement))

    def _start(self, errand: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_back(self, settlement: _Settlement) -> bool:
        """Once the batch under way has ended: taken back before its commit, the key would be there after it."""
        async with self._admissions.exclusive:
            pass
        return await self._store(settlement)

    # -- the two statements ---------------------------------------------------------------------

    async def _send_admit(self, link: Link, asked: list[Asked]) -> Sequence[Admission]:
        for one in asked:
            self._close(one)
        return await self._statements.ask(link, asked)

    async def _store(self, settlement: _Settlement | None) -> bool:
        if settlement is None:
            return False
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
        owners = b"".join(s.owner for s in settlements)
        answers = [s.answer for s in settlements if s.answer is not None]
        if not answers:
            await link.fetch(self._limit, _TAKE_BACK, roles, keys, owners)
        else:
            await link.fetch(
                self._limit,
                _SETTLE,
                roles,
                keys,
                owners,
                b"".join(a.payload_digest or _NO_DIGEST for a in answers),
                [a.status for a in answers],
                [s.headers for s in settlements],
                [a.body for a in answers],
            )
        return [None] * len(settlements)


def _settlement(ticket: _Ticket, answer: StoredAnswer | None) -> _Settlement | None:
    """``None`` where the answer cannot be kept: the mark and the key then stay as for an unknown outcome."""
    if answer is None:
        return _Settlement(ticket.term[0], ticket.key_digest, ticket.owner)
    if answer.payload_digest and len(answer.payload_digest) != len(_NO_DIGEST):
        return None
    try:
        headers = orjson.dumps(answer.headers).decode()
    except orjson.JSONEncodeError:
        return None
    return _Settlement(ticket.term[0], ticket.key_digest, ticket.owner, answer, headers)
