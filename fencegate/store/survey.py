"""What a Postgres is like, for ``fencegate doctor``: measured over one session, judged elsewhere, nothing changed.

It serves for a region's store and for the Postgres of an election alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencegate.access.database import Database
from fencegate.errors import Unavailable
from fencegate.fence import Fence
from fencegate.store.control import FENCES, fence_of
from fencegate.store.link import CONNECTION_LOST, connect, describe
from fencegate.store.migrate import SchemaMismatch, missing
from fencegate.store.rollback import findings, told

ROUND_TRIPS: Final = 5

_SETTINGS: Final = """
    SELECT name, setting, source FROM pg_settings WHERE name IN (
        'fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'max_connections',
        'superuser_reserved_connections', 'reserved_connections', 'statement_timeout', 'server_version',
        'max_prepared_transactions')"""

_STATE: Final = """
    SELECT pg_is_in_recovery() AS standby, quote_ident(current_user) AS role, quote_ident(current_database()) AS base,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
           coalesce((SELECT array_agg(coalesce(sync_state, 'hidden')) FROM pg_stat_replication
                      WHERE state IS NULL OR state <> 'backup'), '{}') AS standbys"""

_ABSENT: Final = """
    SELECT name FROM unnest($1::text[]) name
     WHERE NOT EXISTS (SELECT FROM pg_proc WHERE oid = to_regprocedure(name || '(jsonb, jsonb)')
                          AND prorettype = 'jsonb'::regtype AND has_function_privilege(oid, 'EXECUTE'))"""

_STATEMENT_TIMEOUT: Final = 4321
"""Milliseconds, an odd number: found again in the session, it is ours that is in force."""


@dataclass(frozen=True, slots=True)
class PostgresSurvey:
    """Durations are seconds. ``clock_offset`` is the server's clock less ours, give or take ``clock_error``; ``now`` is
    what it shows, in seconds since 1970.

    ``pooled``: the backends that ran our statements are not the one that greeted us. ``settings_hold``: what the
    session asked for at its start is in force. ``standbys``: the ``sync_state`` of each that is connected. ``fences``
    is ``None`` without fencegate's tables; ``schema_fault`` says what is wrong with them. ``gone_back`` says who
    found that it lacks what it had acknowledged, where nobody has reopened it since. ``commits_by`` is where the
    session has its ``synchronous_commit`` from, in the words of ``pg_settings``; ``role`` and ``base`` are its user and
    database, as SQL spells them.
    """

    connecting: float
    round_trips: tuple[float, ...]
    clock_offset: float
    clock_error: float
    standby: bool
    pooled: bool
    settings_hold: bool
    settings: dict[str, str]
    standbys: tuple[str, ...]
    connections: int
    missing_migrations: tuple[str, ...] = ()
    schema_fault: str = ""
    incarnation: str = ""
    fences: tuple[Fence, ...] | None = None
    missing_functions: tuple[str, ...] = ()
    gone_back: str = ""
    commits_by: str = ""
    role: str = ""
    base: str = ""
    now: float = 0.0


async def survey(address: str | Database, limit: float, functions: Sequence[str] = ()) -> PostgresSurvey:
    """Looks at the Postgres at ``address``, for ``limit`` seconds at most. Raises :class:`Unavailable` saying why.

    ``functions`` are those that routes name as targets.
    """
    began = time.monotonic()
    wanted = {"statement_timeout": str(_STATEMENT_TIMEOUT)}
    connection = await connect(address, limit, application_name="fencegate doctor", settings=wanted)
    try:
        async with asyncio.timeout(max(0.0, began + limit - time.monotonic())):
            return await _look(connection, time.monotonic() - began, functions, Database.at(address).portable)
    except TimeoutError:
        raise Unavailable(f"took a connection and did not answer within {limit:g} s") from None
    except (asyncpg.PostgresError, *CONNECTION_LOST) as error:
        raise Unavailable(describe(error)) from error
    finally:
        connection.terminate()


async def _look(
    connection: asyncpg.Connection, connecting: float, functions: Sequence[str], portable: bool
) -> PostgresSurvey:
    # Each statement is a transaction of its own, so that a pooler may show itself between two of them.
    pids, trips, clocks = {connection.get_server_pid()}, [], []
    for _ in range(ROUND_TRIPS):
        asked, wall = time.monotonic(), time.time()
        row = await connection.fetchrow(
            "SELECT pg_backend_pid() AS pid, extract(epoch FROM clock_timestamp())::float8 AS now"
        )
        trip = time.monotonic() - asked
        assert row is not None  # a SELECT without FROM gives one row
        pids.add(row["pid"])
        trips.append(trip)
        clocks.append((trip / 2, row["now"] - wall - trip / 2))
    error, offset = min(clocks)
    async with connection.transaction(readonly=True):
        rows = await connection.fetch(_SETTINGS)
        settings = {row["name"]: row["setting"] for row in rows}
        sources = {row["name"]: row["source"] for row in rows}
        state = await connection.fetchrow(_STATE)
        assert state is not None
        lacking, fault = await _schema(connection, portable)
        made = "0001_create_fence" not in lacking
        fences = [fence_of(row) for row in await connection.fetch(FENCES + " ORDER BY role")] if made else None
        absent = await connection.fetch(_ABSENT, list(functions))
        incarnation = ""
        if made and not state["standby"]:
            incarnation = str(await connection.fetchval("SELECT fencegate.incarnation()"))
        watched = "0006_find_rollback" not in lacking and not fault
        gone_back = told(await findings(connection)) if made and watched else ""
    return PostgresSurvey(
        connecting=connecting,
        round_trips=tuple(trips),
        clock_offset=offset,
        clock_error=error,
        now=time.time() + offset,
        standby=state["standby"],
        pooled=len(pids) != 1,
        settings_hold=settings["statement_timeout"] == str(_STATEMENT_TIMEOUT),
        settings=settings,
        standbys=tuple(state["standbys"]),
        connections=state["connections"],
        missing_migrations=lacking,
        schema_fault=fault,
        incarnation=incarnation,
        fences=None if fences is None else tuple(fences),
        missing_functions=tuple(row["name"] for row in absent),
        gone_back=gone_back,
        commits_by=sources["synchronous_commit"],
        role=state["role"],
        base=state["base"],
    )


async def _schema(connection: asyncpg.Connection, portable: bool) -> tuple[tuple[str, ...], str]:
    try:
        return tuple(migration.name for migration in await missing(connection, portable=portable)), ""
    except SchemaMismatch as error:
        return (), str(error)
