"""The user's own SQL function in the fenced transaction: what it raises, undoes and must not disturb."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import orjson
import pytest

from fencegate.errors import Unavailable
from fencegate.fence import Effect, Verdict, WriteResult
from fencegate.store.postgres import PostgresStore
from store.writing import ROLE, open_term, until, write

FUNCTIONS = """
    CREATE SCHEMA app;
    CREATE TABLE app.note (n int PRIMARY KEY);
    CREATE TABLE app.child (n int REFERENCES app.note (n) DEFERRABLE INITIALLY DEFERRED);
    CREATE FUNCTION app.take(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.note VALUES ((body->>'n')::int);
        IF body ? 'bad' THEN
            RAISE EXCEPTION 'no % today', body->>'bad' USING ERRCODE = 'P0042', DETAIL = 'why', HINT = 'tomorrow';
        END IF;
        IF body ? 'orphan' THEN INSERT INTO app.child VALUES (-1); END IF;
        IF body ? 'sleep' THEN PERFORM pg_sleep((body->>'sleep')::float8); END IF;
        IF body ? 'conflict' THEN RAISE EXCEPTION 'busy' USING ERRCODE = '40001'; END IF;
        IF body ? 'unsafe' THEN PERFORM set_config('synchronous_commit', 'off', body->>'unsafe' = 'local'); END IF;
        RETURN jsonb_build_object('n', body->'n', 'context', context);
    END $$;
    CREATE FUNCTION app.wrong(body jsonb, context jsonb) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$;
    CREATE FUNCTION app.nothing(body jsonb, context jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT NULL::jsonb $$;
    CREATE FUNCTION app.child_first(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.child VALUES ((body->>'n')::int);
        IF NOT body ? 'orphan' THEN INSERT INTO app.note VALUES ((body->>'n')::int); END IF;
        RETURN body;
    END $$;
    CREATE TABLE app.again (n int);
    CREATE SEQUENCE app.tries;
    CREATE FUNCTION app.third_time(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.again VALUES (1);
        IF nextval('app.tries') < 3 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF;
        RETURN '"lucky"';
    END $$"""


@pytest.fixture
async def calls(make_store: Callable[..., Any], beside: asyncpg.Connection) -> PostgresStore:
    store: PostgresStore = await make_store(write_limit=3.0)
    await store.ensure_roles({ROLE: "lease"})
    await beside.execute(FUNCTIONS)
    await open_term(store, 4)
    return store


async def notes(beside: asyncpg.Connection) -> list[int]:
    return [row[0] for row in await beside.fetch("SELECT n FROM app.note ORDER BY n")]


async def test_a_call_is_given_its_body_and_context_and_its_result_comes_back(calls: PostgresStore) -> None:
    result = await calls.call("app.take", write(4, b'{"n": 1}', key="k", context={"caller": "me", "token": 9}), 5.0)
    assert (result.verdict, result.effect, result.status, result.max_token_seen) == (Verdict.ADMIT, 0, 200, 4)
    assert result.answer is not None
    told = orjson.loads(result.answer)
    assert told["n"] == 1
    assert told["context"] == {"caller": "me", "role": ROLE, "token": 4, "idempotency_key": "k"}, "the real token"


async def test_an_exception_rejects_its_own_write_alone(calls: PostgresStore, beside: asyncpg.Connection) -> None:
    batch = [b'{"n": %d}' % n for n in range(10)]
    batch[3] = b'{"n": 3, "bad": "rain"}'
    batch[6] = b'{"n": "six"}'
    results = await asyncio.gather(
        *(calls.call("app.take", write(4, b, key=f"k{i}"), 5.0) for i, b in enumerate(batch))
    )
    assert [r.effect for i, r in enumerate(results) if i not in (3, 6)] == [Effect.APPLIED] * 8
    assert (results[3].effect, results[6].effect) == (Effect.REJECTED, Effect.REJECTED)
    assert results[3].answer is not None
    expected = {"message": "no rain today", "sqlstate": "P0042", "detail": "why", "hint": "tomorrow"}
    assert orjson.loads(results[3].answer) == expected
    assert results[6].answer is not None
    assert orjson.loads(results[6].answer)["sqlstate"] == "22P02"
    assert await notes(beside) == [0, 1, 2, 4, 5, 7, 8, 9]
    again = await calls.call("app.take", write(4, b'{"n": 3}', key="k3"), 5.0)
    assert again.effect is Effect.APPLIED, "a rejection is not kept under the key"


async def test_an_assertion_that_fails_is_a_rejection_like_any_exception(
    calls: PostgresStore, beside: asyncpg.Connection
) -> None:
    """In PL/pgSQL it is none of OTHERS: it would fail the batch, and be sent again for ever."""
    await beside.execute("""
        CREATE FUNCTION app.asserts(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN
            ASSERT (body->>'n')::int < 2, 'too many';
            RETURN app.take(body, context);
        END $$""")
    results = await asyncio.gather(*(calls.call("app.asserts", write(4, b'{"n": %d}' % n), 5.0) for n in range(4)))
    assert [r.effect for r in results] == [Effect.APPLIED] * 2 + [Effect.REJECTED] * 2
    assert results[2].answer is not None
    assert orjson.loads(results[2].answer)["message"] == "too many"
    assert await notes(beside) == [0, 1]


async def test_a_context_that_is_no_json_text_is_refused_before_it_meets_others(
    calls: PostgresStore, beside: asyncpg.Connection
) -> None:
    def call(n: int, context: dict[str, object]) -> Awaitable[WriteResult]:
        return calls.call("app.take", write(4, b'{"n": %d}' % n, key=f"k{n}", context=context), 5.0)

    results = await asyncio.gather(
        call(0, {}), call(1, {"query": "a=1"}), call(2, {"query": "\udcff"}), call(3, {}), return_exceptions=True
    )
    assert isinstance(results[2], ValueError)
    assert [r.effect for r in results if isinstance(r, WriteResult)] == [Effect.APPLIED] * 3
    assert await notes(beside) == [0, 1, 3]


async def test_a_constraint_that_fails_at_commit_hits_only_its_own_write(
    calls: PostgresStore, beside: asyncpg.Connection
) -> None:
    batch = [b'{"n": 1}', b'{"n": 2, "orphan": 1}', b'{"n": 3}']
    results = await asyncio.gather(*(calls.call("app.take", write(4, b), 5.0) for b in batch))
    assert [r.effect for r in results] == [Effect.APPLIED, Effect.REJECTED, Effect.APPLIED]
    assert results[1].answer is not None
    assert orjson.loads(results[1].answer)["sqlstate"] == "23503"
    assert await notes(beside) == [1, 3]


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_a_function_may_rely_on_a_deferred_constraint_wherever_its_write_stands_in_a_batch(
    calls: PostgresStore, beside: asyncpg.Connection, size: int
) -> None:
    batch = [b'{"n": %d}' % n for n in range(size)]
    results = await asyncio.gather(*(calls.call("app.child_first", write(4, b), 5.0) for b in batch))
    assert [r.effect for r in results] == [Effect.APPLIED] * size
    assert await notes(beside) == [*range(size)]


@pytest.mark.parametrize("orphan", [0, 1, 2])
async def test_what_breaks_a_deferred_constraint_is_rejected_wherever_it_stands_in_a_batch(
    calls: PostgresStore, beside: asyncpg.Connection, orphan: int
) -> None:
    batch = [b'{"n": %d, "orphan": 1}' % n if n == orphan else b'{"n": %d}' % n for n in range(3)]
    results = await asyncio.gather(*(calls.call("app.child_first", write(4, b), 5.0) for b in batch))
    assert [r.effect for r in results] == [Effect.REJECTED if n == orphan else Effect.APPLIED for n in range(3)]
    assert await beside.fetchval("SELECT array_agg(n ORDER BY n) FROM app.child") == [
        n for n in range(3) if n != orphan
    ]


async def test_nothing_is_left_to_run_at_commit_behind_the_last_look_at_session_and_clock(
    calls: PostgresStore, beside: asyncpg.Connection
) -> None:
    await beside.execute("""
        CREATE FUNCTION app.unsafe() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM set_config('synchronous_commit', 'off', true); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER unsafe AFTER INSERT ON app.note DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION app.unsafe()""")
    batch = [b'{"n": 1}', b'{"n": 2, "bad": "x"}', b'{"n": 3}']
    results = await asyncio.gather(*(calls.call("app.take", write(4, b), 5.0) for b in batch), return_exceptions=True)
    assert [isinstance(r, Unavailable) and "ZF501" in str(r) for r in results] == [True, False, True]
    assert await notes(beside) == []


@pytest.mark.parametrize("at", ["INITIALLY DEFERRED", "INITIALLY IMMEDIATE"])
async def test_a_call_finds_what_the_deferred_triggers_of_those_before_it_have_done(
    calls: PostgresStore, beside: asyncpg.Connection, at: str
) -> None:
    """Or else each of a batch would spend the whole of what such a trigger keeps account of."""
    await beside.execute(f"""
        CREATE TABLE app.balance AS SELECT 100 AS amount;
        CREATE TABLE app.posting (amount int);
        CREATE FUNCTION app.carry_over() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN UPDATE app.balance SET amount = amount + NEW.amount; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER carry_over AFTER INSERT ON app.posting DEFERRABLE {at}
            FOR EACH ROW EXECUTE FUNCTION app.carry_over();
        CREATE FUNCTION app.withdraw(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN
            SET CONSTRAINTS ALL DEFERRED;
            IF (SELECT amount FROM app.balance) < (body->>'amount')::int THEN RAISE EXCEPTION 'not so much'; END IF;
            INSERT INTO app.posting VALUES (-(body->>'amount')::int);
            RETURN body;
        END $$""")
    results = await asyncio.gather(
        *(calls.call("app.withdraw", write(4, b'{"amount": 60}', key=f"k{n}"), 5.0) for n in range(5))
    )
    assert [r.effect for r in results] == [Effect.APPLIED, *[Effect.REJECTED] * 4]
    assert await beside.fetchval("SELECT amount FROM app.balance") == 40


@pytest.mark.of_postgres
async def test_one_slow_call_does_not_fail_its_neighbours(calls: PostgresStore, beside: asyncpg.Connection) -> None:
    batch = [b'{"n": %d}' % n for n in range(12)]
    batch[5] = b'{"n": 5, "sleep": 3}'
    first = asyncio.create_task(calls.call("app.take", write(4, b'{"n": 99}'), 5.0))
    await asyncio.sleep(0)
    results = await asyncio.gather(*(calls.call("app.take", write(4, b), 8.0) for b in batch), return_exceptions=True)
    assert (await first).effect is Effect.APPLIED
    assert isinstance(results[5], Unavailable)
    assert "57014" in str(results[5])
    assert [getattr(r, "effect", r) for i, r in enumerate(results) if i != 5] == [Effect.APPLIED] * 11
    assert await notes(beside) == [n for n in range(12) if n != 5] + [99]


async def test_a_conflict_is_tried_again_and_never_told_as_a_rejection(
    calls: PostgresStore, beside: asyncpg.Connection
) -> None:
    lucky = await calls.call("app.third_time", write(4, b"{}"), 5.0)
    assert (lucky.effect, lucky.answer) == (Effect.APPLIED, b'"lucky"')
    assert await beside.fetchval("SELECT count(*) FROM app.again") == 1
    with pytest.raises(Unavailable, match="40001"):
        await calls.call("app.take", write(4, b'{"n": 1, "conflict": 1}'), 5.0)
    assert await notes(beside) == []


@pytest.mark.parametrize("scope", ["local", "session"])
async def test_a_function_that_turns_durability_off_is_undone_and_spoils_nothing(
    calls: PostgresStore, beside: asyncpg.Connection, scope: str
) -> None:
    with pytest.raises(Unavailable, match="synchronous_commit"):
        await calls.call("app.take", write(4, orjson.dumps({"n": 1, "unsafe": scope})), 5.0)
    assert (await calls.call("app.take", write(4, b'{"n": 2}'), 5.0)).effect is Effect.APPLIED
    assert await notes(beside) == [2]


@pytest.mark.parametrize("name", ["app.missing", "app.wrong", "no_schema.f", "; DROP TABLE app.note"])
async def test_a_missing_function_is_a_clear_error(calls: PostgresStore, beside: asyncpg.Connection, name: str) -> None:
    results = await asyncio.gather(
        *(calls.call(name, write(4, b'{"n": 1}'), 5.0) for _ in range(5)), return_exceptions=True
    )
    assert [type(r) for r in results] == [Unavailable] * 5
    assert all("there is no function" in str(r) or "syntax" in str(r) or "invalid name" in str(r) for r in results)
    assert await notes(beside) == []


async def test_a_replay_gives_the_first_answer_and_runs_nothing(
    calls: PostgresStore, beside: asyncpg.Connection
) -> None:
    together = await asyncio.gather(*(calls.call("app.take", write(4, b'{"n": 1}', key="k"), 5.0) for _ in range(8)))
    assert sorted(r.effect for r in together if r.effect is not None) == [Effect.APPLIED] + [Effect.REPLAYED] * 7
    assert len({r.answer for r in together}) == 1
    assert {r.status for r in together} == {200}
    reused = await calls.call("app.take", write(4, b'{"n": 2}', key="k"), 5.0)
    assert (reused.effect, reused.answer) == (Effect.KEY_REUSED, None)
    await open_term(calls, 5)
    stale = await calls.call("app.take", write(4, b'{"n": 1}', key="k"), 5.0)
    assert (stale.verdict, stale.effect, stale.answer) == (Verdict.STALE, Effect.REPLAYED, together[0].answer)
    assert await notes(beside) == [1]


async def test_a_refused_call_runs_nothing(calls: PostgresStore, beside: asyncpg.Connection) -> None:
    assert (await calls.call("app.take", write(3, b'{"n": 1}'), 5.0)).verdict is Verdict.STALE
    assert (await calls.call("app.take", write(5, b'{"n": 1}'), 5.0)).verdict is Verdict.ABOVE
    assert await notes(beside) == []


async def test_a_result_of_null_is_json_null(calls: PostgresStore) -> None:
    assert (await calls.call("app.nothing", write(4, b"{}"), 5.0)).answer == b"null"


@pytest.mark.of_postgres
async def test_the_store_comes_back_after_a_role_was_locked_for_long(
    calls: PostgresStore, connect: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    """Everything waits for one lock: refused within a time, not one by one for ever, and other roles go on."""
    await calls.ensure_roles({"free": "lease"})
    await open_term(calls, 1, role="free")
    holder = await connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT 1 FROM fencegate.fence WHERE role = 'ledger' FOR UPDATE")
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = asyncio.create_task(calls.append(write(4), 30.0))
    await until(lambda: beside.fetchval("SELECT bool_or(wait_event_type = 'Lock') FROM pg_stat_activity"))
    stuck = [asyncio.create_task(calls.append(write(4), 30.0)) for _ in range(50)]
    free = asyncio.create_task(calls.append(write(1, role="free"), 30.0))
    assert (await free).effect is Effect.APPLIED
    results = await asyncio.gather(first, *stuck, return_exceptions=True)
    assert [type(r) for r in results] == [Unavailable] * 51
    assert loop.time() - began < 12
    await transaction.rollback()
    assert (await calls.append(write(4), 5.0)).effect is Effect.APPLIED
