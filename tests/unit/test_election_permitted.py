"""An election is listened to while those lead who may: a stranger's term goes nowhere, and everybody hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fencegate.election.followers import Followers
from fencegate.election.permitted import PermittedHolders
from fencegate.election.view import ElectionView
from fencegate.errors import Unavailable
from fencegate.lease import Candidate, LeaseTimings, SealRecord, Term, is_among
from fencegate.observations import LeaderObserved, Observation, SourceUnavailable, StrangerLeads
from fencegate.testing.background import in_background
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import run_in_virtual_time

TIMINGS = LeaseTimings()
ROLE = "ledger"
OURS = Candidate("gw-1", "eu", "https://eu.example")
STRANGER = Candidate("gw-1", "staging", "https://staging.example")


def now() -> float:
    return asyncio.get_running_loop().time()


class Scene:
    def __init__(self) -> None:
        self.quorum = MemoryQuorum(now, next_token=7)
        self.told: list[Observation] = []
        self.ours, self.theirs = (MemoryElection(self.quorum, TIMINGS) for _ in range(2))
        self.source = PermittedHolders(MemoryElection(self.quorum, TIMINGS), ["eu/*", "us/gw-?"], self.told.append)
        self.view = ElectionView([ROLE], self.source, TIMINGS, self.told.append, clock=now)

    async def leads(self, who: Candidate, token: int) -> None:
        election = self.ours if who is OURS else self.theirs
        await election.acquire(ROLE, who, 1)
        await election.renew(ROLE, token, who, active=True, deadline=1)

    @asynccontextmanager
    async def viewed(self) -> AsyncIterator[ElectionView]:
        async with in_background(self.view.run()):
            await asyncio.sleep(0.5)
            yield self.view

    def strangers(self) -> list[StrangerLeads]:
        return [fact for fact in self.told if isinstance(fact, StrangerLeads)]


def plays(story: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(story)


@pytest.mark.parametrize(
    ("region", "node", "permitted"),
    [("eu", "gw-1", True), ("us", "gw-2", True), ("us", "gw-22", False), ("EU", "gw-1", False), ("", "eu/x", True)],
)
def test_a_holder_is_named_by_region_and_node(region: str, node: str, permitted: bool) -> None:
    assert is_among(["eu/*", "us/gw-?"], region, node) is permitted
    assert not is_among([], region, node)


def test_a_holder_who_may_is_observed_as_ever_and_a_strangers_term_is_not_known() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.leads(OURS, 7)
        async with scene.viewed() as view:
            term = view.observed(ROLE).term
            assert term is not None
            assert (term.url, term.token) == ("https://eu.example", 7)
            await scene.ours.release(ROLE, 7, SealRecord(7, "eu"), 1)
            for _ in range(20):
                await scene.leads(STRANGER, 8)
                await asyncio.sleep(1.0)
            found = view.observed(ROLE)
            assert (found.known, found.term) == (False, None), "no hint of it, and no word that nobody leads"
            with pytest.raises(Unavailable, match=r"staging/gw-1 holds 'ledger', and is not among election\.holders"):
                await view.issued(ROLE, 1.0)
            with pytest.raises(Unavailable):
                await view.still_leads(ROLE, 8, 1.0)
        assert scene.strangers() == [StrangerLeads(ROLE, 8, "staging", "gw-1")], "told once"
        assert sum(isinstance(fact, SourceUnavailable) for fact in scene.told) == 1
        assert not any(isinstance(fact, LeaderObserved) and fact.region == "staging" for fact in scene.told)

    plays(story())


def test_after_a_stranger_those_who_may_are_believed_at_once_and_the_next_stranger_is_told_anew() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.leads(STRANGER, 7)
        async with scene.viewed() as view:
            await scene.theirs.release(ROLE, 7, SealRecord(7, "staging"), 1)
            await scene.leads(OURS, 8)
            await asyncio.sleep(TIMINGS.retry_period * 1.5)
            assert view.observed(ROLE).term is not None
            await scene.ours.release(ROLE, 8, SealRecord(8, "eu"), 1)
            await scene.leads(STRANGER, 9)
            await asyncio.sleep(TIMINGS.retry_period * 1.5)
        assert [fact.token for fact in scene.strangers()] == [7, 9]

    plays(story())


def test_a_strangers_token_raises_no_fence_of_a_gateway_that_follows() -> None:
    async def story() -> None:
        scene, store = Scene(), MemoryStore([ROLE], now, mode="token")
        await scene.leads(STRANGER, 7)
        async with in_background(Followers([ROLE], scene.source, store, TIMINGS, scene.told.append).run()):
            await asyncio.sleep(10)
            assert (await store.read(ROLE)).max_token_seen == 0
            await scene.theirs.release(ROLE, 7, SealRecord(7, "staging"), 1)
            await scene.leads(OURS, 8)
            await asyncio.sleep(10)
            assert (await store.read(ROLE)).max_token_seen == 8

    plays(story())


def test_of_those_who_wait_in_line_only_the_permitted_are_told() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.leads(OURS, 7)
        await scene.theirs.acquire(ROLE, STRANGER, 1)
        await MemoryElection(scene.quorum, TIMINGS).acquire(ROLE, Candidate("gw-2", "us", "https://us.example"), 1)
        assert [each.region for each in await scene.source.candidates(ROLE, 1)] == ["us"]

    plays(story())


def test_of_many_roles_only_the_strangers_are_left_out() -> None:
    class Many(MemoryElection):
        async def read_many(self, roles: Any, deadline: float) -> Any:
            term = Term("a", 7, "gw-1", "eu", "https://eu.example", True, 15.0)
            strange = Term("b", 8, "pg-1", "", "", True, 15.0)
            return {"a": term, "b": strange, "c": None, "d": Unavailable("away")}

    async def story() -> None:
        told: list[Observation] = []
        source = PermittedHolders(Many(MemoryQuorum(now), TIMINGS), ["eu/*"], told.append)
        found = await source.read_many(["a", "b", "c", "d"], 1)
        assert isinstance(found["a"], Term)
        assert found["c"] is None
        assert "pg-1 holds 'b'" in str(found["b"])
        assert str(found["d"]) == "away"
        assert told == [StrangerLeads("b", 8, "", "pg-1")]
        await source.probe(1)
        assert await source.issued_up_to("a", 1) >= 0
        await source.close()

    plays(story())
