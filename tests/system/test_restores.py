"""Restores that take tokens back: the gateway comes up closed and says so, and a rebase is the way out (rule R10).

And files that are put back under a store: closed by whoever wrote more, until an operator says otherwise (rule R9).

The restores are real: etcd's own snapshot over three members, a point-in-time recovery of Postgres out of a base
backup and its archived log, and a copy of the files of a Postgres.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from fencegate.election.etcd_gateway import EtcdGateway, encode
from fencegate.embedded.binaries import postgres_binaries
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.identity import chown_tree, identity_for
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import afinish
from fencegate.testing.etcd_snapshot import restore, save
from system.regions import brisk
from system.serving import Serving, ask, fencegate, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

Serve = Callable[..., Serving]
Configuration = Callable[[str], str]

TIMINGS = "lease_duration = 3\nrenew_deadline = 2\nretry_period = 0.4\nmargin = 0.5\n"


def settings(dsn: str, election: str) -> str:
    return (
        'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
        f'[store]\ndsn = "{dsn}"\n[election]\n{election}\n{TIMINGS}'
        '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
    )


def life(serve: Serve, path: str, *, crash: bool = False) -> int:
    """One life of the gateway: it leads, takes a write, and ends. Its token."""
    gateway = serve("--config", path, "--migrate").listens()
    token = gateway.leads()
    assert gateway.write(token).status == 201
    if crash:
        gateway.process.kill()
        gateway.ends()
    else:
        assert gateway.stop() == 0
    return token


def closed_then_rebased(serve: Serve, path: str, older: int, newest: int) -> None:
    """What must be true after any restore that took the issuer back below ``newest``."""
    gateway = serve("--config", path).listens()
    (fact,) = until("the alarm", lambda: gateway.facts_of("token_regressed"))
    assert fact["max_token_seen"] == newest
    assert fact["token"] < newest
    assert fact["level"] == "error"
    # The lease of a life that crashed runs on in its store, and lets its own token write until it ends.
    until("the last lease to end", lambda: gateway.write(newest).status != 201)
    for token in (older, newest):
        answer = gateway.write(token)
        assert answer.status in (409, 503), answer
        assert answer.headers["x-fencing-applied"] == "no"
    assert gateway.ask("GET", "/.well-known/fencegate/leader/ledger").status == 503

    unconfirmed = fencegate("rebase", "ledger", "--config", path)
    assert (unconfirmed.returncode, "--confirm ledger" in unconfirmed.stderr) == (2, True)
    refused = fencegate("rebase", "ledger", "--config", path, "--confirm", "leger")
    assert (refused.returncode, "nothing was changed" in refused.stderr) == (69, True), refused
    assert not gateway.facts_of("leadership_gained")

    done = fencegate("rebase", "ledger", "--config", path, "--by", "ops@desk", "--json", "--confirm", "ledger")
    assert done.returncode == 0, done.stderr
    rebased = json.loads(done.stdout)
    audit = json.loads(done.stderr)
    assert (audit["event"], audit["role"], audit["by"]) == ("tokens_rebased", "ledger", "ops@desk")
    assert (audit["before"], audit["after"]) == (rebased["before"], rebased["after"])
    assert rebased["before"] < newest < rebased["after"]

    token = gateway.leads()
    assert token > rebased["after"]
    assert gateway.write(token).status == 201
    for stale in (older, newest):
        refusal = gateway.write(stale)
        assert (refusal.status, refusal.outcome) == (409, "stale_token")
    assert gateway.stop() == 0


def test_an_etcd_snapshot_that_was_restored_keeps_the_gateway_closed_until_a_rebase(
    serve: Serve, configuration: Configuration, make_etcd: Callable[..., EmbeddedEtcd], fresh_dsn: str, tmp_path: Path
) -> None:
    cluster = make_etcd(unsafe_no_fsync=True)
    cluster.start_sync()
    path = configuration(settings(fresh_dsn, f'source = "etcd"\nendpoints = {cluster.endpoints}'))
    older = life(serve, path)
    snapshot = tmp_path / "snapshot.db"
    save(cluster, snapshot)
    go_on(cluster, writes=400)
    newest = life(serve, path, crash=True)

    cluster.stop_sync()
    restore(cluster, snapshot)
    cluster.start_sync()

    closed_then_rebased(serve, path, older, newest)


def go_on(cluster: EmbeddedEtcd, writes: int) -> None:
    """Time passes: etcd's revision goes on by ``writes``."""

    async def write() -> None:
        gateway = EtcdGateway(cluster.endpoints)
        for _ in range(writes):
            await gateway.call("/v3/kv/put", {"key": encode("/other"), "value": encode("x")}, 5)
        await gateway.close()

    asyncio.run(write())


