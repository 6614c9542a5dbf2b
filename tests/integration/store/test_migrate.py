"""The migrations: once, in order, by one at a time, and never over a schema that is not ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencegate.access.database import Database
from fencegate.embedded.postgres import binaries
from fencegate.errors import Unavailable
from fencegate.fence import Effect
from fencegate.store import migrate, rollback
from fencegate.store.chain import verify_chain
from fencegate.store.migrate import MigrationFailed, SchemaMismatch
from fencegate.store.postgres import PostgresStore
from store.writing import HOLDER, ROLE, answer, forward, open_term, until, whole_ledger, write

UPGRADE = Path(__file__).parents[3] / "docs" / "upgrade.md"
NAMES = [m.name for m in migrate.migrations()]


async def test_they_are_applied_once(fresh_dsn: str) -> None:
    assert NAMES[0] == "0001_create_fence"
    assert await migrate.pending(fresh_dsn) == NAMES
    assert await migrate.apply(fresh_dsn) == NAMES
    assert await migrate.apply(fresh_dsn) == []
    assert await migrate.pending(fresh_dsn) == []


async def test_several_gateways_that_start_at_once_apply_them_once(fresh_dsn: str) -> None:
    applied = await asyncio.gather(*(migrate.apply(fresh_dsn) for _ in range(4)))
    assert sorted(applied, key=len) == [[], [], [], NAMES]


async def test_one_that_was_changed_after_it_was_applied_is_refused(dsn: str, beside: asyncpg.Connection) -> None:
    await beside.execute("UPDATE fencegate.migration SET digest = 'other' WHERE name = $1", NAMES[0])
    for ask in (migrate.pending, migrate.apply):
        with pytest.raises(SchemaMismatch, match=f"{NAMES[0]} differs"):
            await ask(dsn)


async def test_a_database_of_a_newer_version_is_refused(dsn: str, beside: asyncpg.Connection) -> None:
    await beside.execute("INSERT INTO fencegate.migration VALUES ('9999_from_the_future', 'x')")
    for ask in (migrate.pending, migrate.apply):
        with pytest.raises(SchemaMismatch, match=r"newer fencegate .*9999_from_the_future"):
            await ask(dsn)


async def test_one_that_fails_is_rolled_back_and_says_why(
    fresh_dsn: str, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = migrate.migrations()
    bad = migrate.Migration("9000_break", "CREATE TABLE fencegate.half (n int);\nSELECT 1/0;\n")
    monkeypatch.setattr(migrate, "migrations", lambda **_: [*ours, bad])
    with pytest.raises(MigrationFailed, match="division by zero"):
        await migrate.apply(fresh_dsn)
    assert await (await connect(fresh_dsn)).fetchval("SELECT to_regclass('fencegate.half')") is None
    assert await migrate.pending(fresh_dsn) == ["9000_break"]


async def test_a_user_without_rights_is_told_what_to_do(fresh_dsn: str) -> None:
    connection = await asyncpg.connect(fresh_dsn)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"CREATE ROLE weak_{name} LOGIN PASSWORD 'w'")
    try:
        weak = fresh_dsn.replace(fresh_dsn.split("//")[1].split("@")[0], f"weak_{name}:w")
        with pytest.raises(MigrationFailed, match="rights to create a schema"):
            await migrate.apply(weak)
    finally:
        await connection.execute(f"DROP ROLE weak_{name}")
        await connection.close()


async def test_a_gateway_does_with_the_rights_that_the_docs_grant_its_user_and_with_less_is_told_of_them(
    dsn: str, beside: asyncpg.Connection, make_store: Callable[..., Any]
) -> None:
    user = f"gateway_{await beside.fetchval('SELECT current_database()')}"
    await beside.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'w'")
    weak = dsn.replace(dsn.split("//")[1].split("@")[0], f"{user}:w")
    [granted] = re.findall(r"^GRANT USAGE .*?(?=```)", UPGRADE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    first, rest = granted.replace(" TO gateway", f" TO {user}").split("\n", 1)
    try:
        for grant in (first, rest):
            with pytest.raises(MigrationFailed, match="SELECT, INSERT, UPDATE and DELETE"):
                await migrate.pending(weak)
            await beside.execute(grant)
        assert await migrate.pending(weak) == []
        await beside.execute("CREATE FUNCTION public.f(jsonb, jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'")
        store: PostgresStore = await make_store(weak)
        await store.ensure_roles({ROLE: "lease"})
        clock = await open_term(store, 4)
        assert await store.extend(ROLE, 4, HOLDER, clock, 60.0) is None
        assert (await store.append(write(4, key="k"), 5.0)).effect is Effect.APPLIED
        assert (await store.call("public.f", write(4), 5.0)).effect is Effect.APPLIED
        admission = await store.admit(forward(4, key="f"), 5.0)
        await store.settle(admission.ticket, answer())
        assert (await store.admit(forward(4, key="f"), 5.0)).effect is Effect.REPLAYED
        assert await store.expire_keys(60) == 0
        assert await store.seal(ROLE, 4, clock.incarnation)
        await store._control.close_gone_back("gw", store._witness.known)
        assert await rollback.reopen(Database(weak), "anna", 5.0) == 1
        await beside.execute("CREATE TABLE fencegate.later (n int)")
        assert await beside.fetchval("SELECT has_table_privilege($1, 'fencegate.later', 'UPDATE')", user)
    finally:
        await beside.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


async def test_waiting_for_another_migrator_ends(fresh_dsn: str, connect: Callable[..., Any]) -> None:
    holder = await connect(fresh_dsn)
    await holder.execute("SELECT pg_advisory_lock($1)", migrate._ADVISORY_LOCK)
    with pytest.raises(Unavailable, match="somebody else"):
        await migrate.apply(fresh_dsn, limit=2.0)


async def test_the_time_limits_of_a_user_or_a_database_are_not_those_of_a_migration(
    fresh_dsn: str, connect: Callable[..., Any]
) -> None:
    """One that was cut off by them was told that it needs other rights."""
    holder = await connect(fresh_dsn)
    name = await holder.fetchval("SELECT current_database()")
    for setting in ("statement_timeout", "lock_timeout"):
        await holder.execute(f"ALTER DATABASE {name} SET {setting} = '200ms'")
    await holder.execute("SELECT pg_advisory_lock($1)", migrate._ADVISORY_LOCK)
    migrating = asyncio.create_task(migrate.apply(fresh_dsn, limit=30.0))
    await asyncio.wait([migrating], timeout=1.0)
    assert not migrating.done()
    await holder.execute("SELECT pg_advisory_unlock($1)", migrate._ADVISORY_LOCK)
    assert await migrating == NAMES


async def test_one_that_waits_for_a_long_reader_holds_up_no_gateway_that_serves(
    fresh_dsn: str, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump, or fencegate diff: whatever is written after a statement that waits for the table waits behind it."""
    ours = migrate.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda **_: [m for m in ours if m.name < "0007"])
    await migrate.apply(fresh_dsn)
    serving, reading = await connect(fresh_dsn), await connect(fresh_dsn)
    await serving.execute("INSERT INTO fencegate.fence (role, mode) VALUES ('ledger', 'lease')")
    await serving.fetchval("SELECT fencegate.claim('ledger', 3, 'a', clock_timestamp(), 600, fencegate.incarnation())")
    transaction = reading.transaction(readonly=True)
    await transaction.start()
    await reading.fetchval("SELECT count(*) FROM fencegate.entry")
    monkeypatch.setattr(migrate, "migrations", lambda **_: ours)
    with pytest.raises(Unavailable, match="0007_keep_caller changes is held by a long transaction"):
        await migrate.apply(fresh_dsn, limit=4.0)
    migrating = asyncio.create_task(migrate.apply(fresh_dsn, limit=30.0))
    waiting = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'fencegate.entry'::regclass"
    await until(lambda: serving.fetchval(waiting))
    none = bytes(16)
    append = "SELECT seqs FROM fencegate.append($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    written = await serving.fetchval(append, ["ledger"], [3], [0], [True], [1], "", none, none, "1", timeout=10)
    assert written == [1]
    assert not migrating.done()
    await transaction.rollback()
    assert "0007_keep_caller" in await migrating


