"""The checks of a verdict: each fails on its own, and a scenario may be meant to fail."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fencegate.gameday import scenario_file
from fencegate.gameday.judge import Report, Turn
from fencegate.gameday.report import document
from fencegate.gameday.report_html import page
from fencegate.gameday.scenario import Expected
from fencegate.gameday.tail import Tail
from fencegate.gameday.verify import Kind, Verdict, Violation

TURN = Turn("failover", "eu", "us", 10.0, 4.0, 5.0, 1.0, 1.5)
GOOD = Report(
    scenario=scenario_file.load("drill-26"),
    kind="embedded",
    role="ledger",
    called={"primary": "eu", "dr": "us"},
    fenced=True,
    seed=1,
    lease=5.0,
    stale_for=1200.0,
    speed=60.0,
    verdict=Verdict({"eu": 9, "us": 9}, {}, (), ()),
    accepted={"eu": 6, "us": 3},
    stale_clients=8,
    stale_accepted=0,
    tail=Tail(20.0, 40.0, True, Counter({"not_leader": 5}), 39.0),
    turns=(TURN,),
    terms=(2, 11, 30),
    leader="eu",
    most_leaders=1,
    unfinished=0,
    elapsed=58.0,
)


def failed(report: Report) -> list[str]:
    return [check.name for check in report.checks if not check.ok]


def test_a_good_run_passes_every_check() -> None:
    assert failed(GOOD) == []
    assert GOOD.ok
    assert GOOD.as_expected


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"failed": "step 3 (wait): waited 20 s"}, "every step came true"),
        ({"most_leaders": 2}, "never two leaders"),
        ({"turns": (replace(TURN, closed=10.1),)}, "failover: closed in time"),
        ({"turns": (replace(TURN, opened=math.inf),)}, "failover: open in time"),
        ({"leader": "us"}, "the right region leads in the end"),
        ({"terms": (2, 11)}, "as many terms as there should be"),
        ({"terms": tuple(range(10))}, "as many terms as there should be"),
        ({"tail": replace(GOOD.tail, refused=Counter())}, "stale clients did try"),
        ({"stale_accepted": 1}, "no stale write was accepted"),
        ({"tail": replace(GOOD.tail, after=1, senders=("dns-3",))}, "the tail cleared"),
        ({"tail": replace(GOOD.tail, watched=False)}, "the tail cleared"),
        ({"unfinished": 1}, "every decision was answered in the end"),
        (
            {"verdict": replace(GOOD.verdict, violations=(Violation(Kind.LOST, 1, ("k",)),))},
            "no acknowledged write lost",
        ),
    ],
)
def test_each_check_fails_by_itself_and_with_it_the_run(changes: dict[str, Any], name: str) -> None:
    report = replace(GOOD, **changes)
    assert failed(report) == [name]
    assert not report.ok
    assert not report.as_expected


def test_a_run_without_a_tail_is_not_asked_for_one() -> None:
    calm = replace(GOOD.scenario, expect=Expected(tail="none"))
    report = replace(GOOD, scenario=calm, tail=Tail(math.inf, math.inf, False, Counter()))
    assert failed(report) == []


def test_a_scenario_that_is_meant_to_fail_is_as_expected_only_where_it_does() -> None:
    zombie = replace(GOOD, scenario=replace(GOOD.scenario, expect=Expected("fail", terms=(3, 3))))
    assert zombie.ok
    assert not zombie.as_expected
    failed = replace(zombie, tail=replace(GOOD.tail, after=9, senders=("zombie-1",)))
    assert failed.as_expected
    lost = Violation(Kind.LOST, 1, ("k",))
    assert not replace(failed, verdict=replace(GOOD.verdict, violations=(lost,))).as_expected
    assert not replace(failed, most_leaders=2).as_expected


def test_a_tail_without_a_refusal_has_no_last_one() -> None:
    quiet = replace(GOOD, tail=replace(GOOD.tail, refused=Counter()))
    assert (
        next(check for check in quiet.checks if check.name == "the tail cleared").detail == "no stale write was refused"
    )
    assert "The last refusal" not in page(document(quiet))
