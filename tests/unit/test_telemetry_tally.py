"""Counts that are settled when somebody looks: none is lost, none counted twice."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest

from fencegate.telemetry.tally import Tally


def test_every_look_sees_every_count() -> None:
    registry, tally = CollectorRegistry(), Tally()
    registry.register(tally)
    counter = Counter("things", "Things.", ("kind",), registry=registry)
    for looks in range(1, 4):
        for _ in range(5):
            tally.add(counter.labels("a"))
        tally.add(counter.labels("b"))
        assert registry.get_sample_value("things_total", {"kind": "a"}) == 5 * looks
        assert registry.get_sample_value("things_total", {"kind": "b"}) == looks
    assert b'things_total{kind="a"} 15.0' in generate_latest(registry)


def test_a_look_at_one_metric_is_settled_by_hand() -> None:
    tally, counter = Tally(), Counter("others", "Others.", registry=None)
    tally.add(counter)
    tally.settle()
    tally.settle()
    assert [
        sample.value for metric in counter.collect() for sample in metric.samples if sample.name == "others_total"
    ] == [1]