async def test_a_store_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await migrate.pending("postgresql://x:y@127.0.0.1:1/z", limit=1.0)


async def test_the_script_applies_with_psql_and_then_nothing_is_pending(fresh_dsn: str, tmp_path: Path) -> None:
    script = tmp_path / "fencegate.sql"
    script.write_text(migrate.sql(), encoding="utf-8")
    psql = str(binaries().program("psql"))
    command = [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", fresh_dsn, "-f", str(script)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert await migrate.pending(fresh_dsn) == []
    assert await migrate.apply(fresh_dsn) == []


async def test_the_script_applies_over_a_plain_session_too(fresh_dsn: str) -> None:
    connection = await asyncpg.connect(fresh_dsn)
    await connection.execute(migrate.sql())
    await connection.close()
    assert await migrate.pending(fresh_dsn) == []


async def test_a_ledger_of_before_there_were_callers_goes_on_whole_and_a_gateway_of_then_may_go_on_writing(
    fresh_dsn: str, connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = migrate.migrations()
    before = [m for m in ours if m.name < "0007"]
    monkeypatch.setattr(migrate, "migrations", lambda **_: before)
    await migrate.apply(fresh_dsn)
    old = await connect(fresh_dsn)
    await old.execute("INSERT INTO fencegate.fence (role, mode) VALUES ('ledger', 'lease')")
    await old.fetchval("SELECT fencegate.claim('ledger', 3, 'eu/gw', clock_timestamp(), 600, fencegate.incarnation())")
    none = bytes(16)
    as_it_did = await old.prepare("SELECT * FROM fencegate.append($1, $2, $3, $4, $5, $6, $7, $8, $9)")
    arguments = (["ledger"], [3], [0], [True], [1], "", none, none)
    assert (await as_it_did.fetchrow(*arguments, '{"old": 1}'))["seqs"] == [1]
    monkeypatch.setattr(migrate, "migrations", lambda **_: ours)
    await old.execute("SELECT pg_stat_force_next_flush()")
    scans = "SELECT pg_stat_get_numscans('fencegate.entry'::regclass)"
    scanned = await old.fetchval(scans)
    assert await migrate.apply(fresh_dsn) == [m.name for m in ours if m not in before]
    assert await old.fetchval(scans) == scanned, "the ledger may be long, and all writes wait meanwhile"
    with pytest.raises(asyncpg.CheckViolationError):
        await old.execute("INSERT INTO fencegate.entry VALUES (9, 1, 1, now(), '', NULL, '1', '')")

    store = await PostgresStore.open(fresh_dsn, gateway="gw", monitor_period=60.0)
    assert (await as_it_did.fetchrow(*arguments, '{"old": 2}'))["seqs"] == [2]
    await store.append(write(3, b'{"new": 3}', caller="alice"), 5.0)
    assert (await as_it_did.fetchrow(*arguments, '{"old": 4}'))["seqs"] == [4]
    entries = await whole_ledger(store)
    await store.close()
    assert [entry.caller for entry in entries] == [None, None, "alice", None]
    assert verify_chain("ledger", entries) is None


async def test_a_pooler_in_between_is_refused_before_it_could_keep_the_lock(
    fresh_dsn: str, make_pgbouncer: Callable[..., str]
) -> None:
    """One that pools by transaction goes on holding it in a session that it lends to others."""
    pooled = make_pgbouncer(fresh_dsn, pool_mode="transaction")
    for ask in (migrate.apply, migrate.pending):
        with pytest.raises(Unavailable, match="a pooler stands in between"):
            await ask(pooled)
    assert await migrate.apply(fresh_dsn, limit=5.0) == NAMES
