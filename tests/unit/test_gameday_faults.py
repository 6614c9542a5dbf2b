"""Schedules of faults: the same from the same seed, within their bounds, and every kind in some of them."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from fencegate.gameday.chaos_stage import Shape, shape_of
from fencegate.gameday.faults import Dish, schedule
from fencegate.gameday.strikes.menu import menu

SEEDS = st.integers(0, 2**32)
EVERYTHING = Shape("lagging", small_disk=True, clocks=True, packets=True, upstream=1.0)


@given(SEEDS)
def test_a_seed_gives_the_same_schedule_again(seed: int) -> None:
    shape = shape_of(seed)
    assert shape == shape_of(seed)
    assert schedule(seed, 60, 5, menu(shape)) == schedule(seed, 60, 5, menu(shape))


@given(SEEDS, st.floats(5, 300), st.floats(1, 15))
def test_every_fault_ends_within_the_run_and_no_part_is_struck_twice_at_once(
    seed: int, seconds: float, lease: float
) -> None:
    struck: dict[str, float] = defaultdict(float)
    for fault in schedule(seed, seconds, lease, menu(EVERYTHING)):
        assert struck[fault.part] <= fault.at
        assert 0 <= fault.lasts <= 2 * lease + 0.1
        assert fault.ends < seconds
        struck[fault.part] = fault.ends


@given(SEEDS)
def test_what_can_be_done_once_is_done_once_at_each_part(seed: int) -> None:
    once = [Dish("failover", ("a", "b"), once=True, lasting=False), Dish("freeze", ("c",))]
    played = Counter((f.strike, f.part) for f in schedule(seed, 120, 3, once))
    assert played["failover", "a"] <= 1
    assert played["failover", "b"] <= 1


def test_every_way_to_strike_comes_up_at_every_part() -> None:
    dishes = menu(EVERYTHING)
    faults = [fault for seed in range(400) for fault in schedule(seed, 60, 5, dishes)]
    assert {fault.strike for fault in faults} == {dish.strike for dish in dishes}
    assert {fault.part for fault in faults} == {part for dish in dishes for part in dish.parts}
    lengths = [fault.lasts for fault in faults if fault.strike == "freeze"]
    assert min(lengths) < 5 / 3 < 5 < max(lengths), "shorter and longer than the lease"


def test_a_stage_without_a_standby_has_no_failover_on_its_menu() -> None:
    assert "failover" not in {dish.strike for dish in menu(Shape())}
    assert not any("standby" in part or "replication" in part for dish in menu(Shape()) for part in dish.parts)


def test_a_fault_tells_itself() -> None:
    [first, *_] = schedule(1, 60, 5, [Dish("silence", ("dr-store-link",))])
    assert str(first).strip() == f"{first.at} s  silence dr-store-link for {first.lasts} s"
