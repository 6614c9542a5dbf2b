"""Counts that are settled when somebody looks: none is lost, none counted twice."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.exposition import generate_latest

from fencegate.telemetry.tally import Tally


def test_every_look_sees_every_count() -> None:
    registry = CollectorRegistry()
    counter = Counter("things", "Things.", ("kind",), registry=None)
    tally = Tally(lambda what, role, word: counter.labels(word))
    registry.register(tally)
    registry.register(counter)
    for looks in range(1, 4):
        for _ in range(5):
            tally.add("things", "r", "a")
        tally.add("things", "r", "b")
        assert registry.get_sample_value("things_total", {"kind": "a"}) == 5 * looks
        assert registry.get_sample_value("things_total", {"kind": "b"}) == looks
    assert b'things_total{kind="a"} 15.0' in generate_latest(registry)


def test_a_look_at_one_metric_is_settled_by_hand() -> None:
    counter = Counter("others", "Others.", registry=None)
    tally = Tally(lambda what, role, word: counter)
    tally.add("others", "r", "a")
    tally.settle()
    tally.settle()
    assert total(counter) == 1


def test_a_thousand_words_and_more_are_counted_without_being_kept() -> None:
    counter = Counter("others", "Others.", registry=None)
    tally = Tally(lambda what, role, word: counter)
    for number in range(5000):
        tally.add("others", f"r{number}", "a")
    assert total(counter) >= 4000
    tally.settle()
    assert total(counter) == 5000


def total(counter: Counter) -> float:
    return sum(s.value for metric in counter.collect() for s in metric.samples if s.name == "others_total")
