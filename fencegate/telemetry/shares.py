"""The metrics of a gateway of several processes: each worker reports its numbers, and one page gives the whole.

A worker sends what changed since its last report, twice a second: absolute numbers, so that a report that is lost
costs nothing once the next one comes. Counters and histograms are added up. What a worker counted stays counted when
it ends, so that no sum ever falls; its gauges are gone that moment. A worker that is killed takes with it what it
counted since its last report.

prometheus_client's own multiprocess mode keeps each process' numbers in files that it maps into memory. It was not
taken: it has to be chosen by an environment variable before the import, leaves files behind by process id, which
grow with every restart, takes no collector of our own (:mod:`fencegate.telemetry.tally`), and knows a gauge's
meaning only by the process that set it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from fencegate import observations as seen
from fencegate.telemetry.metrics import ByReason, Metrics, by_reason

SUMMED: Final = frozenset(
    {
        "fencing_held_writes",
        "asyncio_tasks",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    }
)
"""Gauges of which the whole has what its parts have together."""
LEAST: Final = frozenset({"fencing_store_up"})
"""Gauges of which the whole has no more than any part: a store that one worker cannot reach is not up."""
# Every other gauge (who leads, until when, which tokens) is said by the process with the elector alone.

Row = Sequence[Any]
"""One number of a report: the metric's name, the sample's, its labels as pairs, and the value."""
_Key = tuple[str, tuple[tuple[str, str], ...]]


class Changes:
    """A worker's side: what changed in its metrics since the last report."""

    def __init__(self, metrics: Metrics) -> None:
        self._registry = metrics.registry
        self._told: dict[_Key, float] = {}

    def rows(self) -> list[Row]:
        """Each number that is another one than was told, counters and histograms that are 0 left out."""
        found: list[Row] = []
        for metric in self._registry.collect():
            is_gauge = metric.type == "gauge"
            if is_gauge and metric.name not in SUMMED | LEAST:
                continue
            for sample in metric.samples:
                key = _key(sample.name, sample.labels.items())
                if self._told.get(key, None if is_gauge else 0.0) != sample.value:
                    self._told[key] = sample.value
                    found.append((metric.name, sample.name, list(sample.labels.items()), sample.value))
        return found


class Whole(Collector):
    """The supervisor's side: its own metrics and those of its workers as one page. An ``Observer`` of the workers."""

    def __init__(self, own: Metrics) -> None:
        self._own = own
        self._lives: dict[int, dict[_Key, float]] = {}
        self._past: dict[_Key, float] = {}
        self._page = CollectorRegistry()
        self._page.register(self)
        self._serving: set[int] = set()
        self._workers = Gauge("fencing_workers", "Worker processes that take requests now.", registry=own.registry)
        self._ends = Counter(
            "fencing_worker_ends", "Worker processes that ended without being told to.", registry=own.registry
        )

    def __call__(self, fact: seen.Observation) -> None:
        match fact:
            case seen.WorkerServes(number=number):
                self._serving.add(number)
            case seen.WorkerEnded(number=number):
                self._serving.discard(number)
                self._ends.inc()
            case _:
                return
        self._workers.set(len(self._serving))

    def take(self, worker: int, rows: Iterable[Row]) -> None:
        """A report of the worker of that number."""
        life = self._lives.setdefault(worker, {})
        for _, sample, labels, value in rows:
            life[_key(sample, labels)] = float(value)

    def ended(self, worker: int) -> None:
        """Its process has ended: what it counted stays, its gauges are gone. Another of that number begins at 0."""
        for key, value in self._lives.pop(worker, {}).items():
            if key[0] not in SUMMED | LEAST:
                self._past[key] = self._past.get(key, 0.0) + value

    def collect(self) -> Iterable[Metric]:
        for metric in self._own.registry.collect():
            whole = Metric(metric.name, metric.documentation, metric.type)
            for sample in metric.samples:
                value = self._of_all(metric, _key(sample.name, sample.labels.items()), sample.value)
                whole.add_sample(sample.name, sample.labels, value)
            yield whole

    def _of_all(self, metric: Metric, key: _Key, own: float) -> float:
        if metric.name in LEAST:
            return min([own, *(life[key] for life in self._lives.values() if key in life)])
        if metric.type == "gauge" and metric.name not in SUMMED:
            return own
        return self._added_up(key, own)

    def _added_up(self, key: _Key, own: float) -> float:
        parts = (own, self._past.get(key, 0.0), *(life.get(key, 0.0) for life in self._lives.values()))
        # The parts move between lives and past: to the last bit, another order of adding would let a counter fall.
        return round(math.fsum(parts), 9)

    def render(self) -> tuple[str, bytes]:
        """The page of ``/metrics``: its content type and its body."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._page)

    def rejections(self) -> ByReason:
        """As :meth:`Metrics.rejections`, over all processes."""
        return by_reason(self._refusals(), self._own.label_of)

    def _refusals(self) -> Iterator[Sample]:
        for sample in self._own.refusals():
            yield sample._replace(value=self._added_up(_key(sample.name, sample.labels.items()), sample.value))


def _key(name: str, labels: Iterable[Iterable[str]]) -> _Key:
    return name, tuple((label, value) for label, value in labels)
