"""What became of a forwarded request: its answer as a reply, as it is kept under a key, or as an unknown outcome."""

from __future__ import annotations

import asyncio
from typing import Final

from fencegate.fence import Admission, Effect, StoredAnswer
from fencegate.gateway.exchange import Exchange
from fencegate.gateway.header_lines import Headers, header_block
from fencegate.gateway.replies import accepted_headers
from fencegate.gateway.reply_bytes import has_body
from fencegate.gateway.request import Refused, Reply
from fencegate.gateway.targets.answer_bytes import ResponseHead
from fencegate.gateway.targets.payload import Payload
from fencegate.gateway.targets.upstream import UpstreamBroken, UpstreamLate

ORIGIN: Final = (b"Fencegate-Origin", b"upstream")
FROM_UPSTREAM: Final = header_block([ORIGIN])
_NOT_KEPT: Final = (b"Fencegate-Replayed-Body", b"not-kept")


def whole(head: ResponseHead, content: bytes, close: bool, block: bytes) -> Reply:
    """The upstream's answer, all of which is here, with our ``block``; not to ``HEAD``."""
    if not has_body("", head.status):
        return Reply(head.status, head.end_to_end, content, close, block)
    theirs, dated = head.block()
    return Reply(head.status, [], content, close, theirs + block, dated)


def unknown(exchange: Exchange, error: BaseException) -> Refused | None:
    """The refusal for a write whose first byte may have been written; ``None``: the error speaks for itself."""
    if isinstance(error, UpstreamLate):
        return exchange.outcome_unknown("The upstream did not answer in time; it may still apply the write.", "timeout")
    if isinstance(error, UpstreamBroken):
        return exchange.outcome_unknown(f"The write was sent and its answer was lost: {error}.", "connection")
    if isinstance(error, Refused):
        detail = f"The request broke off while it was being forwarded: {error.refusal.detail}"
        unknown = exchange.outcome_unknown(detail, "connection")
        unknown.close = True
        return unknown
    return None


async def stored(
    exchange: Exchange, payload: Payload, head: ResponseHead, content: bytes | None
) -> StoredAnswer | None:
    """As :func:`kept`. ``None`` (unknown to a retry) if the client's body cannot be hashed to its end."""
    try:
        async with asyncio.timeout(max(0.0, exchange.left())):
            return kept(head, content, await payload.finish())
    except (Refused, TimeoutError):
        return None


def kept(head: ResponseHead, content: bytes | None, digest: bytes) -> StoredAnswer:
    """The answer to keep under a key. ``content``: ``None`` where it is too long for that."""
    headers = tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in head.end_to_end
        if name.lower() != b"content-length"
    )
    return StoredAnswer(head.status, headers, content, digest)


async def replay(exchange: Exchange, payload: Payload, admission: Admission) -> Reply:
    """The stored answer for the same payload. Raises ``idempotency_key_reused`` for another one."""
    stored = admission.stored
    if stored is None:
        raise exchange.outcome_unknown(
            "An earlier request with this key was answered; its answer is gone.", "connection"
        )
    await exchange.request.send_continue()
    if await payload.finish() != stored.payload_digest:
        exchange.check_effect(Effect.KEY_REUSED, admission.max_token_seen)
    region = exchange.around.places.region
    headers: Headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in stored.headers]
    headers += [ORIGIN, *accepted_headers(region, admission.max_token_seen, replayed=True)]
    if stored.body is None:
        headers.append(_NOT_KEPT)
    return Reply(stored.status, headers, stored.body or b"")
