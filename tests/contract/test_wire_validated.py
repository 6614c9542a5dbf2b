"""Roles with ``validate = true``: the store's lease says yes, the election has the last word (rule R15)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fencegate.testing.raw_http import assert_accepted, assert_refusal, request
from fencegate.testing.wire_world import ELSEWHERE, HOME, TARGETS, Target, World, WorldFactory

VALIDATED = ["ledger", "fn", "web"]
by_target = pytest.mark.parametrize("target", TARGETS, ids=str)


@pytest.fixture
async def validated(new_world: WorldFactory) -> AsyncIterator[World]:
    """A world in which every store is open, by its own clock and for an hour."""
    async with new_world() as world:
        world.stage.validate(VALIDATED, world.view.still_leads)
        yield world


@by_target
async def test_a_proved_write_is_accepted_like_any_other(validated: World, target: Target) -> None:
    for number in (1, 2):
        assert_accepted(await validated.ask(request("POST", target.path, body=b'{"n": %d}' % number)))
    assert await validated.effects(target) == 2
    assert validated.view.asked == 2


@by_target
async def test_an_open_store_is_not_enough_where_another_region_leads(validated: World, target: Target) -> None:
    validated.view.lead(target.role, 43, "us", ELSEWHERE)
    answer = await validated.ask(request("POST", target.path, key="k"))
    document = assert_refusal(answer, "not_leader")
    assert (document["leader"]["url"], document["applied"]) == (ELSEWHERE, "no")
    assert await validated.effects(target) == 0
    # Refused without a trace: the key is free, and the same write is taken once its term is the one that leads.
    validated.view.lead(target.role, 42, "eu", HOME)
    assert_accepted(await validated.ask(request("POST", target.path, key="k")))
    assert await validated.effects(target) == 1


@by_target
async def test_an_open_store_is_not_enough_where_nobody_leads(validated: World, target: Target) -> None:
    validated.view.nobody(target.role)
    assert_refusal(await validated.ask(request("POST", target.path)), "no_leader")
    assert await validated.effects(target) == 0


@by_target
async def test_an_election_that_cannot_be_asked_closes_and_nothing_is_applied(validated: World, target: Target) -> None:
    validated.view.unavailable = True
    document = assert_refusal(await validated.ask(request("POST", target.path)), "fence_unavailable")
    assert (document["applied"], document["retry"]) == ("no", "after-delay")
    assert await validated.effects(target) == 0
    validated.view.unavailable = False
    assert_accepted(await validated.ask(request("POST", target.path)))


@by_target
async def test_a_stored_result_is_given_again_whatever_the_election_says(validated: World, target: Target) -> None:
    first = await validated.ask(request("POST", target.path, key="k"))
    assert_accepted(first)
    validated.view.unavailable = True
    again = await validated.ask(request("POST", target.path, key="k"))
    assert_accepted(again, replayed=True)
    assert again.body == first.body
    assert await validated.effects(target) == 1


async def test_a_stale_token_is_stale_without_asking_the_election(validated: World) -> None:
    assert_refusal(await validated.ask(request("POST", "/v1/entries", token=41)), "stale_token")
    assert validated.view.asked == 0
