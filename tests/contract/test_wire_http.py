"""Target ``http`` over raw sockets: sent once, streamed, passed through, settled."""

from __future__ import annotations

import asyncio
import math
import time
import tracemalloc
from contextlib import AsyncExitStack
from functools import partial

import pytest

from fencegate.fence import Admission, Forward
from fencegate.gateway.app import Gateway
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.gateway.targets.sending import request_head
from fencegate.steady_clock import steady_clock
from fencegate.testing import recording_upstream as upstreams
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, chunked, eventually, request
from fencegate.testing.wire_world import HTTP, World, WorldFactory

MIB = 1024 * 1024


async def test_the_upstream_gets_the_request_and_one_token(world: World) -> None:
    message = request(
        "PUT",
        "/web/a%20b?c=d&e",
        ("Connection", "X-Hop, keep-alive"),
        ("X-Hop", "1"),
        ("TE", "trailers"),
        ("X-Fencing-Max-Seen", "9"),
        ("X_Fencing_Region", "evil"),
        ("X-Forwarded-For", "10.0.0.1"),
        ("Cookie", "a=b"),
        ("X-Custom", b"caf\xe9"),
        key='"k-1"',
    )
    assert_accepted(await world.ask(message))
    [sent] = world.upstream.requests
    assert (sent.method, sent.target, sent.body) == ("PUT", "/web/a%20b?c=d&e", b'{"amount":1}')
    assert sent.values("X-Fencing-Token") == ["42"]
    assert sent.values("X-Fencing-Max-Seen") == ["42"]
    assert 0 < int(sent.values("X-Fencing-Timeout-Ms")[0]) <= 4000
    assert sent.values("Idempotency-Key") == ['"k-1"']
    assert sent.values("Host") == [world.upstream.url.removeprefix("http://")]
    assert sent.values("X-Forwarded-For") == ["10.0.0.1, 127.0.0.1"]
    assert sent.values("X-Forwarded-Host") == ["gate.example"]
    assert sent.values("Forwarded") == ['for=127.0.0.1;proto=http;host="gate.example"']
    assert sent.values("X-Custom") == ["caf\xe9"]
    for name in ("Connection", "X-Hop", "TE", "X_Fencing_Region", "Expect"):
        assert not sent.values(name), name


async def test_an_offer_of_http_2_in_the_clear_is_not_taken_up_and_ends_here(world: World) -> None:
    """Java's client makes it with each request over http, of itself."""
    offer = [
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAEAAEAAAAIAAAABAAMAAABk"),
    ]
    async with Line.to(world.port) as line:
        assert_refusal(await line.ask(request("POST", HTTP.path, *offer, token=41)), "stale_token")
        for _ in range(2):
            answer = await line.ask(request("POST", HTTP.path, *offer))
            assert_accepted(answer)
            assert not answer.interim
    assert len(world.upstream.requests) == 2
    for sent in world.upstream.requests:
        assert not any(sent.values(name) for name in ("Connection", "Upgrade", "HTTP2-Settings"))


# Field case 83: openresty/openresty#351.
# Field case 84: microsoft/FluidFramework#5037.
@pytest.mark.parametrize("status", [200, 201, 301, 307, 400, 404, 409, 428, 500, 503])
async def test_the_upstreams_own_answer_passes_untouched_and_told_apart(world: World, status: int) -> None:
    world.upstream.behaviour = upstreams.answers(
        status, b"its own words", ("Location", "https://other.example/x"), ("X-Fencing-Outcome", "stale_token"),
        ("Connection", "X-Gone"), ("X-Gone", "1"), ("X-Raw", "caf\xe9"),
    )  # fmt: skip
    answer = await world.ask(request("POST", HTTP.path))
    assert_accepted(answer)
    assert (answer.status, answer.body) == (status, b"its own words")
    assert answer.one("Location") == "https://other.example/x"
    assert answer.one("Fencegate-Origin") == "upstream"
    assert answer.one("X-Raw") == "caf\xe9"
    assert answer.one("X-Gone") is None
    assert len(world.upstream.requests) == 1


@pytest.mark.parametrize(
    ("behaviour", "status", "body"),
    [
        (upstreams.chunked_with_trailers, 200, b"hello world"),
        (upstreams.until_close, 200, b"to the end"),
        (upstreams.informs_first, 201, b"made"),
        (upstreams.answers(204), 204, b""),
        (upstreams.answers(304), 304, b""),
    ],
    ids=["chunked with trailers", "until close", "interim answers", "204", "304"],
)
async def test_every_framing_of_an_answer_is_read_right(
    world: World, behaviour: upstreams.Behaviour, status: int, body: bytes
) -> None:
    world.upstream.behaviour = behaviour
    async with Line.to(world.port) as line:
        for _ in range(2):
            answer = await line.ask(request("POST", HTTP.path))
            assert_accepted(answer)
            assert (answer.status, answer.body, answer.interim) == (status, body, [])
            assert answer.one("X-Sum") is None


