"""What a soak says of its measures. That a leak is found is the business of ``test_gameday_steady.py``."""

from __future__ import annotations

from collections import Counter

from fencegate.gameday.soak import AT_REST, BOUNDS, SLOW, Soaked, left_over
from fencegate.gameday.steady import Bound, trend
from fencegate.gameday.verify import Verdict

FLAT = trend("eu: tasks", [(float(t), 20.0) for t in range(20)], Bound(1.0))
RISING = trend("eu: tasks", [(float(t), 20.0 + t) for t in range(20)], Bound(1.0))


def soaked(**changes: object) -> Soaked:
    facts: dict[str, object] = {"trends": [FLAT], "left_over": [], "verdict": Verdict({}, {}, (), ())}
    facts |= {"answers": Counter(), "handoffs": 1, "cut": Counter()}
    return Soaked(**(facts | changes))  # type: ignore[arg-type]


def test_a_measure_that_rises_fails_the_soak_and_is_named() -> None:
    assert soaked().ok
    assert not soaked(trends=[FLAT, RISING]).ok
    assert "RISES" in str(soaked(trends=[RISING]))
    assert "FAILED" in str(soaked(trends=[RISING]))


def test_what_is_left_over_at_rest_fails_the_soak_and_is_named() -> None:
    before = {("tasks", "eu"): 20.0, ("memory, MB", "eu"): 60.0}
    assert left_over(before, {("tasks", "eu"): 22.0, ("memory, MB", "eu"): 90.0}) == []
    [line] = left_over(before, {("tasks", "eu"): 31.0, ("memory, MB", "eu"): 60.0})
    assert line == "eu: tasks were 20 before the load, 31 after it"
    assert not soaked(left_over=[line]).ok
    assert line in str(soaked(left_over=[line]))


def test_every_measure_has_a_bound() -> None:
    assert set(AT_REST) | SLOW <= set(BOUNDS)
