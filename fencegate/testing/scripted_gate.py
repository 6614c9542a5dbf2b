"""A gateway that says what it is told to say: for the tests of a client of the wire contract, in any language.

It is a real HTTP/1.1 server on a loopback port. Each request other than discovery takes the next step of the
script; what came is recorded, byte for byte, before anything is answered. It can be wrong on purpose: drop the
connection, stall, stop half way, answer as somebody who is no gateway at all.

    async with ScriptedGate() as gate:
        gate.leads(token=42)
        gate.play(Refuse("overloaded", retry_after=1), Accept({"seq": 1}))
        ...
        assert [write.header("X-Fencing-Token") for write in gate.writes] == ["42", "42"]
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

import orjson

from fencegate.errors import PROBLEMS
from fencegate.tokens import (
    HEADER_APPLIED,
    HEADER_LEADER,
    HEADER_MAX_SEEN,
    HEADER_OUTCOME,
    HEADER_REGION,
    HEADER_REPLAYED,
    HEADER_RETRY,
    OUTCOME_ACCEPTED,
)

WELL_KNOWN: Final = "/.well-known/fencegate/leader/"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as it came. ``at`` is ``time.monotonic()`` when it was whole; ``connection`` counts connections."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    at: float
    connection: int

    def header(self, name: str) -> str | None:
        """The value of a header, ``None`` where it is missing. Raises ``ValueError`` where it came more than once."""
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        if len(values) > 1:
            raise ValueError(f"{name} came {len(values)} times")
        return values[0] if values else None


@dataclass(frozen=True, slots=True)
class Accept:
    """The fence let it through; ``status`` and ``body`` (sent as JSON) are the target's."""

    body: object = None
    status: int = 201
    max_seen: int | None = None
    replayed: bool = False
    region: str = "eu"

    def render(self) -> bytes:
        headers = {HEADER_OUTCOME: OUTCOME_ACCEPTED, HEADER_REGION: self.region}
        if self.max_seen is not None:
            headers[HEADER_MAX_SEEN] = str(self.max_seen)
        if self.replayed:
            headers[HEADER_REPLAYED] = "true"
        return message(self.status, headers, orjson.dumps(self.body), "application/json")


@dataclass(frozen=True, slots=True)
class Refuse:
    """A refusal of the contract, made from the registry; ``headers`` replaces some or (``None``) removes them.

    ``leader`` is the hint's origin and ``leader_token`` the token that the body gives it (without it, headers alone).
    """

    code: str
    max_seen: int | None = None
    leader: str | None = None
    leader_token: int | None = None
    retry_after: str | int | None = None
    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)

    def render(self) -> bytes:
        problem = PROBLEMS[self.code]
        status = self.status or problem.status
        headers: dict[str, str | None] = {
            "Cache-Control": "no-store",
            HEADER_OUTCOME: problem.code,
            HEADER_APPLIED: problem.applied,
            HEADER_RETRY: problem.retry.value,
            HEADER_REGION: "eu",
            HEADER_MAX_SEEN: None if self.max_seen is None else str(self.max_seen),
            HEADER_LEADER: self.leader,
            "Retry-After": None if self.retry_after is None else str(self.retry_after),
        }
        headers.update(self.headers)
        document: dict[str, object] = {
            "type": problem.type,
            "title": problem.title,
            "status": status,
            "detail": f"scripted: {problem.title}",
            "code": problem.code,
        }
        if self.leader is not None and self.leader_token is not None:
            document["leader"] = {"url": self.leader, "token": self.leader_token}
        given = {name: value for name, value in headers.items() if value is not None}
        return message(status, given, orjson.dumps(document), "application/problem+json")


