"""Smuggling, limits and slow senders: refused, nothing written, the connection closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from fencegate.gateway.limits import Limits
from fencegate.gateway.routes import Route
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, chunked, eventually, request
from fencegate.testing.wire_world import HTTP, LEDGER, TARGETS, Target, World, WorldFactory

# A refused message is followed by a whole write: were the framing lost, the write would land.
SMUGGLED = request("POST", "/v1/entries", body=b'"smuggled"')
HEAD = b"POST /v1/entries HTTP/1.1\r\nHost: gate.example\r\nX-Fencing-Token: 42\r\n"

CORPUS: dict[str, bytes] = {
    "length and coding": HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "equal lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "different lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 0\r\n\r\n{}",
    "a list of lengths": HEAD + b"Content-Length: 2, 2\r\n\r\n{}",
    "a signed length": HEAD + b"Content-Length: +2\r\n\r\n{}",
    "a negative length": HEAD + b"Content-Length: -2\r\n\r\n{}",
    "a hex length": HEAD + b"Content-Length: 0x2\r\n\r\n{}",
    "an underscored length": HEAD + b"Content-Length: 1_0\r\n\r\n{}",
    "an empty length": HEAD + b"Content-Length: \r\n\r\n{}",
    "a huge length": HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "a folding length": HEAD + b"Content_Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a folding coding": HEAD + b"Transfer_Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    "obs-fold": HEAD + b"X-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "obs-fold of the token": b"POST /v1/entries HTTP/1.1\r\nHost: x\r\nX-Fencing-Token:\r\n 42\r\n"
    b"Content-Length: 2\r\n\r\n{}",
    "bare LF everywhere": HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}",
    "bare LF in one line": HEAD + b"X-A: b\nContent-Length: 2\r\n\r\n{}",
    "bare LF before the body": HEAD + b"Content-Length: 2\r\n\n{}",
    "bare CR in a value": HEAD + b"X-A: b\rc\r\nContent-Length: 2\r\n\r\n{}",
    "bare CR as a line end": HEAD + b"X-A: b\rContent-Length: 2\r\n\r\n{}",
    "NUL in a value": HEAD + b"X-A: b\0c\r\nContent-Length: 2\r\n\r\n{}",
    "VT in a value": HEAD + b"X-A: \x0bc\r\nContent-Length: 2\r\n\r\n{}",
    "VT around the coding": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "space before the colon": HEAD + b"Content-Length : 2\r\n\r\n{}",
    "space before the name": b"POST /v1/entries HTTP/1.1\r\n Host: x\r\nContent-Length: 2\r\n\r\n{}",
    "no name": HEAD + b": a\r\nContent-Length: 2\r\n\r\n{}",
    "no colon": HEAD + b"Whatever\r\nContent-Length: 2\r\n\r\n{}",
    "coding identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n",
    "coding xchunked": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding gzip, chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding chunked, identity": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "coding chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding chunked;q=1": HEAD + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "coding in HTTP/1.0": HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunk size no hex": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunk size signed": HEAD + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n",
    "chunk size 0x": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "chunk size empty": HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n{}\r\n0\r\n\r\n",
    "chunk size overflows": HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunk data too long": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "chunk ends in bare LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n",
    "no host": b"POST /v1/entries HTTP/1.1\r\nX-Fencing-Token: 42\r\nContent-Length: 2\r\n\r\n{}",
    "two hosts": HEAD + b"Host: other\r\nContent-Length: 2\r\n\r\n{}",
    "no version": b"POST /v1/entries\r\nHost: x\r\n\r\n",
    "HTTP/2.0 text": HEAD.replace(b"HTTP/1.1", b"HTTP/2.0") + b"Content-Length: 2\r\n\r\n{}",
    "HTTP/1.1 in lower case": HEAD.replace(b"HTTP/1.1", b"http/1.1") + b"Content-Length: 2\r\n\r\n{}",
    "a space in the path": HEAD.replace(b"/v1/entries", b"/v1/entries x") + b"Content-Length: 2\r\n\r\n{}",
    "TLS bytes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


# Field case A7: aio-libs/aiohttp#12240, benoitc/gunicorn#3740, unbit/uwsgi#2775.
@pytest.mark.parametrize("message", CORPUS.values(), ids=CORPUS.keys())
@pytest.mark.parametrize("target", [LEDGER, HTTP], ids=str)
async def test_a_message_that_two_readers_could_frame_differently_ends_the_connection(
    world: World, target: Target, message: bytes
) -> None:
    async with Line.to(world.port) as line:
        await line.send(message.replace(b"/v1/entries", target.path.encode()) + SMUGGLED)
        try:
            answer = await line.answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Closed without a word.
        else:
            assert answer.status == 400
            assert_refusal(answer, "request_malformed")
            assert answer.one("Connection") == "close"
            assert await line.is_closed()
    assert await world.effects(LEDGER) == 0
    assert not [sent for sent in world.upstream.requests if sent.complete]


@pytest.mark.parametrize("version", [b"", b" HTTP/0.9", b" HTTP/1.2", b" HTTP/2.0", b" HTTP/11.1", b" http/1.1"])
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_request_of_another_version_is_refused_though_nothing_follows_it(
    world: World, method: str, version: bytes
) -> None:
    message = request(method, LEDGER.path).replace(b" HTTP/1.1", version)
    async with Line.to(world.port) as line:
        assert_refusal(await line.ask(message), "request_malformed")
        assert await line.is_closed()
    assert await world.effects(LEDGER) == 0


@pytest.mark.parametrize("pieces", [1, 7])
async def test_framing_is_the_same_however_the_bytes_arrive(world: World, pieces: int) -> None:
    message = CORPUS["length and coding"] + SMUGGLED
    async with Line.to(world.port) as line:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            # The refusal may be lost to a reset while the rest is still being sent; the end of the connection may not.
            for start in range(0, len(message), pieces):
                await line.send(message[start : start + pieces])
            assert_refusal(await line.answer(), "request_malformed")
        assert await line.is_closed()
    assert await world.effects(LEDGER) == 0


async def test_a_bad_chunk_after_a_good_one_writes_nothing(world: World) -> None:
    async with Line.to(world.port) as line:
        await line.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        await asyncio.sleep(0.02)
        await line.send(b"nonsense\r\n" + SMUGGLED)
        assert_refusal(await line.answer(), "request_malformed")
        assert await line.is_closed()
    assert await world.effects(LEDGER) == 0


async def test_pipelined_requests_are_answered_in_order(world: World) -> None:
    async with Line.to(world.port) as line:
        await line.send(b"".join(request("POST", LEDGER.path, body=b"%d" % n) for n in range(20)))
        places = [(await line.answer()).json()["seq"] for _ in range(20)]
    assert places == list(range(1, 21))


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_chunked_body_arrives_whole(world: World, target: Target) -> None:
    head = request("POST", target.path, ("Transfer-Encoding", "chunked"), body=None)
    assert_accepted(await world.ask(head + chunked(b'{"a":', b'"b"', b"}")))
    if target is HTTP:
        assert world.upstream.requests[0].body == b'{"a":"b"}'


@pytest.mark.parametrize(
    "message",
    [
        request("POST", LEDGER.path, ("X-Long", "a" * 20_000)),
        request("POST", LEDGER.path, *[(f"X-{n}", "a" * 100) for n in range(200)]),
        request("POST", LEDGER.path, *[(f"X-{n}", "a" * 400) for n in range(60)]),
        request("POST", LEDGER.path + "?" + "q" * 20_000),
    ],
    ids=["one long field", "many fields", "a large sum", "a long target"],
)
async def test_header_fields_over_the_limit_are_refused(world: World, message: bytes) -> None:
    async with Line.to(world.port) as line:
        assert_refusal(await line.ask(message), "headers_too_large")
        assert await line.is_closed()
    assert await world.effects(LEDGER) == 0


async def test_a_head_that_never_ends_is_cut_off_at_the_limit(world: World) -> None:
    async with Line.to(world.port) as line:
        await line.send(HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(90)))
        await line.send(b"X-Endless: " + b"a" * 60_000)
        assert_refusal(await line.answer(), "headers_too_large")
        assert await line.is_closed()


# Field case A8: xorbitsai/inference#5213, ctdk/goiardi#103.
async def test_a_slow_head_is_cut_off_even_if_it_keeps_dribbling(new_world: WorldFactory) -> None:
    async with new_world(limits=Limits(header_timeout=0.2)) as world, Line.to(world.port) as line:

        async def dribble() -> None:
            for byte in HEAD:
                line.writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

        task = asyncio.create_task(dribble())
        assert_refusal(await line.answer(), "request_timeout")
        assert await line.is_closed()
        task.cancel()


async def test_a_connection_that_says_nothing_is_closed(new_world: WorldFactory) -> None:
    async with new_world(limits=Limits(header_timeout=0.1)) as world, Line.to(world.port) as line:
        assert await line.is_closed()


async def test_a_kept_connection_is_closed_when_idle_for_long(new_world: WorldFactory) -> None:
    async with new_world(limits=Limits(idle_timeout=2.0)) as world, Line.to(world.port) as line:
        assert_accepted(await line.ask(request("POST", LEDGER.path)))
        assert await line.is_closed()


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_slow_body_is_cut_off_and_writes_nothing(new_world: WorldFactory, target: Target) -> None:
    limits = Limits(body_timeout=0.2, min_body_rate=1_000_000)
    async with new_world(limits=limits) as world, Line.to(world.port) as line:
        await line.send(request("POST", target.path, ("Content-Length", "50"), body=b'{"a'))
        answer = await line.answer()
        assert_refusal(answer, "request_timeout")
        assert await line.is_closed()
        assert await world.effects(target) == 0


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_body_that_breaks_off_writes_nothing(world: World, target: Target) -> None:
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path, ("Content-Length", "50"), body=b'{"a":1}'))
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.05)
    assert await world.effects(target) == 0


async def test_connections_over_the_cap_are_told_so_and_closed(new_world: WorldFactory) -> None:
    async with new_world(limits=Limits(connections=1)) as world, Line.to(world.port) as first:
        assert_accepted(await first.ask(request("POST", LEDGER.path)))
        async with Line.to(world.port) as second:
            assert_refusal(await second.answer(), "overloaded")
            assert await second.is_closed()
        assert_accepted(await first.ask(request("POST", LEDGER.path)))


async def test_a_peer_over_its_own_cap_is_told_so_and_may_come_again_later(
    new_world: WorldFactory,
) -> None:
    async with new_world(limits=Limits(connections_per_peer=1)) as world:
        async with Line.to(world.port) as first:
            assert_accepted(await first.ask(request("POST", LEDGER.path)))
            async with Line.to(world.port) as second:
                assert_refusal(await second.answer(), "overloaded")
                assert await second.is_closed()
            assert_accepted(await first.ask(request("POST", LEDGER.path)))
        await eventually(lambda: world.edge.connections == 0)
        assert_accepted(await world.ask(request("POST", LEDGER.path)))


async def test_stopping_lets_a_write_under_way_finish_and_takes_no_other(world: World) -> None:
    async with Line.to(world.port) as line, Line.to(world.port) as idle:
        assert_accepted(await idle.ask(request("POST", LEDGER.path)))
        world.store.hold = asyncio.Event()
        port = world.port
        await line.send(request("POST", LEDGER.path))
        await eventually(lambda: world.store.waiting == 1)
        stopping = asyncio.create_task(world.edge.stop(3.0))
        assert await idle.is_closed()
        with pytest.raises(OSError):  # noqa: PT011
            async with Line.to(port):
                pass
        world.store.hold.set()
        answer = await line.answer()
        assert_accepted(answer)
        assert answer.one("Connection") == "close"
        assert await stopping == 0


class CarelessUpstream(BaseHTTPRequestHandler):
    """Answers by the head alone, as a page that expects no body does, and keeps the connection: Python's own server."""

    protocol_version = "HTTP/1.1"
    carried_out: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Callable[[], None]:
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._answer

    def _answer(self) -> None:
        self.carried_out.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "PURGE"])
async def test_a_body_where_none_is_expected_is_no_request_of_its_own_to_an_upstream_that_does_not_read_it(
    world: World, method: str
) -> None:
    hidden = b"POST /web/admin HTTP/1.1\r\nHost: u\r\nX-Fencing-Token: 42\r\nContent-Length: 0\r\n\r\n"
    CarelessUpstream.carried_out.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), CarelessUpstream) as upstream:
        thread = threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{upstream.server_address[1]}"
            world.gateway.use_routes([Route("/web/*", "web", "http", url)])
            for framed in ((), (("Transfer-Encoding", "chunked"),)):
                body = chunked(hidden) if framed else hidden
                answer = await world.ask(request(method, "/web/x", *framed, body=body))
                assert answer.status == 200
            assert (await world.ask(request("GET", "/web/y", body=None))).status == 200
        finally:
            await asyncio.to_thread(upstream.shutdown)
            thread.join()
    assert CarelessUpstream.carried_out == [f"{method} /web/x", f"{method} /web/x", "GET /web/y"]
