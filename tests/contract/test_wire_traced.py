"""Spans of requests: what they tell, whose children they are, and that the trace goes on to the upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from fencegate.errors import Unavailable
from fencegate.gateway.traced import TracedGateway
from fencegate.testing import recording_upstream as upstreams
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, request
from fencegate.testing.spans import Spans, context, failed, is_child, told, traceparent
from fencegate.testing.wire_world import FUNCTION, HOME, HTTP, LEDGER, TARGETS, Target, World, WorldFactory

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOT_SAMPLED = f"{CALLER[:-2]}00"
STORE = {"db.system.name": "postgresql", "db.namespace": "ledger"}
CALLS = {"ledger": "SELECT fencegate.append", "function": "SELECT fencegate.call", "http": "SELECT fencegate.admit"}


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def traced(new_world: WorldFactory, spans: Spans) -> AsyncIterator[World]:
    async with new_world(make=partial(TracedGateway, tracing=spans.tracing, database=STORE)) as started:
        yield started


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_an_accepted_write_is_one_span_with_the_fences_check_below_it(
    traced: World, spans: Spans, target: Target
) -> None:
    message = request("POST", f"{target.path}?card=4111", ("User-Agent", "billing/3.1"), key="k-1")
    answer = await traced.ask(message)
    assert_accepted(answer)
    [server] = spans.of("server")
    route = {"ledger": "/v1/entries", "function": "/fn/echo", "http": "/web/*"}[target.name]
    assert server.name == f"POST {route}"
    assert server.parent is None
    assert not failed(server)
    assert told(server) == {
        "http.request.method": "POST",
        "http.route": route,
        "http.response.status_code": answer.status,
        "url.path": target.path,
        "url.scheme": "http",
        "server.address": "gate.example",
        "server.port": 80,
        "client.address": "127.0.0.1",
        "user_agent.original": "billing/3.1",
        "fencegate.role": target.role,
        "fencegate.token": 42,
        "fencegate.outcome": "accepted",
        "fencegate.max_token_seen": 42,
    }
    check = next(span for span in spans.below(server) if span.name == CALLS[target.name])
    assert check.kind.name == "CLIENT"
    assert told(check) == {
        **STORE,
        "db.operation.name": "SELECT",
        "db.query.summary": CALLS[target.name],
        "fencegate.role": target.role,
        "fencegate.token": 42,
        "fencegate.verdict": "admit",
        "fencegate.effect": "applied",
    }
    assert not [span for span in spans.all() if "4111" in repr((span.name, *told(span).values()))]

    spans.clear()
    assert_accepted(await traced.ask(message), replayed=True)
    assert told(spans.of("server")[0])["fencegate.replayed"] is True


async def test_a_refusal_tells_its_code_whoever_refused_it(traced: World, spans: Spans) -> None:
    assert_accepted(await traced.ask(request("POST", LEDGER.path)))
    for message, code, asked in (
        (request("POST", LEDGER.path, token=None), "token_required", 0),
        (request("POST", LEDGER.path, token=41), "stale_token", 0),  # from memory
        (request("POST", "/nowhere"), "unknown_route", 0),
        (request("POST", FUNCTION.path, token=41), "stale_token", 1),
        (request("POST", LEDGER.path, token=99), "token_not_issued", 1),
    ):
        spans.clear()
        answer = await traced.ask(message)
        document = assert_refusal(answer, code)
        [server] = spans.of("server")
        assert told(server)["fencegate.outcome"] == told(server)["fencegate.refusal"] == code
        assert told(server)["fencegate.applied"] == "no"
        assert told(server)["http.response.status_code"] == answer.status
        assert told(server).get("fencegate.max_token_seen") == document.get("max_token_seen")
        assert not failed(server)  # A client's mistake, or the fence at its work.
        assert len(spans.below(server)) == asked


async def test_a_store_that_is_down_is_an_error_of_both_spans(traced: World, spans: Spans) -> None:
    traced.store.failure = Unavailable("down")
    assert_refusal(await traced.ask(request("POST", LEDGER.path)), "fence_unavailable")
    [server] = spans.of("server")
    [check] = spans.below(server)
    assert failed(server)
    assert told(server)["error.type"] == "fence_unavailable"
    assert failed(check)
    assert told(check)["error.type"] == "Unavailable"


async def test_a_trace_goes_through_from_the_caller_to_the_upstream(traced: World, spans: Spans) -> None:
    state = (("traceparent", CALLER), ("tracestate", "a=1"), ("TraceState", "b=2"), ("baggage", "who=me"))
    assert_accepted(await traced.ask(request("POST", HTTP.path, *state)))
    [server] = spans.of("server")
    assert server.parent is not None
    assert traceparent(server)[:36] == CALLER[:36]
    assert f"{server.parent.span_id:016x}" == CALLER[36:52]
    [exchange] = [span for span in spans.below(server) if span.name == "POST"]
    [sent] = traced.upstream.requests
    assert sent.values("traceparent") == [traceparent(exchange)]
    assert sent.values("tracestate") == ["a=1,b=2"]
    assert sent.values("baggage") == ["who=me"]
    host, _, port = traced.upstream.url.removeprefix("http://").partition(":")
    assert told(exchange) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": host,
        "server.port": int(port),
        "url.full": traced.upstream.url + HTTP.path,
    }


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [("traceparent", "00-garbage")],
        [("traceparent", CALLER), ("traceparent", CALLER)],
        [("traceparent", "00-" + "0" * 32 + "-00f067aa0ba902b7-01")],
        [("traceparent", b"00-\xff\xfe")],
    ],
    ids=["none", "garbage", "two", "all zero", "not ascii"],
)
async def test_a_caller_who_names_no_span_begins_a_trace(
    traced: World, spans: Spans, lines: list[tuple[str, str | bytes]]
) -> None:
    assert_accepted(await traced.ask(request("POST", HTTP.path, *lines)))
    [server] = spans.of("server")
    assert server.parent is None
    assert CALLER[3:35] not in traceparent(server)
    [sent] = traced.upstream.requests
    [carried] = sent.values("traceparent")
    assert carried[:36] == traceparent(server)[:36]


async def test_a_write_that_is_not_sampled_leaves_no_span_and_says_so_to_the_upstream(new_world: WorldFactory) -> None:
    spans = Spans(ParentBased(ALWAYS_OFF))
    async with new_world(make=partial(TracedGateway, tracing=spans.tracing, database=STORE)) as world:
        for lines, sampled in (([], 0), ([("traceparent", NOT_SAMPLED)], 0), ([("traceparent", CALLER)], 1)):
            world.upstream.requests.clear()
            spans.clear()
            assert_accepted(await world.ask(request("POST", HTTP.path, *lines)))
            [sent] = world.upstream.requests
            assert int(sent.values("traceparent")[0][-2:], 16) & 1 == sampled
            assert len(spans.all()) == 4 * sampled


@pytest.mark.parametrize("path", [LEDGER.path, HTTP.path])
async def test_where_nobody_traces_the_callers_headers_pass_untouched(world: World, path: str) -> None:
    lines = (("traceparent", CALLER), ("tracestate", "a=1"), ("tracestate", "b=2"))
    assert_accepted(await world.ask(request("POST", path, *lines)))
    for sent in world.upstream.requests:
        assert sent.values("traceparent") == [CALLER]
        assert sent.values("tracestate") == ["a=1", "b=2"]


async def test_an_upstream_that_does_not_answer_is_an_error_and_of_unknown_outcome(traced: World, spans: Spans) -> None:
    for behaviour, kind in ((upstreams.closes_after_reading, "UpstreamBroken"), (upstreams.never_answers, "timeout")):
        spans.clear()
        traced.upstream.behaviour = behaviour
        assert (await traced.ask(request("POST", HTTP.path))).one("X-Fencing-Applied") == "unknown"
        [server] = spans.of("server")
        [exchange] = [span for span in spans.below(server) if span.name == "POST"]
        assert told(server)["fencegate.outcome"] == "outcome_unknown"
        assert failed(server)
        assert failed(exchange)
        assert told(exchange)["error.type"] == kind


async def test_requests_of_one_burst_and_of_one_batch_keep_their_own_spans(traced: World, spans: Spans) -> None:
    messages = [request("POST", LEDGER.path, ("traceparent", f"00-{n:032x}-{n:016x}-01")) for n in range(1, 9)]
    messages[3] = request("GET", LEDGER.path, ("traceparent", f"00-{4:032x}-{4:016x}-01"), body=None)
    async with Line.to(traced.port) as line:
        await line.send(b"".join(messages))
        assert [(await line.answer()).status for _ in messages] == [201, 201, 201, 200, 201, 201, 201, 201]
    assert len(spans.of("server")) == 8
    for server in spans.of("server"):
        assert server.parent is not None
        [asked] = spans.below(server)
        assert context(server).trace_id == server.parent.span_id
        assert is_child(asked, server)
        assert (asked.start_time or 0) >= (server.start_time or 0)
    assert len(spans.all()) == 16


async def test_reads_and_questions_have_spans_too(traced: World, spans: Spans) -> None:
    for message, name in (
        (request("GET", "/.well-known/fencegate/leader/ledger", body=None), "GET"),
        (request("GET", "/-/authz/web", body=b""), "GET /-/authz/web"),
        (request("GET", "/web/thing", body=None), "GET /web/*"),
        (request("LINK", "/web/thing"), "HTTP /web/*"),
    ):
        spans.clear()
        assert (await traced.ask(message)).status == 200
        [server] = spans.of("server")
        assert server.name == name
    assert told(server)["http.request.method"] == "_OTHER"
    assert told(server)["http.request.method_original"] == "LINK"


async def test_observe_mode_and_holding_are_told(traced: World, spans: Spans) -> None:
    assert_accepted(await traced.ask(request("POST", "/watched", token=None)))
    assert told(spans.of("server")[0])["fencegate.would_refuse"] == "token_required"
    spans.clear()
    await traced.stage.set_draining("brief", True)
    traced.view.lead("brief", 42, "eu", HOME, draining_to="us")
    assert_refusal(await traced.ask(request("POST", "/brief")), "draining")
    [server] = spans.of("server")
    assert 0.1 < told(server)["fencegate.held"] < 5
    assert len(spans.below(server)) == 2  # asked when it came, and once more at the end


async def test_a_path_that_is_no_text_spoils_no_span(
    traced: World, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (
        "/web/caf\xe9",
        "/web/\xff\xfe",
        "/nowhere/\xff",
        "/web/x",
    ):  # aiohttp's parser refuses all but the last.
        await traced.ask(request("POST", path))
    assert encode_spans(spans.all()).SerializeToString()
    assert not caplog.records  # The encoder logs what it cannot write.


async def test_a_familys_member_is_told_by_name_and_its_route_by_its_pattern(traced: World, spans: Spans) -> None:
    assert_accepted(await traced.ask(request("PUT", "/shards/eu-1/x")))
    [server] = spans.of("server")
    assert (server.name, told(server)["fencegate.role"]) == ("PUT /shards/{shard}/*", "shard/eu-1")
