"""The link to the store when the store freezes, dies, restarts, or its answer is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect, WriteResult
from fencegate.observations import Observation, StoreCameUp, StoreWentDown
from fencegate.store import ledger, migrate
from fencegate.store.chain import verify_chain
from fencegate.store.lane import CommittedTooLate
from fencegate.store.link import Link
from fencegate.store.postgres import PostgresStore
from store.proxy import CuttingProxy
from store.standby import Standby
from store.writing import ROLE, bodies, forward, open_term, until, whole_ledger, write


@pytest.fixture
async def server(make_postgres: Callable[..., EmbeddedPostgres]) -> EmbeddedPostgres:
    made = make_postgres("mortal", port=0)
    await made.start()
    await migrate.apply(made.dsn)
    return made


@pytest.fixture
async def mortal(server: EmbeddedPostgres, make_store: Callable[..., Any]) -> PostgresStore:
    """A store on a server that the test may freeze and kill, with an open term."""
    store: PostgresStore = await make_store(server.dsn)
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 1, valid_for=600)
    await store.append(write(1, b"0"), 5.0)
    return store


async def test_a_frozen_server_ends_each_call_at_its_limit_and_what_was_sent_is_unknown(
    server: EmbeddedPostgres, mortal: PostgresStore, make_store: Callable[..., Any]
) -> None:
    loop = asyncio.get_running_loop()
    brief: PostgresStore = await make_store(server.dsn, write_limit=2.5, control_limit=2.5, connect_limit=2.5)
    await brief.append(write(1, b"9"), 10.0)
    server.freeze()
    try:
        began = loop.time()
        sent = asyncio.create_task(brief.append(write(1, b"1", key="k"), 10.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        queued = asyncio.create_task(brief.append(write(1, b"2"), 0.3))
        with pytest.raises(Unavailable):
            await queued
        assert loop.time() - began < 2.3
        with pytest.raises(OutcomeUnknown) as unknown:
            await sent
        assert unknown.value.cause == "timeout"
        assert loop.time() - began < 6.0
        began = loop.time()
        with pytest.raises(Unavailable):
            await brief.clock()
        with pytest.raises(Unavailable):
            await brief.append(write(1, b"3"), 20.0)  # no session can be opened: certainly not applied
        assert loop.time() - began < 10.0
    finally:
        server.thaw()
    retried = await mortal.append(write(1, b"1", key="k"), 20.0)
    assert retried.effect in (Effect.APPLIED, Effect.REPLAYED)
    assert sorted(await bodies(mortal)) == [b"0", b"1", b"9"], "what was never sent is nowhere"


async def test_a_server_killed_under_load_loses_no_acknowledged_write_and_comes_back(
    server: EmbeddedPostgres, mortal: PostgresStore
) -> None:
    acknowledged: set[bytes] = set()
    told_not_applied: set[bytes] = set()
    unknown: set[bytes] = set()

    async def writer(n: int) -> None:
        for i in range(400):
            body = b"%d" % (1000 * (n + 1) + i)
            try:
                await mortal.append(write(1, body, key=body.decode()), 2.0)
                acknowledged.add(body)
            except OutcomeUnknown:
                unknown.add(body)
            except Unavailable:
                told_not_applied.add(body)
                await asyncio.sleep(0.02)

    writers = [asyncio.create_task(writer(n)) for n in range(8)]
    await asyncio.sleep(0.15)
    server.kill()
    await server.start()
    await asyncio.gather(*writers)
    landed = await bodies(mortal)
    assert acknowledged <= set(landed)
    assert len(landed) == len(set(landed))
    assert not told_not_applied & set(landed)
    assert set(landed) <= acknowledged | unknown | {b"0"}
    for body in unknown:
        assert (await mortal.append(write(1, body, key=body.decode()), 20.0)).effect in (0, 1)
    entries = await whole_ledger(mortal)
    assert len({e.body for e in entries}) == len(entries) == len(acknowledged | unknown) + 1
    assert verify_chain(ROLE, entries) is None


async def test_it_says_once_that_the_store_went_down_and_once_that_it_came_up(
    server: EmbeddedPostgres, make_store: Callable[..., Any]
) -> None:
    seen: list[Observation] = []
    store: PostgresStore = await make_store(server.dsn, observe=seen.append, monitor_period=0.05)

    async def fell() -> bool:
        return not store.up

    async def rose() -> bool:
        return store.up

    server.kill()
    await until(fell)
    await asyncio.sleep(0.2)
    await server.start()
    await until(rose)
    kinds = [type(o) for o in seen if isinstance(o, StoreWentDown | StoreCameUp)]
    assert kinds == [StoreCameUp, StoreWentDown, StoreCameUp]


async def test_a_store_that_is_down_from_the_start_refuses_and_works_once_it_is_up(
    server: EmbeddedPostgres, make_store: Callable[..., Any]
) -> None:
    dsn = server.dsn
    await server.stop()
    store: PostgresStore = await make_store(dsn)
    assert not store.up
    with pytest.raises(Unavailable, match="takes no connection"):
        await store.append(write(1), 1.0)
    await server.start()
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 1)
    assert (await store.append(write(1), 5.0)).effect is Effect.APPLIED


# Field case 54: MagicStack/asyncpg#309, pgjdbc/pgjdbc#2197, neo4j/neo4j-java-driver#593, get-convex/convex-backend#559.
async def test_a_lost_answer_to_a_commit_is_unknown_for_the_whole_batch_and_a_retry_gives_the_first_results(
    store: PostgresStore, dsn: str, make_store: Callable[..., Any]
) -> None:
    await open_term(store, 1)
    async with CuttingProxy(dsn) as proxy:
        far: PostgresStore = await make_store(proxy.dsn, gateway="gw-2")
        await far.append(write(1, b"0"), 5.0)
        proxy.cut_after(b"marked")
        batch = [write(1, b'"marked %d"' % n, key=f"k-{n}") for n in range(10)]
        first = asyncio.create_task(far.append(write(1, b"1"), 5.0))  # so that the ten travel together
        await asyncio.sleep(0)
        lost = await asyncio.gather(*(far.append(w, 5.0) for w in batch), return_exceptions=True)
        assert (await first).effect is Effect.APPLIED
        assert [type(r) for r in lost] == [OutcomeUnknown] * 10
        assert {r.cause for r in lost if isinstance(r, OutcomeUnknown)} == {"connection"}
        assert proxy.cuts == 1
        committed = await whole_ledger(store)
        assert [e.body for e in committed[2:]] == [w.body for w in batch]
        again = await asyncio.gather(*(far.append(w, 5.0) for w in batch))
        assert [r.effect for r in again] == [Effect.REPLAYED] * 10
        assert [r.entry for r in again] == committed[2:]
        assert await whole_ledger(store) == committed


async def test_a_lost_answer_to_an_admission_leaves_its_key_free(
    store: PostgresStore, dsn: str, make_store: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    """Nothing was forwarded: a retry must not be told for a day that an earlier try may have been applied."""
    await open_term(store, 1)
    async with CuttingProxy(dsn) as proxy:
        far: PostgresStore = await make_store(proxy.dsn, gateway="gw-2")
        first = await far.admit(forward(1), 5.0)
        proxy.cut_after(b"ledger")
        with pytest.raises(OutcomeUnknown):
            await far.admit(forward(1, key="k"), 5.0)
        await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.idempotency_key"))
        again = await far.admit(forward(1, key="k"), 5.0)
        assert again.effect is Effect.APPLIED
        for ticket in (first.ticket, again.ticket):
            await far.settle(ticket, None, sent=False)


async def test_the_answer_of_a_dropped_session_is_never_taken_for_anothers(dsn: str) -> None:
    link = Link(dsn, "test", limit=20.0, statement_timeout=60.0)
    await link.fetch(20.0, "SELECT 1")
    with pytest.raises(OutcomeUnknown):
        await link.fetch(0.2, "SELECT 'late' AS word FROM pg_sleep(0.4)")
    for n in range(20):
        rows = await link.fetch(20.0, "SELECT $1::int AS n FROM pg_sleep(0.03)", n)
        assert [row["n"] for row in rows] == [n]
    await link.close()


async def test_a_cancelled_caller_costs_the_session_not_the_next_caller(dsn: str) -> None:
    link = Link(dsn, "test", limit=20.0, statement_timeout=60.0)
    await link.fetch(20.0, "SELECT 1")
    asking = asyncio.create_task(link.fetch(20.0, "SELECT 'old' FROM pg_sleep(1)"))
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await link.fetch(20.0, "SELECT 'new'"))[0][0] == "new"
    await link.close()


async def test_a_session_that_was_killed_is_replaced(dsn: str, beside: asyncpg.Connection) -> None:
    link = Link(dsn, "test", limit=20.0, statement_timeout=60.0)
    pid = (await link.fetch(20.0, "SELECT pg_backend_pid()"))[0][0]
    asking = asyncio.create_task(link.fetch(60.0, "SELECT 1 FROM pg_sleep(30)"))
    await until(lambda: beside.fetchval("SELECT query ~ 'sleep' FROM pg_stat_activity WHERE pid = $1", pid))
    await beside.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(OutcomeUnknown):
        await asking
    assert (await link.fetch(20.0, "SELECT pg_backend_pid()"))[0][0] != pid
    await link.close()


async def test_a_session_whose_settings_somebody_changed_is_replaced(store: PostgresStore, dsn: str) -> None:
    await open_term(store, 1)
    link = Link(dsn, "test", limit=20.0, statement_timeout=60.0)
    await link.fetch(20.0, "SELECT set_config('synchronous_commit', 'off', false)")
    with pytest.raises(asyncpg.PostgresError, match="synchronous_commit"):
        await ledger.append(link, 20.0, [write(1)])
    [result] = await ledger.append(link, 20.0, [write(1)])
    assert getattr(result, "effect", None) is Effect.APPLIED
    await link.close()


async def test_a_commit_answered_after_the_leases_end_is_not_vouched_for(
    store: PostgresStore, beside: asyncpg.Connection, dsn: str
) -> None:
    """A deferred constraint holds the commit up, after the transaction looked at the clock."""
    await beside.execute("""
        CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            WHILE (SELECT clock_timestamp() < valid_until FROM fencegate.fence) LOOP PERFORM pg_sleep(0.05); END LOOP;
            RETURN NULL;
        END $$;
        CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON fencegate.entry DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION stall()""")
    await open_term(store, 1, valid_for=3.0)
    with pytest.raises(CommittedTooLate):
        await store.append(write(1, key="k"), 20.0)


async def test_a_commit_that_no_standby_has_is_not_vouched_for(
    server: EmbeddedPostgres, mortal: PostgresStore, connect: Callable[..., Any]
) -> None:
    other = await connect(server.dsn)
    await other.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    await other.execute("SELECT pg_reload_conf()")
    await until(lambda: other.fetchval("SELECT current_setting('synchronous_standby_names') = 'nobody'"))
    await asyncio.sleep(0.2)
    lost = asyncio.create_task(mortal.append(write(1, b"1", key="k"), 60.0))
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    await until(lambda: other.fetchval(waiting))
    await other.execute("SELECT pg_cancel_backend($1)", await other.fetchval(waiting))
    with pytest.raises(OutcomeUnknown, match="primary alone"):
        await lost
    await other.execute("ALTER SYSTEM RESET synchronous_standby_names")
    await other.execute("SELECT pg_reload_conf()")
    await until(lambda: other.fetchval("SELECT current_setting('synchronous_standby_names') = ''"))
    assert (await mortal.append(write(1, b"1", key="k"), 5.0)).effect is Effect.REPLAYED


async def _still_leads(role: str, token: int, time_limit: float) -> bool:
    return True


@pytest.mark.parametrize("moved", ["control", "ledger", "validated ledger"])
async def test_no_session_stays_with_an_old_primary_that_is_up_once_another_has_met_the_promoted_standby(
    primary: EmbeddedPostgres, standby: Standby, make_store: Callable[..., Any], connect: Callable[..., Any], moved: str
) -> None:
    """The address leads to the new one, and what is connected stays where it is: the elector here, the writes there."""
    sockets = [parse_qs(urlsplit(place).query)["host"][0] for place in (standby.dsn, primary.dsn)]
    either = f"postgresql://fencegate@/fencegate?host={','.join(sockets)}&port=5432,5432"
    store: PostgresStore = await make_store(either)
    if moved.startswith("validated"):
        store.validate({ROLE}, _still_leads)
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 4)
    await store.append(write(4, b"4"), 5.0)
    await standby.start()
    await standby.caught_up()
    await standby.promote()
    beside = await connect(primary.dsn)
    sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE $1"
    await beside.execute(sessions, f"fencegate {moved}%")
    token = 4

    async def written() -> WriteResult | None:
        nonlocal token
        await store._look()
        try:
            if (await store.clock()).incarnation.endswith("2") and token == 4:
                await open_term(store, 5)
                token = 5
            result = await store.append(write(5, b"5"), 5.0)
        except (Unavailable, OutcomeUnknown):
            return None
        return result if result.effect is Effect.APPLIED else None

    await until(written)
    assert await bodies(store) == [b"4", b"5"]
