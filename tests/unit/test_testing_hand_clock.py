"""A clock that only a test moves."""

from __future__ import annotations

from fencegate.testing.hand_clock import HandClock


def test_it_shows_what_it_was_set_to_until_it_is_moved() -> None:
    clock = HandClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    clock.now += 2.5
    assert clock() == 7.5
