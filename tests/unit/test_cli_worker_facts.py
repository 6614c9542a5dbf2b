"""What a worker tells; the process itself is tested in tests/system/test_workers.py."""

from __future__ import annotations

import logging

import orjson

from fencegate.cli.worker import OwnLines
from fencegate.cli.worker_facts import Facts, fact_of
from fencegate.observations import FenceChecked, LeaderObserved, OrphanedMarkExpired, WriteAccepted


def test_the_facts_that_the_supervisor_needs_are_told_once_and_are_themselves_again_there() -> None:
    facts = Facts()
    told = [FenceChecked(("ledger",), 0.25), OrphanedMarkExpired("ledger", 7)]
    for fact in (told[0], LeaderObserved("ledger", 7, "eu", "gw-1"), told[1]):
        facts(fact)
    sent = orjson.loads(orjson.dumps(facts.taken()))
    assert [fact_of(name, fields) for name, fields in sent] == told
    assert facts.taken() == []


def test_facts_are_bounded_between_two_reports() -> None:
    facts = Facts()
    for _ in range(10_000):
        facts(FenceChecked(("ledger",), 0.25))
    assert len(facts.taken()) < 100


def test_a_workers_lines_say_neither_who_leads_nor_what_no_level_lets_through() -> None:
    lines = OwnLines(["ledger"], logger=logging.getLogger("fencegate.of-a-worker"))
    logging.getLogger("fencegate.of-a-worker").setLevel(logging.INFO)
    assert lines.hearer(LeaderObserved) is None
    assert lines.hearer(WriteAccepted) is None
    assert lines.hearer(OrphanedMarkExpired) is not None
