"""One exchange on one upstream connection, byte by byte: what is an answer, and what leaves the outcome unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencegate.gateway.header_lines import checked_block
from fencegate.gateway.request import refused
from fencegate.gateway.targets.sending import request_head, send
from fencegate.gateway.targets.upstream import UpstreamBroken, UpstreamConnection

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Transport(asyncio.Transport):
    """Keeps what was written; ``aborted`` once the connection was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def connected(method: str = "POST") -> tuple[UpstreamConnection, Transport]:
    connection, transport = UpstreamConnection(), Transport()
    connection.connection_made(transport)
    connection.begin(method)
    return connection, transport


async def body_of(connection: UpstreamConnection) -> bytes:
    found = b""
    while chunk := await connection.next_chunk():
        found += chunk
    return found


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_an_answer_is_the_same_however_its_bytes_arrive(size: int) -> None:
    connection, _ = connected()
    for start in range(0, len(OK), size):
        connection.data_received(OK[start : start + size])
    assert (await connection.head()).status == 200
    assert await body_of(connection) == b"ok"
    assert connection.reusable


async def test_interim_answers_are_not_the_answer() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK)
    head = await connection.head()
    assert (head.status, [name for name, _ in head.headers]) == (200, [b"Content-Length"])


async def test_trailers_are_dropped() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n")
    head = await connection.head()
    assert await body_of(connection) == b"ok"
    assert [name for name, _ in head.headers] == [b"Transfer-Encoding"]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"),
    ],
)
async def test_an_answer_that_has_no_body_ends_with_its_head(method: str, answer: bytes) -> None:
    connection, _ = connected(method)
    connection.data_received(answer)
    assert await body_of(connection) == b""
    assert connection.reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000,
        b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
    ids=["nonsense", "another coding", "switched protocols", "an endless head", "a status of two digits"],
)
async def test_what_is_no_answer_breaks_the_exchange_and_the_connection(answer: bytes) -> None:
    connection, transport = connected()
    connection.data_received(answer)
    with pytest.raises(UpstreamBroken):
        await connection.head()
    assert transport.aborted
    assert not connection.reusable


async def test_an_end_before_the_answers_end_breaks_it_and_one_without_a_length_ends_there() -> None:
    short, _ = connected()
    short.data_received(OK[:-1])
    short.connection_lost(None)
    with pytest.raises(UpstreamBroken):
        await body_of(short)
    open_ended, _ = connected()
    open_ended.data_received(b"HTTP/1.1 200 OK\r\n\r\nto the end")
    open_ended.connection_lost(None)
    assert await body_of(open_ended) == b"to the end"
    reset, _ = connected()
    reset.data_received(b"HTTP/1.1 200 OK\r\n\r\nto the")
    reset.connection_lost(ConnectionResetError())
    with pytest.raises(UpstreamBroken):
        await body_of(reset)


async def test_bytes_after_the_answer_end_the_connection() -> None:
    connection, transport = connected()
    connection.data_received(OK)
    assert await body_of(connection) == b"ok"
    connection.data_received(OK)
    assert transport.aborted


async def test_a_reader_that_does_not_keep_up_stops_the_upstream() -> None:
    connection, transport = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\n" + b"x" * 600_000)
    assert not transport.reading
    assert len(await body_of(connection)) == 600_000
    assert transport.reading


async def test_an_answer_that_is_handed_out_at_once_leaves_a_connection_that_is_read_again() -> None:
    """More than fits, and whole before anybody asks for it: the next answer has to be heard too."""
    connection, transport = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 200_000)
    connection.data_received(b"x" * 100_000)
    assert len(connection.whole_body() or b"") == 300_000
    assert connection.reusable
    assert transport.reading


async def test_an_answer_up_to_the_end_that_we_ended_ourselves_is_not_whole() -> None:
    connection, _ = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nto the")
    connection.close()
    connection.connection_lost(None)
    with pytest.raises(UpstreamBroken):
        await body_of(connection)


async def test_nothing_is_written_on_a_connection_that_is_gone() -> None:
    connection, transport = connected()
    transport.abort()
    with pytest.raises(UpstreamBroken):
        connection.write(b"x")


async def test_an_early_answer_ends_the_upload_and_spoils_the_connection() -> None:
    connection, _ = connected()
    never = asyncio.Event()

    async def rest() -> AsyncIterator[bytes]:
        yield b"one"
        await never.wait()

    sending = asyncio.create_task(send(connection, "POST", b"HEAD\r\n\r\n", b"", rest(), chunked=False))
    await asyncio.sleep(0)
    connection.data_received(OK)
    assert (await sending).status == 200
    assert await body_of(connection) == b"ok"
    assert not connection.reusable


async def test_an_upload_that_breaks_off_as_its_answer_comes_spoils_the_connection() -> None:
    """The upstream still waits for the rest: the next request on this connection would be read as that."""
    connection, _ = connected()
    broken = asyncio.Event()

    async def rest() -> AsyncIterator[bytes]:
        yield b"one"
        await broken.wait()
        raise refused("request_malformed", "The body broke off.")

    sending = asyncio.create_task(send(connection, "POST", b"HEAD\r\n\r\n", b"", rest(), chunked=False))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    connection.data_received(OK)
    broken.set()
    assert (await sending).status == 200
    assert await body_of(connection) == b"ok"
    assert not connection.reusable


async def test_a_chunked_body_is_framed_anew_and_ended() -> None:
    connection, transport = connected()

    async def rest() -> AsyncIterator[bytes]:
        yield b"bc"

    sending = asyncio.create_task(send(connection, "POST", b"H\r\n\r\n", b"a", rest(), chunked=True))
    for _ in range(5):
        await asyncio.sleep(0)  # The sender's turns.
    connection.data_received(OK)
    await sending
    assert transport.written == b"H\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"


@pytest.mark.parametrize("value", [b"a\r\nX: b", b"a\nb", b"a\0b"])
def test_a_header_cannot_smuggle_a_line(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        checked_block([(b"X", value)])


def test_a_request_head_is_its_line_and_its_fields() -> None:
    block = checked_block([(b"Host", b"h"), (b"X", b"1")])
    assert request_head("PUT", b"/a?b", block) == b"PUT /a?b HTTP/1.1\r\nHost: h\r\nX: 1\r\n\r\n"
    with pytest.raises(ValueError, match="line break"):
        request_head("PUT", b"/a\nb", block)
