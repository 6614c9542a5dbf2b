"""The rule that a soak is judged by: it takes a sawtooth for flat, and finds a leak under it."""

from __future__ import annotations

import random

import pytest

from fencegate.gameday.steady import Bound, slope, trend

BOUND = Bound(5.0)


def series(seconds: int, per_second: float, *, noise: float = 0.0, saw: float = 0.0) -> list[tuple[float, float]]:
    """A value at 100 each five seconds, with a leak, noise, and a sawtooth of a minute."""
    chance = random.Random(7)
    return [
        (t, 100 + per_second * t + chance.uniform(-noise, noise) + saw * (t % 60) / 60) for t in range(0, seconds, 5)
    ]


@pytest.mark.parametrize("points", [series(1200, 0), series(1200, 0, noise=20), series(1200, 0, noise=2, saw=40)])
def test_noise_and_a_sawtooth_are_flat(points: list[tuple[float, float]]) -> None:
    assert trend("memory", points, BOUND).flat


@pytest.mark.parametrize("points", [series(1200, 0.01), series(1200, 0.02, noise=20), series(1200, 0.02, saw=40)])
def test_a_leak_is_found_under_noise_and_a_sawtooth(points: list[tuple[float, float]]) -> None:
    found = trend("memory", points, BOUND)
    assert not found.flat
    assert found.drift > 5
    assert "RISES" in str(found)


def test_a_leak_that_a_short_run_cannot_see_is_seen_in_a_long_one() -> None:
    assert trend("memory", series(120, 0.01), BOUND).flat
    assert not trend("memory", series(1800, 0.01), BOUND).flat


def test_a_few_outliers_move_nothing() -> None:
    points = series(1200, 0)
    points[-1] = points[-2] = points[10] = (points[-1][0], 1e9)
    assert slope(sorted(points)) == 0


def test_what_falls_is_no_fault() -> None:
    assert trend("memory", series(1200, -1), BOUND).flat


def test_a_share_of_where_it_began_is_allowed_where_that_is_more() -> None:
    assert trend("memory", series(1000, 0.01), Bound(0.0, 0.2)).flat
    assert not trend("memory", series(1000, 0.01), Bound(0.0, 0.05)).flat


def test_too_few_points_are_never_flat() -> None:
    assert not trend("memory", series(20, 0), BOUND).flat
    assert not trend("memory", [], BOUND).flat
