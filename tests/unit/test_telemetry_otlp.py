"""Spans on their way out: what is said of the process, what is sampled, and an end that waits for nobody."""

from __future__ import annotations

import threading
import time

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from fencegate import __version__
from fencegate.telemetry.otlp import Exporting


class Kept(SpanProcessor):
    """Keeps what ends. ``stuck``: its shutdown waits for that."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.stuck: threading.Event | None = None

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def shutdown(self) -> None:
        if self.stuck is not None:
            self.stuck.wait(30)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def exporting(kept: Kept, **more: object) -> Exporting:
    return Exporting(node="gw-1", region="eu", processor=kept, **more)  # type: ignore[arg-type]


def test_a_span_says_whose_it_is(kept: Kept, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    exporting(kept, instance="gw-1/2").requests.begin("a", "server", {}).end()
    told = kept.spans[0].resource.attributes
    assert told["service.name"] == "fencegate"
    assert told["service.version"] == __version__
    assert told["service.instance.id"] == "gw-1/2"
    assert (told["fencegate.node"], told["fencegate.region"]) == ("gw-1", "eu")
    assert told["deployment.environment.name"] == "test"


def test_the_services_name_is_the_settings_else_the_standard_variables(
    kept: Kept, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("OTEL_SERVICE_NAME", "ledger-gate")
    exporting(kept).requests.begin("a", "server", {}).end()
    exporting(kept, service_name="gate").requests.begin("a", "server", {}).end()
    assert [span.resource.attributes["service.name"] for span in kept.spans] == ["ledger-gate", "gate"]


def test_requests_are_sampled_and_the_leadership_never_is(kept: Kept, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OTEL_TRACES_SAMPLER", "always_off")
    for made in (exporting(kept), exporting(kept, sample_ratio=0.0)):
        made.requests.begin("request", "server", {}, caller=()).end()
        made.leadership.begin("claim", "internal", {}, caller=()).end()
    exporting(kept, sample_ratio=1.0).requests.begin("sampled", "server", {}, caller=()).end()
    assert [span.name for span in kept.spans] == ["claim", "claim", "sampled"]


async def test_the_end_waits_for_the_last_spans_and_not_for_ever(kept: Kept) -> None:
    assert await exporting(kept).close(5.0)
    kept.stuck = threading.Event()
    began = time.monotonic()
    assert not await exporting(kept).close(0.05)
    assert time.monotonic() - began < 5
    kept.stuck.set()
