"""The ledger's hash chain, computed anew from the entries: what makes a fork visible and a copy provable. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

from fencegate.fence import Entry

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def genesis(role: str) -> bytes:
    """What the first entry of a role is chained to."""
    return sha256(b"fencegate:" + role.encode()).digest()


def chained(previous: bytes, entry: Entry) -> bytes:
    """The hash that ``entry`` must carry after an entry with the hash ``previous``."""
    micros = (datetime.fromisoformat(entry.recorded_at) - _EPOCH) // timedelta(microseconds=1)
    numbers = b"".join(number.to_bytes(8, "big", signed=True) for number in (entry.seq, entry.token, micros))
    return sha256(previous + numbers + (entry.key or "").encode() + b"\x1f" + entry.body).digest()
