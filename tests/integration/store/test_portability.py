"""Portability mode: what its statements refuse, what a conflict and a vague answer come to, and which history this is.

On a real Postgres, from which the thing is taken away: none of the engines that the mode is for was at hand
(``docs/portability.md``). What every store has to do is asked in the other modules, of a store in this mode too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from fencegate.access.database import Database
from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import ClaimRefused, Effect, Verdict
from fencegate.store import migrate
from fencegate.store.control import Control
from fencegate.store.ledger import ROLES
from fencegate.store.link import Server
from fencegate.store.migrate import SchemaMismatch
from fencegate.store.portability import writing_first
from fencegate.store.postgres import PostgresStore
from store.writing import HOLDER, ROLE, open_term, until, whole_ledger, write

pytestmark = pytest.mark.parametrize("mode", ["portable"], indirect=True)

LEVELS = ("repeatable_read", "serializable")
NOTHING = "decode(repeat('00', 16), 'hex')"
GROUP = f"ARRAY[7::bigint], ARRAY[0::bigint], ARRAY[true], ARRAY[1], ARRAY[false], {NOTHING}, {NOTHING}"
TERM = f"7, '{HOLDER}', clock_timestamp(), 60, fencegate.incarnation()"
DECIDING: tuple[tuple[str, list[Any]], ...] = (
    (
        f"SELECT 1 FROM fencegate.append({ROLES}, ARRAY[7::bigint], ARRAY[0::bigint], ARRAY[true], ARRAY[1], '', "
        f"{NOTHING}, {NOTHING}, '1')",
        [ROLE],
    ),
    (f"SELECT 1 FROM fencegate.call($1, $2, {GROUP}, ARRAY['1'], ARRAY['{{}}'])", ["app.nothing", [ROLE]]),
    (
        f"SELECT 1 FROM fencegate.admit($2, {ROLES}, {GROUP.replace('ARRAY[1]', 'ARRAY[5::float8], ARRAY[1]')})",
        [ROLE, ["m"]],
    ),
    (f"SELECT fencegate.claim($1, {TERM})", [ROLE]),
    (f"SELECT fencegate.extend($1, {TERM})", [ROLE]),
    ("SELECT fencegate.seal($1, 7, fencegate.incarnation())", [ROLE]),
    ("SELECT fencegate.set_draining($1, 7, true)", [ROLE]),
)
"""Every statement that admits a write or changes a term, as the gateway sends it but for constants."""
WRITTEN = f"SELECT written FROM fencegate.fence WHERE role = '{ROLE}'"
FUNCTION = """
    CREATE SCHEMA app;
    CREATE FUNCTION app.nothing(body jsonb, context jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT NULL::jsonb $$"""
FAILING = """
    CREATE SEQUENCE fencegate.tries;
    CREATE FUNCTION fencegate.fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('fencegate.tries');
        RAISE EXCEPTION 'says so' USING ERRCODE = '{}';
    END $$;
    CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON fencegate.entry DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION fencegate.fail()"""
"""Each insert fails at its COMMIT, and is counted."""


# -- what the store itself refuses ------------------------------------------------------------------------


async def test_a_statement_that_has_not_written_the_fence_first_is_refused(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """However it got there: a gateway without the mode, a hand, or a statement that was forgotten here."""
    await beside.execute(FUNCTION)
    await open_term(store, 7)
    for query, arguments in DECIDING:
        with pytest.raises(asyncpg.PostgresError, match="has not written the fence first") as refused:
            async with beside.transaction(isolation="repeatable_read"):
                await beside.execute(query, *arguments)
        assert refused.value.sqlstate == "ZF501", query
    for query, arguments in DECIDING:
        transaction = beside.transaction(isolation="repeatable_read")
        await transaction.start()
        before = await beside.fetchval(WRITTEN)
        await beside.execute(writing_first(query), *arguments)  # and so is each taken that has
        assert await beside.fetchval(WRITTEN) > before, query
        await transaction.rollback()


async def test_read_committed_which_has_no_conflicts_is_refused(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await open_term(store, 7)
    with pytest.raises(asyncpg.PostgresError, match="transaction_isolation is read committed") as refused:
        await beside.execute(writing_first(DECIDING[0][0]), *DECIDING[0][1])
    assert refused.value.sqlstate == "ZF501"
    assert await whole_ledger(store) == []


async def test_a_gateway_in_the_other_mode_is_refused_in_its_tables_and_in_each_statement(
    store: PostgresStore, dsn: str, migrated_dsn: str
) -> None:
    await open_term(store, 7)
    plain = await PostgresStore.open(dsn, gateway="gw-2", monitor_period=60.0)
    with pytest.raises(Unavailable, match="portability mode"):
        await plain.append(write(7), 5.0)
    with pytest.raises(Unavailable, match="portability mode"):
        await plain.seal(ROLE, 7, "")
    await plain.close()
    for place, made in ((Database(dsn), "with"), (Database(migrated_dsn, portable=True), "without")):
        for ask in (migrate.pending, migrate.apply):
            with pytest.raises(SchemaMismatch, match=f"was made {made} portability = true"):
                await ask(place)
    portable = await PostgresStore.open(Database(migrated_dsn, portable=True), gateway="gw-3", monitor_period=60.0)
    with pytest.raises(Unavailable, match="written"):
        await portable.append(write(7), 5.0)
    await portable.close()


async def test_the_guard_is_refused_by_name(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await open_term(store, 7)
    for statement in ("SELECT fencegate.guard('ledger', 7)", "SELECT fencegate.protect('fencegate.entry', 'ledger')"):
        with pytest.raises(asyncpg.PostgresError, match="no guard in a store in portability mode") as refused:
            await beside.execute(statement)
        assert refused.value.sqlstate == "ZF400"


async def test_validated_roles_are_refused(store: PostgresStore) -> None:
    async def leads(*_: object) -> bool:
        return True

    with pytest.raises(ValueError, match="prepared transactions"):
        store.validate([ROLE], leads)


# -- conflicts, and answers that say less -----------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
async def test_every_deciding_statement_on_a_snapshot_from_before_a_change_of_the_fence_conflicts(
    store: PostgresStore, beside: asyncpg.Connection, level: Any
) -> None:
    await beside.execute(FUNCTION)
    clock = await open_term(store, 7)
    for number, (query, arguments) in enumerate(DECIDING):
        transaction = beside.transaction(isolation=level)
        await transaction.start()
        await beside.fetchval("SELECT count(*) FROM fencegate.fence")  # the snapshot
        assert await store.extend(ROLE, 7, HOLDER, clock, 90.0 + number) is None  # any change of the row
        with pytest.raises(asyncpg.SerializationError):
            await beside.execute(writing_first(query), *arguments)
        await transaction.rollback()
    assert await whole_ledger(store) == []


async def test_a_statement_that_waited_for_the_row_conflicts_with_what_it_waited_for_and_is_sent_again(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await open_term(store, 7)
    transaction = beside.transaction(isolation="repeatable_read")
    await transaction.start()
    await beside.execute(
        writing_first("SELECT fencegate.claim($1, 8, 'b', clock_timestamp(), 60, $2)"),
        ROLE,
        (await store.clock()).incarnation,
    )
    late = asyncio.create_task(store.append(write(7), 10.0))
    await asyncio.sleep(0.1)
    assert not late.done()
    await transaction.commit()
    assert (await late).verdict is Verdict.STALE
    assert await whole_ledger(store) == []


async def test_a_conflict_at_commit_is_sent_again_until_it_is_none(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """Its answer comes behind the rows of the statement, and says that the whole transaction is gone."""
    await open_term(store, 7)
    await beside.execute(FAILING.format("40001"))
    waiting = asyncio.create_task(store.append(write(7, key="k"), 10.0))
    await until(lambda: beside.fetchval("SELECT is_called AND last_value >= 2 FROM fencegate.tries"))
    await beside.execute("DROP TRIGGER fail ON fencegate.entry")
    assert (await waiting).effect is Effect.APPLIED
    assert [entry.seq for entry in await whole_ledger(store)] == [1]


@pytest.mark.parametrize("sqlstate", ["40003", "57014", "XX000", "58030", "53200", "08006"])
async def test_an_error_that_does_not_say_that_nothing_stands_is_an_unknown_outcome_and_never_sent_again(
    store: PostgresStore, beside: asyncpg.Connection, sqlstate: str
) -> None:
    await open_term(store, 7)
    await beside.execute(FAILING.format(sqlstate))
    with pytest.raises(OutcomeUnknown):
        await store.append(write(7), 5.0)
    assert await beside.fetchval("SELECT last_value FROM fencegate.tries") == 1
    await beside.execute("DROP TRIGGER fail ON fencegate.entry")
    assert (await store.append(write(7), 5.0)).effect is Effect.APPLIED, "the next one has a session again"


# -- which history this is (R9) -------------------------------------------------------------------------------


@pytest.fixture
async def control(dsn: str, mode: str) -> Any:
    made = Control(Database(dsn, portable=True), Server(), sessions=1, limit=10.0, connect_limit=10.0)
    yield made
    await made.close()


async def test_a_new_history_closes_every_fence_until_a_new_term(store: PostgresStore, control: Control) -> None:
    await store.ensure_roles({"other": "lease"})
    before = await open_term(store, 7)
    await open_term(store, 3, role="other")
    begun = await control.begin_history("a test")
    assert begun != before.incarnation == (await store.read(ROLE)).incarnation  # type: ignore[union-attr]
    assert (await store.clock()).incarnation == begun
    for role, token in ((ROLE, 7), ("other", 3)):
        assert (await store.append(write(token, role=role), 5.0)).verdict is Verdict.OTHER_INCARNATION
    assert await store.extend(ROLE, 7, HOLDER, before, 60) is ClaimRefused.INCARNATION
    assert not await store.seal(ROLE, 7, begun), "the term was not open in this history"
    await open_term(store, 8)
    assert (await store.append(write(8), 5.0)).effect is Effect.APPLIED
    assert (await store.append(write(3, role="other"), 5.0)).verdict is Verdict.OTHER_INCARNATION


async def test_a_write_that_was_decided_in_the_old_history_conflicts_with_the_new_one(
    store: PostgresStore, beside: asyncpg.Connection, control: Control
) -> None:
    await open_term(store, 7)
    transaction = beside.transaction(isolation="repeatable_read")
    await transaction.start()
    await beside.fetchval("SELECT fencegate.incarnation()")
    await control.begin_history("a test")
    with pytest.raises(asyncpg.SerializationError):
        await beside.execute(writing_first(DECIDING[0][0]), *DECIDING[0][1])
    await transaction.rollback()


async def test_a_copy_carries_its_history_along_which_is_what_rebase_is_for(
    store: PostgresStore, beside: asyncpg.Connection, dsn: str, control: Control
) -> None:
    """Rule R9 is weaker here, and this shows how much: a copy takes the term's writes for as long as its lease runs."""
    await open_term(store, 7)
    await store.close()
    name = await beside.fetchval("SELECT current_database()")
    copy = f"{name}_copy"
    await beside.close()
    outside = await asyncpg.connect(dsn.replace(name, "postgres"))
    await outside.execute(f"CREATE DATABASE {copy} TEMPLATE {name}")
    place = Database(dsn.replace(name, copy), portable=True)
    restored = await PostgresStore.open(place, gateway="gw-2", monitor_period=60.0)
    try:
        assert (await restored.append(write(7), 5.0)).effect is Effect.APPLIED
        of_copy = Control(place, Server(), sessions=1, limit=10.0, connect_limit=10.0)
        await of_copy.begin_history("a test")
        await of_copy.close()
        assert (await restored.append(write(7), 5.0)).verdict is Verdict.OTHER_INCARNATION
    finally:
        await restored.close()
        await outside.execute(f"DROP DATABASE {copy} WITH (FORCE)")
        await outside.close()


async def test_without_its_row_nobody_knows_the_history_and_everything_is_refused(
    store: PostgresStore, beside: asyncpg.Connection, control: Control
) -> None:
    await open_term(store, 7)
    await beside.execute("DELETE FROM fencegate.history")
    with pytest.raises(Unavailable, match="nobody knows which history this is"):
        await store.append(write(7), 5.0)
    with pytest.raises(Unavailable, match="nobody knows which history this is"):
        await store.clock()
    begun = await control.begin_history("a test")
    assert (await store.clock()).incarnation == begun


# -- its migrations --------------------------------------------------------------------------------------


async def test_several_gateways_that_start_at_once_make_the_tables_once_without_a_lock(
    fresh_dsn: str, mode: str
) -> None:
    names = [m.name for m in migrate.migrations(portable=True)]
    place = Database(fresh_dsn, portable=True)
    assert await migrate.pending(place) == names
    applied = await asyncio.gather(*(migrate.apply(place) for _ in range(4)))
    assert sorted(name for each in applied for name in each) == sorted(names)
    assert await migrate.pending(place) == []
    connection = await asyncpg.connect(fresh_dsn)
    assert await connection.fetchval("SELECT count(*) FROM fencegate.history") == 1
    await connection.close()


async def test_waiting_for_another_migrator_ends(fresh_dsn: str, mode: str, connect: Callable[..., Any]) -> None:
    place = Database(fresh_dsn, portable=True)
    holder = await connect(fresh_dsn)
    await holder.execute(migrate._CREATE_TABLE)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(migrate._record(migrate.migrations(portable=True)[0]))
    with pytest.raises(Unavailable, match="somebody else"):
        await migrate.apply(place, limit=2.0)
    await transaction.rollback()
    assert await migrate.apply(place)


async def test_the_script_applies_over_a_plain_session_too(fresh_dsn: str, mode: str) -> None:
    connection = await asyncpg.connect(fresh_dsn)
    await connection.execute(migrate.sql(portable=True))
    await connection.close()
    assert await migrate.pending(Database(fresh_dsn, portable=True)) == []
