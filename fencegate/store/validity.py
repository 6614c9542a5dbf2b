"""What a caller may hand to the store. Checked before a write meets others in a batch, which it could spoil for all."""

from __future__ import annotations

import math

import orjson

from fencegate.fence import Forward, Write
from fencegate.tokens import MAX_TOKEN

DIGEST_SIZE = 16
SEPARATOR = "\x1e"
"""Joins keys and bodies on their way: a control character, which neither JSON text nor a visible key can hold."""
_SEPARATOR_BYTES = SEPARATOR.encode()


def check_write(write: Write) -> None:
    """Raises :class:`ValueError` for a write that no store can take, saying which part of it and why."""
    _check_term(write.role, write.token, write.issued, write.enforce)
    key, body = write.key, write.body
    if not len(write.key_digest) == len(write.payload_digest) == DIGEST_SIZE:  # the usual write has both
        _check_digest("key_digest", write.key_digest)
        _check_digest("payload_digest", write.payload_digest)
    if bool(key) != bool(write.key_digest):
        raise ValueError("a write has both key and key_digest, or neither")
    if key and not write.payload_digest:
        raise ValueError("a write with a key needs a payload_digest")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("a key is made of visible ASCII characters")
    if write.caller and not (write.caller.isascii() and write.caller.isprintable()):
        raise ValueError("a caller is made of printable ASCII characters")
    if _SEPARATOR_BYTES in body or b"\x00" in body:
        raise ValueError("the body holds a control character, which JSON text never does")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None


def check_call(write: Write) -> None:
    """As :func:`check_write`, for one that a function takes with its context."""
    check_write(write)
    try:
        orjson.dumps(write.context)
    except orjson.JSONEncodeError as error:
        raise ValueError(f"the context is no JSON: {error}") from None


def check_forward(forward: Forward) -> None:
    """Raises :class:`ValueError`, as :func:`check_write` does."""
    _check_term(forward.role, forward.token, forward.issued, forward.enforce)
    _check_digest("key_digest", forward.key_digest)
    if not math.isfinite(forward.upstream_limit) or forward.upstream_limit < 0:
        raise ValueError(f"upstream_limit is a finite number of seconds, not {forward.upstream_limit}")


def _check_term(role: str, token: int, issued: int, enforce: bool) -> None:
    if not role or "\x00" in role or SEPARATOR in role:
        raise ValueError("a role has a name, without NUL and without the separator")
    # Observe mode lets a write through that came without a token, as 0; the fence admits that nowhere.
    if not (1 if enforce else 0) <= token <= MAX_TOKEN:
        raise ValueError(f"a fencing token is 1 to {MAX_TOKEN}, not {token}")
    if not 0 <= issued <= MAX_TOKEN:
        raise ValueError(f"issued is 0 to {MAX_TOKEN}, not {issued}")


def _check_digest(name: str, digest: bytes) -> None:
    if digest and len(digest) != DIGEST_SIZE:
        raise ValueError(f"{name} is {DIGEST_SIZE} bytes or none, not {len(digest)}")
