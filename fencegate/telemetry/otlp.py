"""Spans on their way to a collector: OpenTelemetry's SDK and its OTLP/HTTP exporter, with a thread of their own.

Whoever ends a span puts it into a bounded queue and goes on; where the collector is slow or down, spans are lost and
nothing else is. The exporter's own settings are the standard ``OTEL_*`` variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Final

from fencegate import __version__
from fencegate.telemetry.conventions import NODE, REGION
from fencegate.telemetry.otel import OpenTelemetry

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
except ImportError as error:
    raise ImportError("tracing needs OpenTelemetry: pip install 'fencegate[otel]'") from error

SERVICE: Final = "fencegate"
_TRACES: Final = "/v1/traces"
# While the collector is down it would warn of each try; that a batch was given up is enough.
logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").setLevel(logging.ERROR)
_log = logging.getLogger("fencegate.tracing")


class Exporting:
    """Where the spans of one process go. :meth:`close` once, at its end.

    ``requests`` is sampled: by the caller's word where a request brings one, else ``sample_ratio`` of them; ``None``:
    as ``OTEL_TRACES_SAMPLER`` says. ``leadership`` never is: it is little, and each of it matters.

    ``endpoint``: the collector's URL without ``/v1/traces``; ``None``: as the ``OTEL_*`` variables say. ``instance``
    tells this process from every other of the service. ``processor``: where spans go instead, in tests.
    """

    def __init__(
        self,
        *,
        node: str,
        region: str,
        instance: str = "",
        endpoint: str | None = None,
        service_name: str | None = None,
        sample_ratio: float | None = None,
        processor: SpanProcessor | None = None,
    ) -> None:
        resource = _resource(service_name, {NODE: node, REGION: region, SERVICE_INSTANCE_ID: instance or node})
        exporter = processor or BatchSpanProcessor(
            OTLPSpanExporter(endpoint=None if endpoint is None else endpoint.rstrip("/") + _TRACES)
        )
        sampler = None if sample_ratio is None else ParentBased(TraceIdRatioBased(sample_ratio))
        # Without a handler at the interpreter's exit, which would wait for the collector as long as it likes.
        of_requests = TracerProvider(sampler, resource, shutdown_on_exit=False)
        of_leadership = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        for provider in (of_requests, of_leadership):
            provider.add_span_processor(exporter)
        self._exporter = exporter
        self.requests = OpenTelemetry(of_requests)
        self.leadership = OpenTelemetry(of_leadership)

    async def close(self, time_limit: float) -> bool:
        """Send what is still here, for at most ``time_limit`` seconds; whether the sending came to its end."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self._exporter.shutdown()
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody waits any more.
                loop.call_soon_threadsafe(ended.set)

        # Not one of the loop's own threads, which the end of the process waits for.
        threading.Thread(target=send, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(time_limit):
                await ended.wait()
        except TimeoutError:
            _log.warning("the last spans did not reach the collector within %.3g s", time_limit)
            return False
        return True


def _resource(service_name: str | None, of_ours: dict[str, str]) -> Resource:
    found = Resource.create({SERVICE_VERSION: __version__, **of_ours})
    named = str(found.attributes.get(SERVICE_NAME, ""))
    if service_name is None and named and not named.startswith("unknown_service"):
        return found
    return found.merge(Resource({SERVICE_NAME: service_name or SERVICE}))
