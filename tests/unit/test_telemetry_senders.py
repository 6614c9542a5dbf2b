"""Stale writes by sender: counted, bounded, forgotten in time."""

from __future__ import annotations

import pytest

from fencegate import observations as seen
from fencegate.telemetry.senders import FORGOTTEN, MANY, MOST, MOST_NAMES, SendersOfAll, StaleSenders
from fencegate.testing.hand_clock import HandClock


@pytest.fixture
def senders(clock: HandClock) -> StaleSenders:
    return StaleSenders(clock=clock)


def refused(client: str = "10.0.0.7", code: str = "stale_token", token: int = 41) -> seen.WriteRefused:
    return seen.WriteRefused("ledger", code, token, 42, client, "billing/3.1")


def test_each_sender_is_counted_with_what_it_presented_last(senders: StaleSenders, clock: HandClock) -> None:
    senders(refused(code="not_leader", token=40))
    clock.now += 60
    senders(refused())
    senders(refused("10.0.0.8"))
    clock.now += 5
    latest, zombie = senders.document()
    assert latest["client"] == "10.0.0.8"
    assert zombie == {
        "role": "ledger",
        "client": "10.0.0.7",
        "caller": "",
        "agent": "billing/3.1",
        "forwarded_for": "",
        "refused": 2,
        "let_through": 0,
        "reason": "stale_token",
        "token": 41,
        "first_age_s": 65.0,
        "last_age_s": 5.0,
    }


@pytest.mark.parametrize("code", ["no_leader", "overloaded", "token_required", "draining"])
def test_a_refusal_that_says_nothing_of_a_wrong_belief_is_not_counted(senders: StaleSenders, code: str) -> None:
    senders(refused(code=code))
    senders(seen.WriteAccepted("ledger", 42, False, 0.001))
    assert senders.document() == []


def test_a_crowd_of_senders_takes_no_more_room_and_the_quietest_goes_first(senders: StaleSenders) -> None:
    senders(refused("zombie"))
    for n in range(3 * MOST):
        senders(refused(f"10.1.{n}"))
        if n % 100 == 0:
            senders(refused("zombie"))
    found = senders.document()
    assert len(found) == MOST
    assert "zombie" in {one["client"] for one in found}


def test_a_sender_that_is_quiet_for_an_hour_is_forgotten(senders: StaleSenders, clock: HandClock) -> None:
    senders(refused())
    clock.now += FORGOTTEN + 1
    assert senders.document() == []


def test_an_agent_is_shown_in_part_however_long(senders: StaleSenders) -> None:
    senders(seen.WriteRefused("ledger", "stale_token", 41, 42, "10.0.0.7", "x" * 5000))
    assert len(senders.document()[0]["agent"]) == 80


def test_senders_behind_one_proxy_are_told_apart_by_what_it_says_of_them(senders: StaleSenders) -> None:
    for address in ("203.0.113.9", "203.0.113.10"):
        senders(seen.WriteRefused("shard/{n}", "stale_token", 41, 42, "10.0.0.1", "a", address, "shard/7"))
    assert [(one["role"], one["client"], one["forwarded_for"]) for one in senders.document()] == [
        ("shard/7", "10.0.0.1", "203.0.113.10"),
        ("shard/7", "10.0.0.1", "203.0.113.9"),
    ]


def test_what_a_route_in_observe_mode_let_through_is_counted_beside_what_was_refused(senders: StaleSenders) -> None:
    senders(seen.WouldRefuse("ledger", "stale_token", 41, "10.0.0.7", "billing/3.1"))
    senders(refused())
    (one,) = senders.document()
    assert (one["refused"], one["let_through"]) == (1, 1)


def test_an_address_under_ever_new_names_is_one_sender_and_pushes_nobody_out(senders: StaleSenders) -> None:
    senders(refused("zombie"))
    for n in range(3 * MOST):
        senders(seen.WriteRefused("ledger", "stale_token", 41, 42, "10.6.6.6", f"agent/{n}", f"{n}"))
    found = senders.document()
    assert len(found) == 1 + MOST_NAMES + 1
    assert found[0]["agent"] == MANY
    assert found[0]["refused"] == 3 * MOST - MOST_NAMES
    assert found[-1]["client"] == "zombie"


def of_caller(caller: str, agent: str = "billing/3.1") -> seen.WriteRefused:
    return seen.WriteRefused("ledger", "stale_token", 41, 42, "10.0.0.1", agent, caller=caller)


def test_callers_behind_one_proxy_are_told_apart_and_one_of_many_names_hides_no_other(senders: StaleSenders) -> None:
    for n in range(3 * MOST_NAMES):
        senders(of_caller("mallory", f"agent/{n}"))
        senders(of_caller(f"caller-{n}"))
    found = senders.document()
    assert {one["caller"] for one in found} == {"mallory", *(f"caller-{n}" for n in range(3 * MOST_NAMES))}
    assert [one["refused"] for one in found if one["agent"] == MANY] == [2 * MOST_NAMES]


def test_what_several_workers_tell_of_one_caller_is_one_line(clock: HandClock) -> None:
    one, other, all_of_them = StaleSenders(clock=clock), StaleSenders(clock=clock), SendersOfAll(clock=clock)
    for number, senders in enumerate((one, other)):
        senders(of_caller("alice"))
        senders(of_caller(f"only-{number}"))
        all_of_them.take(number, senders.document())
    assert {(each["caller"], each["refused"]) for each in all_of_them.document()} == {
        ("alice", 2),
        ("only-0", 1),
        ("only-1", 1),
    }


# -- of several processes ------------------------------------------------------------------------------


def test_a_sender_that_several_workers_refused_is_one_line_with_the_sum_and_the_latest_token(clock: HandClock) -> None:
    one, other, all_of_them = StaleSenders(clock=clock), StaleSenders(clock=clock), SendersOfAll(clock=clock)
    one(refused(token=40))
    clock.now += 5
    other(refused(token=41, code="not_leader"))
    other(refused(client="10.0.0.8"))
    for number, senders in enumerate((one, other), 1):
        all_of_them.take(number, senders.document())
    clock.now += 1
    told = {line["client"]: line for line in all_of_them.document()}
    assert told["10.0.0.7"]["refused"] == 2
    assert (told["10.0.0.7"]["token"], told["10.0.0.7"]["reason"]) == (41, "not_leader")
    assert (told["10.0.0.7"]["first_age_s"], told["10.0.0.7"]["last_age_s"]) == (6.0, 1.0)
    assert told["10.0.0.8"]["refused"] == 1


def test_what_a_worker_told_outlives_it_is_added_to_and_is_forgotten_in_time(clock: HandClock) -> None:
    all_of_them = SendersOfAll(clock=clock)
    for _ in range(3):
        life = StaleSenders(clock=clock)
        life(refused())
        all_of_them.take(1, life.document())
        all_of_them.ended(1)
        clock.now += 10
    all_of_them.ended(2)
    (line,) = all_of_them.document()
    assert (line["refused"], line["first_age_s"], line["last_age_s"]) == (3, 30.0, 10.0)
    clock.now += FORGOTTEN
    assert all_of_them.document() == []


def test_senders_of_all_are_bounded_too(clock: HandClock) -> None:
    all_of_them = SendersOfAll(clock=clock)
    for number in (1, 2, 3):
        life = StaleSenders(clock=clock)
        for client in range(MOST):
            life(refused(client=f"{number}-{client}"))
        all_of_them.take(number, life.document())
        all_of_them.ended(number)
    assert len(all_of_them.document()) == MOST
