"""Roles over two real Postgres in one gateway: one of them ends, and closes its own roles and no other."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fencegate.client import FencedError, lead
from fencegate.election.postgres import PostgresElection
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.lease import Candidate, LeaseTimings
from system.serving import Answer, Serving, ask, fencegate, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
Configuration = Callable[[str], str]

FAMILY = """
[[route]]
path = "/shards/{shard}"
role = "shards/{shard}"
members = ["n-1", "n-2", "s-1"]
target = "ledger"
"""


def two(north: str, south: str, *, northern: str = '"shards/*"', southern: str = '"shards/s-*"') -> str:
    return (
        'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
        f'[[store]]\nname = "north"\ndsn = "{north}"\nroles = [{northern}]\n'
        f'[[store]]\nname = "south"\ndsn = "{south}"\nroles = [{southern}]\n'
        f'[election]\nsource = "postgres"\ndsn = "{north}"\n'
        f"lease_duration = 4\nrenew_deadline = 3\nretry_period = 0.4\nmargin = 0.5\n{FAMILY}"
    )


def write(gateway: Serving, shard: str, key: str = "") -> Answer:
    token = gateway.discovered(f"shards/{shard}")
    more = {"Idempotency-Key": f'"{key}"'} if key else {}
    return gateway.write(token, path=f"/shards/{shard}", **more)


def ready(gateway: Serving) -> Answer:
    return ask(gateway.admin, "GET", "/ready")


def store_up(gateway: Serving) -> dict[str, str]:
    lines = ask(gateway.admin, "GET", "/metrics").body.decode().splitlines()
    found = [line for line in lines if line.startswith("fencing_store_up{")]
    return {line.split('"')[1]: line.split()[1] for line in found}


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"))]
)
def test_one_store_that_is_killed_closes_its_own_roles_alone_and_they_heal_when_it_comes_back(
    workers: int,
    fresh_dsn: str,
    make_postgres: Callable[..., EmbeddedPostgres],
    serve: Serve,
    configuration: Configuration,
) -> None:
    south = make_postgres(port=0)
    south.start_sync()
    path = configuration(two(fresh_dsn, south.dsn))
    migrated = fencegate("migrate", "--config", path)
    assert migrated.stdout.count("applied 0001_") == 2, migrated.stderr
    gateway = serve("--config", path, "--workers", str(workers)).listens()
    first = until("a write in each store", lambda: both(gateway))
    assert [answer.json["seq"] for answer in first] == [1, 1]
    assert store_up(gateway) == {"north": "1.0", "south": "1.0"}

    south.kill()
    refused = until("a refusal", lambda: of_outcome(gateway, "s-1", "fence_unavailable"))
    assert (refused.status, refused.headers["x-fencing-applied"]) == (503, "no")
    for number in range(20):
        answer = write(gateway, "n-1", f"meanwhile-{number}")
        assert (answer.status, answer.json["seq"]) == (201, number + 2)
    until("the metric", lambda: store_up(gateway) == {"north": "1.0", "south": "0.0"})
    until("the word of readiness", lambda: list(ready(gateway).json.get("closed", {})) == ["south"])
    assert ready(gateway).status == 200
    assert gateway.facts_of("store_went_down")[-1]["store"] == "south"
    told = fencegate("status", "--admin", gateway.admin).stdout
    assert told.startswith('store=down reason="south: ')
    assert "role=shards/n-1 leader=eu" in told
    document = json.loads(fencegate("status", "--admin", gateway.admin, "--json").stdout)
    assert {name: store["up"] for name, store in document["stores"].items()} == {"north": True, "south": False}
    assert [(role["store"], role["fence"] is None) for role in document["roles"]] == [
        ("north", False),
        ("north", False),
        ("south", True),
    ]

    south.start_sync()
    healed = until("a write after the outage", lambda: of_outcome(gateway, "s-1", "accepted"))
    assert healed.json["seq"] >= 2
    assert healed.json["token"] >= first[1].json["token"]
    until("readiness", lambda: ready(gateway).json == {"ready": True})
    examined = json.loads(fencegate("doctor", "--config", path, "--json").stdout)
    checks = {check["check"]: check["severity"] for check in examined["checks"]}
    assert checks["store.reachable[north]"] == checks["store.reachable[south]"] == "fine"
    assert checks["tokens.issuer[south]"] == "fine"
    assert gateway.stop() == 0


def both(gateway: Serving) -> list[Answer] | None:
    answers = [write(gateway, shard, f"both-{shard}-{gateway.data}") for shard in ("n-1", "s-1")]
    return answers if all(answer.status == 201 for answer in answers) else None


def of_outcome(gateway: Serving, shard: str, outcome: str) -> Answer | None:
    answer = gateway.write(gateway.discovered(f"shards/{shard}"), path=f"/shards/{shard}") if (
        outcome == "accepted"
    ) else gateway.write(1_000, path=f"/shards/{shard}")  # fmt: skip
    return answer if answer.outcome == outcome else None


def written_once(north: str, south: EmbeddedPostgres, serve: Serve, configuration: Configuration) -> str:
    """A configuration of both stores, under which a gateway has written to each and ended."""
    south.start_sync()
    path = configuration(two(north, south.dsn))
    gateway = serve("--config", path, "--migrate").listens()
    until("a write in each store", lambda: both(gateway))
    assert gateway.stop() == 0
    return path


def test_a_store_that_is_down_at_the_start_holds_up_its_own_roles_alone(
    fresh_dsn: str, make_postgres: Callable[..., EmbeddedPostgres], serve: Serve, configuration: Configuration
) -> None:
    south = make_postgres(port=0)
    path = written_once(fresh_dsn, south, serve, configuration)

    south.stop_sync()
    gateway = serve("--config", path).listens()
    until("a write", lambda: write(gateway, "n-1").status == 201)
    until("readiness", lambda: ready(gateway).status == 200)
    assert list(ready(gateway).json["closed"]) == ["south"]
    south.start_sync()
    until("a write in each store", lambda: both(gateway))


def test_a_role_that_was_moved_to_another_store_is_refused_there_until_what_it_wrote_is_there_too(
    fresh_dsn: str, make_postgres: Callable[..., EmbeddedPostgres], serve: Serve, configuration: Configuration
) -> None:
    south = make_postgres(port=0)
    written_once(fresh_dsn, south, serve, configuration)

    moved = configuration(two(fresh_dsn, south.dsn, northern='"shards/n-2"', southern='"shards/*"'))
    listeners = ("--data", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    refused = fencegate("serve", "--config", moved, *listeners)
    assert refused.returncode == 78
    assert "[[store]] south roles: shards/n-1 is placed there, where token 0 was seen" in refused.stderr
    assert "[[store]] north has taken token" in refused.stderr
    back = serve("--config", configuration(two(fresh_dsn, south.dsn))).listens()
    assert [answer.json["seq"] for answer in until("writes", lambda: both(back))] == [2, 2]


async def test_roles_that_applications_lead_are_followed_each_in_its_own_store(
    fresh_dsn: str, make_postgres: Callable[..., EmbeddedPostgres], serve: Serve, configuration: Configuration
) -> None:
    south = make_postgres(port=0)
    await south.start()
    text = two(fresh_dsn, south.dsn).replace('source = "postgres"', 'source = "postgres"\nmode = "follow"')
    gateway = serve("--migrate", "--config", configuration(text)).listens()
    urls, timings = [f"http://{gateway.data}"], LeaseTimings(4.0, 3.0, 0.4, 0.5)
    backend = PostgresElection(fresh_dsn, timings)
    me = Candidate("app", "eu", urls[0])

    def leading(role: str) -> Any:
        return lead(role, backend=backend, candidate=me, timings=timings, shared_store=True)

    try:
        async with (
            leading("shards/n-1") as north_term,
            leading("shards/s-1") as south_term,
            north_term.client(urls) as northern,
            south_term.client(urls) as southern,
        ):
            for client, path in ((northern, "/shards/n-1"), (southern, "/shards/s-1")):
                assert (await client.post(path, json={"n": 1})).json()["seq"] == 1
            south.kill()
            with pytest.raises(FencedError):
                await southern.post("/shards/s-1", json={"n": 2}, deadline=1.0)
            assert (await northern.post("/shards/n-1", json={"n": 2})).json()["seq"] == 2
            await south.start()
            assert (await southern.post("/shards/s-1", json={"n": 3}, deadline=30.0)).json()["seq"] in (2, 3)
    finally:
        await backend.close()
    assert await asyncio.to_thread(gateway.stop) == 0
