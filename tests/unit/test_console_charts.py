"""Pictures over time: what they say in words is what they draw, and every duration finds its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.console import charts

LIMITS = (("retry", 2.0), ("deadline", 10.0), ("lease", 15.0))


def test_the_line_of_leader_count_says_in_words_what_it_shows() -> None:
    svg = charts.leader_count([(1000.0, 1), (60.0, 0), (30.0, 1)])
    assert 'aria-label="leader_count, the last 15 minutes: now 1, 2 changes."' in svg
    assert 'points="62,56 443,56 443,90 456,90 456,56 470,56"' in svg
    assert "No node has gained or lost this role" in charts.leader_count([])
    assert "now 1, 0 changes." in charts.leader_count([(1000.0, 1)])


def test_durations_are_drawn_against_the_limits_and_told_in_words() -> None:
    found = {"series": [[60.0, 0.012], [30.0, 11.0]], "last": 0.004, "p50": 0.012, "p99": 11.0}
    svg = charts.durations("Renewal", found, LIMITS)
    assert "at most 11 s; beside it retry 2 s, deadline 10 s, lease 15 s." in svg
    assert svg.count('class="limit"') == 3
    assert (svg.count('class="took"'), svg.count('class="late"')) == (1, 1)
    assert "last 4.0 ms, p50 12 ms, p99 11 s; longest shown 11 s." in svg


@pytest.mark.parametrize("found", [{}, {"series": []}, {"series": [[1000.0, 1.0]]}])
def test_where_nothing_was_measured_it_says_so(found: dict[str, object]) -> None:
    assert charts.durations("Renewal", found) == "<p>Nothing was measured in the last 15 minutes.</p>"


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(0, 1e6)), min_size=1, max_size=31))
def test_every_bar_stays_inside_the_picture(series: list[tuple[float, float]]) -> None:
    svg = charts.durations("x", {"series": [list(one) for one in series]}, LIMITS)
    bars = re.findall(r'class="(?:took|late)" x="(-?\d+)" y="(-?\d+)" width="10" height="(-?\d+)"', svg)
    assert len(bars) == len(series)
    for x, y, height in bars:
        assert 40 <= int(x) <= 470
        assert 0 < int(y) < 150
        assert int(y) + int(height) == 150
