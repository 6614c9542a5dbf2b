"""The proof that goes with a forwarded write, where its route has a key: see :mod:`fencegate.proof`."""

from __future__ import annotations

import secrets
import time
from typing import Final
from urllib.parse import unquote_to_bytes

from fencegate import tokens
from fencegate.gateway.exchange import Exchange
from fencegate.key_ring import SharedKey
from fencegate.proof import COVERED_BODY, LIFETIME, Passage, Stamp, digest_of, sign

_NAME: Final = tokens.HEADER_PROOF.encode()
_TOKEN: Final = tokens.HEADER_TOKEN.encode()
_MAX_SEEN: Final = tokens.HEADER_MAX_SEEN.encode()
_TIMEOUT: Final = tokens.HEADER_TIMEOUT.encode()
_KEY: Final = tokens.HEADER_IDEMPOTENCY_KEY.encode()
_CALLER: Final = tokens.HEADER_CALLER.encode()


def proof_line(
    exchange: Exchange, key: SharedKey, prefix: str, block: bytes, body: bytes | None
) -> tuple[bytes, bytes]:
    """The header line for a write that is about to be sent with the lines of ``block``, to a path below ``prefix``.

    ``body`` is ``None`` where it has not come yet. The fields that are covered are taken from ``block``, so that what
    is signed is what is sent; a client's own lines of these names have ended before.
    """
    request = exchange.request
    sent = {name: value for name, _, value in (line.partition(b": ") for line in block.split(b"\r\n"))}
    passage = Passage(
        method=request.method,
        path=unquote_to_bytes((prefix + request.path).encode("utf-8", "surrogateescape")),
        query=request.query.encode("utf-8", "surrogateescape"),
        token=sent.get(_TOKEN),
        max_seen=sent.get(_MAX_SEEN),
        timeout_ms=sent.get(_TIMEOUT),
        idempotency_key=sent.get(_KEY),
        caller=sent.get(_CALLER),
    )
    issued = time.time()
    stamp = Stamp(
        issued=int(issued * 1000),
        expires=int((issued + LIFETIME) * 1000),
        nonce=secrets.token_hex(8),
        role=exchange.role,
        mode=exchange.route.mode,
        body=digest_of(body) if body is not None and len(body) <= COVERED_BODY else None,
    )
    return _NAME, sign(key, stamp, passage)
