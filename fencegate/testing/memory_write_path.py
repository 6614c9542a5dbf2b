"""A write path in memory, on the one rule of :func:`fencegate.fence.decide`: for tests of what stands in front of it.

It keeps every promise of :class:`fencegate.fence.WritePath` within one process, the drain barrier and the
idempotency keys included, and can be told to fail. It is no store: nothing survives the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from fencegate.errors import FencegateError
from fencegate.fence import (
    PART_BYTES,
    Admission,
    Effect,
    Entry,
    Fence,
    Forward,
    Mode,
    StillLeads,
    StoredAnswer,
    Verdict,
    Write,
    WriteResult,
    decide,
)
from fencegate.steady_clock import steady_clock
from fencegate.telling import Tell, tell_of

INCARNATION: Final = "memory/1"
_LOOK: Final = 0.02
"""Seconds between two looks whether the caller of a write that waits has left."""

Function = Callable[[Any, dict[str, object]], Any]
"""Takes the parsed body and the context, returns the result; raises :class:`FunctionError` to reject."""


class FunctionError(Exception):
    """What a SQL function's ``RAISE`` is in Postgres."""

    def __init__(self, message: str, sqlstate: str = "P0001", *, detail: str | None = None, hint: str | None = None):
        super().__init__(message)
        self.answer = {"message": message, "sqlstate": sqlstate, "detail": detail, "hint": hint}


@dataclass(slots=True)
class _Mark:
    role: str
    token: int
    key: bytes
    expires_at: float


@dataclass(slots=True)
class _Kept:
    """What an idempotency key stands for: a running forward, an answer, or an unknown outcome."""

    payload: bytes
    result: WriteResult | None = None
    stored: StoredAnswer | None = None
    ticket: int = 0


