"""The life of a command that may run only while its node leads, moment by moment."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGTERM

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.cli.elect_life import Action, Kill, Life, Signal, State, Why

INFINITY = float("inf")


def life(grace: float = 3.0) -> Life:
    """Renewed at 0, believed in until 10; nothing may be alive at 14."""
    return Life(grace, 10.0, 14.0)


def test_while_it_is_renewed_nothing_is_done_to_it() -> None:
    one = life()
    for second in range(100):
        assert one.tick(float(second)) == []
        one.renewed(second + 10.0, second + 14.0)
    assert (one.state, one.wakeup()) == (State.RUNNING, 109.0)


def test_a_term_that_is_not_renewed_is_asked_to_end_and_then_killed_after_its_grace() -> None:
    one = life()
    assert one.tick(9.9) == []
    assert one.tick(10.0) == [Signal(SIGTERM)]
    assert one.wakeup() == 13.0
    assert one.tick(12.9) == []
    assert one.tick(13.0) == [Kill()]
    assert (one.state, one.why, one.wakeup()) == (State.KILLING, Why.LOST, INFINITY)
    assert one.tick(99.0) == []


def test_a_grace_longer_than_the_lease_ends_with_it() -> None:
    one = life(grace=60.0)
    one.tick(10.0)
    assert one.wakeup() == 14.0
    assert one.tick(14.0) == [Kill()]


def test_a_renewal_that_comes_late_brings_nothing_back() -> None:
    one = life()
    one.tick(10.0)
    one.renewed(20.0, 24.0)
    assert one.tick(13.0) == [Kill()]


def test_an_older_renewal_moves_no_end_back() -> None:
    one = life()
    one.renewed(8.0, 12.0)
    assert one.wakeup() == 10.0


@pytest.mark.parametrize("event", ["stop", "forward", "expired", "orphaned", "tick"])
def test_whoever_was_frozen_past_the_lease_kills_before_anything_else(event: str) -> None:
    one = life()
    now = 50.0
    did = {
        "stop": lambda: one.stop(SIGTERM, now),
        "forward": lambda: one.forward(SIGHUP, now),
        "expired": lambda: one.expired(now),
        "orphaned": lambda: one.orphaned(now),
        "tick": lambda: one.tick(now),
    }[event]()
    assert did == [Kill()]
    assert one.why is Why.LOST


def test_a_lease_that_is_over_by_the_elections_word_leaves_no_time_to_ask() -> None:
    one = life()
    assert one.lost() == [Kill()]
    assert one.why is Why.LOST


def test_a_stop_passes_the_signal_on_and_kills_after_the_grace_while_the_term_goes_on() -> None:
    one = life()
    assert one.stop(SIGINT, 5.0) == [Signal(SIGINT)]
    one.renewed(15.0, 19.0)
    assert one.stop(SIGTERM, 6.0) == [Signal(SIGTERM)]
    assert one.wakeup() == 8.0
    assert one.tick(8.0) == [Kill()]
    assert one.why is Why.STOPPED


def test_a_stop_with_a_long_grace_does_not_outlive_the_lease() -> None:
    one = life(grace=60.0)
    one.stop(SIGTERM, 5.0)
    assert one.tick(10.0) == [Signal(SIGTERM)]
    assert one.tick(14.0) == [Kill()]
    assert one.why is Why.LOST


def test_nobody_renewing_any_more_is_the_end_too() -> None:
    one = life()
    assert one.orphaned(1.0) == [Signal(SIGTERM)]
    assert one.tick(4.0) == [Kill()]
    assert one.why is Why.ORPHANED


def test_other_signals_are_the_commands_alone() -> None:
    one = life()
    assert one.forward(SIGHUP, 1.0) == [Signal(SIGHUP)]
    assert one.state is State.RUNNING
    one.stop(SIGTERM, 2.0)
    assert one.forward(SIGHUP, 2.0) == []


@pytest.mark.parametrize(("before", "why"), [("nothing", Why.ENDED), ("stop", Why.STOPPED), ("lost", Why.LOST)])
def test_what_a_command_leaves_behind_is_killed_when_it_ends(before: str, why: Why) -> None:
    one = life()
    if before == "stop":
        one.stop(SIGTERM, 1.0)
    if before == "lost":
        one.expired(1.0)
    assert one.ended() == [Kill()]
    assert one.why is why


EVENTS = st.sampled_from(["tick", "stop", "forward", "expired", "orphaned", "renewed"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 5))), st.floats(0, 100))
def test_whatever_happens_it_is_killed_by_the_time_that_the_last_renewal_gave(
    history: list[tuple[str, float]], grace: float
) -> None:
    one, now, kill_by = Life(grace, 10.0, 14.0), 0.0, 14.0
    done: list[Action] = []

    def do(event: str) -> list[Action]:
        match event:
            case "stop":
                return one.stop(SIGTERM, now)
            case "forward":
                return one.forward(SIGHUP, now)
            case "expired":
                return one.expired(now)
            case "orphaned":
                return one.orphaned(now)
            case _:
                return one.tick(now)

    for event, later in history:
        now += later
        if event == "renewed":
            # A renewal comes from a process that takes itself for the leader, so before the end that is known there.
            if now < kill_by - 4.0:
                one.renewed(now + 10.0, now + 14.0)
                kill_by = now + 14.0
            continue
        done += do(event)
        assert one.wakeup() <= kill_by or one.state is State.KILLING
        if now >= kill_by:
            assert Kill() in done
    now = kill_by
    assert Kill() in done + do("tick")
    assert one.state is State.KILLING
    assert [action for action in done if isinstance(action, Kill)] in ([], [Kill()])
