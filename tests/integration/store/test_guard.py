"""``fencegate.guard``: an application's own transaction, fenced by its first statement."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from fencegate.election.follower import Follower
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import PROBLEMS, Unavailable
from fencegate.lease import Candidate, LeaseTimings
from fencegate.store import migrate
from fencegate.store.postgres import PostgresStore
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from store.writing import HOLDER, ROLE, bodies, open_term, until, write

LEVELS = ("read_committed", "repeatable_read", "serializable")
APPLICATION = """
    CREATE TABLE public.account (id integer PRIMARY KEY, balance bigint NOT NULL);
    CREATE ROLE {name} LOGIN PASSWORD 'x';
    GRANT SELECT, INSERT, UPDATE ON public.account TO {name};
    GRANT USAGE ON SCHEMA fencegate TO {name};
    GRANT EXECUTE ON FUNCTION fencegate.guard TO {name};
"""


@pytest.fixture
async def application(beside: asyncpg.Connection, connect: Callable[..., Any], dsn: str) -> AsyncIterator[Any]:
    """Opens sessions of a role that may do what the documentation says it needs, and no more."""
    name = f"app_{await beside.fetchval('SELECT current_database()')}"
    await beside.execute(APPLICATION.format(name=name))

    async def session(address: str = "") -> asyncpg.Connection:
        options: dict[str, str] = {} if address else {"user": name, "password": "x"}
        return await connect(address, **options)

    yield session
    await beside.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def add(session: asyncpg.Connection, token: int | None, id_: int = 1, role: str = ROLE) -> float:
    """One guarded write."""
    left: float = await session.fetchval("SELECT fencegate.guard($1, $2)", role, token)
    await session.execute("INSERT INTO public.account VALUES ($1, 0)", id_)
    return left


async def refusal(
    session: asyncpg.Connection, token: int | None, id_: int = 1, *, role: str = ROLE, level: Any = "read_committed"
) -> asyncpg.PostgresError:
    """The error that ends a guarded transaction; fails where it commits."""
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with session.transaction(isolation=level):
            await add(session, token, id_, role)
    return refused.value


async def ended(session: asyncpg.Connection) -> bool:
    return session.is_closed()


async def accounts(beside: asyncpg.Connection) -> list[int]:
    return [row["id"] for row in await beside.fetch("SELECT id FROM public.account ORDER BY id")]


async def _in_turn(session: asyncpg.Connection, statements: list[str | None], transaction: Any) -> None:
    """The statements, ``None`` being a guarded write, and the commit."""
    for statement in statements:
        await (add(session, 42) if statement is None else session.execute(statement))
    await transaction.commit()


def problem(error: asyncpg.PostgresError) -> dict[str, Any]:
    """The document in an error's DETAIL, held against the gateway's own table of problems."""
    found: dict[str, Any] = json.loads(error.detail or "")
    kind = PROBLEMS[found["code"]]
    of_the_kind = (kind.type, kind.status, kind.title, kind.retryable, kind.retry.value, kind.applied)
    members = ("type", "status", "title", "retryable", "retry", "applied")
    assert tuple(found[member] for member in members) == of_the_kind
    assert error.hint
    return found


@pytest.mark.parametrize("level", LEVELS)
async def test_a_transaction_of_the_open_term_commits_and_is_told_how_long_the_lease_still_lasts(
    store: PostgresStore, application: Any, beside: asyncpg.Connection, level: Any
) -> None:
    await open_term(store, 42, valid_for=60)
    session = await application()

    async with session.transaction(isolation=level):
        assert 50 < await add(session, 42) <= 60

    assert await accounts(beside) == [1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("token", "role", "state", "code"),
    [
        (41, ROLE, "ZF409", "stale_token"),
        (43, ROLE, "ZF403", "token_not_issued"),
        (None, ROLE, "ZF400", "token_required"),
        (0, ROLE, "ZF400", "token_malformed"),
        (-1, ROLE, "ZF400", "token_malformed"),
        (42, "no-such", "ZF400", "unknown_role"),
    ],
)
async def test_a_refusal_is_the_contracts_with_its_problem_document_and_nothing_is_written(
    store: PostgresStore,
    application: Any,
    beside: asyncpg.Connection,
    level: Any,
    token: int | None,
    role: str,
    state: str,
    code: str,
) -> None:
    await open_term(store, 42)
    session = await application()

    refused = await refusal(session, token, role=role, level=level)

    assert refused.sqlstate == state
    assert problem(refused)["code"] == code
    assert await accounts(beside) == []


async def test_a_closed_a_draining_and_a_sealed_fence_say_so(store: PostgresStore, application: Any) -> None:
    session = await application()
    codes = []
    for change in ("", "drain", "seal"):
        if change == "drain":
            clock = await open_term(store, 42)
            await store.set_draining(ROLE, 42, True)
        elif change == "seal":
            await store.seal(ROLE, 42, clock.incarnation)
        refused = await refusal(session, 42)
        assert refused.sqlstate == "ZF409"
        codes.append(problem(refused)["code"])

    assert codes == ["not_leader", "draining", "not_leader"]


async def test_guarded_transactions_that_follow_one_another_for_ever_do_not_keep_a_newer_term_out(
    make_store: Callable[..., Any], application: Any
) -> None:
    """Rule R14, in token mode, where no lease ends the older term: each of them is longer than a raise may wait."""
    store: PostgresStore = await make_store(control_limit=2.0)
    await store.ensure_roles({ROLE: "token"})
    quorum = MemoryQuorum(asyncio.get_running_loop().time, next_token=42)
    timings = LeaseTimings()
    follower = Follower(ROLE, MemoryElection(quorum, timings), store, timings, lambda _: None)

    async def lead(node: str) -> None:
        quorum.holders.clear()
        process, who = MemoryElection(quorum, timings), Candidate(node, "eu", "")
        await process.acquire(ROLE, who, 5)
        await process.renew(ROLE, quorum.last_won[ROLE], who, active=True, deadline=5)

    async def old_leader(session: asyncpg.Connection, begins: float) -> str:
        await asyncio.sleep(begins)
        while True:
            try:
                async with session.transaction():
                    await session.fetchval("SELECT fencegate.guard($1, 42)", ROLE)
                    await asyncio.sleep(2.5)
            except asyncpg.PostgresError as error:
                return str(problem(error)["code"])

    async def followed(token: int) -> bool:
        with contextlib.suppress(Unavailable):
            await follower.look()
        return follower.token == token

    await lead("app-1")
    await until(lambda: followed(42))
    writing = [asyncio.create_task(old_leader(await application(), 0.8 * n)) for n in range(3)]
    await asyncio.sleep(1.8)
    await lead("app-2")
    await until(lambda: followed(43), 60)
    assert set(await asyncio.gather(*writing)) <= {"draining", "stale_token"}
    fence = await store.read(ROLE)
    assert fence is not None
    assert (fence.max_token_seen, fence.draining) == (43, False)


@pytest.mark.parametrize("level", LEVELS)
async def test_the_seal_waits_for_guarded_transactions_and_who_comes_later_finds_it(
    store: PostgresStore, application: Any, beside: asyncpg.Connection, level: Any
) -> None:
    clock = await open_term(store, 42)
    first, second = await application(), await application()
    open_one = first.transaction(isolation=level)
    await open_one.start()
    await add(first, 42, 1)

    sealing = asyncio.create_task(store.seal(ROLE, 42, clock.incarnation))
    await until(lambda: beside.fetchval("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))

    async def come_later() -> str:
        try:
            async with second.transaction(isolation=level):
                await add(second, 42, 2)
        except asyncpg.PostgresError as error:
            return error.sqlstate
        return "committed"

    later = asyncio.create_task(come_later())
    await asyncio.sleep(0.2)
    assert not sealing.done(), "a guarded transaction is under way"
    await open_one.commit()

    assert await sealing is True
    assert await later == {"read_committed": "ZF409"}.get(level, "40001"), "an older snapshot has to begin anew"
    assert await accounts(beside) == [1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", ["raise", "renewal", "nothing"])
async def test_a_snapshot_from_before_a_change_of_the_fence_admits_nothing(
    store: PostgresStore, application: Any, beside: asyncpg.Connection, level: Any, change: str
) -> None:
    await open_term(store, 42)
    session = await application()
    transaction = session.transaction(isolation=level)
    await transaction.start()
    await session.fetchval("SELECT count(*) FROM account")  # the guard ought to be first
    if change == "raise":
        await open_term(store, 43)
    elif change == "renewal":
        await store.extend(ROLE, 42, HOLDER, await store.clock(), 90)
    try:
        await add(session, 42)
        await transaction.commit()
        found = "committed"
    except asyncpg.PostgresError as error:
        found = error.sqlstate

    if level == "read_committed":
        assert found == ("ZF409" if change == "raise" else "committed")
    else:
        assert found == ("committed" if change == "nothing" else "40001")
    assert await accounts(beside) == ([1] if found == "committed" else [])


async def test_a_raise_is_not_starved_by_transactions_that_follow_one_another(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    await open_term(store, 42)
    ended = asyncio.Event()
    refusals = 0

    async def keep_writing(number: int) -> None:
        nonlocal refusals
        session, id_ = await application(), number * 1_000_000
        while not ended.is_set():
            try:
                async with session.transaction():
                    await add(session, 42, id_ := id_ + 1)
                    await session.fetchval("SELECT pg_sleep(0.4)")
            except asyncpg.PostgresError as error:
                refusals += error.sqlstate == "ZF409"
                return

    writers = [asyncio.create_task(keep_writing(number)) for number in range(8)]
    await until(lambda: beside.fetchval("SELECT count(*) >= 6 FROM pg_locks WHERE locktype = 'advisory' AND granted"))
    async with asyncio.timeout(20):  # with a shared lock on the row it comes when the load ends
        await open_term(store, 43)
    await asyncio.gather(*writers)
    ended.set()

    assert refusals == 8


@pytest.mark.parametrize("level", LEVELS)
async def test_renewals_and_the_ledger_go_on_beside_a_guarded_transaction(
    store: PostgresStore, application: Any, beside: asyncpg.Connection, level: Any
) -> None:
    await open_term(store, 42, valid_for=30)
    session = await application()
    async with session.transaction(isolation=level):
        await add(session, 42)
        async with asyncio.timeout(20):
            assert await store.extend(ROLE, 42, HOLDER, await store.clock(), 60) is None
            await store.append(write(42), 5.0)

    assert len(await bodies(store)) == 1
    assert await accounts(beside) == [1]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_transaction_that_outlives_the_lease_is_refused_at_its_commit(
    store: PostgresStore, application: Any, beside: asyncpg.Connection, level: Any
) -> None:
    await open_term(store, 42, valid_for=3.0)
    session = await application()
    transaction = session.transaction(isolation=level)
    await transaction.start()
    await add(session, 42)
    await until(lambda: beside.fetchval("SELECT valid_until < clock_timestamp() FROM fencegate.fence"))

    with pytest.raises(asyncpg.PostgresError) as refused:
        await transaction.commit()

    assert problem(refused.value)["code"] == "not_leader"
    assert await accounts(beside) == []


async def test_a_renewal_in_the_meantime_counts_at_the_commit(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    clock = await open_term(store, 42, valid_for=3)
    session = await application()
    async with session.transaction():
        await add(session, 42)
        assert await store.extend(ROLE, 42, HOLDER, clock, 60) is None
        await until(lambda: beside.fetchval("SELECT clock_timestamp() > to_timestamp($1)", clock.now + 3))

    assert await accounts(beside) == [1]


async def test_a_lease_that_ran_out_before_a_savepoint_was_rolled_back_is_not_forgotten_where_the_table_is_protected(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    await open_term(store, 42)
    await beside.execute("SELECT fencegate.protect('public.account', $1)", ROLE)
    session = await application()

    async with session.transaction():
        inner = session.transaction()
        await inner.start()
        await session.fetchval("SELECT fencegate.guard($1, 42)", ROLE)
        await inner.rollback()
        with pytest.raises(asyncpg.PostgresError) as refused:
            await session.execute("INSERT INTO public.account VALUES (1, 0)")

    assert (refused.value.sqlstate, problem(refused.value)["code"]) == ("ZF400", "token_required")
    assert await accounts(beside) == []


async def test_a_protected_table_takes_only_guarded_writes(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    await store.ensure_roles({"other": "lease"})
    await open_term(store, 42)
    await open_term(store, 7, role="other")
    await beside.execute("SELECT fencegate.protect('public.account', $1)", ROLE)
    session = await application()

    async with session.transaction():
        await add(session, 42)
    for statement in ("INSERT INTO account VALUES (2, 0)", "UPDATE account SET balance = 1"):
        with pytest.raises(asyncpg.PostgresError, match="required"):
            await session.execute(statement)
    with pytest.raises(asyncpg.PostgresError, match="required"):
        async with session.transaction():
            await add(session, 7, 3, role="other")
    with pytest.raises(asyncpg.PostgresError, match="no such role"):
        await beside.execute("SELECT fencegate.protect('public.account', 'typo')")

    async with session.transaction():
        await session.fetchval("SELECT fencegate.guard('other', 7)")
        await add(session, 42, 4)  # two roles in one transaction
    assert await accounts(beside) == [1, 4]


async def test_a_promoted_or_restored_server_refuses_whatever_the_session_claims_to_be_on(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    await open_term(store, 42)
    await beside.execute("UPDATE fencegate.fence SET incarnation = '1/00000001'")
    session = await application()
    await session.execute("SET fencegate.system_identifier = '1'")

    assert problem(await refusal(session, 42))["code"] == "fence_unavailable"


async def test_a_session_that_would_lose_an_answered_commit_is_refused_also_when_it_becomes_so_later(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    await open_term(store, 42)
    session = await application()
    turn_off = "SET LOCAL synchronous_commit = off"
    for statements in ([turn_off, None], [None, turn_off]):
        transaction = session.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.PostgresError, match="synchronous_commit"):
            await asyncio.wait_for(_in_turn(session, statements, transaction), 10)
        if session.is_in_transaction():
            await transaction.rollback()
    assert await accounts(beside) == []


async def test_the_application_may_call_the_guard_and_nothing_else(store: PostgresStore, application: Any) -> None:
    await open_term(store, 42)
    session = await application()
    for statement in (
        "SELECT fencegate.seal('ledger', 42, '')",
        "UPDATE fencegate.fence SET max_token_seen = 99",
        "SELECT * FROM fencegate.fence",
        "INSERT INTO fencegate.guarded VALUES (1, 1)",
        "SELECT fencegate.protect('public.account', 'ledger')",
        "ALTER TABLE public.account DISABLE TRIGGER ALL",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await session.execute(statement)


async def test_objects_that_a_caller_puts_before_the_catalogue_are_not_called(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    await open_term(store, 42)
    session = await application()
    await session.execute("CREATE TEMP TABLE fence (role text); SET search_path = pg_temp, public, pg_catalog")
    await session.execute(
        "CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        "$$ SELECT '-infinity'::timestamptz $$"
    )
    assert problem(await refusal(session, 41))["code"] == "stale_token"


async def test_a_transaction_that_is_forgotten_is_ended_so_that_no_seal_waits_for_ever(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    clock = await open_term(store, 42)
    session = await application()
    transaction = session.transaction()
    await transaction.start()
    await session.fetchval("SELECT fencegate.guard($1, 42, '0.5 seconds')", ROLE)

    assert await store.seal(ROLE, 42, clock.incarnation) is True
    await until(lambda: ended(session))  # its last word and a commit must not cross
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await transaction.commit()

    async with asyncio.timeout(20):
        fresh = await application()
    assert await fresh.fetchval("SHOW idle_in_transaction_session_timeout") == "0"


async def test_a_stricter_limit_of_the_session_stays(store: PostgresStore, application: Any) -> None:
    await open_term(store, 42)
    session = await application()
    async with session.transaction():
        await session.execute("SET LOCAL idle_in_transaction_session_timeout = '3s'")
        await add(session, 42)
        assert await session.fetchval("SHOW idle_in_transaction_session_timeout") == "3s"
    with pytest.raises(asyncpg.PostgresError, match="limit above 0"):
        await session.fetchval("SELECT fencegate.guard($1, 42, '0')", ROLE)


async def test_guarded_transactions_of_disjoint_rows_do_not_conflict_under_serializable(
    store: PostgresStore, application: Any, beside: asyncpg.Connection
) -> None:
    await open_term(store, 42)

    async def several(number: int) -> int:
        session, conflicts = await application(), 0
        for i in range(15):
            try:
                async with session.transaction(isolation="serializable"):
                    await session.fetchval("SELECT fencegate.guard($1, 42)", ROLE)
                    await session.execute("INSERT INTO account VALUES ($1, 0)", number * 100 + i)
            except asyncpg.SerializationError:
                conflicts += 1
        return conflicts

    conflicts = sum(await asyncio.gather(*(several(number) for number in range(6))))
    written = await beside.fetchval("SELECT count(*) FROM account")
    assert written == 90 - conflicts
    # The account's own index may make a few of them; the guard none.
    assert conflicts < 30


async def test_it_works_behind_a_pooler_that_gives_each_transaction_another_session(
    store: PostgresStore,
    application: Any,
    beside: asyncpg.Connection,
    make_pgbouncer: Callable[..., str],
    dsn: str,
) -> None:
    await open_term(store, 42)
    pooled = make_pgbouncer(dsn, pool_mode="transaction")
    sessions = [await asyncpg.connect(pooled, statement_cache_size=0, timeout=60) for _ in range(4)]
    try:
        for i, session in enumerate(sessions):
            async with session.transaction():
                await add(session, 42, i)
        await open_term(store, 43)
        for session in sessions:
            assert (await refusal(session, 42, 9)).sqlstate == "ZF409"
    finally:
        for session in sessions:
            session.terminate()
    assert await accounts(beside) == [0, 1, 2, 3]


async def test_a_guarded_transaction_cannot_be_prepared_to_commit_later(
    make_postgres: Callable[..., EmbeddedPostgres], connect: Callable[..., Any]
) -> None:
    server = make_postgres(port=0, settings={"max_prepared_transactions": "5"})
    await server.start()
    await migrate.apply(server.dsn)
    store = await PostgresStore.open(server.dsn, gateway="gw-1", monitor_period=60.0)
    try:
        await store.ensure_roles({ROLE: "lease"})
        await open_term(store, 42)
        session = await connect(server.dsn)
        await session.execute("BEGIN")
        await session.fetchval("SELECT fencegate.guard($1, 42)", ROLE)
        with pytest.raises(asyncpg.PostgresError, match="cannot PREPARE"):
            await session.execute("PREPARE TRANSACTION 'later'")
    finally:
        await store.close()