@pytest.mark.parametrize(
    "behaviour", [upstreams.half_an_answer, upstreams.half_a_head], ids=["half an answer", "half a head"]
)
async def test_half_an_answer_is_unknown(world: World, behaviour: upstreams.Behaviour) -> None:
    world.upstream.behaviour = behaviour
    assert_refusal(await world.ask(request("POST", HTTP.path)), "outcome_unknown", status=502)
    assert len(world.upstream.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nxx",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n",
    ],
    ids=["nonsense", "two lengths", "length and coding", "gzip coding", "101", "endless head"],
)
async def test_a_malformed_answer_is_unknown(world: World, answer: bytes) -> None:
    async def behave(wire: upstreams.Wire) -> None:
        await wire.read_body()
        await wire.send(answer)
        wire.close = True

    world.upstream.behaviour = behave
    assert_refusal(await world.ask(request("POST", HTTP.path)), "outcome_unknown", status=502)
    assert len(world.upstream.requests) == 1


async def test_a_body_that_comes_in_one_burst_with_its_head_is_no_large_head(world: World) -> None:
    async def bursts(wire: upstreams.Wire) -> None:
        await wire.read_body()
        await wire.answer(200, b"x" * (2 * MIB))

    world.upstream.behaviour = bursts
    for _ in range(5):
        answer = await world.ask(request("POST", HTTP.path))
        assert_accepted(answer)
        assert len(answer.body) == 2 * MIB


async def test_a_pooled_connection_that_closed_while_idle_is_replaced_unseen(world: World) -> None:
    async def closes_soon(wire: upstreams.Wire) -> None:
        await wire.read_body()
        await wire.answer()
        wire.close = True

    world.upstream.behaviour = closes_soon
    for count in range(1, 4):
        assert_accepted(await world.ask(request("PUT", HTTP.path)))
        await asyncio.sleep(0.02)
        assert len(world.upstream.requests) == count


@pytest.mark.parametrize("expects", [True, False], ids=["asked for", "large"])
async def test_a_pooled_connection_that_closes_while_the_client_takes_its_time_is_replaced_unseen(
    world: World, expects: bool
) -> None:
    async def closes_later(wire: upstreams.Wire) -> None:
        await wire.read_body()
        await wire.answer()
        await asyncio.sleep(0.1)
        wire.close = True

    world.upstream.behaviour = closes_later
    size = 2 if expects else 100_000
    fields = [("Content-Length", str(size)), *([("Expect", "100-continue")] if expects else [])]
    async with Line.to(world.port) as line:
        assert_accepted(await world.ask(request("PUT", HTTP.path)))
        await line.send(request("PUT", HTTP.path, *fields, key="k", body=None))
        await asyncio.sleep(0.3)
        await line.send(b"x" * size)
        assert_accepted(await line.answer())
    assert [sent.size for sent in world.upstream.requests][1:] == [size]


async def test_an_early_answer_ends_the_upload_and_passes(world: World) -> None:
    world.upstream.behaviour = upstreams.answers_early
    message = request("POST", "/big/x", ("Content-Length", str(8 * MIB)), body=b"x" * MIB)
    async with Line.to(world.port) as line:
        await line.send(message)
        answer = await line.answer()
    assert (answer.status, answer.body) == (413, b"too much")
    assert answer.one("Connection") == "close"


# Field case 80: aio-libs/aiohttp#2492, aio-libs/aiohttp#1515, aio-libs/aiojobs#72.
async def test_a_client_that_leaves_changes_nothing_about_the_outcome(world: World) -> None:
    release = asyncio.Event()
    world.upstream.behaviour = upstreams.waits_for(release)
    async with Line.to(world.port) as line:
        await line.send(request("PUT", HTTP.path, key="k"))
        await world.upstream.arrived()
    await asyncio.sleep(0.05)
    release.set()
    await eventually(lambda: world.gateway.in_flight == 0)
    answer = await world.ask(request("PUT", HTTP.path, key="k"))
    assert_accepted(answer, replayed=True)
    assert answer.body == b"ok"
    assert len(world.upstream.requests) == 1


async def test_a_fault_of_ours_behind_the_upstreams_answer_is_not_told_as_not_applied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("fencegate.gateway.targets.http.HttpTarget.reply", fails)
    assert_refusal(await world.ask(request("POST", HTTP.path)), "outcome_unknown")
    assert len(world.upstream.requests) == 1


