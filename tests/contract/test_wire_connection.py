"""What a client may do with its connection: pipeline, end one side, stop reading, leave; over every edge."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fencegate.gateway.edge_protocol import ProtocolEdge
from fencegate.gateway.limits import Limits
from fencegate.testing import recording_upstream as upstreams
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, chunked, eventually, request
from fencegate.testing.wire_world import HTTP, LEDGER, TARGETS, MemoryStage, Target, World, WorldFactory, world_of

MIB = 1024 * 1024


async def test_a_request_behind_a_chunked_one_is_framed_by_itself(world: World) -> None:
    first = request("POST", LEDGER.path, ("Transfer-Encoding", "chunked"), body=None) + chunked(b'{"a"', b":1}")
    async with Line.to(world.port) as line:
        await line.send((first + request("POST", LEDGER.path, body=b"2")) * 5)
        places = [(await line.answer()).json()["seq"] for _ in range(10)]
    assert places == list(range(1, 11))


async def test_two_requests_arrive_byte_by_byte(world: World) -> None:
    chunky = request("POST", LEDGER.path, ("Transfer-Encoding", "chunked"), body=None) + chunked(b"1")
    async with Line.to(world.port) as line:
        for byte in chunky + request("POST", LEDGER.path, body=b"2"):
            await line.send(bytes([byte]))
        assert [(await line.answer()).json()["seq"] for _ in range(2)] == [1, 2]


async def test_an_empty_line_before_a_request_is_read_over(world: World) -> None:
    async with Line.to(world.port) as line:
        assert_accepted(await line.ask(b"\r\n" + request("POST", LEDGER.path)))
        assert_accepted(await line.ask(b"\r\n" + request("POST", LEDGER.path)))


async def test_a_malformed_request_behind_good_ones_is_refused_in_its_turn(world: World) -> None:
    async with Line.to(world.port) as line:
        await line.send(request("POST", LEDGER.path) * 3 + b"POST / HTTP/1.1\r\nA : b\r\n\r\n")
        answered = 0
        while (answer := await line.answer()).status == 201:
            answered += 1
        assert_refusal(answer, "request_malformed")
        assert await line.is_closed()
    # aiohttp's parser gives up all that came in one piece; then nothing of it may be written either.
    assert answered == await world.effects(LEDGER)
    assert answered in (0, 3)


async def test_the_time_that_a_caller_has_goes_on_while_its_request_waits_behind_another(world: World) -> None:
    hurried = request("POST", LEDGER.path, ("X-Fencing-Timeout-Ms", "500"))
    patient = request("POST", LEDGER.path, ("X-Fencing-Timeout-Ms", "60000"))
    async with Line.to(world.port) as line:
        world.store.hold = asyncio.Event()
        await line.send(request("POST", LEDGER.path) + hurried)
        await eventually(lambda: world.store.waiting == 1)
        await line.send(hurried)
        await asyncio.sleep(0.7)
        await line.send(patient)
        await asyncio.sleep(0.05)
        hold, world.store.hold = world.store.hold, None
        hold.set()
        assert_accepted(await line.answer())
        assert_refusal(await line.answer(), "deadline_exceeded")
        assert_refusal(await line.answer(), "deadline_exceeded")
        assert_accepted(await line.answer())
        assert_accepted(await line.ask(patient))
    assert await world.effects(LEDGER) == 3


async def test_http_1_0_is_closed_unless_it_asks_to_be_kept(world: World) -> None:
    old = request("POST", LEDGER.path).replace(b"HTTP/1.1", b"HTTP/1.0")
    async with Line.to(world.port) as line:
        answer = await line.ask(old.replace(b"Host", b"Connection: keep-alive\r\nHost"))
        assert_accepted(answer)
        assert answer.one("Connection") == "keep-alive"
        answer = await line.ask(old)
        assert_accepted(answer)
        assert answer.one("Connection") == "close"
        assert await line.is_closed()


async def test_connection_close_is_heeded(world: World) -> None:
    async with Line.to(world.port) as line:
        assert_accepted(await line.ask(request("POST", LEDGER.path, ("Connection", "close"))))
        assert await line.is_closed()


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_client_that_leaves_before_its_answer_has_written(world: World, target: Target) -> None:
    world.store.hold = asyncio.Event()
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path))
        await eventually(lambda: world.store.waiting == 1)
    await asyncio.sleep(0.02)
    world.store.hold.set()
    await eventually(lambda: world.gateway.in_flight == 0)
    assert await world.effects(target) == 1


async def test_a_refused_upload_that_is_sent_all_the_same_reads_its_refusal(world: World) -> None:
    message = request("POST", "/big/x", ("Content-Length", str(3 * MIB)), token=41, body=b"")
    async with Line.to(world.port) as line:
        await line.send(message + b"x" * (3 * MIB))
        assert_refusal(await line.answer(), "stale_token")


async def test_a_malformed_upload_that_goes_on_reads_its_refusal() -> None:
    """On the lean edge; on aiohttp's a reset can overtake it, which is a known limit."""
    message = request("POST", "/v1/entries", ("Transfer-Encoding", "chunked"), body=b"1\r\nx\r\nno size\r\n")
    async with world_of(MemoryStage(), ProtocolEdge) as world, Line.to(world.port) as line:
        await line.send(message)
        for _ in range(10):
            line.writer.write(b"x" * 65536)
            await asyncio.sleep(0.01)
        assert_refusal(await line.answer(), "request_malformed")
        assert await line.is_closed()
        assert await world.effects(LEDGER) == 0


