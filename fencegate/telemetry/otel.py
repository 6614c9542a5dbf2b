"""Tracing over OpenTelemetry's API. Imported only where somebody asked for it: the extra ``fencegate[otel]``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from fencegate import __version__
from fencegate.telemetry.conventions import ERROR
from fencegate.telemetry.tracing import Attributes, Kind, Lines, Span

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("tracing needs OpenTelemetry: pip install 'fencegate[otel]'") from error

_KINDS: Final = {
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "internal": trace.SpanKind.INTERNAL,
}
_W3C: Final = TraceContextTextMapPropagator()
_PARENT, _STATE = b"traceparent", b"tracestate"


class OpenTelemetry:
    """A :class:`~fencegate.telemetry.tracing.Tracing`. ``provider``: the application's global one where none is given.

    The trace goes on by W3C Trace Context, whatever propagators the application has set for its own requests.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("fencegate", __version__, tracer_provider=provider)

    def begin(self, name: str, kind: Kind, attributes: Attributes, *, caller: Lines | None = None) -> Span:
        parent = None if caller is None else _named_by(caller)
        return _Span(self._tracer.start_span(name, parent, _KINDS[kind], dict(attributes)))

    @property
    def recording(self) -> bool:
        return trace.get_current_span().is_recording()

    def outgoing(self) -> list[tuple[str, str]]:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return list(carrier.items())


class _Span:
    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def recording(self) -> bool:
        return self._span.is_recording()

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def put(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def fail(self, kind: str) -> None:
        self._span.set_attribute(ERROR, kind)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        self._span.end()

    def current(self) -> AbstractContextManager[Any]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)


def _named_by(lines: Lines) -> contexts.Context:
    """The context that a caller's header lines name: an empty one for none, and for more than one ``traceparent``."""
    parents, states = [], []
    for name, value in lines:
        size = len(name)  # Most names are told apart by it alone.
        if size == len(_PARENT) and name.lower() == _PARENT:
            parents.append(value.decode("latin-1"))
        elif size == len(_STATE) and name.lower() == _STATE:
            states.append(value.decode("latin-1"))
    if len(parents) != 1:
        return contexts.Context()
    carrier = {"traceparent": parents[0]} | ({"tracestate": ",".join(states)} if states else {})
    return _W3C.extract(carrier, contexts.Context())
