"""Which refused write is kept, until when, and how many: the rules of bounded holding."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.errors import PROBLEMS, Refusal, problem
from fencegate.gateway.holding import PACE, Case, fits, hold_until, is_news, is_worth_it, places, reserve, turn
from fencegate.lease import Observed, Term

NOBODY = Observed(True, None, 0.0, 0.0)


def leads(region: str, token: int = 41, *, draining_to: str | None = None) -> Observed:
    term = Term("r", token, "n", region, f"https://{region}.example", True, 15.0, 9.0, draining_to)
    return Observed(True, term, 0.0, 0.0)


def refusal(code: str, token: int | None = 41, seen: int | None = 41) -> Refusal:
    return Refusal(problem(code), "", "r", token, seen)


def case(code: str, observed: Observed = NOBODY, *, hold: float = 2.0, deadline: float = 130.0, **more: int) -> Case:
    return Case(refusal(code, **more), observed, "eu", hold, deadline)


@pytest.mark.parametrize(
    ("code", "observed"),
    [
        ("draining", leads("eu")),
        ("draining", leads("eu", draining_to="dr")),
        ("no_leader", NOBODY),
        ("no_leader", leads("eu")),
        ("not_leader", leads("dr", draining_to="eu")),
    ],
)
def test_a_handoff_or_an_election_under_way_is_worth_a_wait(code: str, observed: Observed) -> None:
    assert is_worth_it(case(code, observed))


@pytest.mark.parametrize(("code", "observed"), [("no_leader", NOBODY), ("not_leader", leads("dr", draining_to="eu"))])
def test_the_token_of_a_term_that_is_about_to_open_is_worth_a_wait(code: str, observed: Observed) -> None:
    assert is_worth_it(case(code, observed, token=42, seen=41))


def test_while_a_term_is_being_ended_only_its_own_token_has_something_to_wait_for() -> None:
    assert is_worth_it(case("draining", leads("eu"), token=41, seen=41))
    assert not is_worth_it(case("draining", leads("eu"), token=42, seen=41))


@pytest.mark.parametrize("observed", [NOBODY, leads("eu"), leads("dr"), leads("dr", draining_to="eu")])
@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_a_token_below_the_fence_is_never_kept(code: str, observed: Observed) -> None:
    assert not is_worth_it(case(code, observed, token=40, seen=41))


@pytest.mark.parametrize("observed", [NOBODY, leads("eu"), leads("dr"), leads("dr", draining_to="eu")])
@pytest.mark.parametrize("code", sorted(set(PROBLEMS) - {"draining", "no_leader", "not_leader"}))
def test_no_other_refusal_is_kept(code: str, observed: Observed) -> None:
    assert not is_worth_it(case(code, observed))


@pytest.mark.parametrize("observed", [leads("dr"), leads("dr", draining_to="us"), NOBODY])
def test_a_region_that_is_not_the_successor_sends_its_callers_on_at_once(observed: Observed) -> None:
    assert not is_worth_it(case("not_leader", observed))


def test_a_write_without_a_token_is_never_kept() -> None:
    assert not is_worth_it(Case(refusal("no_leader", None, None), NOBODY, "eu", 2.0, 130.0))


SECONDS = st.floats(0.0, 120.0)


@given(now=st.floats(0, 1e6), hold=SECONDS, left=st.floats(-5.0, 120.0))
def test_no_hold_outlasts_the_routes_nor_what_the_write_still_needs(now: float, hold: float, left: float) -> None:
    until = hold_until(case("no_leader", hold=hold, deadline=now + left), now)
    if until is None:
        assert min(hold, left * 0.75) < 0.006
        return
    assert now < until <= now + hold
    assert until <= now + left - min(1.0, left / 4) + 1e-6


@given(hold=SECONDS, left=SECONDS, waits=st.lists(st.floats(0.0, 30.0), max_size=8))
def test_a_write_that_is_held_again_and_again_is_held_no_longer_in_all(
    hold: float, left: float, waits: list[float]
) -> None:
    first = hold_until(case("no_leader", hold=hold, deadline=100.0 + left), 100.0)
    now, ends = 100.0, 100.0 if first is None else first
    for wait in waits:
        now += wait
        again = Case(refusal("draining"), leads("eu"), "eu", hold, 100.0 + left, began=100.0)
        until = hold_until(again, now)
        assert until is None or (until == pytest.approx(ends) and until > now)
        if now >= ends:
            assert until is None


@given(left=st.floats(-10.0, 100.0))
def test_the_reserve_is_a_part_of_what_is_left_and_never_more_than_a_second(left: float) -> None:
    assert 0.0 <= reserve(left) <= min(1.0, max(0.0, left))


ROLES = st.sampled_from(["a", "b", "c"])


@given(capacity=st.integers(0, 100), steps=st.lists(st.tuples(ROLES, st.booleans()), max_size=200))
def test_whatever_comes_and_goes_there_is_always_a_place_for_another_role(
    capacity: int, steps: list[tuple[str, bool]]
) -> None:
    held = dict.fromkeys("abc", 0)
    for role, comes in steps:
        total = sum(held.values())
        if comes and fits(held[role], total, 1, capacity):
            held[role] += 1
        elif not comes and held[role]:
            held[role] -= 1
        total = sum(held.values())
        assert total < max(1, capacity), "no role and no number of roles takes the last place"
    if capacity >= 30:
        # Three roles that fill the room one after another share it; each got more than a few.
        greedy = dict.fromkeys("abc", 0)
        for role in "abc":
            while fits(greedy[role], sum(greedy.values()), 1, capacity):
                greedy[role] += 1
        assert all(greedy.values())


@given(size=st.integers(0, 2**40), capacity=st.integers(0, 2**30))
def test_a_body_larger_than_the_room_never_fits(size: int, capacity: int) -> None:
    if size >= capacity:
        assert not fits(0, 0, size, capacity)


def test_a_quarter_of_the_requests_in_flight_is_left_to_all_others() -> None:
    assert (places(1000), places(4), places(1), places(0)) == (750, 3, 0, 0)


@given(jitters=st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=2, max_size=50))
def test_those_let_go_together_go_in_their_order_and_at_the_pace(jitters: list[float]) -> None:
    turns = [turn(position, jitter) for position, jitter in enumerate(jitters)]
    assert turns == sorted(turns)
    assert turns[0] >= 0
    assert math.isclose(turns[-1], (len(jitters) - 1) / PACE, abs_tol=1.001 / PACE)


@pytest.mark.parametrize(
    ("observed", "news"),
    [(NOBODY, False), (leads("eu"), True), (leads("dr"), True), (leads("eu", draining_to="dr"), False)],
)
def test_news_is_that_somebody_leads_and_goes_on_to(observed: Observed, news: bool) -> None:
    assert is_news(observed) is news
