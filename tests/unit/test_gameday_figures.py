"""What runs add up to, and the table that shows it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from fencegate.gameday.figures import Figures, quantile, strikes, table
from fencegate.lease import LeaseTimings


def test_figures_add_up_and_come_back_from_json() -> None:
    one = Figures(stages=1, requests=10, strikes=Counter({"kill": 2}), death=[3.25])
    two = Figures(stages=1, requests=5, strikes=Counter({"kill": 1, "freeze": 1}), death=[1.0], violations=1)
    one.add(two)
    assert one == Figures(
        stages=2, requests=15, strikes=Counter({"kill": 3, "freeze": 1}), death=[3.25, 1.0], violations=1
    )
    assert Figures.from_json(json.loads(json.dumps(one.as_json()))) == one


def test_a_figure_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError):
        Figures.from_json({"requets": 1})


def test_the_table_shows_what_was_reached_beside_what_was_wanted() -> None:
    shown = table(Figures(requests=12_345, death=[3.0, 4.0], pauses=[0.1] * 99 + [2.0]), LeaseTimings(3, 2, 0.4, 0.5))
    assert "| requests | 12,345 | 10,000,000 |" in shown
    assert (
        "| leader killed → first write of the next | 4.00 s at most, 3.00 s median (n = 2) | at most 4.4 s |" in shown
    )
    assert "p99 0.10 s, median 0.10 s, longest 2.00 s (n = 100)" in shown
    assert "not measured" in shown
    assert "upstream" not in shown


def test_what_was_left_out_is_told_with_its_reason() -> None:
    shown = strikes(Figures(strikes=Counter({"kill": 2}), left_out=Counter({"disk full: no room": 1})))
    assert "| kill | 2 |" in shown
    assert "| disk full: no room | 1 |" in shown


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([5.0], 0.99) == 5.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)
