"""Short ways to say what the tests of the store say all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any

from fencegate.fence import Entry, FenceStore, Forward, StoreClock, StoredAnswer, Write, WritePath

ROLE = "ledger"
HOLDER = "eu/gw-1"


def digest(text: str | bytes) -> bytes:
    return blake2b(text if isinstance(text, bytes) else text.encode(), digest_size=16).digest()


def write(token: int, body: bytes = b'{"n": 1}', key: str = "", role: str = ROLE, **more: Any) -> Write:
    keyed: dict[str, Any] = {"key": key, "key_digest": digest(key), "payload_digest": digest(body)} if key else {}
    return Write(role, token, body, **(keyed | more))


def forward(token: int, key: str = "", role: str = ROLE, upstream_limit: float = 5.0, **more: Any) -> Forward:
    return Forward(role, token, upstream_limit, key_digest=digest(key) if key else b"", **more)


def answer(status: int = 201, body: bytes | None = b"made", payload: bytes = b"payload") -> StoredAnswer:
    return StoredAnswer(status, (("X-A", "1"), ("X-A", "2")), body, digest(payload))


async def open_term(
    store: FenceStore, token: int, *, role: str = ROLE, valid_for: float = 60.0, holder: str = HOLDER
) -> StoreClock:
    """Claims ``token`` and gives the clock that it was claimed with."""
    clock = await store.clock()
    assert await store.claim(role, token, holder, clock, valid_for) is None
    return clock


async def whole_ledger(store: WritePath, role: str = ROLE) -> list[Entry]:
    found: list[Entry] = []
    while more := await store.entries(role, len(found), 5000):
        found += more
    return found


async def bodies(store: WritePath, role: str = ROLE) -> list[bytes]:
    return [entry.body for entry in await whole_ledger(store, role)]


async def until(question: Callable[[], Awaitable[object]], limit: float = 30.0) -> None:
    """Asks again and again until the answer is yes; fails after ``limit`` seconds."""
    async with asyncio.timeout(limit):
        while True:
            if await question():
                return
            await asyncio.sleep(0.01)
