"""What other systems got wrong between their writers and their database, held against the store on a real Postgres.

Which report is held by which test: ``tests/field_cases.toml``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import Unavailable
from fencegate.fence import ClaimRefused, Effect, Verdict
from fencegate.store import migrate
from fencegate.store.postgres import PostgresStore
from fencegate.tokens import MAX_TOKEN
from store.writing import HOLDER, ROLE, answer, bodies, forward, open_term, until, write

OUR_SETTINGS = "default_transaction_isolation, statement_timeout, idle_in_transaction_session_timeout, jit"


# -- what stands between a writer and the database ----------------------------------------------------


# Field case 50: MagicStack/asyncpg#198, MagicStack/asyncpg#1050, MagicStack/asyncpg#1058, MagicStack/asyncpg#945.
@pytest.mark.parametrize("pool_mode", ["transaction", "session"])
@pytest.mark.parametrize("ignored", ["", OUR_SETTINGS], ids=["strict", "lenient"])
async def test_a_store_behind_a_pooler_is_refused_and_says_why(
    dsn: str, make_pgbouncer: Callable[..., str], make_store: Callable[..., Any], pool_mode: str, ignored: str
) -> None:
    settings = {"ignore_startup_parameters": ignored} if ignored else {}
    store: PostgresStore = await make_store(make_pgbouncer(dsn, pool_mode=pool_mode, **settings))
    assert not store.up
    with pytest.raises(Unavailable, match="a pooler stands in between"):
        await store.clock()
    with pytest.raises(Unavailable, match="a pooler stands in between"):
        await store.append(write(1), 2.0)


# Field case 43: oxia-db/oxia#87.
async def test_a_raise_that_was_acknowledged_is_still_there_when_the_server_was_killed_in_that_instant(
    make_postgres: Callable[..., EmbeddedPostgres], make_store: Callable[..., Any]
) -> None:
    # A server that is slow to write what nobody waits for: a raise that did not wait would be lost with it.
    server = make_postgres(port=0, settings={"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"})
    await server.start()
    await migrate.apply(server.dsn)
    store: PostgresStore = await make_store(server.dsn)
    await store.ensure_roles({ROLE: "lease"})
    for token in (7, 8):
        await open_term(store, token)
        server.kill()
        await server.start()
        after: PostgresStore = await make_store(server.dsn)
        assert (await after.read(ROLE)).max_token_seen == token
        assert (await after.append(write(token - 1), 5.0)).verdict is Verdict.STALE
        await store.close()
        store = after


# Field case 47: apache/kafka#12499, apache/kafka#12506.
# Field case 52: MagicStack/asyncpg#253, MagicStack/asyncpg#249, brettwooldridge/HikariCP#1802, formancehq/go-libs#601.
async def test_no_session_stays_with_a_server_that_has_turned_read_only(
    make_postgres: Callable[..., EmbeddedPostgres], make_store: Callable[..., Any]
) -> None:
    first, second = make_postgres("first", port=0), make_postgres("second", port=0)
    for server in (first, second):
        await server.start()
        await migrate.apply(server.dsn)
    demoted, promoted = urlsplit(first.dsn), urlsplit(second.dsn)
    await _execute(second.dsn, f"ALTER ROLE {demoted.username} PASSWORD '{demoted.password}'")
    both = f"{demoted.netloc},{promoted.hostname}:{promoted.port}"
    store: PostgresStore = await make_store(urlunsplit(demoted._replace(netloc=both)))
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 7)
    await store.append(write(7, b"0"), 5.0)
    await store.settle((await store.admit(forward(7), 5.0)).ticket, answer())
    assert await store.peek(ROLE, 7, 5.0) == (Verdict.ADMIT, 7)
    await asyncio.gather(*(store.clock() for _ in range(4)), store.entry(ROLE, 1))
    await _execute(first.dsn, "ALTER SYSTEM SET default_transaction_read_only = on")
    await _execute(first.dsn, "SELECT pg_reload_conf()")

    async def refused() -> bool:
        try:
            return (await store.append(write(7, b"late"), 5.0)).effect is not Effect.APPLIED
        except Unavailable:
            return True

    await until(refused)
    for token in (6, 7, 8):  # older than, equal to and above all that the first server knew of
        for verdict in (
            (await store.append(write(token), 5.0)).verdict,
            (await store.admit(forward(token), 5.0)).verdict,
            (await store.peek(ROLE, token, 5.0))[0],
        ):
            assert verdict is Verdict.NO_FENCE, "closed, and nothing said about the token"
    assert await store.entry(ROLE, 1) is None
    async with asyncio.timeout(10):
        await store.ensure_roles({ROLE: "lease"})
        await open_term(store, 8)
        assert (await store.append(write(8, b"1"), 5.0)).effect is Effect.APPLIED
        assert (await store.admit(forward(8), 5.0)).effect is Effect.APPLIED
    assert await bodies(store) == [b"1"]


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=60, server_settings={"default_transaction_read_only": "off"})
    await connection.execute(statement)
    await connection.close()


# -- what time takes away -----------------------------------------------------------------------------


# Field case 41: slatedb/slatedb#352, slatedb/slatedb#1622.
async def test_no_upkeep_ever_lets_an_older_token_in_again(store: PostgresStore, beside: asyncpg.Connection) -> None:
    for token in range(1, 6):
        await open_term(store, token)
        await store.append(write(token, b"%d" % token, key=f"k{token}"), 5.0)
        await store.settle((await store.admit(forward(token, key=f"f{token}"), 5.0)).ticket, answer())
    await beside.execute("UPDATE fencegate.idempotency_key SET created_at = '-infinity', running_until = NULL")
    assert await store.expire_keys(60) == 10
    await beside.execute("VACUUM FULL fencegate.fence, fencegate.idempotency_key, fencegate.mark")
    for token in range(1, 5):
        result = await store.append(write(token, key=f"k{token}"), 5.0)
        assert (result.verdict, result.effect, result.max_token_seen) == (Verdict.STALE, None, 5)
        assert (await store.admit(forward(token, key=f"f{token}"), 5.0)).verdict is Verdict.STALE
    assert await bodies(store) == [b"1", b"2", b"3", b"4", b"5"]


# -- numbers at their end -----------------------------------------------------------------------------


async def test_the_last_token_there_is_closes_the_role_to_all_others_and_never_wraps(store: PostgresStore) -> None:
    await open_term(store, MAX_TOKEN)
    assert (await store.append(write(MAX_TOKEN), 5.0)).effect is Effect.APPLIED
    assert (await store.append(write(1), 5.0)).verdict is Verdict.STALE
    assert await store.claim(ROLE, 1, HOLDER, await store.clock(), 60) is ClaimRefused.SUPERSEDED
    clock = await store.clock()
    assert await store.seal(ROLE, MAX_TOKEN, clock.incarnation)
    fence = await store.read(ROLE)
    assert fence is not None
    assert (fence.max_token_seen, fence.sealed) == (MAX_TOKEN, MAX_TOKEN)
    assert await store.claim(ROLE, MAX_TOKEN, HOLDER, clock, 60) is ClaimRefused.SEALED


# -- one hot row --------------------------------------------------------------------------------------


# Field case 56: matrix-org/synapse#16160, divviup/janus#2654, cockroachdb/cockroach#17883.
async def test_a_write_under_the_running_token_leaves_the_fences_row_as_it_is(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await beside.execute("CREATE FUNCTION echo(body jsonb, context jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT body'")
    await store.ensure_roles({"shared": "token"})
    await open_term(store, 7)
    await open_term(store, 7, role="shared")
    versions = "SELECT array_agg((role, ctid, xmin)::text ORDER BY role) FROM fencegate.fence"
    before = await beside.fetchval(versions)
    for role in (ROLE, "shared"):
        for _ in range(20):
            assert (await store.call("echo", write(7, role=role), 5.0)).effect is Effect.APPLIED
            await store.settle((await store.admit(forward(7, role=role), 5.0)).ticket, answer())
    assert await beside.fetchval(versions) == before


async def test_hundreds_of_batches_do_not_make_the_fence_grow(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await open_term(store, 7)
    size = "SELECT pg_relation_size('fencegate.fence')"
    before = await beside.fetchval(size)
    for n in range(300):
        await store.append(write(7, b"%d" % n), 5.0)
    assert await beside.fetchval(size) == before, "no version of the row outlives its usefulness, without any vacuum"


async def test_a_raise_finds_its_place_in_a_flood_of_writes(store: PostgresStore) -> None:
    await open_term(store, 7)
    over = False

    async def floods(n: int) -> int:
        applied = 0
        while not over:
            result = await store.append(write(7, b"%d" % n), 5.0)
            applied += result.effect is Effect.APPLIED
            if result.verdict is Verdict.STALE:
                break
        return applied

    writers = [asyncio.create_task(floods(n)) for n in range(50)]
    await until(lambda: _has_entries(store))
    async with asyncio.timeout(20):
        await open_term(store, 8)
    over = True
    applied = sum(await asyncio.gather(*writers))
    assert applied == len(await bodies(store))
    assert (await store.append(write(7), 5.0)).verdict is Verdict.STALE


async def _has_entries(store: PostgresStore) -> bool:
    return len(await store.entries(ROLE, 0, 100)) == 100
