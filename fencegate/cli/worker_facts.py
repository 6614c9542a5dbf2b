"""What a worker tells its supervisor beside its metrics: the facts that the supervisor's console shows."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, cast

from fencegate import observations
from fencegate.observations import FenceChecked, Observation, OrphanedMarkExpired

_MOST: Final = 50


class Facts:
    """An ``Observer``: what the supervisor's console shows and no metric tells. Of too many the latest are left out."""

    def __init__(self) -> None:
        self._found: list[Observation] = []

    def __call__(self, fact: Observation) -> None:
        if isinstance(fact, FenceChecked | OrphanedMarkExpired) and len(self._found) < _MOST:
            self._found.append(fact)

    def taken(self) -> list[tuple[str, dict[str, Any]]]:
        """Those since the last call, by the names of their kinds."""
        found, self._found = self._found, []
        return [(type(fact).__name__, dataclasses.asdict(cast("Any", fact))) for fact in found]


def fact_of(name: str, fields: dict[str, Any]) -> Observation:
    """One of :meth:`Facts.taken`, as it was before it went through JSON, which has no tuples."""
    kept = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    fact: Observation = getattr(observations, name)(**kept)
    return fact
