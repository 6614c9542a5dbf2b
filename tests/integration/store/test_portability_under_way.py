"""Portability mode under way: two gateways, terms that change, conflicts at every point, nodes whose clocks are apart.

The store is a Postgres whose user may execute none of the functions that the mode does without, from the first
migration on: what would call one of them fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import orjson
import pytest

from fencegate.access.database import Database
from fencegate.election.elector import Elector
from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Verdict, Write, WriteResult
from fencegate.lease import Candidate, LeaseTimings
from fencegate.observations import ignore
from fencegate.store import migrate
from fencegate.store.chain import verify_chain
from fencegate.store.control import Control
from fencegate.store.link import Server
from fencegate.store.portability import PortableLink
from fencegate.store.postgres import PostgresStore
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from store.writing import ROLE, forward, open_term, until, whole_ledger, write

TAKEN_AWAY = """
    SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure) FROM pg_proc p
     WHERE p.pronamespace = 'pg_catalog'::regnamespace
       AND (p.proname ~ 'advisory' OR p.proname IN ('pg_notify', 'pg_control_system', 'pg_walfile_name',
            'pg_current_wal_insert_lsn', 'pg_current_wal_lsn', 'pg_export_snapshot', 'pg_prepared_xact'))"""
CONFLICTS = """
    CREATE FUNCTION fencegate.conflict() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF random() < 0.15 THEN
            RAISE EXCEPTION 'by chance' USING ERRCODE = (ARRAY['40001', '40P01'])[1 + random()::int];
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER conflict_now AFTER UPDATE ON fencegate.fence
        FOR EACH STATEMENT EXECUTE FUNCTION fencegate.conflict();
    CREATE CONSTRAINT TRIGGER conflict_at_commit AFTER UPDATE ON fencegate.fence DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION fencegate.conflict()"""
LOCKING = """
    SELECT pg_get_functiondef(p.oid) FROM pg_proc p
     WHERE p.pronamespace = 'fencegate'::regnamespace AND p.prosrc ~ 'FOR NO KEY UPDATE'"""
FUNCTION = """
    CREATE SCHEMA app;
    CREATE TABLE app.taken (place bigint, token bigint NOT NULL, n text NOT NULL);
    CREATE FUNCTION app.take(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.taken
        SELECT coalesce(max(t.place), 0) + 1, (context->>'token')::bigint, body->>'n' FROM app.taken t;
        PERFORM pg_sleep(0.005);
        RETURN 'null';
    END $$"""
"""``place`` is the order in which the calls were committed, as long as no two of them do not see one another."""
LEVELS = ("repeatable read", "serializable")
WRITERS = 6
TERMS = 8


@pytest.fixture
async def deprived(fresh_dsn: str) -> AsyncIterator[str]:
    """A database in which what the mode does without was taken from everybody, and a user who comes there."""
    admin = await asyncpg.connect(fresh_dsn)
    name = await admin.fetchval("SELECT current_database()")
    for row in await admin.fetch(TAKEN_AWAY):
        await admin.execute(row[0])
    await admin.execute(f"CREATE ROLE poor_{name} LOGIN PASSWORD 'p'; GRANT CREATE ON DATABASE {name} TO poor_{name}")
    place = urlsplit(fresh_dsn)
    yield urlunsplit(place._replace(netloc=f"poor_{name}:p@{place.netloc.rpartition('@')[2]}"))
    await admin.execute(f"DROP OWNED BY poor_{name}; DROP ROLE poor_{name}")
    await admin.close()


@pytest.fixture
async def gateways(deprived: str) -> AsyncIterator[Callable[..., Any]]:
    await migrate.apply(Database(deprived, portable=True))
    async with contextlib.AsyncExitStack() as stack:

        async def gateway(name: str, query: str = "", clock_offset: float = 0.0) -> PostgresStore:
            place = Database(f"{deprived}{query}", portable=True, clock_offset=clock_offset)
            store = await PostgresStore.open(place, gateway=name, monitor_period=60.0, control_limit=10.0)
            stack.push_async_callback(store.close)
            return store

        yield gateway


async def insist(send: Callable[[Write], Any], item: Write, token: list[int]) -> int:
    """Sends ``item`` until it is acknowledged, by its key, under the newest token known; gives the last try's."""
    while True:
        known = token[0]
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            result: WriteResult = await send(
                Write(**{name: getattr(item, name) for name in item.__slots__} | {"token": known})
            )
            if result.effect in (Effect.APPLIED, Effect.REPLAYED):
                return known
            assert result.verdict is Verdict.STALE, result
            token[0] = max(token[0], result.max_token_seen or 0)


async def without_row_locks(beside: asyncpg.Connection) -> int:
    """From now on a row that is read for update is not locked: there are engines that promise nothing more."""
    functions = await beside.fetch(LOCKING)
    for row in functions:
        await beside.execute(re.sub(r"FOR NO KEY UPDATE( OF t)?", "", row[0]))
    return len(functions)


@pytest.mark.parametrize("level", LEVELS)
async def test_with_conflicts_at_every_point_no_token_falls_and_nothing_acknowledged_is_lost_or_twice(
    deprived: str, gateways: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setattr(PortableLink, "settings", {"default_transaction_isolation": level})
    stores = [await gateways("gw-1"), await gateways("gw-2")]
    await stores[0].ensure_roles({ROLE: "lease", "notes": "lease"})
    beside = await asyncpg.connect(deprived)
    await beside.execute(FUNCTION)
    for role in (ROLE, "notes"):
        await open_term(stores[0], 1, role=role)
    assert await without_row_locks(beside) >= 6
    await beside.execute(CONFLICTS)
    acknowledged: dict[str, list[str]] = {ROLE: [], "notes": []}
    over = asyncio.Event()

    async def writer(number: int) -> None:
        role, token, count = (ROLE, "notes")[number % 2], [1], 0
        while not over.is_set():
            count += 1
            name, store = f"{number}-{count}", stores[(number // 2 + count) % 2]
            item = write(1, orjson.dumps({"n": name}), key=name, role=role)

            async def send(one: Write, store: PostgresStore = store) -> WriteResult:
                return await (store.append(one, 10.0) if one.role == ROLE else store.call("app.take", one, 10.0))

            await insist(send, item, token)
            acknowledged[role].append(name)

    async def cut() -> None:
        """Sessions are lost now and then, and with them answers."""
        while not over.is_set():
            await asyncio.sleep(0.15)
            await beside.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = current_user "
                "AND application_name IN ('fencegate ledger', 'fencegate function') ORDER BY random() LIMIT 1"
            )

    tasks = [asyncio.create_task(writer(number)) for number in range(WRITERS)]
    tasks.append(asyncio.create_task(cut()))
    for token in range(2, 2 + TERMS):
        for role in (ROLE, "notes"):
            while True:
                with contextlib.suppress(Unavailable):
                    await open_term(stores[token % 2], token, role=role)
                    break
        await asyncio.sleep(0.15)
    over.set()
    await asyncio.gather(*tasks)
    entries = await whole_ledger(stores[0])
    assert verify_chain(ROLE, entries) is None
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    taken = await beside.fetch("SELECT place, token, n FROM app.taken ORDER BY place")
    assert [row["place"] for row in taken] == list(range(1, len(taken) + 1))
    for role, tokens, names in (
        (ROLE, [e.token for e in entries], [orjson.loads(e.body)["n"] for e in entries]),
        ("notes", [row["token"] for row in taken], [row["n"] for row in taken]),
    ):
        assert tokens == sorted(tokens), role
        assert len(names) == len(set(names))
        assert sorted(names) == sorted(acknowledged[role])  # each writer insists on its last one
        assert len(set(tokens)) > 2
    await beside.close()


# -- nodes with a clock each (R2, R4) ----------------------------------------------------------------------

APART = 1.0
"""How far a node's clock is from the true time, at most; so two of them are twice as far apart."""
CLOCKS = """
    CREATE SCHEMA {0};
    CREATE FUNCTION {0}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
        SELECT timestamptz '2030-01-01' + make_interval(secs => seconds + {1}) FROM app.passed $$;
    CREATE FUNCTION {0}.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$
        SELECT timestamptz '2030-01-01' + make_interval(secs => seconds + {1}) FROM app.passed $$"""


class Nodes:
    """Two nodes of one store, ``ahead`` and ``behind``, and the true time, which stands still until it is moved."""

    def __init__(self, beside: asyncpg.Connection, ahead: PostgresStore, behind: PostgresStore) -> None:
        self._beside = beside
        self.ahead = ahead
        self.behind = behind

    async def move_to(self, seconds: float) -> None:
        await self._beside.execute("UPDATE app.passed SET seconds = $1", seconds)


@pytest.fixture
async def make_nodes(deprived: str, gateways: Callable[..., Any]) -> AsyncIterator[Callable[..., Any]]:
    beside = await asyncpg.connect(deprived)
    await beside.execute(
        "CREATE SCHEMA app; CREATE TABLE app.passed (seconds float8); INSERT INTO app.passed VALUES (0)"
    )
    for name, offset in (("ahead", APART), ("behind", -APART)):
        await beside.execute(CLOCKS.format(name, offset))

    async def make(clock_offset: float) -> Nodes:
        # What is on the search path before pg_catalog is found in the functions of the store as well.
        nodes = [await gateways(name, f"?search_path={name},pg_catalog", clock_offset) for name in ("ahead", "behind")]
        await nodes[0].ensure_roles({ROLE: "lease"})
        return Nodes(beside, *nodes)

    yield make
    await beside.close()


@pytest.mark.parametrize(("told", "ends"), [(2 * APART, True), (0.0, False)], ids=["told", "not-told"])
async def test_a_lease_ends_within_itself_on_every_node_if_the_offset_of_their_clocks_is_told(
    make_nodes: Callable[..., Any], told: float, ends: bool
) -> None:
    timings = LeaseTimings(lease_duration=15, renew_deadline=10, margin=1, clock_offset=told)
    assert timings.faults() == []
    nodes = await make_nodes(told)
    await open_term(nodes.ahead, 7, valid_for=timings.store_lease)
    assert (await nodes.behind.append(write(7), 5.0)).effect is Effect.APPLIED
    await nodes.move_to(timings.lease_duration - timings.margin - 1.0)
    last = await nodes.behind.append(write(7), 5.0)
    await nodes.move_to(timings.lease_duration)  # from here on another region may have opened
    after = await nodes.behind.append(write(7), 5.0)
    assert (after.verdict is Verdict.NOT_LEADING) is ends
    assert (last.effect is Effect.APPLIED) is True, "and nobody loses more of the lease than must be"


@pytest.mark.parametrize(("told", "stands"), [(2 * APART, True), (0.0, False)], ids=["told", "not-told"])
async def test_a_mark_stands_on_every_node_until_its_upstreams_limit_has_passed_if_the_offset_is_told(
    make_nodes: Callable[..., Any], told: float, stands: bool
) -> None:
    nodes = await make_nodes(told)
    await open_term(nodes.behind, 7, valid_for=1000)
    assert (await nodes.behind.admit(forward(7, upstream_limit=5.0), 5.0)).effect is Effect.APPLIED
    await open_term(nodes.ahead, 8, valid_for=1000)
    await nodes.move_to(5.0 + 0.5)  # within the grace of a second that a mark has
    newer = await nodes.ahead.admit(forward(8, upstream_limit=5.0), 2.0)
    assert (newer.verdict is Verdict.DRAINING) is stands
    await nodes.move_to(5.0 + 2.0 + 2 * told + 0.1)
    assert (await nodes.ahead.admit(forward(8, upstream_limit=5.0), 5.0)).effect is Effect.APPLIED, "and not for ever"


async def test_an_elector_of_a_store_that_became_another_history_opens_it_again_by_a_new_term(
    deprived: str, gateways: Callable[..., Any]
) -> None:
    """What the operator is promised of ``fencegate rebase``; and that an elector gets on with such a store at all."""
    timings = LeaseTimings(lease_duration=8, renew_deadline=6, retry_period=0.2, margin=0.5, clock_offset=0.5)
    store: PostgresStore = await gateways("gw-1", clock_offset=timings.clock_offset)
    await store.ensure_roles({ROLE: "lease"})
    election = MemoryElection(MemoryQuorum(asyncio.get_running_loop().time), timings)
    candidate = Candidate("gw-1", "eu", "https://eu.example")
    elector = Elector(ROLE, candidate, election, store, timings, ignore)
    running = asyncio.create_task(elector.run())

    async def writes() -> int:
        token = elector.token or 1
        with contextlib.suppress(Unavailable):
            return token if (await store.append(write(token), 10.0)).effect is Effect.APPLIED else 0
        return 0

    await until(writes, 30.0)
    before = await writes()
    control = Control(Database(deprived, portable=True), Server(), sessions=1, limit=10.0, connect_limit=10.0)
    await control.begin_history("a test")
    await control.close()
    refused = await store.append(write(before), 10.0)
    # The elector may be as quick: then the old term is given up, or the new one is there.
    assert refused.verdict in (Verdict.OTHER_INCARNATION, Verdict.NOT_LEADING, Verdict.STALE)
    assert refused.effect is None
    await until(writes, 30.0)
    assert await writes() > before
    assert (await store.append(write(before), 10.0)).verdict is Verdict.STALE
    await elector.stop(5.0)
    await running
