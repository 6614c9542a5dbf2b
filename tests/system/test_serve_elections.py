"""``fencegate serve`` under each election that is not the default one: it wins, takes a write, and hands back."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable

import pytest

from fencegate.election.etcd import EtcdElection
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.zookeeper import EmbeddedZookeeper
from fencegate.lease import Candidate, LeaseTimings, Won
from system.serving import Serving, fencegate, until

pytestmark = pytest.mark.system

ROUTE = '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'


@pytest.fixture(params=["zookeeper", "postgres-advisory", "etcd3"])
def election(request: pytest.FixtureRequest) -> str:
    """The table [election] of a configuration."""
    if request.param == "postgres-advisory":
        return 'source = "postgres-advisory"'
    prefix = f"/t/{uuid.uuid4().hex}"
    if request.param == "zookeeper":
        zookeeper: EmbeddedZookeeper = request.getfixturevalue("zookeeper")
        return f'source = "zookeeper"\nprefix = "{prefix}"\nendpoints = ["{zookeeper.hosts[0]}"]'
    etcd: EmbeddedEtcd = request.getfixturevalue("etcd")
    return f'source = "etcd"\nclient = "etcd3"\nprefix = "{prefix}"\nendpoints = ["{etcd.endpoints[0]}"]'


# Field case A15.
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_stranger_who_holds_the_lease_is_in_no_hint_raises_no_fence_and_is_told_of(
    workers: int, etcd: EmbeddedEtcd, fresh_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str]
) -> None:
    prefix = f"/t/{uuid.uuid4().hex}"
    stranger = EtcdElection(etcd.endpoints, LeaseTimings(120, 60, 5), prefix=prefix)
    candidate = Candidate("gw-1", "staging", "https://staging.example")
    try:
        won = await stranger.acquire("ledger", candidate, 10)
        assert isinstance(won, Won)
        await stranger.renew("ledger", won.token, candidate, active=True, deadline=10)
        whole = (
            'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
            f'[store]\ndsn = "{fresh_dsn}"\n[election]\nsource = "etcd"\nprefix = "{prefix}"\n'
            f"endpoints = {json.dumps(etcd.endpoints)}\n{{}}{ROUTE}"
        )
        options = ("--migrate", "--workers", str(workers))
        path = "/.well-known/fencegate/leader/ledger"
        wary = await asyncio.to_thread(
            serve("--config", configuration(whole.format('holders = ["eu/*"]\n')), *options).listens
        )
        await asyncio.to_thread(until, "an alarm", lambda: wary.facts_of("stranger_leads"))
        [told, *_] = wary.facts_of("stranger_leads")
        assert (told["level"], told["region"], told["token"]) == ("error", "staging", won.token)
        for answer in (wary.ask("GET", path), wary.write(won.token), wary.write(won.token + 1)):
            assert (answer.status, answer.outcome) == (503, "fence_unavailable")
            assert "x-fencing-leader" not in answer.headers
            assert b"staging.example" not in answer.body
        assert await asyncio.to_thread(wary.stop) == 0
        if workers == 1:  # What it is there for.
            trusting = await asyncio.to_thread(serve("--config", configuration(whole.format("")), *options).listens)
            assert await asyncio.to_thread(trusting.discovered) == won.token
            assert trusting.ask("GET", path).json["leader"]["url"] == "https://staging.example"
    finally:
        await stranger.close()


def test_a_gateway_wins_takes_a_write_and_hands_over_to_the_next(
    election: str, fresh_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str]
) -> None:
    assert fencegate("migrate", "--store-dsn", fresh_dsn).returncode == 0
    path = configuration(
        'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
        f'[store]\ndsn = "{fresh_dsn}"\n[election]\n{election}\n{ROUTE}'
    )
    tokens = []
    for _ in range(2):
        gateway = serve("--config", path).listens()
        tokens.append(gateway.discovered())
        assert gateway.write(tokens[-1]).status == 201
        assert gateway.stop() == 0
    assert int(tokens[1]) > int(tokens[0])
