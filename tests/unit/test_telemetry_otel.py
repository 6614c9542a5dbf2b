"""Spans over OpenTelemetry's API: parents, errors, and the headers that carry a trace on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from fencegate.telemetry.otel import OpenTelemetry
from fencegate.telemetry.tracing import UNSEEN
from fencegate.testing.spans import Spans, failed, is_child, told, traceparent

CALLER = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_a_span_is_a_child_of_the_current_one_unless_a_caller_is_named(spans: Spans) -> None:
    parent = spans.tracing.begin("parent", "server", {}, caller=())
    with parent.current():
        spans.tracing.begin("child", "client", {"a": 1}).end()
        spans.tracing.begin("root", "internal", {}, caller=()).end()
        spans.tracing.begin("called", "server", {}, caller=[(b"Traceparent", CALLER)]).end()
    parent.end()
    child, root, called, first = spans.all()
    assert is_child(child, first)
    assert (child.kind.name, told(child)) == ("CLIENT", {"a": 1})
    assert root.parent is None
    assert first.parent is None
    assert traceparent(called)[:36] == CALLER[:36].decode()


def test_outside_of_any_span_nothing_is_carried_on(spans: Spans) -> None:
    assert spans.tracing.outgoing() == []
    span = spans.tracing.begin("a", "client", {}, caller=[(b"traceparent", CALLER), (b"tracestate", b"x=1")])
    with span.current():
        carried = dict(spans.tracing.outgoing())
    span.end()
    assert carried == {"traceparent": traceparent(spans.all()[0]), "tracestate": "x=1"}


def test_what_goes_wrong_is_one_word_and_an_exception_is_not_recorded_by_itself(spans: Spans) -> None:
    span = spans.tracing.begin("a", "server", {})
    with pytest.raises(ValueError, match="no"), span.current():
        raise ValueError("no")
    assert span.recording
    span.rename("b")
    span.put({"c": True})
    span.fail("timeout")
    span.end()
    assert not span.recording
    [found] = spans.all()
    assert (found.name, told(found), found.events) == ("b", {"c": True, "error.type": "timeout"}, ())
    assert failed(found)


def test_below_a_span_that_nobody_will_see_none_has_to_begin() -> None:
    off = Spans(ALWAYS_OFF)
    assert not off.tracing.recording
    span = off.tracing.begin("a", "server", {}, caller=())
    with span.current():
        assert not off.tracing.recording
        outside = off.tracing.outgoing()
        with UNSEEN.current():
            UNSEEN.rename("b")
            UNSEEN.put({"c": 1})
            UNSEEN.fail("d")
            assert off.tracing.outgoing() == outside != []
        UNSEEN.end()
    span.end()
    on = Spans()
    with on.tracing.begin("a", "server", {}).current():
        assert on.tracing.recording


def test_without_a_provider_it_is_the_applications(monkeypatch: pytest.MonkeyPatch, spans: Spans) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    OpenTelemetry().begin("a", "client", {}).end()
    assert [span.name for span in spans.all()] == ["a"]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([b"traceparent", b"tracestate", b"TRACEPARENT"]), st.binary())))
def test_no_header_of_a_caller_raises(lines: list[tuple[bytes, bytes]]) -> None:
    Spans().tracing.begin("a", "server", {}, caller=lines).end()
