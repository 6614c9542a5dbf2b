"""Scenarios as data: what cannot be played is found before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencegate.gameday.scenario import Clients, Expected, ExtraFault, Scenario, Step, inconsistencies

NO_TAIL = Expected(tail="none")


def scenario(*steps: Step, expect: Expected = NO_TAIL) -> Scenario:
    return Scenario("x", "x", "", steps, expect=expect)


KILL = Step("strike", strike="kill", part="primary-gateway")
LIFT = Step("lift", part="primary-gateway")
STALE = Step("point", region="dr", stale=True)


def test_what_is_struck_is_lifted_and_a_stale_record_is_waited_for() -> None:
    assert list(inconsistencies(scenario(KILL, LIFT, KILL, LIFT))) == []
    assert list(inconsistencies(scenario(STALE, Step("tail"), expect=Expected()))) == []
    assert list(inconsistencies(scenario(Step("standby", region="dr"), Step("promote", region="dr")))) == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((KILL, KILL), "step 2: primary-gateway is struck already, by step 1"),
        ((LIFT,), "step 1: expected a part that an earlier step has struck"),
        ((replace(KILL, seconds=2.0), LIFT), "step 2: expected a part that an earlier step has struck without an end"),
        ((replace(KILL, part="moon"),), "step 1: expected a part: one of primary-gateway"),
        ((replace(KILL, strike="tickle"),), "step 1: expected one of freeze, kill"),
        ((replace(KILL, part="dr-store-link"),), "which cannot be struck by kill"),
        ((Step("promote", region="dr"),), "step 1: expected a step before it that makes a standby of dr"),
        ((Step("tail"),), "step 1: expected a step before it that points DNS elsewhere"),
    ],
)
def test_a_step_that_does_not_fit_the_ones_before_it_is_named(steps: tuple[Step, ...], expected: str) -> None:
    (fault,) = inconsistencies(scenario(*steps))
    assert expected in fault


def test_a_tail_that_nobody_waits_for_cannot_be_expected_to_clear() -> None:
    (fault,) = inconsistencies(scenario(STALE, expect=Expected()))
    assert fault.startswith("expect.tail")


def test_a_further_fault_is_checked_like_a_step() -> None:
    with_fault = replace(scenario(KILL), faults=(ExtraFault("freeze", "dr-store-link", 1, 1),))
    assert [fault for fault in inconsistencies(with_fault) if "dr-store-link" in fault]


def test_only_what_breaks_nothing_can_be_played_on_a_running_deployment() -> None:
    harmless = scenario(STALE, Step("handoff", region="dr"), Step("tail"))
    assert harmless.only_embedded() == []
    assert scenario(STALE, KILL).only_embedded() == ["step 2: strike"]
    assert replace(harmless, faults=(ExtraFault("kill", "dr-store", 1, 1),)).only_embedded() == [
        "--fault kill:dr-store"
    ]


def test_pacing_stretches_play_and_neither_leases_nor_waits() -> None:
    steps = (Step("play", seconds=2.0, leases=1.0), Step("wait", region="dr", until="open"), KILL)
    paced = scenario(*steps).paced(3.0)
    assert (paced.steps[0].seconds, paced.steps[0].lasts(5.0)) == (6.0, 11.0)
    assert paced.steps[1:] == steps[1:]


@pytest.mark.parametrize(
    ("clients", "fresh", "stale"),
    [(Clients(), 12, 8), (Clients(2), 1, 1), (Clients(10, 0.0), 10, 0), (Clients(3, 1.0), 1, 3)],
)
def test_somebody_follows_the_leader_and_somebody_is_stale_unless_nobody_is_to_be(
    clients: Clients, fresh: int, stale: int
) -> None:
    assert (clients.fresh_count, clients.stale_count) == (fresh, stale)
