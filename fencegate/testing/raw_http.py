"""Raw sockets for tests of an HTTP contract: each byte of a request is the test's own, each of an answer is read.

The ``assert_*`` functions hold the wire contract's promises about accepted and refused writes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fencegate.errors import PROBLEMS

TOKEN = 42
"""The token of the running term in :mod:`fencegate.testing.wire_world`."""
PATIENCE = 20.0
"""Seconds for what comes by itself: on a busy machine it takes a while, and nobody waits for longer than it takes."""


@dataclass
class Answer:
    """One final answer; ``interim`` are the statuses of those before it. ``closed``: the server then ended."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    interim: list[int]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        """The only value under this name; ``None`` without one."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> dict[str, Any]:
        document = json.loads(self.body)
        assert isinstance(document, dict)
        return document


class Line:
    """One raw connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Line]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, request: bytes, *, limit: float = PATIENCE) -> Answer:
        await self.send(request)
        return await self.answer(head=request.startswith(b"HEAD "), limit=limit)

    async def answer(self, *, head: bool = False, limit: float = PATIENCE) -> Answer:
        """The next final answer. Raises ``TimeoutError`` or ``asyncio.IncompleteReadError``."""
        interim: list[int] = []
        async with asyncio.timeout(limit):
            while True:
                status, headers = await self._head()
                if status >= 200:
                    break
                interim.append(status)
            answer = Answer(status, headers, b"", interim)
            if not head and status not in (204, 304):
                answer.body = await self._body(answer)
        return answer

    async def is_closed(self, limit: float = PATIENCE) -> bool:
        """Whether the server ends the connection, without another byte."""
        try:
            async with asyncio.timeout(limit):
                return await self.reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    async def _head(self) -> tuple[int, list[tuple[str, str]]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        return int(status), [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]

    async def _body(self, answer: Answer) -> bytes:
        length = answer.one("Content-Length")
        if length is not None:
            assert not answer.all("Transfer-Encoding")
            return await self.reader.readexactly(int(length))
        if answer.one("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                parts.append(await self.reader.readexactly(size))
                await self.reader.readexactly(2)
            assert await self.reader.readexactly(2) == b"\r\n"
            return b"".join(parts)
        return await self.reader.read(-1)


def request(
    method: str,
    path: str,
    *headers: tuple[str, str | bytes],
    token: str | int | bytes | None = TOKEN,
    key: str | None = None,
    body: bytes | None = b'{"amount":1}',
    host: bool = True,
) -> bytes:
    """A request as bytes. ``token=None`` and ``body=None`` leave the header out; nothing is checked or mended."""
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1")]
    if host:
        lines.append(b"Host: gate.example")
    if token is not None:
        lines.append(b"X-Fencing-Token: " + (token if isinstance(token, bytes) else str(token).encode()))
    if key is not None:
        lines.append(b"Idempotency-Key: " + key.encode())
    for name, value in headers:
        lines.append(name.encode("latin-1") + b": " + (value if isinstance(value, bytes) else value.encode("latin-1")))
    framed = any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers)
    if body is not None and not framed:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def assert_refusal(answer: Answer, code: str, *, status: int | None = None) -> dict[str, Any]:
    """Headers that are enough to act on, and a body that says the same. The body."""
    kind = PROBLEMS[code]
    assert (answer.status, answer.one("X-Fencing-Outcome")) == (status or kind.status, code), answer.body
    assert answer.one("Content-Type") == "application/problem+json"
    assert answer.one("Cache-Control") == "no-store"
    assert answer.one("X-Fencing-Applied") == kind.applied
    assert answer.one("X-Fencing-Retry") == kind.retry.value
    assert answer.one("X-Fencing-Region") == "eu"
    assert answer.one("Location") is None
    document = answer.json()
    assert document["type"] == f"urn:fencegate:problem:{code}"
    assert document["title"] == kind.title
    assert document["status"] == answer.status
    assert document["code"] == code
    assert document["applied"] == kind.applied
    assert document["retry"] == kind.retry.value
    assert document["retryable"] is kind.retryable
    assert document["instance"].startswith("urn:uuid:")
    assert document["detail"]
    seen = answer.one("X-Fencing-Max-Seen")
    assert (None if seen is None else int(seen)) == document.get("max_token_seen")
    assert answer.one("X-Fencing-Leader") == document.get("leader", {}).get("url")
    after = answer.one("Retry-After")
    assert document["retry_after_ms"] == 0 if after is None else int(after) == -(-document["retry_after_ms"] // 1000)
    return document


def assert_accepted(answer: Answer, *, replayed: bool = False) -> None:
    assert answer.one("X-Fencing-Outcome") == "accepted", (answer.status, answer.body)
    assert answer.one("X-Fencing-Region") == "eu"
    assert answer.one("X-Fencing-Max-Seen") is not None
    assert answer.one("Idempotent-Replayed") == ("true" if replayed else None)
    assert answer.one("X-Fencing-Applied") is None


async def eventually(condition: Callable[[], bool], limit: float = PATIENCE) -> None:
    """Wait for a fact that another task is about to make true."""
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, "it never came true"
        await asyncio.sleep(0.005)