async def test_an_answer_too_large_to_keep_is_replayed_without_its_body(world: World) -> None:
    world.upstream.behaviour = upstreams.huge(2 * MIB)
    first = await world.ask(request("POST", HTTP.path, key="k"))
    assert_accepted(first)
    assert len(first.body) == 2 * MIB
    again = await world.ask(request("POST", HTTP.path, key="k"))
    assert_accepted(again, replayed=True)
    assert (again.status, again.body, again.one("Fencegate-Replayed-Body")) == (200, b"", "not-kept")


async def test_an_unknown_outcome_stays_unknown_under_its_key(world: World) -> None:
    world.upstream.behaviour = upstreams.closes_after_reading
    assert_refusal(await world.ask(request("POST", HTTP.path, key="k")), "outcome_unknown")
    world.upstream.behaviour = upstreams.well_behaved
    await world.ask(request("POST", HTTP.path, key="k"))
    assert len(world.upstream.requests) == 1


async def test_a_large_upload_streams_in_bounded_memory(world: World) -> None:
    world.upstream.keep_bytes = 0
    pieces, piece = 64, b"x" * MIB
    tracemalloc.start()
    try:
        async with Line.to(world.port) as line:
            await line.send(request("PUT", "/big/x", ("Content-Length", str(pieces * MIB)), body=None))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(pieces):
                await line.send(piece)
            assert_accepted(await line.answer(limit=30))
            peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert world.upstream.requests[0].size == pieces * MIB
    assert peak < 8 * MIB


async def test_a_large_answer_streams_to_a_slow_reader_in_bounded_memory(world: World) -> None:
    world.upstream.behaviour = upstreams.huge(32 * MIB)
    async with Line.to(world.port) as line:
        await line.send(request("POST", "/big/x"))
        await asyncio.sleep(0.3)
        answer = await line.answer(limit=30)
    assert_accepted(answer)
    assert len(answer.body) == 32 * MIB


async def test_a_chunked_upload_over_the_limit_mid_stream_is_unknown(world: World) -> None:
    head = request("POST", HTTP.path, ("Transfer-Encoding", "chunked"), body=None)
    async with Line.to(world.port) as line:
        await line.send(head + chunked(*[b"x" * 65536] * 24))
        assert_refusal(await line.answer(), "outcome_unknown")
        assert await line.is_closed()


async def test_a_newer_term_waits_until_the_older_terms_write_has_ended(world: World) -> None:
    release = asyncio.Event()
    world.upstream.behaviour = upstreams.waits_for(release)
    async with Line.to(world.port) as old, Line.to(world.port) as new:
        await old.send(request("POST", "/open-web/x", token=42))
        await world.upstream.arrived()
        world.view.lead("open-web", 43, "eu", "https://ledger.eu.example")
        await new.send(request("POST", "/open-web/x", token=43))
        await asyncio.sleep(0.1)
        assert len(world.upstream.requests) == 1
        release.set()
        assert_accepted(await old.answer())
        assert_accepted(await new.answer())
    assert [sent.values("X-Fencing-Token") for sent in world.upstream.requests] == [["42"], ["43"]]


async def test_a_write_whose_client_leaves_while_it_waits_for_the_older_ones_is_given_up(world: World) -> None:
    release = asyncio.Event()
    world.upstream.behaviour = upstreams.waits_for(release)
    async with Line.to(world.port) as old:
        await old.send(request("POST", "/open-web/x", token=42))
        await world.upstream.arrived()
        world.view.lead("open-web", 43, "eu", "https://ledger.eu.example")
        async with Line.to(world.port) as new:
            await new.send(request("POST", "/open-web/x", token=43, key="k"))
            await eventually(lambda: world.gateway.in_flight == 2)
        await eventually(lambda: world.gateway.in_flight == 1)
        release.set()
        assert_accepted(await old.answer())
    assert len(world.upstream.requests) == 1
    # Given up without a trace: its key is free.
    assert_accepted(await world.ask(request("POST", "/open-web/x", token=43, key="k")))


async def test_the_wait_for_older_writes_leaves_time_for_the_answer(world: World) -> None:
    """A caller that has given up cannot be told that nothing was applied."""
    limits: list[tuple[float, float]] = []
    admit = world.store.admit

    async def noting(forward: Forward, time_limit: float) -> Admission:
        limits.append((forward.upstream_limit, time_limit))
        return await admit(forward, time_limit)

    world.store.admit = noting  # type: ignore[method-assign]
    assert_accepted(await world.ask(request("POST", HTTP.path, ("X-Fencing-Timeout-Ms", "3000"))))
    ((left, wait),) = limits
    assert 0.1 < wait <= left * 0.75


