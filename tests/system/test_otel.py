"""The real process and a collector that speaks real OTLP/HTTP: what arrives, and that a bad collector does nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from system.serving import Serving, Upstream, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"


class Collector:
    """Takes spans by OTLP/HTTP. ``stuck``: it reads them and says nothing."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.asked = 0
        self.let_go = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked += 1
                if stuck:
                    collector.let_go.wait(60)
                    return
                assert self.path == "/v1/traces"
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    about = values(part.resource.attributes)
                    collector.spans += [(about, span) for scope in part.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def named(self, name: str) -> list[Any]:
        return [span for _, span in list(self.spans) if span.name == name]


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def started(collector: Collector) -> Iterator[Collector]:
    thread = threading.Thread(target=collector.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield collector
    finally:
        collector.let_go.set()
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with started(Collector()) as one:
        yield one


def test_the_spans_of_a_write_and_of_a_term_have_arrived_when_the_process_has_ended(
    serve: Serve, tmp_path: Path, collector: Collector, upstream: Upstream
) -> None:
    config = tmp_path / "fencegate.toml"
    config.write_text(
        f'[otel]\nendpoint = "{collector.url}"\nservice_name = "gate"\n'
        '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
        f'[[route]]\npath = "/web/*"\nrole = "web"\ntarget = "{upstream.url}"\n'
    )
    gateway = serve("--embedded", str(tmp_path / "pg"), "--config", str(config)).listens()
    token = gateway.discovered()
    upstream.let_go.set()
    assert gateway.write(token, traceparent=CALLER).status == 201
    assert gateway.write(gateway.discovered("web"), path="/web/x", traceparent=CALLER).status == 201
    assert gateway.stop() == 0  # Sooner than the exporter would have sent anything by itself.
    [ledger] = collector.named("POST /v1/entries")
    assert ledger.trace_id.hex() == TRACE
    assert ledger.parent_span_id.hex() == CALLER[36:52]
    told = values(ledger.attributes)
    assert (told["fencegate.role"], told["fencegate.token"], told["fencegate.outcome"]) == ("ledger", token, "accepted")
    assert (told["http.route"], told["http.response.status_code"]) == ("/v1/entries", 201)
    [check] = collector.named("SELECT fencegate.append")
    assert check.parent_span_id == ledger.span_id
    assert values(check.attributes)["db.system.name"] == "postgresql"
    [web] = collector.named("POST /web/*")
    assert [span.parent_span_id for span in collector.named("POST")] == [web.span_id]
    assert {values(span.attributes)["fencegate.role"] for span in collector.named("fencegate claim")} == {
        "ledger",
        "web",
    }
    assert len(collector.named("fencegate seal")) == len(collector.named("fencegate step down")) == 2
    about = collector.spans[0][0]
    assert (about["service.name"], about["service.instance.id"], about["fencegate.region"]) == (
        "gate",
        "local",
        "local",
    )


def test_workers_send_their_own_and_the_standard_variables_are_enough(
    serve: Serve, tmp_path: Path, collector: Collector
) -> None:
    gateway = serve(
        "--embedded",
        str(tmp_path / "pg"),
        "--workers",
        "2",
        FENCEGATE_OTEL_ENABLED="true",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_SERVICE_NAME="by-variable",
        OTEL_TRACES_SAMPLER="parentbased_always_off",
        OTEL_BSP_SCHEDULE_DELAY="50",
    ).listens(90)
    token = gateway.discovered()
    for _ in range(20):
        assert gateway.write(token).status == 201  # not sampled
        assert gateway.write(token, traceparent=CALLER).status == 201
    until("the spans", lambda: len(collector.named("POST /v1/entries")) == 20)
    assert gateway.stop() == 0
    assert len(collector.named("POST /v1/entries")) == 20
    instances = {str(about["service.instance.id"]) for about, _ in collector.spans}
    assert instances >= {"local"}  # the supervisor, of the leadership
    assert instances <= {"local", "local/0", "local/1", "local/2"}
    assert len(instances) > 1
    assert {about["service.name"] for about, _ in collector.spans} == {"by-variable"}
    assert len(collector.named("fencegate claim")) == 1


@pytest.mark.parametrize("how", ["down", "stuck"])
def test_a_collector_that_is_down_or_stuck_neither_slows_a_write_nor_keeps_the_process(
    serve: Serve, tmp_path: Path, unused_ports: list[int], how: str
) -> None:
    with started(Collector(stuck=True)) as stuck:
        url = stuck.url if how == "stuck" else f"http://127.0.0.1:{unused_ports[0]}"
        gateway = serve(
            "--embedded",
            str(tmp_path / "pg"),
            "--set",
            f"otel.endpoint={url}",
            OTEL_BSP_SCHEDULE_DELAY="20",
            OTEL_BSP_MAX_QUEUE_SIZE="16",  # Full at once: most spans are dropped.
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8",
        ).listens()
        token = gateway.discovered()

        def timed(_: int) -> float:
            began = time.monotonic()
            assert gateway.write(token).status == 201
            return time.monotonic() - began

        with ThreadPoolExecutor(8) as threads:
            took = sorted(threads.map(timed, range(300)))
        assert took[150] < 1.0
        assert took[-1] < 5.0  # A write that waited for the exporter would have waited for ten.
        if how == "stuck":
            assert stuck.asked > 0
        began = time.monotonic()
        gateway.signal(signal.SIGTERM)
        assert gateway.ends() == 0
        assert time.monotonic() - began < 12
        assert any("did not reach the collector" in line for line in gateway.err)