def test_a_postgres_at_an_earlier_point_in_time_keeps_the_gateway_closed_until_a_rebase(
    serve: Serve,
    configuration: Configuration,
    make_postgres: Callable[..., EmbeddedPostgres],
    fresh_dsn: str,
    tmp_path: Path,
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    archiving = {"archive_mode": "on", "archive_command": f"cp %p {archive}/%f", "wal_level": "replica"}
    server = make_postgres("election", port=0, settings=archiving)
    server.start_sync()
    identity = asyncio.run(afinish(identity_for(server.directory / "data")))
    chown_tree(archive, identity)
    path = configuration(settings(fresh_dsn, f'source = "postgres"\ndsn = "{server.dsn}"'))
    older = life(serve, path)
    backup = tmp_path / "backup"
    base_backup(server, backup)
    execute(server, "SELECT pg_create_restore_point('monday')")
    newest = life(serve, path, crash=True)
    assert (older, newest) == (1, 2)
    execute(server, "SELECT pg_switch_wal()")

    server.stop_sync()
    data = server.directory / "data"
    shutil.rmtree(data)
    backup.rename(data)
    with open(data / "postgresql.auto.conf", "a") as conf:
        conf.write(
            f"restore_command = 'cp {archive}/%f %p'\nrecovery_target_name = 'monday'\n"
            "recovery_target_action = 'promote'\n"
        )
    (data / "recovery.signal").touch()
    chown_tree(data, identity)
    server.start_sync()

    closed_then_rebased(serve, path, older, newest)
    (row,) = execute(server, "SELECT role, by, from_token, to_token FROM fencegate.election_rebase")
    assert (row["role"], row["by"]) == ("ledger", "ops@desk")
    assert row["from_token"] < newest < row["to_token"]


def test_a_store_whose_files_are_put_back_is_closed_and_the_other_region_takes_over(
    serve: Serve,
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    make_postgres: Callable[..., EmbeddedPostgres],
    tmp_path: Path,
) -> None:
    server = make_postgres("store", port=0)
    server.start_sync()
    primary = serve(*brisk("primary", server.dsn, etcd.endpoints, fresh_prefix, tmp_path)).listens()
    assert primary.write(primary.leads(), {"n": "kept"}).status == 201
    data, kept = server.directory / "data", tmp_path / "kept"
    server.stop_sync()
    subprocess.run(["cp", "-a", data, kept], check=True)
    server.start_sync()
    until("a write", lambda: primary.write(primary.leads(), {"n": "lost"}).status == 201)
    dr = serve(*brisk("dr", fresh_dsn, etcd.endpoints, fresh_prefix, tmp_path)).listens()

    server.stop_sync()
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", kept, data], check=True)
    token = primary.facts_of("leadership_gained")[-1]["token"]
    server.start_sync()
    (fact,) = until("the alarm", lambda: wrote_nothing(primary, token) and primary.facts_of("store_went_back"))
    assert fact["level"] == "error"
    refused = primary.write(token)
    assert (refused.status, refused.outcome) == (503, "fence_unavailable")
    assert "went back in time" in refused.json["detail"]
    assert "fencing_store_went_back 1.0" in ask(primary.admin, "GET", "/metrics").body.decode()

    new = dr.leads()
    assert dr.write(new, {"n": "in the other region"}).status == 201

    config = str(tmp_path / "primary.toml")
    found = json.loads(fencegate("doctor", "--config", config, "--json").stdout)
    (history,) = [each for each in found["checks"] if each["check"] == "store.history"]
    assert history["severity"] == "fault"
    unconfirmed = fencegate("reopen", "--config", config)
    assert (unconfirmed.returncode, "--confirm lost" in unconfirmed.stderr) == (2, True)
    done = fencegate("reopen", "--config", config, "--by", "ops@desk", "--json", "--confirm", "lost")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"reopened": 1, "by": "ops@desk"}), done.stderr
    until("the store", lambda: "fencing_store_went_back 0.0" in ask(primary.admin, "GET", "/metrics").body.decode())
    assert primary.write(new).outcome == "not_leader"
    assert entries_of(primary, "n") == ["kept"]


def wrote_nothing(gateway: Serving, token: int) -> bool:
    """Whether the gateway took no write under the token; fails if it did."""
    answer = gateway.write(token)
    assert answer.status in (409, 502, 503, 504), answer
    return True


def entries_of(gateway: Serving, member: str) -> list[object]:
    return [entry["body"][member] for entry in gateway.ask("GET", "/v1/entries").json["entries"]]


def base_backup(server: EmbeddedPostgres, directory: Path) -> None:
    program = postgres_binaries().program("pg_basebackup")
    command = [program, "-D", directory, "-d", server.dsn, "-X", "stream", "-c", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def execute(server: EmbeddedPostgres, query: str) -> list[asyncpg.Record]:
    async def ask() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(server.dsn, timeout=60)
        try:
            found: list[asyncpg.Record] = await connection.fetch(query)
            return found
        finally:
            await connection.close()

    return asyncio.run(ask())
