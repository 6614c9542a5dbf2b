"""The HTTP clients of Go and of Java, left alone: what they make of a refusal, and what they send twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from multidict import CIMultiDict

from fencegate.gateway.edge_aiohttp import EdgeServer
from fencegate.gateway.edge_protocol import ProtocolEdge
from fencegate.observations import WriteRefused
from fencegate.testing.compiled_programs import Command, go_program, java_program
from fencegate.testing.scripted_gate import Accept, Raw, ScriptedGate
from fencegate.testing.tcp_server import TcpServer
from fencegate.testing.wire_world import FUNCTION, HOME, LEDGER, MemoryStage, World, world_of

SOURCES = Path(__file__).parent / "stacks"
KINDS = {"net/http": "go", "java.net.http": "java", "HttpURLConnection": "java"}
KEY = "Idempotency-Key:pay-#"
HEADERS = ("Content-Type:application/json", "X-Fencing-Token:42")

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Stack:
    """``method`` and ``url``, so many times over one client of its defaults; each answer, or ``None`` for an error."""

    name: str
    command: Command

    async def ask(self, method: str, url: str, times: int, *lines: str) -> list[tuple[int, CIMultiDict[str]] | None]:
        process = await asyncio.create_subprocess_exec(
            *self.command, method, url, str(times), *lines, stdout=asyncio.subprocess.PIPE
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        told = [json.loads(line) for line in out.splitlines()]
        assert len(told) == times, out
        return [None if isinstance(each, str) else (each[0], CIMultiDict(each[1])) for each in told]


@pytest.fixture(scope="module", params=KINDS)
def stack(request: pytest.FixtureRequest, programs: Callable[[str], Command]) -> Stack:
    command = programs(KINDS[request.param])
    return Stack(request.param, command if request.param == "net/http" else (*command, request.param))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Command]:
    built: dict[str, Command] = {}

    def program(language: str) -> Command:
        if language not in built:
            folder = tmp_path_factory.mktemp(language)
            go = language == "go"
            built[language] = (
                go_program(SOURCES / "plain.go", folder) if go else java_program(SOURCES / "Plain.java", folder)
            )
        return built[language]

    return program


@pytest.fixture(params=[ProtocolEdge, EdgeServer], ids=["protocol", "aiohttp"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_of(MemoryStage(), request.param) as started:
        yield started


# Field case 93: hashicorp/go-retryablehttp#257.
async def test_a_write_is_taken_and_a_refusal_is_inert(world: World, stack: Stack) -> None:
    base = f"http://127.0.0.1:{world.port}"
    accepted = await stack.ask("POST", base + LEDGER.path, 2, *HEADERS)
    assert [answer and (answer[0], answer[1]["X-Fencing-Outcome"]) for answer in accepted] == [(201, "accepted")] * 2
    assert await world.effects(LEDGER) == 2
    await world.stage.seal(LEDGER.role)
    world.view.nobody(LEDGER.role)
    for path, token, status, hint, more in (
        (LEDGER.path, 42, 503, None, [KEY]),
        (FUNCTION.path, 41, 409, HOME, []),
    ):
        world.seen.clear()
        (answer,) = await stack.ask("POST", base + path, 1, HEADERS[0], f"X-Fencing-Token:{token}", *more)
        assert answer is not None
        assert (answer[0], answer[1].get("X-Fencing-Leader"), answer[1].get("Location")) == (status, hint, None)
        assert len([seen for seen in world.seen if isinstance(seen, WriteRefused)]) == 1, "sent once, not again"
    assert await world.effects(LEDGER) == 2


SENT: dict[tuple[str, bool, bool], int] = {
    ("net/http", True, True): 2,
    **{("HttpURLConnection", kept, key): 2 for kept in (False, True) for key in (False, True)},
}
"""How often a write goes out whose connection broke, by stack, whether it was a kept one, and whether it had a key."""


# Field case 93.
@pytest.mark.parametrize("key", [False, True], ids=["no key", "a key"])
@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
async def test_what_a_stack_sends_again_by_itself_when_a_connection_breaks_is_what_the_page_says(
    stack: Stack, kept: bool, key: bool
) -> None:
    async with ScriptedGate(otherwise=Accept()) as gate:
        gate.play(*([Accept()] if kept else []), Raw(b""))
        lines = (*HEADERS, *([KEY] if key else []))
        *_, last = await stack.ask("POST", gate.url + "/v1/entries", 2 if kept else 1, *lines)
        sent = gate.writes[kept:]
        assert len(sent) == SENT.get((stack.name, kept, key), 1)
        assert (last is None) == (len(sent) == 1), "what is not sent again is an error, and unknown"
        assert len({write.header("Idempotency-Key") for write in sent}) == 1


# Field case 93.
@pytest.mark.parametrize(("method", "sent"), [("POST", 1), ("PUT", 2)])
async def test_javas_older_client_can_be_kept_from_it_for_posts_alone(
    programs: Callable[[str], Command], method: str, sent: int
) -> None:
    java, *rest = programs("java")
    stack = Stack("HttpURLConnection", (java, "-Dsun.net.http.retryPost=false", *rest, "HttpURLConnection"))
    async with ScriptedGate(otherwise=Accept()) as gate:
        gate.play(Raw(b""))
        await stack.ask(method, gate.url + "/v1/entries", 1, *HEADERS)
        assert len(gate.writes) == sent


class LosesOneAnswer(TcpServer):
    """Before a gateway: the second answer is lost on its way, and the connection with it."""

    def __init__(self, port: int) -> None:
        super().__init__(self._pass_on)
        self._port = port
        self._answers = 0

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer, to_gateway = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                to_gateway.write(await _message(reader))
                said = await _message(answer)
                self._answers += 1
                if self._answers == 2:
                    return
                writer.write(said)
                await writer.drain()
        except asyncio.IncompleteReadError:
            return
        finally:
            to_gateway.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(int(length.partition(b":")[2]))


# Field case 93.
@pytest.mark.parametrize("key", [False, True], ids=["no key", "a key"])
async def test_what_is_sent_again_under_a_key_lands_once_and_without_one_as_often_as_it_is_sent(
    world: World, stack: Stack, key: bool
) -> None:
    link = LosesOneAnswer(world.port)
    await link.start()
    try:
        lines = (*HEADERS, *([KEY] if key else []))
        first, second = await stack.ask("POST", f"http://{link.address}{LEDGER.path}", 2, *lines)
    finally:
        await link.close()
    assert first is not None
    landed = await world.effects(LEDGER)
    if key:
        assert landed == 2
        assert (second is None) == (stack.name == "java.net.http"), "the only one that says that an answer was lost"
        assert second is None or second[1]["Idempotent-Replayed"] == "true"
    else:
        assert landed == (3 if stack.name == "HttpURLConnection" else 2), "a write without a key is not safe with it"
