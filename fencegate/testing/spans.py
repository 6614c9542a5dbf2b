"""A tracer whose spans stay in memory, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext

from fencegate.telemetry.otel import OpenTelemetry


class Spans:
    """``tracing`` makes them; those that have ended are here, in the order of their ends."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = OpenTelemetry(self.provider)

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def of(self, kind: str) -> list[ReadableSpan]:
        """Those of a kind: ``server``, ``client`` or ``internal``."""
        return [span for span in self.all() if span.kind.name.lower() == kind]

    def below(self, parent: ReadableSpan) -> list[ReadableSpan]:
        """The children of one of them."""
        return [span for span in self.all() if is_child(span, parent)]

    def clear(self) -> None:
        self._exporter.clear()


def context(span: ReadableSpan) -> SpanContext:
    """Which trace and which span of it."""
    found = span.get_span_context()
    assert found is not None
    return found


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    same_trace = context(span).trace_id == context(parent).trace_id
    return same_trace and span.parent is not None and span.parent.span_id == context(parent).span_id


def told(span: ReadableSpan) -> Mapping[str, Any]:
    """Its attributes."""
    return span.attributes or {}


def failed(span: ReadableSpan) -> bool:
    return not span.status.is_ok and span.status.status_code.name == "ERROR"


def traceparent(span: ReadableSpan) -> str:
    """The header that makes its reader's spans children of this one."""
    found = context(span)
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
