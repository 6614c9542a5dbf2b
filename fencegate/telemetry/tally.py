"""Counts of what comes with every request, added to their counters when somebody looks.

A counter takes a lock and several calls to count one; a request is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import Counter, Metric
from prometheus_client.registry import Collector

_MOST: Final = 1024
"""Different words that are kept at most between two looks."""


class Tally(Collector):
    """To be registered before the counters that it serves: a look at the registry settles it first. One thread's.

    ``counter_of`` gives the counter for the words that something was counted by.
    """

    def __init__(self, counter_of: Callable[[str, str, str], Counter]) -> None:
        self._counter_of = counter_of
        self._counts: dict[tuple[str, str, str], int] = {}

    def add(self, what: str, role: str, word: str) -> None:
        """One more of what these words say."""
        words = what, role, word
        count = self._counts.get(words)
        if count is None:
            if len(self._counts) >= _MOST:
                self.settle()
            count = 0
        self._counts[words] = count + 1

    def settle(self) -> None:
        """Bring the counters up to date."""
        counts, self._counts = self._counts, {}
        for words, count in counts.items():
            self._counter_of(*words).inc(count)

    def collect(self) -> Iterable[Metric]:
        """Nothing of its own."""
        self.settle()
        return ()
