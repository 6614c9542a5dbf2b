"""What a worker tells; the process itself is tested in tests/system/test_workers.py."""

from __future__ import annotations

import orjson

from fencegate.cli.worker_facts import Facts, fact_of
from fencegate.observations import FenceChecked, LeaderObserved, OrphanedMarkExpired


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