@dataclass(frozen=True, slots=True)
class Foreign:
    """An answer of something that is no gateway: a load balancer, the upstream itself, a captive portal."""

    status: int = 502
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"<html>not a gateway</html>"

    def render(self) -> bytes:
        return message(self.status, dict(self.headers), self.body, "text/html")


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes, then the connection is closed. Empty: the request is read whole and never answered."""

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Half:
    """Another step's answer, cut off ``missing`` bytes before its end; ``hang`` leaves the connection open then."""

    step: Accept | Refuse | Foreign
    missing: int = 1
    hang: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Another step's answer, after ``seconds``."""

    seconds: float
    step: Accept | Refuse | Foreign


Step = Accept | Refuse | Foreign | Raw | Half | Slow
Play = Step | Callable[[Recorded], Step]

OVERRUN: Final = Foreign(501, {}, b"the script of this gate is at its end")


class ScriptedGate:
    """The server. ``writes`` are the recorded requests that took a step, ``discoveries`` the others.

    ``otherwise`` is played once the script is at its end; without it such requests get a 501 that no
    client takes for a gateway's, and ``overrun`` counts them.
    """

    def __init__(self, otherwise: Play | None = None) -> None:
        self.writes: list[Recorded] = []
        self.discoveries: list[Recorded] = []
        self.overrun = 0
        self.connections = 0
        self.otherwise = otherwise
        self.url = ""
        self.discovery: Step = Foreign(404)
        self._script: deque[Play] = deque()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    def play(self, *steps: Play) -> None:
        """Add steps to the script. A function is called with the request and gives the step."""
        self._script.extend(steps)

    def leads(self, token: int, url: str | None = None, role: str = "ledger", grant: str | None = None) -> None:
        """Discovery names ``url`` (this gate, if none is given) as the leader under ``token``, and gives ``grant``."""
        leader = {"url": url or self.url, "region": "eu", "state": "active", "token": token}
        granted = {} if grant is None else {"grant": grant}
        self.discovery = Accept({"role": role, "leader": leader, "token": token, **granted}, status=200)

    async def received(self, writes: int = 0, discoveries: int = 0) -> None:
        """Wait until at least so many requests have come."""
        while len(self.writes) < writes or len(self.discoveries) < discoveries:
            self._news.clear()
            await self._news.wait()

    def nobody_leads(self, retry_after: int | None = None) -> None:
        """Discovery says that there is no leader."""
        self.discovery = Refuse("no_leader", retry_after=retry_after)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer, self.connections))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        try:
            while True:
                request = await _read(reader, connection)
                if not await _perform(self._next(request), writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _next(self, request: Recorded) -> Step:
        self._news.set()
        if request.method == "GET" and request.path.startswith(WELL_KNOWN):
            self.discoveries.append(request)
            return self.discovery
        self.writes.append(request)
        if self._script:
            play: Play = self._script.popleft()
        elif self.otherwise is not None:
            play = self.otherwise
        else:
            self.overrun += 1
            play = OVERRUN
        return play(request) if callable(play) else play


async def _perform(step: Step, writer: asyncio.StreamWriter) -> bool:
    """Play one step; False where the connection ends with it."""
    if isinstance(step, Raw):
        writer.write(step.data)
        await writer.drain()
        return False
    if isinstance(step, Half):
        writer.write(step.step.render()[: -step.missing])
        await writer.drain()
        return step.hang
    if isinstance(step, Slow):
        await asyncio.sleep(step.seconds)
        step = step.step
    writer.write(step.render())
    await writer.drain()
    return True


async def _read(reader: asyncio.StreamReader, connection: int) -> Recorded:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    known = {name.lower(): value for name, value in headers}
    if known.get("transfer-encoding", "").lower() == "chunked":
        body = await _chunks(reader)
    else:
        body = await reader.readexactly(int(known.get("content-length", "0")))
    return Recorded(method, path, headers, body, time.monotonic(), connection)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        continue
    return body


def message(status: int, headers: Mapping[str, str], body: bytes, content_type: str) -> bytes:
    """An HTTP/1.1 response as bytes."""
    try:
        reason = HTTPStatus(status).phrase
    except ValueError:
        reason = "Status"
    fields = {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
