"""The last look before the first byte: what was frozen on the way to it sends nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway.last_look import LEAST_TIME, TOLD_GOOD_FOR, NotSent, too_late
from fencegate.testing.hand_clock import HandClock


def at_once(clock: HandClock, lease: float, time: float) -> NotSent | None:
    return too_late(clock(), good_until=1000.0 + lease, deadline=1000.0 + time, told_at=clock())


def test_a_write_goes_out_until_its_lease_has_ended_and_not_then() -> None:
    clock = HandClock()
    assert at_once(clock, lease=12.0, time=30.0) is None
    clock.now += 11.99
    assert at_once(clock, lease=12.0, time=30.0) is None
    clock.now += 0.01
    why = at_once(clock, lease=12.0, time=30.0)
    assert why is not None
    assert why.code == "fence_unavailable"


@pytest.mark.parametrize("asleep", [12.0, 3600.0])
def test_a_gateway_that_slept_over_its_lease_says_so_rather_than_that_the_caller_was_late(asleep: float) -> None:
    clock = HandClock()
    clock.now += asleep
    why = at_once(clock, lease=12.0, time=5.0)
    assert why is not None
    assert why.code == "fence_unavailable"


def test_where_no_lease_bounds_the_term_the_deadline_does_by_which_the_mark_was_written() -> None:
    clock = HandClock()
    clock.now += 5.0 - 2 * LEAST_TIME
    assert at_once(clock, lease=math.inf, time=5.0) is None
    clock.now += 2 * LEAST_TIME
    why = at_once(clock, lease=math.inf, time=5.0)
    assert why is not None
    assert why.code == "deadline_exceeded"


def test_what_the_upstream_is_told_is_not_sent_when_it_has_grown_old() -> None:
    clock = HandClock()
    told_at = clock()
    for step in (TOLD_GOOD_FOR, 0.001):
        clock.now += step
        why = too_late(clock(), good_until=math.inf, deadline=clock() + 60, told_at=told_at)
        assert (why is None) == (step == TOLD_GOOD_FOR)


@given(*[st.floats(-100, 100)] * 4)
def test_what_is_sent_keeps_within_the_lease_and_within_what_its_mark_covers(
    now: float, good_until: float, deadline: float, told_at: float
) -> None:
    if too_late(now, good_until=good_until, deadline=deadline, told_at=told_at) is None:
        assert now < good_until
        # The upstream adds what it was told to the moment at which it hears of it; the mark has a second more.
        assert now + (deadline - told_at) < deadline + 1.0
