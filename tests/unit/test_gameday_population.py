from __future__ import annotations

import asyncio

import pytest

from fencegate.client import FencedClient
from fencegate.client.machine import Found
from fencegate.gameday import plain_client
from fencegate.gameday.history import History
from fencegate.gameday.plain_client import Said
from fencegate.gameday.plain_http import NoAnswer
from fencegate.gameday.population import Names, Population, World
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


@pytest.mark.parametrize(("sdk", "stale"), [(1, 0), (0, 1)])
async def test_a_write_that_is_abandoned_with_the_drill_may_have_been_made(clock, names, monkeypatch, sdk, stale):
    writing = asyncio.Event()

    async def unanswered(*_: object, **__: object) -> None:
        writing.set()
        await asyncio.Event().wait()

    async def found(*_: object) -> Found:
        return Found("http://gw", "http://gw", 4)

    monkeypatch.setattr(FencedClient, "post", unanswered)
    monkeypatch.setattr(plain_client, "discover", found)
    monkeypatch.setattr(plain_client, "write", unanswered)
    world = World({"dr": "http://gw"}, "/v1/entries", "ledger", names, History(), clock)
    population = Population(world, sdk=sdk, stale=stale)
    population.start()
    await writing.wait()
    assert await population.stop(0.01) == 1
    [attempt] = world.history.attempts
    assert (attempt.key, attempt.answered) == (f"{attempt.client}-1", "unknown")


async def test_a_question_without_an_answer_says_nothing_of_the_write_that_was_refused(clock, names, monkeypatch):
    asked: list[str] = []

    async def discover(*_: object) -> Found:
        asked.append("who leads?")
        if len(asked) > 1:
            raise NoAnswer("silent")
        return Found("http://gw", "http://gw", 4)

    async def refuse(*_: object) -> Said:
        return Said("refused", 409, "stale_token")

    monkeypatch.setattr(plain_client, "discover", discover)
    monkeypatch.setattr(plain_client, "write", refuse)
    world = World({"dr": "http://gw"}, "/v1/entries", "ledger", names, History(), clock)
    population = Population(world, sdk=0, stale=1, pace=0.0)
    population.start()
    while len(asked) < 3:
        population.check()
        await asyncio.sleep(0)
    await population.abandon()
    assert {attempt.answered for attempt in world.history.attempts if attempt.reason != "abandoned"} == {"refused"}
