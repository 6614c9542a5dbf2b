"""The proxy's troubles, each before a real connection on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fencegate.gameday.fault_proxy import FaultProxy, Trouble

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """Answers each line in capitals, and remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line.upper())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    made = Echo()
    made.server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made
    made.server.close()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    assert echo.server is not None
    async with FaultProxy(echo.server.sockets[0].getsockname()) as made:
        yield made


@pytest.fixture
async def pipe(proxy: FaultProxy) -> AsyncIterator[Pipe]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield reader, writer
    writer.close()


async def said(pipe: Pipe, line: bytes, limit: float = 20.0) -> bytes:
    pipe[1].write(line)
    async with asyncio.timeout(limit):
        return await pipe[0].readline()


async def test_all_well_it_passes_both_ways_and_passes_the_end_on(pipe: Pipe) -> None:
    assert await said(pipe, b"hello\n") == b"HELLO\n"
    pipe[1].write_eof()
    assert await pipe[0].read() == b""


async def test_silence_swallows_nothing_and_tells_nobody(proxy: FaultProxy, pipe: Pipe, echo: Echo) -> None:
    proxy.trouble = Trouble.SILENCE
    with pytest.raises(TimeoutError):
        await said(pipe, b"one\n", 0.2)
    assert echo.heard == []
    _, late = await asyncio.open_connection("127.0.0.1", proxy.port)  # taken, and leads nowhere
    late.close()
    proxy.trouble = Trouble.NONE
    async with asyncio.timeout(20):
        assert await pipe[0].readline() == b"ONE\n"


async def test_deaf_it_is_done_and_nobody_hears_of_it(proxy: FaultProxy, pipe: Pipe, echo: Echo) -> None:
    proxy.trouble = Trouble.DEAF
    with pytest.raises(TimeoutError):
        await said(pipe, b"pay\n", 1.5)
    assert echo.heard == [b"pay\n"]


async def test_late_it_comes_late(proxy: FaultProxy, pipe: Pipe) -> None:
    proxy.trouble = Trouble.LATE
    began = asyncio.get_running_loop().time()
    assert await said(pipe, b"a\n") == b"A\n"
    assert asyncio.get_running_loop().time() - began >= 0.4


async def test_a_reset_cuts_what_is_open_and_what_comes(proxy: FaultProxy, pipe: Pipe) -> None:
    assert await said(pipe, b"a\n") == b"A\n"
    proxy.trouble = Trouble.RESET
    with pytest.raises(ConnectionResetError):
        await said(pipe, b"b\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionError):
        assert await reader.read() == b"this is never reached: a reset is no end"
    writer.close()


async def test_by_half_the_answer_breaks_off_though_it_was_done(proxy: FaultProxy, pipe: Pipe, echo: Echo) -> None:
    proxy.trouble = Trouble.HALF
    with pytest.raises(ConnectionError):
        await said(pipe, b"x" * 200 + b"\n")
    assert len(echo.heard) == 1


async def test_closing_ends_every_connection(proxy: FaultProxy, pipe: Pipe) -> None:
    assert await said(pipe, b"a\n") == b"A\n"
    await proxy.close()
    with pytest.raises(ConnectionError):
        await said(pipe, b"b\n")
    await proxy.close()
