"""Timings that hold together, and those that would let a lease end at the wrong moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.lease import JITTER_FACTOR, Candidate, LeaseTimings


def test_the_defaults_are_those_of_kubernetes_and_hold_together() -> None:
    timings = LeaseTimings()
    assert (timings.lease_duration, timings.renew_deadline, timings.retry_period) == (15, 10, 2)
    assert timings.faults() == []


@pytest.mark.parametrize(
    ("timings", "words"),
    [
        (LeaseTimings(lease_duration=10), "lease_duration (10 s) must be more than renew_deadline (10 s)"),
        (LeaseTimings(renew_deadline=2.4), "must be more than retry_period x 1.2 (2.4 s)"),
        (LeaseTimings(margin=5), "lease_duration - margin (10 s) must be more than renew_deadline (10 s)"),
        (LeaseTimings(lease_duration=0), "lease_duration must be more than 0 s, not 0"),
        (LeaseTimings(retry_period=-1), "retry_period must be more than 0 s, not -1"),
        (LeaseTimings(margin=-0.5), "margin must not be negative, not -0.5"),
        (LeaseTimings(clock_offset=-0.5), "clock_offset must not be negative, not -0.5"),
        (LeaseTimings(margin=2, clock_offset=3), "lease_duration - margin - clock_offset (10 s) must be more than"),
    ],
)
def test_nonsense_is_named_with_its_numbers(timings: LeaseTimings, words: str) -> None:
    assert any(words in fault for fault in timings.faults())


@given(*(st.floats(min_value=-1, max_value=100) for _ in range(5)))
def test_timings_without_a_fault_end_in_the_safe_order(
    lease: float, deadline: float, retry: float, margin: float, offset: float
) -> None:
    """One more try fits before the elector gives up, and it gives up before its store closes, before its lease ends."""
    timings = LeaseTimings(lease, deadline, retry, margin, offset)
    if timings.faults():
        return
    assert 0 < retry * JITTER_FACTOR < deadline < timings.store_lease <= lease


@given(*(st.floats(min_value=0, max_value=5) for _ in range(2)), st.floats(min_value=-5, max_value=5))
def test_a_lease_that_one_clock_wrote_ends_within_itself_on_any_other_that_is_no_further_off(
    margin: float, offset: float, apart: float
) -> None:
    """Rule R4 with several clocks. Instants are true ones since the renewal's first step, at 0."""
    timings = LeaseTimings(margin=margin, clock_offset=offset)
    apart = max(-offset, min(offset, apart))
    written_by_one = 1000.0 + timings.store_lease
    true_end_on_the_other = written_by_one - (1000.0 + apart)
    assert true_end_on_the_other <= timings.lease_duration - timings.margin + 1e-9


def test_a_holder_is_named_by_region_and_node() -> None:
    assert Candidate("gw-1", "eu", "https://eu.example").holder == "eu/gw-1"
