"""How long a holder is waited for, and how long a role is left to the region that it was handed to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.sightings import Sightings
from fencegate.lease import SealRecord
from fencegate.testing.hand_clock import HandClock

LEASE = 15.0
HOLD_BACK = 10.0
HANDED = SealRecord(7, "eu", "dr")


@pytest.fixture
def seen(clock: HandClock) -> Sightings:
    return Sightings(clock, HOLD_BACK)


def test_a_holder_has_its_whole_lease_from_when_its_sign_was_first_seen(seen: Sightings, clock: HandClock) -> None:
    seen.note("ledger", 1, LEASE)
    clock.now += LEASE - 1
    seen.note("ledger", 1, LEASE)  # the same sign, seen again, is none

    assert seen.left("ledger") == 1
    clock.now += 1
    assert seen.left("ledger") == 0


def test_another_sign_begins_the_lease_anew_with_its_own_length(seen: Sightings, clock: HandClock) -> None:
    seen.note("ledger", 1, LEASE)
    clock.now += 10
    seen.note("ledger", 2, 60.0)
    assert (seen.left("ledger"), seen.idle("ledger")) == (60.0, 0.0)


def test_roles_are_seen_apart_and_an_unseen_one_holds_nothing(seen: Sightings) -> None:
    seen.note("ledger", 1, LEASE)
    assert (seen.left("other"), seen.idle("other")) == (0.0, 0.0)


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 3)), min_size=1))
def test_no_holder_that_shows_a_new_sign_within_its_lease_is_ever_taken_for_gone(
    looks: list[tuple[float, int]],
) -> None:
    clock = HandClock()
    seen = Sightings(clock, HOLD_BACK)
    renewed_at, renewals = clock.now, 0
    seen.note("ledger", renewals, LEASE)
    for pause, more in looks:
        clock.now += pause
        if more:
            renewals += more
            renewed_at = clock.now
        seen.note("ledger", renewals, LEASE)
        if clock.now < renewed_at + LEASE:
            assert seen.left("ledger") > 0


@pytest.mark.parametrize(
    ("sealed", "region"), [(None, "fr"), (SealRecord(7, "eu"), "fr"), (HANDED, "dr")], ids=["none", "nobody's", "ours"]
)
def test_a_role_that_was_handed_to_nobody_or_to_us_is_not_held_back_from(
    seen: Sightings, sealed: SealRecord | None, region: str
) -> None:
    seen.note("ledger", "given back", 0.0)
    assert not seen.is_anothers("ledger", sealed, region)


def test_a_role_that_was_handed_to_another_region_is_left_to_it_for_less_than_a_lease(
    seen: Sightings, clock: HandClock
) -> None:
    seen.note("ledger", "given back", 0.0)
    assert seen.is_anothers("ledger", HANDED, "fr")
    assert seen.is_anothers("ledger", HANDED, "eu"), "the one that gave it away too"

    clock.now += HOLD_BACK - 0.1
    seen.note("ledger", "given back", 0.0)
    assert seen.is_anothers("ledger", HANDED, "fr")

    clock.now += 0.1
    assert not seen.is_anothers("ledger", HANDED, "fr")
