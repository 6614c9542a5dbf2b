"""The gate's proof: a header that says, under a shared secret, which request the gateway let through and when.

An upstream that checks it takes no write around the gate. It is an HMAC-SHA256 over every fact that the fence
depends on, each written with its length before it, so that no two requests share a text. What is *not* bound: header
fields other than those of :class:`Passage`, and a body of more than :data:`COVERED_BODY` bytes or one that was
still coming when its head went out.

Nothing here looks at a clock or a file: times are arguments, in seconds since the epoch.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fencegate.errors import FencegateError
from fencegate.key_ring import SharedKey, framed, key_of

LIFETIME: Final = 10.0
"""Seconds for which a proof holds: the way from the gateway to the upstream's code, and no more."""
COVERED_BODY: Final = 64 * 1024
"""Bytes up to which a body is covered, where all of it was in the gateway's memory."""

_PROOF: Final = re.compile(
    rb"v=1;key=([A-Za-z0-9._-]{1,32});issued=([1-9][0-9]{0,15});expires=([1-9][0-9]{0,15});nonce=([0-9a-f]{16});"
    rb"role=([A-Za-z0-9._~/-]{1,512});mode=(enforce|observe);body=(-|[0-9a-f]{64});mac=([0-9a-f]{64})"
)
_PURPOSE: Final = b"fencegate proof 1"


@dataclass(frozen=True, slots=True)
class Passage:
    """What an upstream sees of a request and must not see otherwise.

    ``path`` is decoded, as frameworks route by it; ``query`` is raw, without its ``?``. The others are the values of
    header fields as sent, ``None`` for a field that is not there: ``X-Fencing-Token``, ``X-Fencing-Max-Seen``,
    ``X-Fencing-Timeout-Ms``, ``Idempotency-Key``, ``X-Fencing-Caller``.
    """

    method: str
    path: bytes
    query: bytes
    token: bytes | None = None
    max_seen: bytes | None = None
    timeout_ms: bytes | None = None
    idempotency_key: bytes | None = None
    caller: bytes | None = None


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a proof says beside the request. Times in ms since the epoch; ``nonce`` makes each proof another one.

    ``mode`` is ``observe`` where the route refuses nothing yet: such a write was seen by the gate and not admitted.
    ``body`` is the body's SHA-256 in hexadecimal, ``None`` where it is not covered.
    """

    issued: int
    expires: int
    nonce: str
    role: str
    mode: Literal["enforce", "observe"] = "enforce"
    body: str | None = None


class ProofRefused(FencegateError):
    """The proof does not hold. ``code`` is one of the registry's: ``proof_invalid``, ``proof_expired``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def digest_of(body: bytes) -> str:
    """A body as a proof names it."""
    return hashlib.sha256(body).hexdigest()


def canonical(key_id: str, stamp: Stamp, passage: Passage) -> bytes:
    """All that is signed, as one text that can be read back in one way only: each part after its length."""
    told = (stamp.issued, stamp.expires, stamp.nonce, stamp.role, stamp.mode, stamp.body or "-", passage.method)
    parts = [_PURPOSE, key_id.encode(), *(str(part).encode() for part in told), passage.path, passage.query]
    optional = (passage.token, passage.max_seen, passage.timeout_ms, passage.idempotency_key, passage.caller)
    parts += [b"-" if value is None else b"=" + value for value in optional]
    return framed(parts)


def sign(key: SharedKey, stamp: Stamp, passage: Passage) -> bytes:
    """The value of ``X-Fencing-Proof``. Raises ``ValueError`` for a stamp that no reader would take."""
    mac = key.mac(canonical(key.id, stamp, passage)).hex()
    proof = (
        f"v=1;key={key.id};issued={stamp.issued};expires={stamp.expires};nonce={stamp.nonce};"
        f"role={stamp.role};mode={stamp.mode};body={stamp.body or '-'};mac={mac}"
    ).encode()
    if _PROOF.fullmatch(proof) is None:
        raise ValueError(f"no proof can be written for the role {stamp.role!r} of {stamp.issued} ms")
    return proof


def verify(keys: Sequence[SharedKey], proof: bytes, passage: Passage, now: float, skew: float) -> Stamp:
    """What the proof says, if one of ``keys`` made it for this very request and it is fresh.

    ``skew``: seconds by which the two clocks may differ. The body's digest is left to the caller, who has the body.
    Raises :class:`ProofRefused`.
    """
    found = _PROOF.fullmatch(proof)
    if found is None:
        raise ProofRefused("proof_invalid", "X-Fencing-Proof is malformed.")
    key_id, issued, expires, nonce, role, mode, body, mac = (part.decode() for part in found.groups())
    kept_mode: Literal["enforce", "observe"] = "observe" if mode == "observe" else "enforce"
    stamp = Stamp(int(issued), int(expires), nonce, role, kept_mode, None if body == "-" else body)
    key = key_of(keys, key_id)
    if key is None:
        raise ProofRefused("proof_invalid", "X-Fencing-Proof was made with a key that is not known here.")
    wanted = key.mac(canonical(key_id, stamp, passage)).hex()
    if not hmac.compare_digest(wanted, mac):
        raise ProofRefused("proof_invalid", "X-Fencing-Proof was not made for this request.")
    if stamp.issued > (now + skew) * 1000:
        raise ProofRefused("proof_expired", "X-Fencing-Proof is of a time to come: the two clocks are apart.")
    if stamp.expires < (now - skew) * 1000:
        raise ProofRefused("proof_expired", "X-Fencing-Proof is too old.")
    return stamp
