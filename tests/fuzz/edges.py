"""The same bytes to both HTTP edges, over real sockets: they must say the same, and write the same.

Two gateways in this process, with a memory's store and an upstream each. What counts of an answer is its status, its
outcome, and what of the request has landed. Where the edges may differ stands in :func:`difference`, with the reason.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httptools

from fencegate.fence import Verdict
from fencegate.gateway.app import Gateway
from fencegate.gateway.edge_aiohttp import EdgeServer
from fencegate.gateway.edge_protocol import ProtocolEdge
from fencegate.gateway.limits import Limits
from fencegate.testing.wire_world import ROLES, SHARED_ROLES, MemoryStage, World, world_of

LIMITS = Limits(header_timeout=30.0, body_timeout=30.0, idle_timeout=30.0)
_HANG = 10.0
_STILL, _STILL_BUSY = 4, 25
"""Milliseconds."""
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [^\r\n]*")
_STRAY_LINE_END = re.compile(rb"[\r\n](?:[A-Z]|$)")
MALFORMED = (400, "request_malformed, closing")
"""Badly framed; a bad parameter is also called malformed, and nothing ends with it."""


@dataclass(frozen=True)
class Said:
    """What became of the bytes at one edge. ``closed``: the edge ended the connection."""

    answers: tuple[tuple[int, str], ...]
    landed: tuple[tuple[str, bytes], ...]
    closed: bool


class Edges:
    """Both edges, started at the first use, in an event loop that lives between the calls."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._stack = AsyncExitStack()
        self._worlds: list[World] = []

    def said(self, data: bytes, pieces: int = 1) -> tuple[Said, Said]:
        """What the aiohttp edge and the protocol edge make of ``data``, sent in so many pieces."""
        return self._runner.run(self._both(data, pieces))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    async def _both(self, data: bytes, pieces: int) -> tuple[Said, Said]:
        if not self._worlds:
            for edge in (EdgeServer, ProtocolEdge):
                world = world_of(MemoryStage(), _maker(edge), limits=LIMITS)
                self._worlds.append(await self._stack.enter_async_context(world))
        first, second = [await self._one(world, data, pieces) for world in self._worlds]
        return first, second

    async def _one(self, world: World, data: bytes, pieces: int) -> Said:
        _forget(world)
        got = bytearray()
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        listening = asyncio.create_task(_listen(reader, got))
        try:
            async with asyncio.timeout(_HANG):
                size = -(-len(data) // pieces) or 1
                for start in range(0, len(data), size):
                    writer.write(data[start : start + size])
                    await asyncio.sleep(0)
                await _still(world, got, listening)
                if _promises_to_close(bytes(got)):
                    await listening  # it may read the rest of a refused body for a moment first
            closed = listening.done()
        finally:
            listening.cancel()
            writer.transport.abort()
            await asyncio.gather(listening, return_exceptions=True)
        async with asyncio.timeout(_HANG):
            while world.edge.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
        return Said(tuple(answers_in(bytes(got))), tuple(_landed(world)), closed)


def _maker(edge: Any) -> Any:
    def make(gateway: Gateway) -> Any:
        return edge(gateway)

    return make


def _forget(world: World) -> None:
    assert isinstance(world.stage, MemoryStage)
    world.stage.memory.forget()
    world.upstream.requests.clear()
    world.seen.clear()
    for role in (*ROLES, *SHARED_ROLES):  # what it remembers of the fence decides which of two refusals is given
        world.gateway._around.seen.note(role, Verdict.NOT_LEADING, None)


def _landed(world: World) -> list[tuple[str, bytes]]:
    assert isinstance(world.stage, MemoryStage)
    memory = world.stage.memory
    found = [(role, entry.body) for role, entries in sorted(memory.ledger.items()) for entry in entries]
    found += [(name, write.body) for name, write in memory.called]
    found += [(f"{sent.method} {sent.target}", sent.body) for sent in world.upstream.requests if sent.complete]
    return found


async def _listen(reader: asyncio.StreamReader, got: bytearray) -> None:
    try:
        while data := await reader.read(65536):
            got += data
    except ConnectionError:
        return


async def _still(world: World, got: bytearray, listening: asyncio.Task[None]) -> None:
    """Wait until nothing more comes: longer while a request is under way, which may wait for a body of ours."""
    quiet, before = 0, -1
    while quiet < (_STILL_BUSY if world.gateway.in_flight else _STILL) and not listening.done():
        await asyncio.sleep(0.001)
        quiet = quiet + 1 if len(got) == before else 0
        before = len(got)


def _promises_to_close(data: bytes) -> bool:
    return b"\r\nConnection: close\r\n" in data[data.rfind(b"HTTP/1.1 ") :]


def answers_in(data: bytes) -> list[tuple[int, str]]:
    """Status and outcome of each answer; interim ones are left out. Raises ``AssertionError`` for what is no answer."""
    found = []
    while data:
        head, blank, data = data.partition(b"\r\n\r\n")
        assert blank, head
        first, *lines = head.split(b"\r\n")
        status_line = _STATUS.fullmatch(first)
        assert status_line, first
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        assert len(fields) == len(lines), lines
        status = int(status_line[1])
        # An answer to HEAD declares a body that does not follow.
        if not data.startswith(b"HTTP/1.1 "):
            data = data[int(fields.get(b"content-length", b"0")) :]
        if status >= 200:
            outcome = fields.get(b"x-fencing-outcome", b"").decode()
            outcome += " again" if b"idempotent-replayed" in fields else ""
            if outcome == "request_malformed" and fields.get(b"connection") == b"close":
                outcome += ", closing"
            found.append((status, outcome))
    return found


def check(data: bytes, aio: Said, lean: Said) -> None:
    """Raises ``AssertionError`` where an edge broke a promise by itself, or where the two differ without a reason."""
    messages, all_read = read_by_llhttp(data)
    for said in (aio, lean):
        accepted = sum(1 for _, outcome in said.answers if outcome == "accepted")
        assert accepted <= len(said.landed), "accepted, and not there"
        landed = Counter(body for _, body in said.landed)
        assert not all_read or landed <= Counter(messages), "a body that no other reader finds in these bytes"
        if MALFORMED in said.answers:
            assert said.answers.index(MALFORMED) == len(said.answers) - 1, "an answer behind a malformed request"
            assert said.closed, "a malformed request, and the connection goes on"
    assert difference(data, aio, lean), "the edges differ, and nobody knows why"


def difference(data: bytes, aio: Said, lean: Said) -> str:
    """Why the edges may differ in what they say; ``""`` where there is no reason.

    aiohttp's edge may refuse more, and earlier, never less: its parser gives up whole requests that came in one piece
    with a malformed one behind them; it reads line by line, and does not wait for the end of a head; it knows a list of
    methods; and it takes no byte above 127 in a target. Its refusal may be lost to a reset. Only a bare CR or
    LF before a request line is read over by it, where the other takes nothing but a whole empty line.
    """
    if aio == lean:
        return "none"
    refused = aio.answers[-1:] == (MALFORMED,)
    before = aio.answers[:-1] if refused else aio.answers
    earlier = before == lean.answers[: len(before)] and Counter(aio.landed) <= Counter(lean.landed)
    if aio.closed and earlier:
        return "refused earlier" if refused else "the refusal was lost"
    before = lean.answers[:-1] if lean.answers[-1:] == (MALFORMED,) else lean.answers
    further = before == aio.answers[: len(before)] and Counter(lean.landed) <= Counter(aio.landed)
    if lean.closed and further and _STRAY_LINE_END.search(data):
        return "a bare line end was read over"
    return ""


class _Messages:
    """What llhttp finds, by its callbacks."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.behind_head = False
        self._body = b""

    def on_message_begin(self) -> None:
        self._body, self.behind_head = b"", False

    def on_headers_complete(self) -> None:
        self.behind_head = True

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.bodies.append(self._body)


def read_by_llhttp(data: bytes) -> tuple[list[bytes], bool]:
    """The bodies of the whole messages in ``data`` by a third reader, and whether it is a judge of them.

    It is none where it stopped at a method or a target that it does not know, at an upgrade, or behind a "close",
    which it also believes where it stands in a trailer. It refuses a trailer that would frame the message: here such a
    field is checked and dropped with the others, as RFC 9110, section 6.5.1, has it, and frames nothing.
    """
    messages = _Messages()
    parser = httptools.HttpRequestParser(messages)
    try:
        parser.feed_data(data)
    except (httptools.HttpParserInvalidMethodError, httptools.HttpParserInvalidURLError, httptools.HttpParserUpgrade):
        return messages.bodies, False
    except httptools.HttpParserError as error:
        framing_trailer = messages.behind_head and re.search("Content-Length|Transfer-Encoding", str(error))
        return messages.bodies, not framing_trailer and "Connection: close" not in str(error)
    return messages.bodies, True
