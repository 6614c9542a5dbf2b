"""What is measured of a Postgres: its standbys, which server it is. Poolers, clocks, settings: test_cli_doctor.py."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from fencegate.access.database import Database
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import Unavailable
from fencegate.store.survey import PostgresSurvey, survey
from store.standby import Standby
from store.writing import until

LIMIT = 15.0


async def test_the_standbys_are_told_by_how_they_keep_up(
    make_postgres: Callable[..., EmbeddedPostgres], tmp_path: Path
) -> None:
    primary = make_postgres(port=0)
    primary.start_sync()
    alone = await survey(primary.dsn, LIMIT)
    standby = Standby(primary, tmp_path / "standby")
    await standby.make()
    await standby.start()
    try:
        await standby.caught_up()
        behind = await _with_names(primary, "")
        waiting = await _with_names(primary, "nobody")
        in_step = await _with_names(primary, "*")
        itself = await survey(f"{standby.dsn}&target_session_attrs=any", LIMIT)
    finally:
        await standby.remove()

    assert (alone.standby, alone.standbys) == (False, ())
    assert behind.standbys == ("async",)
    assert (waiting.standbys, waiting.settings["synchronous_standby_names"]) == (("async",), "nobody")
    assert in_step.standbys == ("sync",)
    assert itself.standby


async def _with_names(server: EmbeddedPostgres, names: str) -> PostgresSurvey:
    """Set synchronous_standby_names on the running server, and look once the sender of its log has taken notice."""
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    await connection.execute("SELECT pg_reload_conf()")
    wanted = 1 if names == "*" else 0
    priority = "SELECT sync_priority FROM pg_stat_replication"

    async def taken() -> bool:
        shown = await connection.fetchval("SHOW synchronous_standby_names")
        return bool(shown == names and await connection.fetchval(priority) == wanted)

    await until(taken)
    await connection.close()
    return await survey(server.dsn, LIMIT)


async def test_a_database_without_tables_is_looked_at_all_the_same(fresh_dsn: str) -> None:
    found = await survey(fresh_dsn, LIMIT, ["app.record"])

    assert "0001_create_fence" in found.missing_migrations
    assert (found.fences, found.incarnation) == (None, "")
    assert found.missing_functions == ("app.record",)
    assert found.settings_hold
    assert not found.pooled


async def test_a_function_counts_only_with_the_right_arguments_and_result(migrated_dsn: str) -> None:
    connection = await asyncpg.connect(migrated_dsn)
    await connection.execute(
        "CREATE SCHEMA app;"
        "CREATE FUNCTION app.good(body jsonb, context jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT body';"
        "CREATE FUNCTION app.text(body jsonb, context jsonb) RETURNS text LANGUAGE sql AS 'SELECT body::text';"
        "CREATE FUNCTION app.one(body jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT body';"
    )
    await connection.close()
    found = await survey(migrated_dsn, LIMIT, ["app.good", "app.text", "app.one", "nowhere.at_all"])

    assert found.missing_functions == ("app.text", "app.one", "nowhere.at_all")
    assert found.incarnation


async def test_a_server_that_takes_a_connection_and_says_nothing_is_unavailable_in_time() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(Unavailable, match=r"within 0\.3 s"):
            await survey(f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none", 0.3)


async def test_a_store_in_portability_mode_is_measured_as_one_and_another_is_said_to_be_none(portable_dsn: str) -> None:
    found = await survey(Database(portable_dsn, portable=True), LIMIT)
    assert (found.missing_migrations, found.schema_fault) == ((), "")
    connection = await asyncpg.connect(portable_dsn)
    assert found.incarnation == str(await connection.fetchval("SELECT id FROM fencegate.history"))
    await connection.close()
    assert "was made with portability = true" in (await survey(portable_dsn, LIMIT)).schema_fault