async def test_a_newer_term_that_cannot_wait_is_told_that_the_older_drains(world: World) -> None:
    release = asyncio.Event()
    world.upstream.behaviour = upstreams.waits_for(release)
    async with Line.to(world.port) as old:
        await old.send(request("POST", "/open-web/x", token=42))
        await world.upstream.arrived()
        world.view.lead("open-web", 43, "eu", "https://ledger.eu.example")
        message = request("POST", "/open-web/x", ("X-Fencing-Timeout-Ms", "2500"), token=43)
        assert_refusal(await world.ask(message), "draining")
        release.set()
        assert_accepted(await old.answer())
    assert len(world.upstream.requests) == 1


# -- the last look before the first byte --------------------------------------------------------------

EXPECTS = request("POST", HTTP.path, ("Expect", "100-continue"), ("Content-Length", "2"), key="k", body=b"")
AT_ONCE = request("POST", HTTP.path, key="k", body=b"{}")


@pytest.mark.parametrize("message", [EXPECTS + b"{}", AT_ONCE], ids=["asked for its body", "at once"])
async def test_a_write_whose_lease_ended_between_the_stores_yes_and_its_first_byte_is_not_sent(
    world: World, message: bytes
) -> None:
    """The yes is there when the client is asked for its body; the gateway comes to the first byte only later."""
    admit = world.store.admit
    given: list[Admission] = []

    async def ended(forward: Forward, time_limit: float) -> Admission:
        given.append(await admit(forward, time_limit))
        given[0].good_until = steady_clock()
        return given[0]

    world.store.admit = ended  # type: ignore[method-assign]
    async with Line.to(world.port) as line:
        answer = await line.ask(message)
    assert_refusal(answer, "fence_unavailable")
    assert not world.upstream.requests
    # Its mark and its key are taken back: the next try is a first one.
    world.store.admit = admit  # type: ignore[method-assign]
    assert_accepted(await world.ask(request("POST", HTTP.path, key="k", body=b"{}")))


async def test_an_admission_tells_when_its_lease_ends(world: World) -> None:
    admit = world.store.admit
    given: list[float] = []

    async def noting(forward: Forward, time_limit: float) -> Admission:
        admission = await admit(forward, time_limit)
        given.append(admission.good_until - steady_clock())
        return admission

    world.store.admit = noting  # type: ignore[method-assign]
    for path in (HTTP.path, "/open-web/x", "/watched-web/x"):
        assert_accepted(await world.ask(request("POST", path)))
    lease, *unbounded = given
    assert 3000 < lease <= 3600
    assert unbounded == [math.inf, math.inf]


async def test_a_write_that_lay_here_for_too_long_is_not_sent_with_the_time_it_had_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen once its head was written: the upstream would count the time it is told from when it wakes."""
    awake = time.clock_gettime

    def frozen(method: str, target: bytes, block: bytes) -> bytes:
        monkeypatch.setattr(time, "clock_gettime", lambda which: awake(which) + 0.3)
        return request_head(method, target, block)

    monkeypatch.setattr("fencegate.gateway.targets.http.request_head", frozen)
    assert_refusal(await world.ask(request("POST", HTTP.path)), "fence_unavailable")
    assert not world.upstream.requests


@pytest.mark.parametrize("framing", ["sized", "chunked"])
async def test_the_rest_of_an_upload_is_not_sent_once_its_time_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch, framing: str
) -> None:
    """The host slept in the middle of it: the timers of the process did not go on, and the write's mark has expired."""
    awake = time.clock_gettime
    piece = b"x" * 100_000
    fields = ("Content-Length", "200000") if framing == "sized" else ("Transfer-Encoding", "chunked")
    first, last = (piece, piece) if framing == "sized" else (chunked(piece)[:-5], chunked(piece))
    async with Line.to(world.port) as line:
        await line.send(request("PUT", "/big/x", fields, body=None) + first)
        await world.upstream.arrived()
        await eventually(lambda: world.upstream.requests[0].size == 100_000)
        monkeypatch.setattr(time, "clock_gettime", lambda which: awake(which) + 60)
        await line.send(last)
        assert_refusal(await line.answer(), "outcome_unknown", status=504)
    (sent,) = world.upstream.requests
    assert not sent.complete


async def test_readers_that_do_not_read_leave_writes_their_connections(new_world: WorldFactory) -> None:
    few = partial(Gateway, pool=partial(UpstreamPool, most=8))
    async with new_world(make=few) as world, AsyncExitStack() as stack:
        world.upstream.behaviour = upstreams.huge(64 * MIB)
        for _ in range(8):
            line = await stack.enter_async_context(Line.to(world.port))
            await line.send(request("GET", HTTP.path, token=None, body=None))
        await world.upstream.arrived(6)
        await asyncio.sleep(0.2)
        world.upstream.behaviour = upstreams.well_behaved
        assert_accepted(await world.ask(request("PUT", HTTP.path)))
