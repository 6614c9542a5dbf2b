"""Counts of what comes with every request, added to their counters when somebody looks.

A counter takes a lock and several calls to count one; a request is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Metric
from prometheus_client.registry import Collector


class Tally(Collector):
    """To be registered before the counters that it serves: a look at the registry settles it first. One thread's."""

    def __init__(self) -> None:
        self._counts: dict[Counter, int] = {}

    def add(self, counter: Counter) -> None:
        self._counts[counter] = self._counts.get(counter, 0) + 1

    def settle(self) -> None:
        """Bring the counters up to date."""
        counts, self._counts = self._counts, {}
        for counter, count in counts.items():
            counter.inc(count)

    def collect(self) -> Iterable[Metric]:
        """Nothing of its own."""
        self.settle()
        return ()
