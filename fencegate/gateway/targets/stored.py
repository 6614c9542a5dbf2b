"""Writes that land in the store itself: what the targets ``ledger`` and ``function`` have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson

from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Write, WriteResult
from fencegate.gateway.exchange import Exchange

Send = Callable[[Write, float], Awaitable[WriteResult]]
"""Takes the write and the seconds left."""


async def read_json(exchange: Exchange) -> bytes:
    """The body, byte for byte, known to be JSON text. Asks for it only after the fence was seen to admit."""
    request = exchange.request
    if request.expects_continue:
        await exchange.peek()
        await request.send_continue()
    body = request.body.at_once()  # Within the route's limit: its length was declared and checked.
    if body is None:
        body = await request.body.read(exchange.route.max_body_bytes)
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise exchange.refused("body_malformed", f"The body must be one JSON text: {error}.") from None
    return body


async def submit(
    exchange: Exchange, body: bytes, send: Send, *, payload: bytes, context: dict[str, object] | None = None
) -> WriteResult:
    """Gives the write to the store; once more if a token above the fence is proved to be issued, or after a hold.

    ``payload``: 16 bytes over all that an idempotency key stands for; another one under the same key is refused.

    Returns a result that was applied, replayed or rejected by the function. Raises ``Refused`` for all
    others: nothing was applied, except where the refusal says unknown.
    """
    started = exchange.around.clock()
    digest = exchange.key_digest()
    issued = 0
    while True:
        # By position, as names cost: role, token, body, issued, key, key_digest, payload_digest, enforce, context.
        write = Write(
            exchange.role,
            exchange.token or 0,
            body,
            issued,
            exchange.key,
            digest,
            payload if exchange.key else b"",
            exchange.enforce,
            context or {},
        )
        result = await _send(exchange, send, write)
        exchange.around.seen.note(exchange.role, result.verdict, result.max_token_seen)
        if result.effect is not None:
            break
        verdict, max_seen = result.verdict, result.max_token_seen
        issued = await exchange.ask_again(verdict, max_seen, issued=issued, in_hand=len(body))
    duration = exchange.around.clock() - started - exchange.held
    exchange.check_effect(result.effect, result.max_token_seen)
    if result.effect is not Effect.REJECTED:
        replayed = result.effect is Effect.REPLAYED
        if not replayed:
            await exchange.note_verdict(result.verdict, result.max_token_seen)
        exchange.accepted(replayed=replayed, check_duration=duration)
    return result


async def _send(exchange: Exchange, send: Send, write: Write) -> WriteResult:
    limit = exchange.time_left()
    exchange.sent = True
    try:
        result = await send(write, limit)
    except Unavailable as error:
        exchange.sent = False
        raise exchange.refused("fence_unavailable", f"The fence store cannot be asked: {error}") from error
    except OutcomeUnknown as error:
        raise exchange.outcome_unknown(f"The store's answer was lost: {error}", error.cause) from error
    exchange.sent = False
    return result
