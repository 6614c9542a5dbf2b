"""The store with a span around every question that a request asks it: how long the fence took, and what it said.

The span is a call of the database; it counts the wait for the batch that the write travels in. A look that nobody's
request waits for alone (``peek``, which a held write's room asks for all of them) has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fencegate.fence import (
    Admission,
    Effect,
    Entry,
    Forward,
    StoredAnswer,
    Verdict,
    Write,
    WritePath,
    WriteResult,
)
from fencegate.telemetry import conventions as names
from fencegate.telemetry.tracing import UNSEEN, Attributes, Span, Tracing
from fencegate.telling import Tell, heard, tell_of

_Answer = TypeVar("_Answer")


class TracedStore:
    """Implements :class:`fencegate.fence.WritePath` by asking ``inner``. A span is a child of the current one."""

    def __init__(self, inner: WritePath, tracing: Tracing, database: Attributes) -> None:
        self._inner = inner
        self._tracing = tracing
        self._database = database

    def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
        tell_of(self.append(write, time_limit), tell)

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        span = self._begin("fencegate.append", write.role, write.token)
        return await _asked(span, self._inner.append(write, time_limit), _decided)

    async def call(self, function: str, write: Write, time_limit: float) -> WriteResult:
        span = self._begin("fencegate.call", write.role, write.token)
        return await _asked(span, self._inner.call(function, write, time_limit), _decided)

    async def admit(self, forward: Forward, time_limit: float) -> Admission:
        span = self._begin("fencegate.admit", forward.role, forward.token)
        return await _asked(span, self._inner.admit(forward, time_limit), _decided)

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        tell_of(self.admit(forward, time_limit), tell)

    async def settle(self, ticket: int, answer: StoredAnswer | None, *, sent: bool = True) -> None:
        span = self._begin("fencegate.settle" if sent else "fencegate.take_back")
        await _asked(span, self._inner.settle(ticket, answer, sent=sent))

    async def peek(self, role: str, token: int, time_limit: float) -> tuple[Verdict, int | None]:
        return await self._inner.peek(role, token, time_limit)

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        span = self._begin("fencegate.idempotency_key", role)
        tell_of(_asked(span, self._knows(role, key_digest, time_limit)), tell)

    async def _knows(self, role: str, key_digest: bytes, time_limit: float) -> bool:
        return await heard(partial(self._inner.knows, role, key_digest, time_limit))

    async def entry(self, role: str, seq: int) -> Entry | None:
        return await _asked(self._begin("fencegate.entry", role), self._inner.entry(role, seq))

    async def entries(self, role: str, after: int, limit: int) -> list[Entry]:
        return await _asked(self._begin("fencegate.entry", role), self._inner.entries(role, after, limit))

    def _begin(self, what: str, role: str = "", token: int = 0) -> Span:
        if not self._tracing.recording:
            return UNSEEN
        found: dict[str, str | int | float | bool] = {**self._database, **names.statement(what)}
        if role:
            found[names.ROLE] = role
        if token:
            found[names.TOKEN] = token
        return self._tracing.begin(f"SELECT {what}", "client", found)


async def _asked(
    span: Span, answer: Awaitable[_Answer], tell: Callable[[Span, _Answer], None] | None = None
) -> _Answer:
    try:
        found = await answer
    except BaseException as error:
        _failed(span, error)
        raise
    if tell is not None:
        tell(span, found)
    span.end()
    return found


def _decided(span: Span, result: WriteResult | Admission) -> None:
    if span.recording:
        found = {names.VERDICT: result.verdict.name.lower()}
        if isinstance(result.effect, Effect):
            found[names.EFFECT] = result.effect.name.lower()
        span.put(found)


def _failed(span: Span, error: BaseException) -> None:
    span.fail(type(error).__name__)
    span.end()
