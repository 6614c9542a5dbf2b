"""The instants of an elector, and what follows from its timings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencegate.leadership.pace import Pace
from fencegate.lease import LeaseTimings

TIMINGS = LeaseTimings(15, 10, 2, 1)
INSTANT = st.floats(0, 1e6)


def pace(**instants: float) -> Pace:
    made = Pace(TIMINGS)
    for name, value in instants.items():
        setattr(made, name, value)
    return made


@given(INSTANT, st.floats(0, 30))
def test_a_holders_request_never_outlasts_its_term(renewed_at: float, passed: float) -> None:
    found = pace(renewed_at=renewed_at)
    now = renewed_at + passed
    assert now + found.held(now) <= found.deadline + 1e-6
    assert found.held(now) <= found.attempt


@given(INSTANT, st.floats(0, 1), st.floats(0, 30))
def test_the_next_try_is_a_period_after_the_last_began_and_never_in_the_past(
    asked_at: float, jitter: float, took: float
) -> None:
    now = asked_at + took
    again = pace(asked_at=asked_at).again(now, jitter)
    assert again >= now
    assert again == now or 2 - 1e-6 <= again - asked_at <= 2.4 + 1e-6


def test_a_request_is_given_up_a_little_after_its_limit() -> None:
    assert pace(asked_at=100.0).overrun(5.0) == 105.5


def test_a_term_counts_from_the_start_of_the_try_that_won_it() -> None:
    found = pace(asked_at=100.0)
    assert found.won(103.0, after_a_seal=False) is False
    assert (found.renewed_at, found.deadline, found.next_at) == (100.0, 110.0, 103.0)
    assert not found.won_too_long_ago(109.9)
    assert found.won_too_long_ago(110.0)


def test_a_strict_wait_is_for_the_longest_lease_seen_and_the_margin_from_the_answer_on() -> None:
    found = Pace(TIMINGS, strict_wait=True)
    found.saw_lease(40.0)
    found.saw_lease(3.0)
    found.asked_at = 100.0
    assert found.won(103.0, after_a_seal=False) is True
    assert found.settled_at == 103.0 + 40.0 + 1.0
    assert found.won(200.0, after_a_seal=False) is True
    assert found.settled_at == 200.0 + 15.0 + 1.0, "that lease was of the term before, and counts no more"
    assert found.won(300.0, after_a_seal=True) is False


def test_a_seal_is_tried_until_the_lease_has_lapsed_and_at_least_once() -> None:
    found = pace(renewed_at=100.0)
    found.sealing_begins(102.0)
    assert found.give_up_at == 115.0
    found.sealing_begins(500.0)
    assert found.give_up_at == 500.0 + found.attempt
