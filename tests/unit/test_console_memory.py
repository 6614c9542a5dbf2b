"""What a node remembers for the console: bounded, as ages, and only of its own roles."""

from __future__ import annotations

import pytest

from fencegate import observations as seen
from fencegate.console.memory import Memory
from fencegate.testing.hand_clock import HandClock


@pytest.fixture
def memory(clock: HandClock) -> Memory:
    return Memory(["ledger"], clock=clock)


def test_terms_are_remembered_as_ages(memory: Memory, clock: HandClock) -> None:
    memory(seen.LeadershipGained("ledger", 7))
    clock.now += 30
    memory(seen.LeadershipLost("ledger", 7, "handoff"))
    clock.now += 5
    assert memory.of_role("ledger")["leading"] == [[35.0, 1], [5.0, 0]]
    assert [event["text"] for event in memory.events()] == [
        "leads ledger no more: handoff",
        "leads ledger under token 7",
    ]


def test_renewals_and_checks_are_summed_up(memory: Memory, clock: HandClock) -> None:
    assert memory.of_role("ledger")["checks"] == {
        "last_age": None, "last": None, "p50": None, "p99": None, "series": [],
    }  # fmt: skip
    for took in range(100):
        memory(seen.LeaseRenewed("ledger", "etcd", took / 1000, 0.0))
        memory(seen.FenceChecked(("ledger",), 0.001))
    clock.now += 2
    found = memory.of_role("ledger")
    assert found["renewals"] == {"last_age": 2.0, "last": 0.099, "p50": 0.05, "p99": 0.099, "series": [[0.0, 0.099]]}
    assert found["checks"]["p99"] == 0.001
    clock.now += 1000
    assert memory.of_role("ledger")["renewals"]["p50"] is None, "too old to say anything"


def test_the_longest_of_each_half_minute_outlives_a_flood_of_short_ones(memory: Memory, clock: HandClock) -> None:
    memory(seen.FenceChecked(("ledger",), 1.5))
    clock.now += 60
    for _ in range(5000):
        memory(seen.FenceChecked(("ledger",), 0.001))
    checks = memory.of_role("ledger")["checks"]
    assert [took for _, took in checks["series"]] == [1.5, 0.001]
    assert checks["p99"] == 0.001
    for _ in range(100):
        clock.now += 30
        memory(seen.FenceChecked(("ledger",), 0.002))
    assert len(memory.of_role("ledger")["checks"]["series"]) <= 31


def test_a_storm_of_facts_takes_no_more_room(memory: Memory) -> None:
    for n in range(5000):
        memory(seen.LeadershipGained("ledger", n))
        memory(seen.LeaseRenewalFailed("ledger", "etcd", "timeout", "x"))
        memory(seen.LeaseRenewed("ledger", "etcd", 0.1, 0.0))
    assert len(memory.events()) <= 60
    assert len(memory.of_role("ledger")["leading"]) <= 200


def test_a_role_that_is_not_configured_leaves_nothing_but_its_line(memory: Memory) -> None:
    memory(seen.LeaseRenewed("other", "etcd", 0.1, 0.0))
    memory(seen.LeadershipGained("other", 1))
    assert memory.of_role("other") == {"leading": [], "renewals": None, "checks": None}


@pytest.mark.parametrize(
    ("fact", "text", "alarming"),
    [
        (seen.TermSealed("ledger", 7, True), "sealed term 7 of ledger", False),
        (seen.TermSealed("ledger", 7, False), "term 7 of ledger lapses", False),
        (seen.TokenRegressed("ledger", 900, 1200), "token regressed: ledger: 900 issued, 1200 seen", True),
        (
            seen.StrangerLeads("ledger", 9, "", "pg-1"),
            "pg-1 holds ledger and is not among election.holders",
            True,
        ),
        (seen.StoreWentDown("no connection"), "store down: no connection", True),
        (seen.StoreWentBack("less"), "store went back in time: closed until it is reopened", True),
        (seen.HandoffEnded("ledger", 7, "dr", "undone"), "handoff of ledger to dr: undone", False),
    ],
)
def test_facts_are_told_in_words(memory: Memory, fact: seen.Observation, text: str, alarming: bool) -> None:
    memory(fact)
    assert memory.events() == [{"age": 0.0, "alarming": alarming, "text": text}]
