"""What holds without Postgres' advisory locks, or on a snapshot from before the wait: tried on a real Postgres.

Engines that speak Postgres' protocol may have no advisory locks, or another isolation level by the same name
(``docs/portability.md``). Here both are taken away from Postgres itself: by functions of the test's database that stand
in for the locks, and by lifting the refusal of other levels.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from fencegate.fence import Effect, Verdict
from fencegate.store.postgres import PostgresStore
from store.test_guard import accounts, add, application  # noqa: F401 - a fixture
from store.test_rules import APPEND
from store.writing import HOLDER, ROLE, open_term, whole_ledger, write

STRICTER = ("repeatable_read", "serializable")
ALL_LEVELS = (
    "CREATE OR REPLACE FUNCTION fencegate.unsafe_setting() RETURNS text LANGUAGE sql STABLE AS 'SELECT NULL::text'"
)
NO_LOCKS = """
    CREATE SCHEMA none;
    GRANT USAGE ON SCHEMA none TO PUBLIC;
    CREATE FUNCTION none.pg_advisory_xact_lock(integer, integer) RETURNS void LANGUAGE sql AS 'SELECT';
    CREATE FUNCTION none.pg_advisory_xact_lock_shared(integer, integer) RETURNS void LANGUAGE sql AS 'SELECT';
    CREATE FUNCTION none.pg_try_advisory_xact_lock_shared(integer, integer) RETURNS boolean LANGUAGE sql
        AS 'SELECT true';
"""
TAKERS = """
    SELECT p.proname AS name, pg_get_functiondef(p.oid) AS text FROM pg_proc p
     WHERE p.pronamespace = 'fencegate'::regnamespace AND p.prosrc ~ 'advisory'"""


async def without_locks(beside: asyncpg.Connection) -> set[str]:
    """From now on an advisory lock is taken by nobody, and granted to everybody. Gives the functions that took one."""
    await beside.execute(NO_LOCKS)
    takers = await beside.fetch(TAKERS)
    for taker in takers:
        text = taker["text"].replace("pg_advisory_", "none.pg_advisory_")
        await beside.execute(text.replace("pg_try_advisory_", "none.pg_try_advisory_"))
    return {taker["name"] for taker in takers}


async def test_only_the_sql_guard_takes_advisory_locks_in_the_store(beside: asyncpg.Connection) -> None:
    assert await without_locks(beside) == {"guard", "wait_for_guarded"}


# -- the gateway's own statements -----------------------------------------------------------------------


@pytest.mark.parametrize("level", STRICTER)
@pytest.mark.parametrize("change", ["claim", "seal"])
async def test_a_write_on_a_snapshot_from_before_a_change_of_the_fence_conflicts_and_is_not_applied(
    store: PostgresStore, beside: asyncpg.Connection, level: Any, change: str
) -> None:
    await beside.execute(ALL_LEVELS)
    clock = await open_term(store, 7)
    transaction = beside.transaction(isolation=level)
    await transaction.start()
    await beside.fetchval("SELECT count(*) FROM fencegate.fence")  # the snapshot
    if change == "claim":
        await open_term(store, 8)
    else:
        assert await store.seal(ROLE, 7, clock.incarnation)
    with pytest.raises(asyncpg.SerializationError):
        await beside.execute(APPEND.format(7))
    await transaction.rollback()
    assert await whole_ledger(store) == []


@pytest.mark.parametrize("level", STRICTER)
async def test_a_claim_a_renewal_and_a_seal_on_an_old_snapshot_conflict_as_well(
    store: PostgresStore, beside: asyncpg.Connection, level: Any
) -> None:
    await beside.execute(ALL_LEVELS)
    clock = await open_term(store, 7)
    for number, statement in enumerate(
        (
            f"SELECT fencegate.claim('ledger', 7, '{HOLDER}', clock_timestamp(), 60, fencegate.incarnation())",
            f"SELECT fencegate.extend('ledger', 7, '{HOLDER}', clock_timestamp(), 60, fencegate.incarnation())",
            "SELECT fencegate.seal('ledger', 7, fencegate.incarnation())",
            "SELECT fencegate.set_draining('ledger', 7, true)",
            "SELECT fencegate.admit(ARRAY['m'], ARRAY['ledger'], ARRAY[7::bigint], ARRAY[0::bigint], ARRAY[true], "
            "ARRAY[5::float8], ARRAY[1], ARRAY[false], decode(repeat('00', 16), 'hex'), "
            "decode(repeat('00', 16), 'hex'))",
        )
    ):
        transaction = beside.transaction(isolation=level)
        await transaction.start()
        await beside.fetchval("SELECT count(*) FROM fencegate.fence")
        await store.extend(ROLE, 7, HOLDER, clock, 90.0 + number)  # any change of the row
        with pytest.raises(asyncpg.SerializationError):
            await beside.execute(statement)
        await transaction.rollback()


async def test_without_advisory_locks_writes_of_two_terms_stay_in_order_and_none_is_lost(
    store: PostgresStore, beside: asyncpg.Connection, make_store: Any
) -> None:
    await without_locks(beside)
    await open_term(store, 1)
    stores = [store, await make_store(gateway="gw-2")]
    accepted: list[tuple[int, int]] = []
    over = asyncio.Event()

    async def writer(number: int) -> None:
        token = 1
        while not over.is_set():
            result = await stores[number % 2].append(write(token, b'{"n": %d}' % number), 10.0)
            if result.effect is Effect.APPLIED:
                assert result.entry is not None
                accepted.append((result.entry.seq, token))
            else:
                assert result.verdict is Verdict.STALE
                token = result.max_token_seen or token

    writers = [asyncio.create_task(writer(number)) for number in range(8)]
    for token in range(2, 12):
        await open_term(stores[token % 2], token)
        await asyncio.sleep(0.02)
    over.set()
    await asyncio.gather(*writers)
    entries = await whole_ledger(store)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry.token for entry in entries] == sorted(entry.token for entry in entries)
    assert sorted(accepted) == [(entry.seq, entry.token) for entry in entries]
    assert len({entry.token for entry in entries}) > 3


# -- the SQL guard, whose lock it is ------------------------------------------------------------------------


async def test_without_advisory_locks_a_raise_does_not_wait_for_the_guarded_which_are_found_out_at_commit(
    store: PostgresStore,
    application: Any,  # noqa: F811 - the fixture
    beside: asyncpg.Connection,
) -> None:
    await without_locks(beside)
    await open_term(store, 42)
    session = await application()
    transaction = session.transaction(isolation="read_committed")
    await transaction.start()
    await add(session, 42)
    await open_term(store, 43)  # with the lock it would wait here
    with pytest.raises(asyncpg.PostgresError) as refused:
        await transaction.commit()
    assert refused.value.sqlstate == "ZF409"
    assert await accounts(beside) == []


@pytest.mark.parametrize("level", STRICTER)
async def test_without_advisory_locks_the_guard_is_no_fence_on_an_older_snapshot(
    store: PostgresStore,
    application: Any,  # noqa: F811 - the fixture
    beside: asyncpg.Connection,
    level: Any,
) -> None:
    """Why the guard is not for engines without them: its look at COMMIT sees the row as it was when it began."""
    await without_locks(beside)
    await open_term(store, 42)
    session = await application()
    transaction = session.transaction(isolation=level)
    await transaction.start()
    await add(session, 42)
    await open_term(store, 43)
    await transaction.commit()
    assert await accounts(beside) == [1], "a write of term 42, committed after term 43 had begun"
