"""Schedules of faults: the same from the same seed, within their bounds, and every kind in some of them."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from fencegate.gameday.faults import QUORUM, Strike, schedule

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_a_seed_gives_the_same_schedule_again(seed: int) -> None:
    assert schedule(seed, 60, 5) == schedule(seed, 60, 5)


@given(SEEDS, st.floats(5, 300), st.floats(1, 15))
def test_every_fault_ends_within_the_run_and_no_part_is_struck_twice_at_once(
    seed: int, seconds: float, lease: float
) -> None:
    struck: dict[str, float] = defaultdict(float)
    for fault in schedule(seed, seconds, lease):
        assert struck[fault.part] <= fault.at
        assert 0 <= fault.lasts <= 2 * lease + 0.1
        assert fault.ends < seconds
        struck[fault.part] = fault.ends


def test_every_way_to_strike_comes_up_and_so_does_every_part() -> None:
    faults = [fault for seed in range(40) for fault in schedule(seed, 60, 5)]
    assert {fault.strike for fault in faults} == set(Strike)
    assert {fault.part for fault in faults} >= {*QUORUM, "primary-gateway", "dr-store", "dr-quorum-link"}
    lengths = [fault.lasts for fault in faults if fault.strike is not Strike.HANDOFF]
    assert min(lengths) < 5 / 3 < 5 < max(lengths), "shorter and longer than the lease"


def test_a_fault_tells_itself() -> None:
    assert str(schedule(1, 60, 5)[0]).strip() == "0.7 s  silence dr-store-link for 1.3 s"
