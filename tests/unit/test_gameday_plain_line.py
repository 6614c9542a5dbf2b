"""Answers on one connection, cut apart wherever the network has cut them."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.gameday.plain_line import PlainLine, Raw, _Pipe

FIRST = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"
SECOND = b"HTTP/1.1 204 No Content\r\ncontent-length:0\r\nX: y\r\n\r\n"
BOTH = [Raw(FIRST[:-6], b"{}"), Raw(SECOND[:-4], b"")]


class Transport(asyncio.Transport):
    aborted = False

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


async def asked(count: int) -> tuple[_Pipe, Transport, asyncio.Task[None]]:
    pipe, transport = _Pipe(asyncio.get_running_loop()), Transport()
    pipe.connection_made(transport)
    asking = asyncio.create_task(pipe.ask(b"requests", count))
    await asyncio.sleep(0)
    return pipe, transport, asking


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_answers_are_the_same_however_their_bytes_arrive(size: int) -> None:
    pipe, _, asking = await asked(2)
    whole = FIRST + SECOND
    for start in range(0, len(whole), size):
        assert not asking.done()
        pipe.data_received(whole[start : start + size])
    await asking
    assert [answer for answer, _ in pipe.answers] == BOTH


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"HTTP/1.1 200 OK\r\nX-Content-Length: 2\r\n\r\n{}", ValueError), (FIRST + FIRST + FIRST, ValueError)],
    ids=["no length", "more than was asked for"],
)
async def test_what_cannot_be_cut_apart_ends_the_connection(data: bytes, error: type[Exception]) -> None:
    pipe, transport, asking = await asked(2)
    pipe.data_received(data)
    with pytest.raises(error):
        await asking
    assert transport.aborted


async def test_a_connection_that_ends_keeps_the_answers_that_came() -> None:
    pipe, _, asking = await asked(2)
    pipe.data_received(FIRST + SECOND[:-1])
    pipe.connection_lost(None)
    with pytest.raises(EOFError):
        await asking
    assert [answer for answer, _ in pipe.answers] == BOTH[:1]


def test_a_request_says_how_long_its_body_is() -> None:
    line = PlainLine("http://gate:80")
    start = b"POST /x HTTP/1.1\r\nHost: gate:80\r\nA: b\r\n"
    assert line.head("POST", "/x", [("A", "b")]) == start
    assert line.request("POST", "/x", [("A", "b")], b"{}") == start + b"Content-Length: 2\r\n\r\n{}"
    assert line.request("GET", "/x") == b"GET /x HTTP/1.1\r\nHost: gate:80\r\n\r\n"
