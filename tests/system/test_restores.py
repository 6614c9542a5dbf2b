"""Restores that take tokens back: the gateway comes up closed and says so, and a rebase is the way out (rule R10).

The restores are real: etcd's own snapshot over three members, and a point-in-time recovery of Postgres out of a base
backup and its archived log.
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
from system.serving import Serving, fencegate, until

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

    token = gateway.leads(limit=30)
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


def base_backup(server: EmbeddedPostgres, directory: Path) -> None:
    program = postgres_binaries().program("pg_basebackup")
    command = [program, "-D", directory, "-d", server.dsn, "-X", "stream", "-c", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def execute(server: EmbeddedPostgres, query: str) -> list[asyncpg.Record]:
    async def ask() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(server.dsn, timeout=10)
        try:
            found: list[asyncpg.Record] = await connection.fetch(query)
            return found
        finally:
            await connection.close()

    return asyncio.run(ask())
