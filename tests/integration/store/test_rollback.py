"""A store whose files were put back is found out by who was answered by it, and closed (rule R9)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from fencegate.access.database import Database
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Verdict
from fencegate.observations import Observation, StoreCameUp, StoreWentBack, StoreWentDown
from fencegate.store import migrate as migrations
from fencegate.store import rollback
from fencegate.store.postgres import PostgresStore
from fencegate.store.survey import survey
from store.standby import Standby
from store.writing import HOLDER, ROLE, answer, bodies, forward, open_term, write

WHY = "went back in time"
NOTE = """
    CREATE TABLE public.note (body jsonb);
    CREATE FUNCTION public.note(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.note VALUES (body);
        RETURN body;
    END $$;"""


class Files:
    """The data files of a server: kept as they are at one moment, and put back in their place later."""

    def __init__(self, server: EmbeddedPostgres, kept: Path) -> None:
        self._server = server
        self._data = server.directory / "data"
        self._kept = kept

    async def keep(self) -> None:
        await self._server.stop()
        self._copy(self._data, self._kept)
        await self._server.start()

    async def put_back(self) -> None:
        await self._server.stop()
        shutil.rmtree(self._data)
        self._copy(self._kept, self._data)
        await self._server.start()

    @staticmethod
    def _copy(source: Path, to: Path) -> None:
        subprocess.run(["cp", "-a", source, to], check=True)


@pytest.fixture
def files(primary: EmbeddedPostgres, tmp_path: Path) -> Files:
    return Files(primary, tmp_path / "kept")


@pytest.fixture
async def told() -> list[Observation]:
    return []


@pytest.fixture
async def store(primary: EmbeddedPostgres, make_store: Callable[..., Any], told: list[Observation]) -> PostgresStore:
    """A gateway's, with a term that outlasts the test."""
    store: PostgresStore = await make_store(primary.dsn, observe=told.append)
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 4, valid_for=600)
    return store


