"""A store whose clock is wrong: the lease lets a deposed region's writes in, ``validate = true`` does not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from system.regions import arguments
from system.serving import Serving, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]

ROUTES = (
    '[[route]]\npath = "/proved"\nrole = "proved"\ntarget = "ledger"\nvalidate = true\n'
    '[[route]]\npath = "/leased"\nrole = "leased"\ntarget = "ledger"\n'
)
SET_BACK = "UPDATE fencegate.fence SET valid_until = clock_timestamp() + interval '10 years'"
"""What a store whose clock was set back by ten years would show: every lease in it lasts that much longer."""


def tell(dsn: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn, timeout=60)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(run())


def leads_both(serving: Serving, limit: float = 20.0) -> dict[str, int]:
    def found() -> dict[str, int]:
        gained = {fact["role"]: int(fact["token"]) for fact in serving.facts_of("leadership_gained")}
        return gained if len(gained) == 2 else {}

    tokens: dict[str, int] = until("both leaderships", found, limit)
    return tokens


@pytest.mark.timeout(180)
def test_a_store_whose_clock_is_wrong_lets_nothing_in_that_the_election_does_not_prove(
    serve: Serve, etcd: EmbeddedEtcd, fresh_prefix: str, fresh_dsn: str, other_dsn: str, tmp_path: Path
) -> None:
    election = f'source = "etcd"\nendpoints = {etcd.endpoints}\nprefix = "{fresh_prefix.rstrip("/")}"\n'

    def gateway(region: str, dsn: str, node: str) -> Serving:
        lines = arguments(region, f"{region}.example", dsn, election, tmp_path, node=node, route=ROUTES)
        return serve(*lines[:-2]).listens()  # on any free port

    leader = gateway("primary", fresh_dsn, "gw-1")
    old = leads_both(leader)
    dr = gateway("dr", other_dsn, "gw")
    until("the line", lambda: dr.facts_of("leader_observed"))
    second = gateway("primary", fresh_dsn, "gw-2")  # behind DR in the line
    for path, role in (("/proved", "proved"), ("/leased", "leased")):
        assert second.write(old[role], {"n": 1}, path).status == 201

    # The region's elector stands still, its store's clock is wrong, and DR is elected.
    leader.signal(signal.SIGSTOP)
    tell(fresh_dsn, SET_BACK)
    new = leads_both(dr)
    assert dr.write(new["proved"], {"n": 2}, "/proved").status == 201
    assert dr.write(new["leased"], {"n": 2}, "/leased").status == 201

    # What no margin covers: the lease, by a clock that is wrong, lets two regions write.
    assert second.write(old["leased"], {"n": 3}, "/leased").status == 201
    refused = second.write(old["proved"], {"n": 3}, "/proved")
    assert (refused.status, refused.outcome, refused.headers["x-fencing-applied"]) == (409, "not_leader", "no")
    assert refused.headers["x-fencing-leader"] == "http://dr.example"
    assert len(second.ask("GET", "/proved?after=0").json["entries"]) == 1
    leader.signal(signal.SIGCONT)


@pytest.mark.timeout(180)
def test_a_validated_role_is_closed_while_its_election_does_not_answer_and_open_again_after(
    serve: Serve, make_etcd: Callable[..., EmbeddedEtcd], fresh_dsn: str, tmp_path: Path
) -> None:
    etcd = make_etcd("mortal")
    etcd.start_sync()
    election = f'source = "etcd"\nendpoints = {etcd.endpoints}\n'
    lines = arguments("eu", "eu.example", fresh_dsn, election, tmp_path, route=ROUTES)
    serving = serve(*lines[:-2]).listens()
    tokens = leads_both(serving)
    assert serving.write(tokens["proved"], {"n": 1}, "/proved").status == 201
    for node in range(3):
        etcd.freeze(node)
    refused = serving.write(tokens["proved"], {"n": 2}, "/proved")
    assert (refused.status, refused.outcome, refused.headers["x-fencing-applied"]) == (503, "fence_unavailable", "no")
    assert serving.write(tokens["leased"], {"n": 2}, "/leased").status == 201, "its lease is not over yet"
    for node in range(3):
        etcd.thaw(node)
    until(
        "writes again",
        lambda: serving.write(serving.discovered("proved"), {"n": 3}, "/proved").status == 201,
    )
    bodies = [entry["body"]["n"] for entry in serving.ask("GET", "/proved?after=0").json["entries"]]
    assert bodies == [1, 3]
