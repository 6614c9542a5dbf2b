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
    ],
)
def test_nonsense_is_named_with_its_numbers(timings: LeaseTimings, words: str) -> None:
    assert any(words in fault for fault in timings.faults())


@given(*(st.floats(min_value=-1, max_value=100) for _ in range(4)))
def test_timings_without_a_fault_end_in_the_safe_order(
    lease: float, deadline: float, retry: float, margin: float
) -> None:
    """One more try fits before the elector gives up, and it gives up before its store closes, before its lease ends."""
    timings = LeaseTimings(lease, deadline, retry, margin)
    if timings.faults():
        return
    assert 0 < retry * JITTER_FACTOR < deadline < timings.store_lease <= lease


def test_a_holder_is_named_by_region_and_node() -> None:
    assert Candidate("gw-1", "eu", "https://eu.example").holder == "eu/gw-1"
