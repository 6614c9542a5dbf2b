"""An election in memory: the contract of a backend in its shortest form, for tests without a server.

One :class:`MemoryQuorum` is the election store; each process has a :class:`MemoryElection` of its own on it.
It has the faults that matter: out of reach for one process, hanging, a lost answer, tokens gone back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from fencegate.lease import (
    HIGHEST_BASE,
    Candidate,
    ElectionBackend,
    ElectionUnavailable,
    Held,
    LeaseLost,
    LeaseTimings,
    Rebased,
    SealRecord,
    Term,
    Won,
)


@dataclass(slots=True)
class _Record:
    candidate: Candidate
    owner: object
    token: int
    expires_at: float
    lease_duration: float
    active: bool = False


@dataclass(slots=True)
class MemoryQuorum:
    """The election store: who holds which role, on one clock (``clock``, seconds)."""

    clock: Callable[[], float]
    next_token: int = 1
    bases: dict[str, int] = field(default_factory=dict)
    holders: dict[str, _Record] = field(default_factory=dict)
    seals: dict[str, SealRecord] = field(default_factory=dict)
    last_won: dict[str, int] = field(default_factory=dict)
    sealed_at: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, dict[object, tuple[Candidate, float]]] = field(default_factory=dict)
    listeners: dict[str, set[asyncio.Event]] = field(default_factory=dict)

    def holder(self, role: str) -> _Record | None:
        record = self.holders.get(role)
        if record is not None and self.clock() >= record.expires_at:
            del self.holders[role]
            return None
        return record

    def tell(self, role: str) -> None:
        for listener in self.listeners.get(role, ()):
            listener.set()


class MemoryElection(ElectionBackend):
    """One process' way to the quorum. ``cut`` makes every call fail, ``hanging`` none return.

    ``lose_answers`` carries calls out and then fails them: the ambiguous case.
    """

    name = "memory"
    proves_terms = True

    def __init__(self, quorum: MemoryQuorum, timings: LeaseTimings) -> None:
        self.cut = False
        self.hanging = False
        self.lose_answers = False
        self.calls: list[str] = []
        self._closed = False
        self._quorum = quorum
        self._lease = timings.lease_duration
        self._hold_back = timings.hold_back
        self._candidacy: dict[str, object] = {}

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        await self._reach("acquire", deadline)
        owner = self._candidacy.setdefault(role, object())
        record = self._quorum.holder(role)
        if record is not None and record.owner is not owner:
            self._stand(role, owner, candidate)
            return Held(self._term(role, record))
        if record is None and self._holds_back(role, candidate):
            self._stand(role, owner, candidate)
            return Held(None)
        self._quorum.waiting.get(role, {}).pop(owner, None)
        seal, before = self._quorum.seals.get(role), self._quorum.last_won.get(role, 0)
        if record is None:
            token = self._quorum.next_token + self._quorum.bases.get(role, 0)
            self._quorum.next_token += 1
            expires_at = self._quorum.clock() + self._lease
            record = self._quorum.holders[role] = _Record(candidate, owner, token, expires_at, self._lease)
            self._quorum.last_won[role] = token
            self._quorum.tell(role)
            self._answer()
            return Won(token, seal if seal and seal.token == before else None)
        self._answer()
        return Won(record.token)

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        await self._reach("renew active" if active else "renew", deadline)
        record = self._ours(role, token)
        if record is None:
            raise LeaseLost(f"term {token} of {role!r} is over")
        changed = record.active != active or record.candidate != candidate
        record.active, record.candidate = active, candidate
        record.expires_at = self._quorum.clock() + self._lease
        if changed:
            self._quorum.tell(role)
        self._answer()

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        await self._reach("release", deadline)
        record = self._quorum.holder(role)
        if record is None or record.token != token:
            return self._quorum.seals.get(role) == sealed
        del self._quorum.holders[role]
        self._quorum.seals[role] = sealed
        self._quorum.sealed_at[role] = self._quorum.clock()
        self._quorum.tell(role)
        self._answer()
        return True

    async def withdraw(self, role: str, deadline: float) -> None:
        owner = self._candidacy.pop(role, None)
        await self._reach("withdraw", deadline)
        self._quorum.waiting.get(role, {}).pop(owner, None)

    async def candidates(self, role: str, deadline: float) -> list[Candidate]:
        await self._reach("candidates", deadline)
        now = self._quorum.clock()
        return [who for who, until in self._quorum.waiting.get(role, {}).values() if now < until]

    async def read(self, role: str, deadline: float) -> Term | None:
        await self._reach("read", deadline)
        record = self._quorum.holder(role)
        return self._term(role, record) if record else None

    async def issued_up_to(self, role: str, deadline: float) -> int:
        await self._reach("issued_up_to", deadline)
        return self._quorum.next_token - 1 + self._quorum.bases.get(role, 0)

    async def rebase(self, role: str, above: int, by: str, deadline: float) -> Rebased:
        if above > HIGHEST_BASE:
            raise ValueError(f"the numbers move up to at most {HIGHEST_BASE}; not to {above}")
        before = await self.issued_up_to(role, deadline)
        if before < above:
            self._quorum.bases[role] = self._quorum.bases.get(role, 0) + above - before
        self._answer()
        return Rebased(before, max(before, above))

    async def changes(self, role: str) -> AsyncIterator[None]:
        wake = asyncio.Event()
        self._quorum.listeners.setdefault(role, set()).add(wake)
        try:
            while True:
                await wake.wait()
                wake.clear()
                yield
        finally:
            self._quorum.listeners[role].discard(wake)

    async def close(self) -> None:
        self._closed = True
        self._candidacy.clear()

    def _stand(self, role: str, owner: object, candidate: Candidate) -> None:
        self._quorum.waiting.setdefault(role, {})[owner] = (candidate, self._quorum.clock() + self._lease)

    def _holds_back(self, role: str, candidate: Candidate) -> bool:
        """A handoff named another region, and neither it nor anybody else has won since."""
        seal = self._quorum.seals.get(role)
        if seal is None or seal.successor in (None, candidate.region) or seal.token != self._quorum.last_won.get(role):
            return False
        return self._quorum.clock() < self._quorum.sealed_at[role] + self._hold_back

    def _ours(self, role: str, token: int) -> _Record | None:
        record = self._quorum.holder(role)
        ours = record is not None and record.token == token and record.owner is self._candidacy.get(role)
        return record if ours else None

    def _term(self, role: str, record: _Record) -> Term:
        who = record.candidate
        left = record.expires_at - self._quorum.clock()
        return Term(
            role,
            record.token,
            who.node,
            who.region,
            who.url,
            record.active,
            record.lease_duration,
            left,
            who.draining_to,
        )

    async def _reach(self, call: str, deadline: float) -> None:
        self.calls.append(call)
        if self._closed:
            raise ElectionUnavailable("the election was closed", "refused")
        await asyncio.sleep(0)
        if self.hanging:
            await asyncio.sleep(deadline)
            raise ElectionUnavailable(f"no answer within {deadline:g} s", "timeout")
        if self.cut:
            raise ElectionUnavailable("out of reach", "connection")

    def _answer(self) -> None:
        if self.lose_answers:
            raise ElectionUnavailable("the answer was lost", "connection")
