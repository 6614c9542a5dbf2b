"""Connections to an upstream, over real sockets: kept, replaced while nothing was sent, given up in time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import pytest

from fencegate.gateway.targets.answers import AnswerStream, collect
from fencegate.gateway.targets.pool import ConnectFailed, UpstreamPool
from fencegate.gateway.targets.sending import request_head, send
from fencegate.gateway.targets.upstream import UpstreamBroken, UpstreamConnection
from fencegate.testing import recording_upstream as upstreams
from fencegate.testing.recording_upstream import RecordingUpstream

HEAD = request_head("POST", b"/x", b"Host: h\r\nContent-Length: 0\r\n")


@pytest.fixture
async def upstream() -> AsyncIterator[RecordingUpstream]:
    async with RecordingUpstream() as started:
        yield started


async def exchange(connection: UpstreamConnection) -> None:
    await send(connection, "POST", HEAD, b"", None, chunked=False)


async def one(pool: UpstreamPool) -> None:
    connection = await pool.acquire(3.0)
    await exchange(connection)
    assert (await collect(connection, 1000, patient=True))[0] is not None
    pool.release(connection)


async def test_a_connection_is_kept_for_the_next_exchange(upstream: RecordingUpstream) -> None:
    pool = UpstreamPool(upstream.url)
    for _ in range(3):
        await one(pool)
    await pool.close()
    assert (len(upstream.requests), upstream.connections) == (3, 1)


async def test_an_idle_connection_expires(upstream: RecordingUpstream) -> None:
    pool = UpstreamPool(upstream.url, idle_timeout=0.02)
    await one(pool)
    await asyncio.sleep(0.1)
    await one(pool)
    await pool.close()
    assert upstream.connections == 2


async def test_an_upstreams_own_keep_alive_limit_is_undercut(upstream: RecordingUpstream) -> None:
    upstream.behaviour = upstreams.answers(200, b"ok", ("Keep-Alive", "timeout=1, max=5"))
    pool = UpstreamPool(upstream.url)
    await one(pool)
    await one(pool)
    await pool.close()
    assert upstream.connections == 2


async def test_a_connection_given_back_unused_is_closed(upstream: RecordingUpstream) -> None:
    pool = UpstreamPool(upstream.url)
    pool.give_back_unused(await pool.acquire(3.0))
    await one(pool)
    await pool.close()
    assert (len(upstream.requests), upstream.connections) == (1, 2)


async def test_who_waits_for_a_busy_upstream_waits_for_its_own_time_only(upstream: RecordingUpstream) -> None:
    pool = UpstreamPool(upstream.url, most=1)
    busy = await pool.acquire(3.0)
    with pytest.raises(ConnectFailed, match="busy"):
        await pool.acquire(0.05)
    pool.release(busy)
    pool.release(busy)  # harmless when repeated: the one slot is not two
    again = await pool.acquire(3.0)
    with pytest.raises(ConnectFailed, match="busy"):
        await pool.acquire(0.05)
    pool.release(again)
    await pool.close()


async def test_nobody_at_the_address_is_told_and_holds_no_slot(upstream: RecordingUpstream) -> None:
    url = upstream.url
    await upstream.stop()
    pool = UpstreamPool(url, most=1)
    for _ in range(2):
        with pytest.raises(ConnectFailed, match="cannot be reached"):
            await pool.acquire(1.0)
    await pool.close()


async def test_an_upstream_that_closes_what_it_has_just_accepted_was_sent_nothing() -> None:
    """One that is full, or about to end. A write that is sent there all the same is one of which nobody knows."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept_and_close() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listening.accept()[0].close()

        accepting = threading.Thread(target=accept_and_close)
        accepting.start()
        pool = UpstreamPool(f"http://127.0.0.1:{listening.getsockname()[1]}", most=1)
        told = 0
        for _ in range(50):  # Its end may come a little later than our first look.
            try:
                pool.give_back_unused(await pool.acquire(1.0))
            except ConnectFailed as error:
                told += "closed" in str(error)
        await pool.close()
        listening.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(accepting.join)
    assert told


async def test_at_the_end_of_the_process_nothing_new_is_begun(upstream: RecordingUpstream) -> None:
    """A write whose client has gone is waited for by nobody: it may be admitted only now."""
    pool = UpstreamPool(upstream.url)
    await one(pool)
    await pool.close()
    for read in (False, True):
        with pytest.raises(ConnectFailed, match="ending"):
            await pool.acquire(1.0, read=read)
    assert upstream.connections == 1


@pytest.mark.parametrize("url", ["upstream:80", "ftp://upstream", "http://"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="upstream"):
        UpstreamPool(url)


async def test_an_answer_that_stalls_breaks_off_and_its_connection_is_not_kept(upstream: RecordingUpstream) -> None:
    async def stalls(wire: upstreams.Wire) -> None:
        await wire.read_body()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await wire.reader.read(1)

    upstream.behaviour = stalls
    pool = UpstreamPool(upstream.url)
    connection = await pool.acquire(3.0)
    await exchange(connection)
    assert await collect(connection, 1000, patient=False) == (None, (b"half",))
    stream = AnswerStream(pool, connection, (b"half",), stall=0.05)
    assert await anext(stream) == b"half"
    with pytest.raises(UpstreamBroken, match="stalled"):
        await anext(stream)
    await stream.aclose()
    upstream.behaviour = upstreams.well_behaved
    await one(pool)
    await pool.close()
    assert upstream.connections == 2


async def test_a_stream_gives_its_connection_back_at_its_end(upstream: RecordingUpstream) -> None:
    upstream.behaviour = upstreams.huge(300_000)
    pool = UpstreamPool(upstream.url, most=1)
    connection = await pool.acquire(3.0)
    await exchange(connection)
    content, parts = await collect(connection, 1000, patient=True)
    assert content is None
    size = 0
    async for chunk in AnswerStream(pool, connection, parts, stall=3.0):
        size += len(chunk)
    assert size == 300_000
    upstream.behaviour = upstreams.well_behaved
    await one(pool)
    await pool.close()
    assert upstream.connections == 1