async def again(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer over new sessions: those to the server that was stopped are lost, each with its first question."""
    for _ in range(5):
        try:
            return await ask()
        except OutcomeUnknown:
            continue
        except Unavailable as error:
            if WHY in str(error):
                raise
    raise AssertionError("no session with the store")


async def applied(store: PostgresStore, body: bytes) -> None:
    assert (await again(lambda: store.append(write(4, body), 5.0))).effect is Effect.APPLIED


async def rolled_back(store: PostgresStore, files: Files, *, lost: int = 1) -> None:
    """One write that stands, and ``lost`` that were acknowledged and are not there any more."""
    await applied(store, b'"kept"')
    await files.keep()
    for number in range(lost):
        await applied(store, b'"lost %d"' % number)
    await files.put_back()


# -- before anything is written -------------------------------------------------------------------


@pytest.mark.parametrize("knows", ["both", "the log", "the transaction"])
async def test_r9_who_was_told_of_one_write_more_writes_nothing_to_a_store_put_back(
    store: PostgresStore, files: Files, connect: Callable[..., Any], primary: EmbeddedPostgres, knows: str
) -> None:
    await applied(store, b'"kept"')
    await files.keep()
    for number in range(9):
        await applied(store, b'"lost %d"' % number)
    known = store._witness.known
    await files.put_back()
    # Either number tells it by itself: the server's own recovery writes to the log, and uses no transaction.
    lsn, xact = known.lsn if knows != "the transaction" else 0, known.xact if knows != "the log" else 0
    store._witness.known = replace(known, lsn=lsn, xact=xact)
    with pytest.raises(Unavailable, match=WHY):
        await again(lambda: store.append(write(4), 5.0))
    with pytest.raises(Unavailable, match=WHY):
        await store.append(write(4), 5.0)  # from memory
    with pytest.raises(Unavailable, match=WHY):
        await store.clock()
    assert await bodies(store) == [b'"kept"']


async def test_r9_one_lost_write_is_enough(store: PostgresStore, files: Files) -> None:
    await rolled_back(store, files, lost=1)
    with pytest.raises(Unavailable, match=WHY):
        await again(lambda: store.append(write(4), 5.0))
    assert await bodies(store) == [b'"kept"']


async def test_r9_no_function_is_called_in_a_store_put_back(
    store: PostgresStore, files: Files, connect: Callable[..., Any], primary: EmbeddedPostgres
) -> None:
    beside = await connect(primary.dsn)
    await beside.execute(NOTE)
    await files.keep()
    called = await again(lambda: store.call("public.note", write(4), 5.0))
    assert called.effect is Effect.APPLIED
    await files.put_back()
    with pytest.raises(Unavailable, match=WHY):
        await again(lambda: store.call("public.note", write(4), 5.0))
    assert await (await connect(primary.dsn)).fetchval("SELECT count(*) FROM public.note") == 0


async def test_r9_nothing_is_forwarded_by_a_store_put_back(
    store: PostgresStore, files: Files, connect: Callable[..., Any], primary: EmbeddedPostgres
) -> None:
    await files.keep()
    admission = await again(lambda: store.admit(forward(4, key="k"), 5.0))
    await store.settle(admission.ticket, answer())
    await files.put_back()
    with pytest.raises(Unavailable, match=WHY):
        await again(lambda: store.admit(forward(4, key="another"), 5.0))
    beside = await connect(primary.dsn)
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 0


async def test_r9_nothing_of_a_validated_role_is_left_pending_in_a_store_put_back(
    primary: EmbeddedPostgres, make_store: Callable[..., Any], connect: Callable[..., Any], files: Files
) -> None:
    async def leads(role: str, token: int, limit: float) -> bool:
        return True

    store: PostgresStore = await make_store(primary.dsn)
    store.validate([ROLE], leads)
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 4, valid_for=600)
    await rolled_back(store, files)
    with pytest.raises(Unavailable, match=WHY):
        await again(lambda: store.append(write(4), 5.0))
    assert await bodies(store) == [b'"kept"']
    assert await (await connect(primary.dsn)).fetchval("SELECT count(*) FROM pg_prepared_xacts") == 0


async def test_r9_a_gateway_that_only_looked_on_finds_it_too(
    store: PostgresStore, files: Files, make_store: Callable[..., Any], primary: EmbeddedPostgres
) -> None:
    onlooker: PostgresStore = await make_store(primary.dsn, "gw-2")
    await applied(store, b'"kept"')
    await files.keep()
    for number in range(9):
        await applied(store, b'"lost %d"' % number)
    await onlooker._look()
    if not onlooker.up:  # its session was that of the server which was stopped
        await onlooker._look()
    await files.put_back()
    with pytest.raises(Unavailable, match=WHY):
        await again(lambda: onlooker.append(write(4), 5.0))


async def sealed_at_last(store: PostgresStore, token: int, incarnation: str) -> bool:
    """Over a new session, where the one at hand was lost with the server."""
    while True:
        try:
            return await store.seal(ROLE, token, incarnation)
        except Unavailable as error:
            if "back" in str(error):
                raise


@pytest.mark.parametrize("found", [False, True])
async def test_r9_a_seal_does_not_count_in_a_store_put_back_whose_newest_files_may_come_again(
    store: PostgresStore,
    files: Files,
    make_store: Callable[..., Any],
    primary: EmbeddedPostgres,
    tmp_path: Path,
    found: bool,
) -> None:
    """Rule R8: a lease is given back early for it, and another region opens; the newest files have the term open."""
    incarnation = (await store.clock()).incarnation
    await files.keep()
    await again(lambda: open_term(store, 5, valid_for=600))
    assert (await again(lambda: store.append(write(5, b'"5"'), 5.0))).effect is Effect.APPLIED
    newest = Files(primary, tmp_path / "newest")
    await newest.keep()
    await files.put_back()
    if found:
        await look(store)
    with pytest.raises(Unavailable, match=r"gone back|went back"):
        await sealed_at_last(store, 5, incarnation)
    who_knows_nothing = await make_store(primary.dsn, "gw-2")
    assert not found or not await who_knows_nothing.seal(ROLE, 5, incarnation)
    await newest.put_back()
    await look(store)
    assert (await again(lambda: store.append(write(5, b'"on"'), 5.0))).effect is Effect.APPLIED


async def test_a_route_that_only_observes_is_let_in_all_the_same(store: PostgresStore, files: Files) -> None:
    await rolled_back(store, files)
    result = await again(lambda: store.append(write(4, b'"observed"', enforce=False), 5.0))
    assert result.effect is Effect.APPLIED
    assert await bodies(store) == [b'"kept"', b'"observed"']


# -- what is found closes it for everybody ---------------------------------------------------------


async def look(*stores: PostgresStore) -> None:
    """What each monitor does every second; twice, as the first may meet a session that is lost."""
    for _ in range(2):
        for store in stores:
            await store._look()


async def test_r9_what_one_gateway_found_closes_the_store_for_all_until_it_is_reopened(
    store: PostgresStore,
    files: Files,
    make_store: Callable[..., Any],
    connect: Callable[..., Any],
    primary: EmbeddedPostgres,
    told: list[Observation],
) -> None:
    await rolled_back(store, files)
    fresh: PostgresStore = await make_store(primary.dsn, "gw-2")
    await applied(fresh, b'"by who knew nothing"')

    told.clear()
    await look(store)
    found = [fact for fact in told if isinstance(fact, StoreWentBack)]
    assert len(found) == 1
    assert "set out from byte" in found[0].detail
    assert [fact.detail for fact in told if type(fact) is StoreWentDown][-1].startswith("the store went back")
    assert (await fresh.append(write(4), 5.0)).verdict is Verdict.OTHER_INCARNATION
    assert (await fresh.append(write(5), 5.0)).verdict is Verdict.OTHER_INCARNATION
    for gateway in (store, fresh):
        with pytest.raises(Unavailable, match=WHY):
            await gateway.clock()
    beside = await connect(primary.dsn)
    with pytest.raises(asyncpg.PostgresError, match="has gone back, and is closed"):
        await beside.fetchval(
            "SELECT fencegate.claim('ledger', 5, 'eu/gw-2', clock_timestamp(), 60, fencegate.incarnation())"
        )
    for statement in ("DELETE FROM fencegate.rollback", "TRUNCATE fencegate.rollback"):
        with pytest.raises(asyncpg.PostgresError, match="is kept"):
            await beside.execute(statement)
    restarted: PostgresStore = await make_store(primary.dsn, "gw-1")
    assert not restarted.up, "it is written in the store, whoever has forgotten it"

    database = Database(primary.dsn)
    (finding,) = await rollback.find(database, 5.0)
    assert (await survey(primary.dsn, 5.0)).gone_back == str(finding)
    assert await rollback.reopen(database, "anna", 5.0) == 1
    assert await rollback.find(database, 5.0) == []
    assert not (await survey(primary.dsn, 5.0)).gone_back
    await look(store, fresh, restarted)
    assert [fact for fact in told if isinstance(fact, StoreCameUp)]
    for gateway in (store, fresh, restarted):
        assert (await gateway.append(write(4), 5.0)).verdict is Verdict.OTHER_INCARNATION, "a new term opens it"
    await open_term(store, 5, holder=HOLDER, valid_for=600)
    for gateway in (store, fresh, restarted):
        assert (await gateway.append(write(5, b'"after"'), 5.0)).effect is Effect.APPLIED
    assert await bodies(store) == [b'"kept"', b'"by who knew nothing"', *[b'"after"'] * 3]
    row = await beside.fetchrow("SELECT * FROM fencegate.rollback")
    assert (row["found_by"].split("#")[0], row["reopened_by"]) == ("gw-1", "anna")
    assert row["start_xact"] <= row["known_xact"] < row["found_xact"], "another has made up for what was lost"


async def test_in_a_store_that_lacks_migrations_nobody_has_found_anything_and_it_says_which_command_mends_it(
    fresh_dsn: str, connect: Callable[..., Any]
) -> None:
    with pytest.raises(rollback.NotMigrated, match="run fencegate migrate"):
        await rollback.find(Database(fresh_dsn), 5.0)
    before, _, _ = migrations.sql().partition("-- 0006_find_rollback")
    await (await connect(fresh_dsn)).execute(before)
    for call in (rollback.find(Database(fresh_dsn), 5.0), rollback.reopen(Database(fresh_dsn), "anna", 5.0)):
        with pytest.raises(rollback.NotMigrated, match="run fencegate migrate"):
            await call


async def test_r9_the_newest_files_put_back_open_it_again_by_themselves(
    store: PostgresStore, files: Files, primary: EmbeddedPostgres, tmp_path: Path
) -> None:
    newest = Files(primary, tmp_path / "newest")
    await applied(store, b'"kept"')
    await files.keep()
    await applied(store, b'"newest"')
    await newest.keep()
    await files.put_back()
    await look(store)
    with pytest.raises(Unavailable, match=WHY):
        await store.append(write(4), 5.0)
    await newest.put_back()
    await look(store)
    await applied(store, b'"on"')
    assert await bodies(store) == [b'"kept"', b'"newest"', b'"on"']


async def test_r9_a_second_time_is_found_after_the_first_was_reopened(
    store: PostgresStore, files: Files, connect: Callable[..., Any], primary: EmbeddedPostgres
) -> None:
    await rolled_back(store, files)
    await look(store)
    await (await connect(primary.dsn)).fetchval("SELECT fencegate.reopen('anna')")
    await look(store)
    await open_term(store, 5, valid_for=600)
    assert (await store.append(write(5), 5.0)).effect is Effect.APPLIED
    await files.put_back()  # behind the operator's word, too
    with pytest.raises(Unavailable, match=WHY):
        await again(lambda: store.append(write(5), 5.0))


# -- no false alarm ---------------------------------------------------------------------------------


async def test_a_server_that_crashes_over_and_over_is_never_taken_for_one_that_went_back(
    store: PostgresStore,
    primary: EmbeddedPostgres,
    make_store: Callable[..., Any],
    connect: Callable[..., Any],
    told: list[Observation],
) -> None:
    other: PostgresStore = await make_store(primary.dsn, "gw-2", observe=told.append)
    written = 0
    for _ in range(4):
        beside = await connect(primary.dsn)
        await beside.execute("CREATE TABLE IF NOT EXISTS public.noise (n int)")
        for gateway in (store, other, store):
            await applied(gateway, b'"%d"' % written)
            written += 1
            transaction = beside.transaction()  # numbers are used and rolled back, and its log may never be flushed
            await transaction.start()
            await beside.execute("INSERT INTO public.noise SELECT generate_series(1, 1000)")
            await transaction.rollback()
            await gateway._look()
        async with beside.transaction():
            await beside.execute("SET LOCAL synchronous_commit = off")
            await beside.execute("INSERT INTO public.noise VALUES (1)")
        await store._look()
        primary.kill()
        await primary.restart()
        await look(store, other)
    assert len(await bodies(store)) == written
    assert not [fact for fact in told if isinstance(fact, StoreWentBack)]


async def test_another_incarnation_is_not_judged_by_what_was_known_of_this_one(
    store: PostgresStore, connect: Callable[..., Any], primary: EmbeddedPostgres
) -> None:
    beside = await connect(primary.dsn)
    here, far = (await store.clock()).incarnation, 2**60
    ask = "SELECT fencegate.unless_gone_back(ARRAY['ledger'], $1, 0, pg_postmaster_start_time(), $2, $3)"
    assert await beside.fetchval(ask, "1234/00000002", far, 2**40) == ["ledger"]
    assert await beside.fetchval(ask, here, 0, 0) == ["ledger"]
    assert await beside.fetchval(ask, "", far, 2**40) == ["ledger"], "nothing is known"
    for lsn, xact in ((far, 0), (0, 2**40)):
        with pytest.raises(asyncpg.PostgresError, match="has gone back") as refused:
            await beside.fetchval(ask, here, lsn, xact)
        assert refused.value.sqlstate == "ZF503"


async def test_a_write_whose_answer_was_lost_teaches_nothing(store: PostgresStore, primary: EmbeddedPostgres) -> None:
    before = store._witness.known
    primary.kill()
    with pytest.raises(FencegateError):
        await store.append(write(4), 1.0)
    assert store._witness.known == before
    await primary.restart()
    await applied(store, b'"on"')
    assert store._witness.known.xact > before.xact


# -- the server of before a promotion ------------------------------------------------------------------


async def test_r9_the_old_primary_in_the_place_of_the_promoted_one_is_found_and_closed_until_it_is_reopened(
    primary: EmbeddedPostgres, standby: Standby, make_store: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """It lacks all that was acknowledged since the promotion, and a new term would have opened it."""
    sockets = [parse_qs(urlsplit(place).query)["host"][0] for place in (standby.dsn, primary.dsn)]
    either = f"postgresql://fencegate@/fencegate?host={','.join(sockets)}&port=5432,5432"
    told: list[Observation] = []
    store: PostgresStore = await make_store(either, observe=told.append)
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 4)
    await applied(store, b'"before"')
    await standby.start()
    await standby.caught_up()
    await standby.promote()
    beside = await connect(primary.dsn)
    await beside.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'fencegate %'"
    )
    await look(store)
    await again(lambda: open_term(store, 5))
    await applied_under(store, 5, b'"acknowledged"')

    await standby.stop()
    await look(store)
    assert [fact.detail for fact in told if isinstance(fact, StoreWentBack)][-1].endswith("as before a promotion")
    with pytest.raises(Unavailable, match=WHY):
        await store.append(write(6), 5.0)
    with pytest.raises(Unavailable, match=WHY):
        await store.clock()
    fresh: PostgresStore = await make_store(primary.dsn, "gw-2")
    with pytest.raises(Unavailable, match=WHY):
        await fresh.clock()

    assert await rollback.reopen(Database(primary.dsn), "anna", 5.0) == 1
    await look(store)
    await open_term(store, 6)
    await applied_under(store, 6, b'"after"')
    assert await bodies(store) == [b'"before"', b'"after"']


async def applied_under(store: PostgresStore, token: int, body: bytes) -> None:
    assert (await again(lambda: store.append(write(token, body), 5.0))).effect is Effect.APPLIED
