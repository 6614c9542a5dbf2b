"""The ledger's hash chain, stated a second time outside the database, so that anybody can check a copy of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fencegate.fence import Entry

_END: Final = b"\x1f"
"""Of a key, and of a body behind which a caller stands: no JSON text and no key holds it."""


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """The first entry that does not follow from the one before it, and why."""

    seq: int
    reason: str


def genesis(role: str) -> bytes:
    """What the first entry's hash is chained to: ``sha256("fencegate:" + role)``. 32 bytes."""
    return hashlib.sha256(f"fencegate:{role}".encode()).digest()


def link(previous: bytes, entry: Entry) -> bytes:
    """The hash that ``entry`` must carry after an entry with the hash ``previous``. 32 bytes; see :func:`verify_chain`.

    Raises ``ValueError`` where ``recorded_at`` is no RFC 3339 instant.
    """
    message = b"".join(
        (
            previous,
            entry.seq.to_bytes(8, "big", signed=True),
            entry.token.to_bytes(8, "big", signed=True),
            _micros(entry.recorded_at).to_bytes(8, "big", signed=True),
            (entry.key or "").encode(),
            _END,
            entry.body,
            *((_END, entry.caller.encode()) if entry.caller else ()),
        )
    )
    return hashlib.sha256(message).digest()


def verify_chain(role: str, entries: Iterable[Entry], *, after: tuple[int, bytes] | None = None) -> BrokenLink | None:
    """The first broken link of a ledger, or ``None`` if it is whole. ``entries`` come with their bodies, in order.

    The formula::

        hash(0) = sha256("fencegate:" + role)
        hash(n) = sha256(hash(n-1) + seq + token + recorded_at + key + 0x1F + body [+ 0x1F + caller])

    ``+`` joins bytes. ``seq``, ``token`` and ``recorded_at`` (microseconds since 1970 in UTC) are 8 bytes each,
    signed, big-endian; ``key`` is the idempotency key in ASCII, empty without one; ``body`` is the JSON text
    as it was sent, in UTF-8; ``0x1F + caller`` stands only where the entry has a caller. None of the three holds 0x1F,
    so that no entry can pass for another. Sequence numbers begin at 1 and have no gaps.

    ``after`` is the (seq, hash) of an entry already trusted, to go on from there.
    """
    seq, previous = after or (0, genesis(role))
    for entry in entries:
        seq += 1
        if entry.role != role:
            return BrokenLink(seq, f"an entry of role {entry.role!r} among those of {role!r}")
        if entry.seq != seq:
            return BrokenLink(seq, f"entry {entry.seq} stands where {seq} is due")
        if _END in entry.body or any(_END in (text or "").encode() for text in (entry.key, entry.caller)):
            return BrokenLink(seq, "a key, a body or a caller holds what separates them")
        previous = link(previous, entry)
        if previous.hex() != entry.hash:
            return BrokenLink(seq, "the hash does not follow from the entry and the one before it")
    return None


def _micros(recorded_at: str) -> int:
    instant = datetime.fromisoformat(recorded_at)
    if instant.tzinfo is None:
        raise ValueError(f"an instant needs its offset from UTC: {recorded_at!r}")
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    gone = instant - epoch
    return (gone.days * 86_400 + gone.seconds) * 1_000_000 + gone.microseconds
