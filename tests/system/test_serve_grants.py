"""Grants between real processes: a number that is guessed or borrowed writes nothing, and who may write goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from fencegate.client import FencedClient, Grants, LeaderTerm, Refused, lead
from fencegate.election.postgres import PostgresElection
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.grant import SKEW
from fencegate.lease import Candidate, LeaseTimings
from system.regions import arguments, entries_of, hand
from system.serving import Answer, Serving, ask, environment, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
NAME, GRANT = "X-Forwarded-User", "X-Fencing-Grant"
LIFETIME = 1
ROUTE = """\
[identity]
header = "X-Forwarded-User"
from = ["127.0.0.1"]
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
grant = "required"
grant_key_file = "{keys}"
grant_lifetime = {lifetime}
"""
BASE = """\
node = "gw-1"
region = "eu"
advertise = "http://{address}"
[store]
dsn = "{dsn}"
[election]
source = "postgres"
mode = "{mode}"
lease_duration = 6
renew_deadline = 4
retry_period = 0.5
margin = 0.5
"""
TIMINGS = LeaseTimings(6.0, 4.0, 0.5, 0.5)


def ring(folder: Path, *ids: str) -> Path:
    """The key file, with these keys in it; the secret of each follows from its id."""
    file = folder / "grant.keys"
    file.write_text("".join(f"{each} {each[0] * 40}\n" for each in ids))
    file.chmod(0o600)
    return file


def route(folder: Path, *, lifetime: float = 300) -> str:
    return ROUTE.format(keys=folder / "grant.keys", lifetime=lifetime)


def write(gateway: Serving, token: int, grant: str | None, caller: str = "alice", **headers: str) -> Answer:
    given = {} if grant is None else {GRANT: grant}
    return gateway.write(token, **{NAME: caller, **given, **headers})


def granted(gateway: Serving, caller: str = "alice") -> str:
    answer = gateway.ask("GET", "/.well-known/fencegate/leader/ledger", **{NAME: caller})
    return str(answer.json["grant"])


@asynccontextmanager
async def calling(urls: list[str], caller: str) -> AsyncIterator[FencedClient]:
    """A client whose proxy, which here is its own session, names it to the gateways."""
    async with (
        aiohttp.ClientSession(headers={NAME: caller}) as session,
        FencedClient(urls, "ledger", session=session, deadline=20) as client,
    ):
        yield client


async def test_a_guessed_number_and_a_borrowed_grant_write_nothing_and_keys_change_without_a_restart(
    serve: Serve, migrated_dsn: str, unused_ports: list[int], tmp_path: Path
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    ring(tmp_path, "one")
    config = tmp_path / "f.toml"
    config.write_text(BASE.format(address=address, dsn=migrated_dsn, mode="campaign") + route(tmp_path))
    gateway = serve("--config", str(config), "--data", address).listens()
    token = await asyncio.to_thread(gateway.leads)
    await asyncio.to_thread(gateway.discovered)

    async with calling([f"http://{address}"], "alice") as client:
        assert (await client.post("/v1/entries", json={"n": 1})).tries == 1
        first = granted(gateway)
        refused = [
            write(gateway, token, None),
            write(gateway, token + 1, None),
            write(gateway, token, first, "mallory"),
            write(gateway, token + 1, first),
            write(gateway, token, granted(gateway, "mallory")),
            write(gateway, token, None, ""),
        ]
        assert [answer.outcome for answer in refused] == [
            "grant_required",
            "grant_required",
            "grant_invalid",
            "grant_invalid",
            "grant_invalid",
            "caller_required",
        ]
        assert not any(b"max_token_seen" in answer.body for answer in refused)
        assert "grant" not in gateway.ask("GET", "/.well-known/fencegate/leader/ledger").json
        assert write(gateway, token, first).status == 201

        # The new key verifies everywhere before it signs; the old one goes last.
        for number, ids in enumerate((("one", "two"), ("two", "one"), ("two",)), 1):
            ring(tmp_path, *ids)
            gateway.signal(signal.SIGHUP)
            until("the reload", lambda number=number: len(gateway.facts_of("reloaded")) == number)
            assert (await client.post("/v1/entries", json={"keys": ids})).status == 201
            assert granted(gateway).startswith(f"fg1.{ids[0]}.")
        assert gateway.facts_of("reloaded")[-1]["changed"] == ["grant keys"]
        assert write(gateway, token, first).outcome == "grant_expired"
        (tmp_path / "grant.keys").write_text("nonsense\n")
        gateway.signal(signal.SIGHUP)
        until("the refused reload", lambda: gateway.facts_of("reload_refused"))
        assert (await client.post("/v1/entries", json={"keys": "kept"})).status == 201

    page = ask(gateway.admin, "GET", "/metrics").body.decode()
    assert 'fencing_rejections_total{reason="grant_required",region="eu",role="ledger"} 2.0' in page
    assert gateway.ask("GET", "/v1/entries").json["entries"][-1]["seq"] == 6, "what was refused is nowhere"
    assert await asyncio.to_thread(gateway.stop) == 0
    said = page + "".join(gateway.out + gateway.err)
    assert "fg1." not in said
    assert not [secret for secret in ("o" * 40, "t" * 40) if secret in said]


async def test_the_sdk_goes_on_over_the_end_of_its_grant(
    serve: Serve, migrated_dsn: str, unused_ports: list[int], tmp_path: Path
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    ring(tmp_path, "one")
    config = tmp_path / "f.toml"
    config.write_text(
        BASE.format(address=address, dsn=migrated_dsn, mode="campaign") + route(tmp_path, lifetime=LIFETIME)
    )
    gateway = serve("--config", str(config), "--data", address).listens()
    token = await asyncio.to_thread(gateway.leads)
    await asyncio.to_thread(gateway.discovered)
    old = granted(gateway)
    async with calling([f"http://{address}"], "alice") as client:
        first = await client.post("/v1/entries", json={"n": 1}, idempotency_key="k-1")
        await asyncio.sleep(LIFETIME + SKEW + 1)
        assert write(gateway, token, old).outcome == "grant_expired"
        second = await client.post("/v1/entries", json={"n": 2}, idempotency_key="k-2")
        again = await client.post("/v1/entries", json={"n": 1}, idempotency_key="k-1")
    assert (first.tries, second.tries, second.token) == (1, 2, token)
    assert (again.replayed, again.body) == (True, first.body)
    assert await asyncio.to_thread(gateway.stop) == 0


@pytest.mark.timeout(120)
async def test_the_sdk_goes_on_over_a_handoff_and_nothing_is_lost_or_doubled(
    serve: Serve,
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    other_dsn: str,
    tmp_path: Path,
    unused_ports: list[int],
) -> None:
    election = f'source = "etcd"\nendpoints = {etcd.endpoints}\nprefix = "{fresh_prefix.rstrip("/")}"\n'
    addresses = [f"127.0.0.1:{port}" for port in unused_ports]
    ring(tmp_path, "one")
    lines = route(tmp_path)
    eu = serve(*arguments("eu", addresses[0], fresh_dsn, election, tmp_path, route=lines)).listens()
    before = await asyncio.to_thread(eu.leads)
    dr = serve(*arguments("dr", addresses[1], other_dsn, election, tmp_path, route=lines)).listens()
    acknowledged: list[str] = []
    ending = asyncio.Event()

    async def writer(number: int) -> None:
        async with calling([f"http://{each}" for each in addresses], f"writer-{number}") as client:
            while not ending.is_set():
                name = f"{number}-{len(acknowledged)}-{time.monotonic_ns()}"
                await client.post("/v1/entries", json={"name": name})
                acknowledged.append(name)
                await asyncio.sleep(0.01)

    writers = [asyncio.create_task(writer(number)) for number in range(3)]
    until_begun = asyncio.get_running_loop().time() + 20
    while len(acknowledged) < 10:
        assert asyncio.get_running_loop().time() < until_begun
        await asyncio.sleep(0.05)
    done = await asyncio.to_thread(hand, eu, "dr", tmp_path)
    held = len(acknowledged)
    while len(acknowledged) < held + 10:
        assert asyncio.get_running_loop().time() < until_begun + 40
        await asyncio.sleep(0.05)
    ending.set()
    await asyncio.gather(*writers)

    after = int(str(done["token"]))
    ledgers = [await asyncio.to_thread(entries_of, serving) for serving in (eu, dr)]
    assert {token for token, _ in ledgers[0]} == {before}
    assert {token for token, _ in ledgers[1]} == {after}
    names = [name for ledger in ledgers for _, name in ledger]
    assert sorted(names) == sorted(acknowledged)
    # The older term's grant is good for the older term alone, and that one is over.
    stale = write(dr, after, granted(dr, "writer-0"), "writer-1")
    assert stale.outcome == "grant_invalid"
    for serving in (eu, dr):
        assert await asyncio.to_thread(serving.stop) == 0


@asynccontextmanager
async def leading(dsn: str, name: str, keys: Path | None) -> AsyncIterator[LeaderTerm]:
    backend = PostgresElection(dsn, TIMINGS)
    me = Candidate(name, "eu", "http://127.0.0.1:1")
    grants = None if keys is None else Grants(keys, name)
    try:
        async with lead(
            "ledger", backend=backend, candidate=me, timings=TIMINGS, grants=grants, shared_store=True
        ) as term:
            yield term
    finally:
        await backend.close()


COMMAND = """
import json, os, sys, urllib.request
grant = open(os.environ["FENCEGATE_GRANT_FILE"]).read().strip()
headers = {"X-Fencing-Token": os.environ["FENCEGATE_TOKEN"], "X-Fencing-Grant": grant, "X-Forwarded-User": "node-3",
           "Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1] + "/v1/entries", b'{"by": "node-3"}', headers)
print(urllib.request.urlopen(request).status)
"""


# Field case 44.
async def test_where_applications_lead_a_number_is_its_holders_alone(
    serve: Serve, migrated_dsn: str, unused_ports: list[int], tmp_path: Path
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    keys = ring(tmp_path, "one")
    config = tmp_path / "f.toml"
    config.write_text(BASE.format(address=address, dsn=migrated_dsn, mode="follow") + route(tmp_path))
    gateway = serve("--config", str(config), "--data", address).listens()
    urls = [f"http://{address}"]

    async with leading(migrated_dsn, "node-1", keys) as term, aiohttp.ClientSession(headers={NAME: "node-1"}) as own:
        async with term.client(urls, session=own) as client:
            assert (await client.post("/v1/entries", json={"by": "node-1"})).token == term.token
        # Another process that may write, and knows the number: discovery tells it, and gives nothing with it.
        assert gateway.discovered() == term.token
        answer = gateway.ask("GET", "/.well-known/fencegate/leader/ledger", **{NAME: "node-2"})
        assert "grant" not in answer.json
        async with calling(urls, "node-2") as stranger:
            with pytest.raises(Refused) as refused:
                await stranger.post("/v1/entries", json={"by": "node-2"})
            assert refused.value.code == "grant_required"
        assert write(gateway, term.token, term.grant(), "node-2").outcome == "grant_invalid"
        assert not term.lost.is_set()

    async with (
        leading(migrated_dsn, "node-2", None) as term,
        aiohttp.ClientSession(headers={NAME: "node-2"}) as own,
        term.client(urls, session=own) as client,
    ):
        with pytest.raises(Refused):
            await client.post("/v1/entries", json={"by": "a leader without the key"})

    command = [sys.executable, "-m", "fencegate", "elect", "ledger", "--config", str(config), "--node", "node-3"]
    options = ["--grant-key-file", str(keys), "--grant-subject", "node-3", "--shared-store"]
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, *options, "--", sys.executable, "-c", COMMAND, urls[0]],
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "201"), done.stderr
    entries = gateway.ask("GET", "/v1/entries").json["entries"]
    assert [entry["body"]["by"] for entry in entries] == ["node-1", "node-3"]
    assert await asyncio.to_thread(gateway.stop) == 0
