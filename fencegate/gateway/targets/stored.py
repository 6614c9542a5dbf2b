"""Writes that land in the store itself: what the targets ``ledger`` and ``function`` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson

from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Verdict, Write, WriteResult
from fencegate.gateway.exchange import Exchange, Pending
from fencegate.gateway.request import Refused
from fencegate.telling import Tell

Send = Callable[[Write, float], Awaitable[WriteResult]]
"""Takes the write and the seconds left."""


def json_at_once(exchange: Exchange) -> bytes | None:
    """The body, byte for byte, known to be JSON text, where it has come; else ``None``, and nothing was taken."""
    request = exchange.request
    body = None if request.expects_continue else request.body.at_once()
    if body is not None:
        _check_json(exchange, body)
    return body


async def read_json(exchange: Exchange) -> bytes:
    """As :func:`json_at_once`, for a body that may still come. Asks for it only after the fence was seen to admit."""
    request = exchange.request
    if request.expects_continue:
        await exchange.peek()
        await request.send_continue()
    body = request.body.at_once()  # Within the route's limit: its length was declared and checked.
    if body is None:
        body = await request.body.read(exchange.route.max_body_bytes)
    _check_json(exchange, body)
    return body


def _check_json(exchange: Exchange, body: bytes) -> None:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise exchange.refused("body_malformed", f"The body must be one JSON text: {error}.") from None


class Sent(Pending):
    """A write that was given to the store, and when; it waits for the store's answer."""

    __slots__ = ("began", "found", "write")

    def __init__(self, exchange: Exchange, write: Write, began: float) -> None:
        super().__init__(exchange)
        self.write = write
        self.began = began
        self.found: WriteResult | BaseException | None = None
        """What the store said, or why it is not waited for any more."""

    def tell(self, found: WriteResult | Exception) -> None:
        """The store's answer is there. Whoever gave it up has been told that it is not known."""
        if self.found is None:
            self.found = found
            self._call()

    def give_up(self) -> None:
        if self.found is None:
            self.found = asyncio.CancelledError()
            asyncio.get_running_loop().call_soon(self._call)


def give(exchange: Exchange, send: Callable[[Write, float, Tell[WriteResult]], None], sent: Sent) -> None:
    """Gives the write to the store. Raises ``Refused`` where it takes none: nothing was applied."""
    limit = exchange.time_left(sent.began)
    exchange.sent = True
    try:
        send(sent.write, limit, sent.tell)
    except Unavailable as error:
        raise _unavailable(exchange, error) from error


def accepted_at_once(sent: Sent) -> WriteResult | None:
    """The result of an answered write, where it is a new write that was admitted and applied; then it is said so.

    ``None``: something else became of it, and nothing was done: :func:`submit` has the whole of it.
    """
    result, exchange = sent.found, sent.exchange
    if not isinstance(result, WriteResult):
        return None
    if result.effect is not Effect.APPLIED or result.verdict is not Verdict.ADMIT:
        return None
    around = exchange.around
    now = around.clock()
    around.seen.note(exchange.role, Verdict.ADMIT, result.max_token_seen, now)
    exchange.accepted(replayed=False, check_duration=now - sent.began)
    return result


async def submit(exchange: Exchange, write: Write, send: Send, first: Sent | None = None) -> WriteResult:
    """Gives the write to the store; once more if a token above the fence is proved to be issued, or after a hold.

    ``first``: it was given to the store before.

    Returns a result that was applied, replayed or rejected by the function. Raises ``Refused`` for all
    others: nothing was applied, except where the refusal says unknown.
    """
    started = exchange.around.clock() if first is None else first.began
    if first is None and (issued := await exchange.proof_first()):
        write = replace(write, issued=issued)
    while True:
        result = await _answer(exchange, send, write, first)
        first = None
        exchange.around.seen.note(exchange.role, result.verdict, result.max_token_seen)
        if result.effect is not None:
            break
        exchange.sent = False  # Nothing was applied. Where something was, a failure from here on must not say so.
        verdict, max_seen = result.verdict, result.max_token_seen
        issued = await exchange.ask_again(verdict, max_seen, issued=write.issued, in_hand=len(write.body))
        write = replace(write, issued=issued)
    duration = exchange.around.clock() - started - exchange.held
    exchange.check_effect(result.effect, result.max_token_seen)
    if result.effect is not Effect.REJECTED:
        replayed = result.effect is Effect.REPLAYED
        if not replayed:
            await exchange.note_verdict(result.verdict, result.max_token_seen)
        exchange.accepted(replayed=replayed, check_duration=duration)
    return result


async def _answer(exchange: Exchange, send: Send, write: Write, first: Sent | None) -> WriteResult:
    try:
        if first is not None:
            assert first.found is not None
            if isinstance(first.found, BaseException):
                raise first.found
            return first.found
        limit = exchange.time_left()
        exchange.sent = True
        return await send(write, limit)
    except Unavailable as error:
        raise _unavailable(exchange, error) from error
    except OutcomeUnknown as error:
        raise exchange.outcome_unknown(f"The store's answer was lost: {error}", error.cause) from error


def _unavailable(exchange: Exchange, error: Unavailable) -> Refused:
    return exchange.refused("fence_unavailable", f"The fence store cannot be asked: {error}")


def write_of(exchange: Exchange, body: bytes, payload: bytes, context: dict[str, object] | None = None) -> Write:
    """The write as the store takes it.

    ``payload``: 16 bytes over all that an idempotency key stands for; another one under the same key is refused.
    """
    # By position, as names cost: role, token, body, issued, key, key_digest, payload_digest, enforce, context, caller.
    return Write(
        exchange.role,
        exchange.token or 0,
        body,
        0,
        exchange.key,
        exchange.key_digest(),
        payload if exchange.key else b"",
        exchange.enforce,
        context or {},
        exchange.caller,
    )