class MemoryWritePath:
    """The write path of one region. ``clock`` is the store's clock, in seconds.

    Set ``failure`` to an ``Unavailable`` or ``OutcomeUnknown`` to have every question to the store raise it;
    with ``applies_before_failure`` the write lands all the same, as when the answer to a COMMIT is lost.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.incarnation = INCARNATION
        self.fences: dict[str, Fence] = {}
        self.ledger: dict[str, list[Entry]] = {}
        self.functions: dict[str, Function] = {}
        self.called: list[tuple[str, Write]] = []
        self.failure: FencegateError | None = None
        self.applies_before_failure = False
        self.hold: asyncio.Event | None = None
        """While set and clear, every question to the store waits for it."""
        self._marks: dict[int, _Mark] = {}
        self._keys: dict[tuple[str, bytes], _Kept] = {}
        self._tickets = 0
        self._validated: frozenset[str] = frozenset()
        self._still_leads: StillLeads | None = None
        self._changed = asyncio.Condition()

    # -- what an elector does to the store ------------------------------------------------------

    def open(
        self, role: str, token: int, *, mode: Mode = "lease", valid_for: float = 3600.0, holder: str = "t"
    ) -> None:
        """Open term ``token`` (rule R5), or in token mode seed the fence with it."""
        before = self.fences.get(role)
        valid_until = float("inf") if mode == "token" else self.clock() + valid_for
        sealed = 0 if before is None else before.sealed
        last_seq = 0 if before is None else before.last_seq
        self.fences[role] = Fence(role, mode, token, sealed, valid_until, self.incarnation, holder, last_seq)

    def seal(self, role: str) -> None:
        """Rule R7: the running term is over here for good."""
        fence = self.fences[role]
        self.fences[role] = replace(fence, sealed=fence.max_token_seen, valid_until=float("-inf"))

    def set_draining(self, role: str, draining: bool) -> None:
        """Announce, or take back, that the term is ending."""
        self.fences[role] = replace(self.fences[role], draining=draining)

    def forget(self) -> None:
        """Nothing was ever written here: no entry, no call, no key. The fences stay as they are."""
        self.ledger.clear()
        self.called.clear()
        self._keys.clear()

    def marks(self, role: str) -> int:
        """Writes of ``role`` that are under way outside the store."""
        return sum(1 for mark in self._marks.values() if mark.role == role)

    def validate(self, roles: Collection[str], still_leads: StillLeads) -> None:
        """Rule R15: writes of ``roles`` need a proof of their term."""
        self._validated, self._still_leads = frozenset(roles), still_leads

    # -- WritePath --------------------------------------------------------------------------------

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        return await self._stored(write, self._append)

    def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
        tell_of(self.append(write, time_limit), tell)

    async def call(self, function: str, write: Write, time_limit: float) -> WriteResult:
        def run(write: Write, verdict: Verdict, max_seen: int | None) -> WriteResult:
            self.called.append((function, write))
            try:
                result = self.functions[function](orjson.loads(write.body), write.context)
            except FunctionError as error:
                return WriteResult(verdict, Effect.REJECTED, max_seen, answer=orjson.dumps(error.answer))
            return WriteResult(verdict, Effect.APPLIED, max_seen, answer=orjson.dumps(result))

        return await self._stored(write, run)

    async def admit(self, forward: Forward, time_limit: float) -> Admission:
        await self._asked()
        known = self._keys.get((forward.role, forward.key_digest)) if forward.key_digest else None
        max_seen = self._max_seen(forward.role)
        if known is not None:
            verdict = self._decide(forward.role, forward.token, forward.issued)
            if known.stored is not None:
                return Admission(verdict, Effect.REPLAYED, max_seen, stored=known.stored)
            running = known.ticket in self._marks
            return Admission(verdict, Effect.IN_PROGRESS if running else Effect.UNKNOWN, max_seen)
        verdict = self._decide(forward.role, forward.token, forward.issued)
        if verdict is not Verdict.ADMIT and forward.enforce:
            return Admission(verdict, None, max_seen)
        if verdict is Verdict.ADMIT:
            max_seen = self._raise(forward.role, forward.token)
            if not await self._drained(forward, time_limit):
                return Admission(Verdict.UNDRAINED, None, max_seen)
            verdict = self._decide(forward.role, forward.token, forward.issued)
            if verdict is not Verdict.ADMIT and forward.enforce:
                return Admission(verdict, None, self._max_seen(forward.role))
        if not await self._proved(forward):
            return Admission(Verdict.NOT_LEADING, None, max_seen)
        self._tickets += 1
        self._marks[self._tickets] = _Mark(
            forward.role, forward.token, forward.key_digest, self.clock() + forward.upstream_limit
        )
        if forward.key_digest:
            self._keys[forward.role, forward.key_digest] = _Kept(b"", ticket=self._tickets)
        good_until = self._good_until(forward)
        return Admission(verdict, Effect.APPLIED, max_seen, ticket=self._tickets, good_until=good_until)

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        tell_of(self.admit(forward, time_limit), tell)

    async def settle(self, ticket: int, answer: StoredAnswer | None, *, sent: bool = True) -> None:
        mark = self._marks.get(ticket)
        if mark is None:
            return
        if answer is None and sent:
            kept = self._keys.get((mark.role, mark.key)) if mark.key else None
            if kept is not None:
                kept.ticket = 0
            return
        del self._marks[ticket]
        if mark.key and answer is None:
            self._keys.pop((mark.role, mark.key), None)
        elif mark.key and answer is not None:
            self._keys[mark.role, mark.key] = _Kept(answer.payload_digest, stored=answer)
        async with self._changed:
            self._changed.notify_all()

    async def peek(self, role: str, token: int, time_limit: float) -> tuple[Verdict, int | None]:
        await self._asked()
        return self._decide(role, token, 0), self._max_seen(role)

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        tell_of(self._knows(role, key_digest), tell)

    async def _knows(self, role: str, key_digest: bytes) -> bool:
        await self._asked()
        return (role, key_digest) in self._keys

    async def entry(self, role: str, seq: int) -> Entry | None:
        await self._asked()
        entries = self.ledger.get(role, [])
        return entries[seq - 1] if 0 < seq <= len(entries) else None

    async def entries(self, role: str, after: int, limit: int) -> list[Entry]:
        await self._asked()
        part: list[Entry] = []
        for entry in self.ledger.get(role, [])[after : after + limit]:
            part.append(entry)
            if sum(len(entry.body) for entry in part) >= PART_BYTES:
                break
        return part

    # -- inside -----------------------------------------------------------------------------------

    async def _asked(self) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None and not self.applies_before_failure:
            raise self.failure

    async def _proved(self, write: Write | Forward) -> bool:
        """Asked before anything is kept: there is nothing durable here that could come too late."""
        if self._still_leads is None or not write.enforce or write.role not in self._validated:
            return True
        return await self._still_leads(write.role, write.token, 1.0)

    def _decide(self, role: str, token: int, issued: int) -> Verdict:
        return decide(self.fences.get(role), token, issued=issued, now=self.clock(), incarnation=self.incarnation)

    def _good_until(self, forward: Forward) -> float:
        fence = self.fences.get(forward.role)
        left = fence.valid_until - self.clock() if fence is not None and forward.enforce else math.inf
        return steady_clock() + left

    def _max_seen(self, role: str) -> int | None:
        fence = self.fences.get(role)
        return None if fence is None else fence.max_token_seen

    def _raise(self, role: str, token: int) -> int:
        fence = self.fences[role]
        self.fences[role] = replace(fence, max_token_seen=max(fence.max_token_seen, token))
        return self.fences[role].max_token_seen

    async def _drained(self, forward: Forward, time_limit: float) -> bool:
        """Waits until no mark of an older term stands; marks whose limit has passed don't count (rule R12)."""
        role, token = forward.role, forward.token
        until = time.monotonic() + time_limit
        while True:
            older = [mark for mark in self._marks.values() if mark.role == role and mark.token < token]
            if all(mark.expires_at <= self.clock() for mark in older):
                return True
            left = min(until - time.monotonic(), _LOOK, *(max(0.001, mark.expires_at - self.clock()) for mark in older))
            if left <= 0 or forward.has_left():
                return False
            async with self._changed:
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    continue

    async def _stored(self, write: Write, apply: Callable[[Write, Verdict, int | None], WriteResult]) -> WriteResult:
        await self._asked()
        verdict = self._decide(write.role, write.token, write.issued)
        max_seen = self._max_seen(write.role)
        kept = self._keys.get((write.role, write.key_digest)) if write.key_digest else None
        if kept is not None and kept.result is not None:
            if kept.payload != write.payload_digest:
                return WriteResult(verdict, Effect.KEY_REUSED, max_seen)
            return replace(kept.result, verdict=verdict, effect=Effect.REPLAYED, max_token_seen=max_seen)
        if verdict is not Verdict.ADMIT and write.enforce:
            return WriteResult(verdict, None, max_seen)
        if verdict is Verdict.ADMIT:
            max_seen = self._raise(write.role, write.token)
            if not await self._proved(write) or self._decide(write.role, write.token, write.issued) != verdict:
                return WriteResult(Verdict.NOT_LEADING, None, max_seen)
        result = apply(write, verdict, max_seen)
        if write.key_digest and result.effect is Effect.APPLIED:
            self._keys[write.role, write.key_digest] = _Kept(write.payload_digest, result)
        if self.failure is not None:
            raise self.failure
        return result

    def _append(self, write: Write, verdict: Verdict, max_seen: int | None) -> WriteResult:
        entries = self.ledger.setdefault(write.role, [])
        before = entries[-1].hash if entries else ""
        seq = len(entries) + 1
        digest = hashlib.sha256(f"{before}|{write.role}|{seq}|{write.token}|".encode() + write.body).hexdigest()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock()))
        entry = Entry(write.role, seq, write.token, stamp, write.body, digest, write.key or None, write.caller or None)
        entries.append(entry)
        return WriteResult(verdict, Effect.APPLIED, max_seen, entry=replace(entry, body=b""))
