"""The SDK's spans: one a try, a child of the caller's, and the parent of the gateway's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from fencegate.client import FencedClient, OutcomeUnknown
from fencegate.client import sync as synchronous
from fencegate.testing.scripted_gate import Accept, Raw, Refuse, ScriptedGate
from fencegate.testing.spans import Spans, failed, is_child, told, traceparent


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def gate() -> AsyncIterator[ScriptedGate]:
    async with ScriptedGate(otherwise=Accept()) as gate:
        gate.leads(token=42)
        yield gate


async def test_each_try_is_a_span_that_the_gateways_is_a_child_of(gate: ScriptedGate, spans: Spans) -> None:
    gate.play(Refuse("draining", retry_after=0), Accept())
    async with FencedClient([gate.url], "ledger", tracing=spans.tracing) as client:
        whole = spans.tracing.begin("the caller's", "internal", {})
        with whole.current():
            await client.post("/v1/entries?card=4111", json={})
        whole.end()
    first, second, parent = spans.all()
    assert [span.name for span in (first, second)] == ["POST", "POST"]
    assert is_child(first, parent)
    assert is_child(second, parent)
    assert [sent.header("traceparent") for sent in gate.writes] == [traceparent(first), traceparent(second)]
    host, _, port = gate.url.removeprefix("http://").partition(":")
    common = {
        "http.request.method": "POST",
        "server.address": host,
        "server.port": int(port),
        "url.full": f"{gate.url}/v1/entries",
        "fencegate.role": "ledger",
        "fencegate.token": 42,
    }
    assert (
        told(first).items()
        >= {
            **common,
            "http.response.status_code": 503,
            "error.type": "503",
            "fencegate.outcome": "draining",
            "fencegate.refusal": "draining",
            "fencegate.applied": "no",
        }.items()
    )
    assert "http.request.resend_count" not in told(first)
    assert failed(first)
    assert (
        told(second).items()
        >= {
            **common,
            "http.request.resend_count": 1,
            "fencegate.outcome": "accepted",
            "fencegate.applied": "yes",
        }.items()
    )
    assert not failed(second)


async def test_a_lost_answer_is_an_error(gate: ScriptedGate, spans: Spans) -> None:
    gate.play(Raw(b""))
    async with FencedClient([gate.url], "ledger", tracing=spans.tracing) as client:
        with pytest.raises(OutcomeUnknown):
            await client.post("/v1/entries", json={}, idempotency_key=False)
    [tried] = spans.all()
    assert failed(tried)
    assert told(tried)["error.type"] == "connection"
    assert "http.response.status_code" not in told(tried)


async def test_nothing_is_sent_and_no_span_made_unless_asked_for(gate: ScriptedGate, spans: Spans) -> None:
    whole = spans.tracing.begin("the caller's", "internal", {})
    with whole.current():
        async with FencedClient([gate.url], "ledger") as client:
            await client.post("/v1/entries", json={}, headers={"traceparent": "the caller's own"})
            await client.get("/v1/entries")
    assert spans.all() == []
    assert [sent.header("traceparent") for sent in gate.writes] == ["the caller's own", None]


async def test_without_an_event_loop_the_callers_span_is_still_the_parent(gate: ScriptedGate, spans: Spans) -> None:
    def as_a_thread_would() -> None:
        with synchronous.FencedClient([gate.url], "ledger", tracing=spans.tracing) as client:
            whole = spans.tracing.begin("the caller's", "internal", {}, caller=())
            with whole.current():
                client.post("/v1/entries", json={})
            whole.end()

    await asyncio.to_thread(as_a_thread_would)
    tried, parent = spans.all()
    assert is_child(tried, parent)
