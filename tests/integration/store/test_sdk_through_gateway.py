"""The SDK against a real gateway on the real store: nothing in between is scripted but who leads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fencegate.client import FencedClient, LeadershipLost, OutcomeUnknown, lead
from fencegate.gateway.app import Gateway
from fencegate.gateway.edge_aiohttp import EdgeServer
from fencegate.gateway.routes import Route
from fencegate.lease import Candidate, LeaseTimings
from fencegate.store.postgres import PostgresStore
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.scripted_view import ScriptedView
from store.proxy import CuttingProxy
from store.writing import ROLE, bodies, open_term, write

SHARED = "cron"
TIMINGS = LeaseTimings(lease_duration=15.0, renew_deadline=10.0, retry_period=2.0, margin=1.0)


@dataclass
class Region:
    """A started gateway whose store has term 42 of ``ledger`` open, and ``cron`` in token mode."""

    store: PostgresStore
    view: ScriptedView
    url: str

    def client(self, role: str = ROLE, **options: Any) -> FencedClient:
        return FencedClient([self.url], role, **{"deadline": 5.0, "backoff_base": 0.01, **options})

    async def new_term(self, token: int) -> None:
        await open_term(self.store, token)
        self.view.lead(ROLE, token, "eu", self.url)


@asynccontextmanager
async def region_on(store: PostgresStore) -> AsyncIterator[Region]:
    view = ScriptedView()
    routes = [Route("/v1/entries", ROLE, "ledger"), Route("/cron", SHARED, "ledger")]
    gateway = Gateway(routes, store, view, region="eu")
    edge = EdgeServer(gateway)
    await edge.start("127.0.0.1", 0)
    try:
        region = Region(store, view, f"http://127.0.0.1:{edge.port}")
        await store.ensure_roles({ROLE: "lease", SHARED: "token"})
        await region.new_term(42)
        yield region
    finally:
        await edge.stop(1.0)
        await gateway.close(1.0)


@pytest.fixture
async def region(make_store: Callable[..., Any]) -> AsyncIterator[Region]:
    async with region_on(await make_store()) as started:
        yield started


async def test_a_write_is_discovered_stamped_and_lands_once(region: Region) -> None:
    async with region.client() as client:
        response = await client.post("/v1/entries", json={"n": 1})
        read = await client.get("/v1/entries/1")
    assert (response.status, response.token, response.tries, response.replayed) == (201, 42, 1, False)
    assert read.json()["body"] == {"n": 1}
    assert await bodies(region.store) == [b'{"n":1}']


async def test_the_same_key_gets_the_first_answer_again(region: Region) -> None:
    async with region.client() as client:
        first = await client.post("/v1/entries", json={"n": 1}, idempotency_key="order-7")
    async with region.client() as another:
        again = await another.post("/v1/entries", json={"n": 1}, idempotency_key="order-7")
    assert again.replayed
    assert again.json() == first.json()
    assert len(await bodies(region.store)) == 1


async def test_a_client_of_the_old_term_is_refused_finds_the_new_one_and_lands_once(region: Region) -> None:
    async with region.client() as client:
        await client.post("/v1/entries", json={"n": 1})
        await region.new_term(43)
        response = await client.post("/v1/entries", json={"n": 2})
    assert (response.status, response.token, response.replayed) == (201, 43, False)
    assert response.tries == 2
    assert await bodies(region.store) == [b'{"n":1}', b'{"n":2}']


async def test_a_lost_answer_of_the_commit_is_asked_for_again_with_the_key(
    make_store: Callable[..., Any], dsn: str
) -> None:
    async with CuttingProxy(dsn) as proxy, region_on(await make_store(proxy.dsn)) as region:
        async with region.client() as client:
            await client.post("/v1/entries", json={"n": 1})
            proxy.cut_after(b'{"n":2}')
            response = await client.post("/v1/entries", json={"n": 2})
        assert proxy.cuts == 1
        assert (response.status, response.replayed, response.tries) == (201, True, 2)
        assert await bodies(region.store) == [b'{"n":1}', b'{"n":2}']


async def test_a_lost_answer_of_the_commit_is_unknown_to_a_write_without_a_key(
    make_store: Callable[..., Any], dsn: str
) -> None:
    async with CuttingProxy(dsn) as proxy, region_on(await make_store(proxy.dsn)) as region:
        async with region.client() as client:
            await client.post("/v1/entries", json={"n": 1})
            proxy.cut_after(b'{"n":2}')
            with pytest.raises(OutcomeUnknown):
                await client.post("/v1/entries", json={"n": 2}, idempotency_key=False)
        assert proxy.cuts == 1
        assert await bodies(region.store) == [b'{"n":1}', b'{"n":2}']


async def test_a_leader_writes_under_its_own_token_and_is_out_once_a_newer_one_has_written(region: Region) -> None:
    await open_term(region.store, 1, role=SHARED, valid_for=float("inf"))
    quorum = MemoryQuorum(time.monotonic, next_token=7)
    me = Candidate("worker-1", "eu", region.url)
    async with lead(SHARED, backend=MemoryElection(quorum, TIMINGS), candidate=me, timings=TIMINGS) as term:
        region.view.lead(SHARED, term.token, "eu", region.url)
        async with term.client([region.url]) as client:
            response = await client.post("/cron", json={"run": 1})
            assert (response.status, response.token) == (201, term.token)
            newer = term.token + 1
            region.view.lead(SHARED, newer, "eu", region.url)
            await region.store.append(write(newer, b'"newer"', role=SHARED, issued=newer), 5.0)
            with pytest.raises(LeadershipLost):
                await client.post("/cron", json={"run": 2})
        assert term.lost.is_set()
    assert await bodies(region.store, SHARED) == [b'{"run":1}', b'"newer"']
