from __future__ import annotations

import pytest

from fencegate.gameday.population import Names
from fencegate.testing.hand_clock import HandClock


@pytest.fixture
def names(clock: HandClock) -> Names:
    made = Names(clock, "dr")
    assert [made.resolve(f"dns-{n}") for n in range(4)] == ["dr"] * 4
    return made


def test_cached_records_run_out_one_after_the_other_over_the_slack(names, clock):
    names.point("primary", slack=20.0)
    seen = []
    for clock.now in (1000.0, 1004.9, 1005.0, 1010.0, 1015.0, 1020.0):
        seen.append((names.stale(), [names.resolve(f"dns-{n}") for n in range(4)].count("dr")))
    assert seen == [(4, 4), (4, 4), (3, 3), (2, 2), (1, 1), (0, 0)]


def test_a_record_without_slack_changes_at_once(names):
    names.point("primary", slack=0.0)
    assert names.stale() == 0
    assert names.resolve("dns-0") == "primary"


def test_a_client_that_comes_later_sees_the_new_record(names):
    names.point("primary", slack=20.0)
    assert names.resolve("newcomer") == "primary"


def test_a_client_that_forgets_its_copy_asks_anew(names):
    names.point("primary", slack=20.0)
    names.forget("dns-3")
    assert names.resolve("dns-3") == "primary"
    assert names.stale() == 3


def test_a_fresh_copy_stays_until_the_record_changes_again(names, clock):
    clock.now = 10_000.0
    assert names.resolve("dns-0") == "dr"
    assert names.stale() == 0


def test_a_zombies_copy_outlives_every_record_and_is_not_waited_for(names, clock):
    assert names.resolve("zombie-1") == "dr"
    names.point("primary", slack=20.0)
    clock.now = 10_000.0
    assert names.resolve("zombie-1") == "dr"
    assert names.stale() == 0


def test_a_fresh_client_asks_anew_each_time_the_record_changes(names):
    assert names.resolve("app-1") == "dr"
    names.point("primary", slack=20.0)
    assert names.resolve("app-1") == "primary"
    assert names.stale() == 4
