"""Whether what was measured over a long run stays flat: the rule that a soak is judged by. Pure.

A line is laid through each series by the median of all slopes between two of its points (Theil and Sen), which a
sawtooth or a few outliers do not move. What the line rises by over the whole time is the *drift*: a leak drifts further
the longer it is watched, so a series is held to the same bound however long the run was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

Point = tuple[float, float]
"""Seconds, and what was measured then."""

FEWEST: Final = 8
"""Points below which nothing is said of a series."""
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a series may rise over the time that it is watched: ``absolute``, or ``share`` of where it began."""

    absolute: float
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Trend:
    """One series, judged. ``drift`` is what its line rises by; falling is no fault."""

    name: str
    points: tuple[Point, ...]
    start: float
    drift: float
    allowed: float

    @property
    def flat(self) -> bool:
        return len(self.points) >= FEWEST and self.drift <= self.allowed

    def __str__(self) -> str:
        verdict = "flat" if self.flat else "RISES" if len(self.points) >= FEWEST else "TOO FEW POINTS"
        every = -(-len(self.points) // _SHOWN) or 1
        shown = " ".join(f"{value:.6g}" for _, value in self.points[::every])
        return f"{self.name:<29}{verdict:<6}{self.drift:+9.4g} of {self.allowed:.4g} allowed    {shown}"


def trend(name: str, points: Sequence[Point], bound: Bound) -> Trend:
    """The trend of ``points``, which are in the order of their times."""
    start = median(value for _, value in points[: max(1, len(points) // 4)]) if points else 0.0
    drift = slope(points) * (points[-1][0] - points[0][0]) if len(points) > 1 else 0.0
    return Trend(name, tuple(points), start, drift, max(bound.absolute, bound.share * start))


def slope(points: Sequence[Point]) -> float:
    """The median slope between any two points, per second; 0 where there are none at two times."""
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(points)
        for later in points[place + 1 :]
        if later[0] > earlier[0]
    ]
    return median(slopes) if slopes else 0.0