async def test_a_body_over_the_limit_is_not_read_to_its_end(world: World) -> None:
    message = request("POST", "/strict", ("Content-Length", str(2**40)), key="k", body=b"")
    async with Line.to(world.port) as line:
        assert_refusal(await line.ask(message), "body_too_large")
        assert await line.is_closed()


async def test_a_client_that_does_not_read_holds_the_upstream_back(world: World) -> None:
    given = 0

    async def gives(wire: upstreams.Wire) -> None:
        nonlocal given
        await wire.read_body()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 * MIB))
        for _ in range(64):
            await wire.send(b"x" * MIB)
            given += MIB

    world.upstream.behaviour = gives
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
    try:
        writer.write(request("GET", HTTP.path, token=None, body=None))
        await eventually(lambda: given > 0)
        await asyncio.sleep(0.3)
        assert given < 32 * MIB  # what the sockets' buffers hold
        size = 0
        while size < 64 * MIB:
            data = await asyncio.wait_for(reader.read(2**20), 20)
            assert data
            size += len(data)
    finally:
        writer.close()


async def test_a_client_that_stops_reading_is_cut_off(new_world: WorldFactory) -> None:
    async with new_world(limits=Limits(idle_timeout=2.0)) as world:
        world.upstream.behaviour = upstreams.huge(64 * MIB)
        _, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
        writer.write(request("GET", HTTP.path, token=None, body=None))
        await eventually(lambda: world.edge.in_flight == 1)
        await eventually(lambda: world.edge.in_flight == 0)
        writer.close()


async def test_requests_that_wait_behind_a_slow_one_do_not_fill_the_memory(world: World) -> None:
    world.store.hold = asyncio.Event()
    burst = request("POST", LEDGER.path, body=b'"' + b"x" * 4000 + b'"')
    async with Line.to(world.port) as line:
        line.writer.write(burst * 5000)  # 20 MB: more than the sockets' buffers hold
        await eventually(lambda: world.store.waiting == 1)
        await asyncio.sleep(0.2)
        assert line.writer.transport.get_write_buffer_size() > 4 * MIB
        world.store.hold.set()
        for n in range(5000):
            assert (await line.answer()).json()["seq"] == n + 1


@pytest.mark.parametrize(
    "message",
    [request("PUT", "/big/x", body=b"x" * 1_000_000), request("POST", LEDGER.path, ("X-Long", "a" * 900_000))],
    ids=["a large body", "a large head"],
)
async def test_a_large_request_that_waits_behind_a_slow_one_is_read_on_in_its_turn(
    new_world: WorldFactory, message: bytes
) -> None:
    """More of it came than may wait, so that nothing more was read; but what is here is not all of it."""
    async with new_world(limits=Limits(header_bytes=1_000_000, header_timeout=10.0, body_timeout=10.0)) as world:
        world.store.hold = asyncio.Event()
        async with Line.to(world.port) as line:
            await line.send(request("POST", LEDGER.path))
            await eventually(lambda: world.store.waiting == 1)
            line.writer.write(message)
            await asyncio.sleep(0.2)
            world.store.hold.set()
            assert_accepted(await line.answer())
            assert_accepted(await line.answer())


@asynccontextmanager
async def connection_with_little_room(port: int) -> AsyncIterator[socket.socket]:
    """A client's socket that is not read by itself, and holds next to nothing of what is sent to it."""
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", port))
        yield own


async def test_a_client_that_stops_reading_is_reset_and_leaves_nothing_unsent_behind(new_world: WorldFactory) -> None:
    async with new_world(limits=Limits(idle_timeout=2.0)) as world:
        for _ in range(20):
            assert_accepted(await world.ask(request("POST", LEDGER.path, body=b'"%b"' % (b"x" * 300_000))))
        loop = asyncio.get_running_loop()
        async with connection_with_little_room(world.port) as own:
            await loop.sock_sendall(own, request("GET", "/v1/entries?limit=20", token=None, body=None) * 3)
            await eventually(lambda: world.edge.connections == 1)
            await eventually(lambda: world.edge.connections == 0)
            got, data = 0, b"-"
            with pytest.raises(ConnectionResetError):  # noqa: PT012
                while data:
                    data = await loop.sock_recv(own, 65536)
                    got += len(data)
            # The rest of six megabytes is gone, and no system still offers it.
            assert got < MIB


async def test_a_client_that_leaves_little_unread_holds_its_connection_no_longer_either(
    new_world: WorldFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than the transport calls full: a close alone would wait for such bytes for ever."""
    monkeypatch.setattr("fencegate.gateway.cut_off.LAST_BYTES", 0.3)
    async with new_world(limits=Limits(idle_timeout=2.0)) as world:
        assert_accepted(await world.ask(request("POST", LEDGER.path, body=b'"%b"' % (b"x" * 20_000))))
        await eventually(lambda: world.edge.connections == 0)
        loop = asyncio.get_running_loop()
        async with connection_with_little_room(world.port) as own:
            await eventually(lambda: world.edge.connections == 1)
            (connection,) = world.edge._connections
            transport = connection.transport if hasattr(connection, "transport") else connection._flow._transport
            for _ in range(500):
                await loop.sock_sendall(own, request("GET", "/v1/entries/1", token=None, body=None))
                await asyncio.sleep(0.005)
                if transport.get_write_buffer_size():
                    break
            assert 0 < transport.get_write_buffer_size() < 65536
            await eventually(lambda: world.edge.connections == 0)
