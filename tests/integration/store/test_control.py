"""What the elector and the admin pages ask of a store, and that no flood of writes keeps them waiting."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from fencegate.errors import FencegateError, Unavailable
from fencegate.fence import Effect, Fence, Verdict
from fencegate.lease import LeaseTimings
from fencegate.observations import FenceSeen, KeysExpired, Observation, OrphanedMarkExpired
from fencegate.store.control import EXPIRE, Control
from fencegate.store.link import Server
from fencegate.store.postgres import PostgresStore
from store.writing import HOLDER, ROLE, forward, open_term, until, write


async def test_a_role_begins_closed_and_is_made_once(store: PostgresStore, beside: asyncpg.Connection) -> None:
    assert await store.read(ROLE) == Fence(ROLE, "lease", 0, 0, -math.inf, "", "")
    number = await beside.fetchval("SELECT role_id FROM fencegate.fence")
    for _ in range(3):
        await store.ensure_roles({ROLE: "lease"})
    await store.ensure_roles({ROLE: "lease", "b": "token"})
    assert [(f.role, f.mode) for f in await store.read_all()] == [("b", "token"), (ROLE, "lease")]
    assert await store.read_some(["b", "nobody"]) == [await store.read("b")]
    assert await beside.fetchval("SELECT role_id FROM fencegate.fence WHERE role = 'b'") == number + 1


async def test_a_role_cannot_change_its_mode(store: PostgresStore) -> None:
    with pytest.raises(FencegateError, match=f"role {ROLE} was made for the other mode"):
        await store.ensure_roles({ROLE: "token", "new": "token"})


async def test_the_stores_clock_is_the_servers_own(store: PostgresStore, beside: asyncpg.Connection) -> None:
    before = await beside.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    clock = await store.clock()
    assert before <= clock.now <= await beside.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    assert clock.incarnation == await beside.fetchval("SELECT fencegate.incarnation()")


async def test_draining_stops_new_writes_of_its_own_term_until_taken_back(store: PostgresStore) -> None:
    clock = await open_term(store, 4)
    assert not await store.set_draining(ROLE, 3, True)
    assert not await store.set_draining(ROLE, 5, True)
    assert await store.set_draining(ROLE, 4, True)
    assert (await store.append(write(4), 5.0)).verdict is Verdict.DRAINING
    assert (await store.admit(forward(4), 10.0)).verdict is Verdict.DRAINING
    assert await store.extend(ROLE, 4, HOLDER, clock, 60) is None, "a draining term is still renewed"
    assert await store.set_draining(ROLE, 4, False)
    assert (await store.append(write(4), 5.0)).effect is Effect.APPLIED
    await store.set_draining(ROLE, 4, True)
    await open_term(store, 5)
    assert (await store.append(write(5), 5.0)).effect is Effect.APPLIED


async def test_marks_of_terms_up_to_a_token_are_counted(store: PostgresStore, make_store: Callable[..., Any]) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    await open_term(store, 4)
    await store.admit(forward(4), 10.0)
    await other.admit(forward(4), 10.0)
    assert [await store.in_flight(ROLE, token) for token in (3, 4, 5)] == [0, 2, 2]


async def test_a_mark_that_expired_is_counted_once_and_removed(
    make_store: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    """The writes of the crashed gateway ended without anybody to say so; the end of the term finds its mark."""
    seen: list[Observation] = []
    store: PostgresStore = await make_store(observe=seen.append)
    crashed: PostgresStore = await make_store(gateway="gw-2")
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 4)
    await store.admit(forward(4), 10.0)
    await crashed.admit(forward(4), 10.0)
    assert await store.in_flight(ROLE, 4) == 2
    await beside.execute("UPDATE fencegate.mark SET expires_at = clock_timestamp() WHERE gateway LIKE 'gw-2%'")
    assert [await store.in_flight(ROLE, token) for token in (3, 4, 4)] == [0, 1, 1]
    assert [fact for fact in seen if isinstance(fact, OrphanedMarkExpired)] == [OrphanedMarkExpired(ROLE, 4)]
    assert await beside.fetchval("SELECT count(*) FROM fencegate.mark") == 1


async def test_keys_expire_by_age_and_running_ones_stay(store: PostgresStore, beside: asyncpg.Connection) -> None:
    seen: list[Observation] = []
    store._observe = seen.append
    await open_term(store, 4)
    await asyncio.gather(*(store.append(write(4, key=f"k-{n}"), 5.0) for n in range(50)))
    await store.admit(forward(4, key="running", upstream_limit=60.0), 10.0)
    assert await store.expire_keys(3600) == 0
    await beside.execute("UPDATE fencegate.idempotency_key SET created_at = created_at - interval '2 hours'")
    await store.append(write(4, key="young"), 5.0)
    assert await store.expire_keys(3600) == 50
    assert [fact for fact in seen if isinstance(fact, KeysExpired)] == [KeysExpired(50)]
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 2
    assert (await store.append(write(4, key="young"), 5.0)).effect is Effect.REPLAYED
    assert (await store.append(write(4, key="k-1"), 5.0)).effect is Effect.APPLIED


async def test_no_key_expires_by_a_step_of_the_stores_clock_alone(
    store: PostgresStore, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step ahead by a day would drop every key at once, and each repetition be a new write."""
    await open_term(store, 4)
    await store.append(write(4, key="k"), 5.0)
    await beside.execute("UPDATE fencegate.idempotency_key SET created_at = created_at - interval '2 hours'")
    now = time.time()
    monkeypatch.setattr("fencegate.store.control.wall_clock", lambda: now - 5400)  # to us it is half an hour old
    assert await store.expire_keys(3600) == 0
    assert (await store.append(write(4, key="k"), 5.0)).effect is Effect.REPLAYED
    monkeypatch.setattr("fencegate.store.control.wall_clock", lambda: now + 86400)
    assert await store.expire_keys(10_000) == 0, "nor by one of ours"
    assert await store.expire_keys(3600) == 1


async def test_a_great_many_keys_expire_in_short_transactions(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await beside.execute("""
        INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, seq)
        SELECT 1, int8send(n) || int8send(n), '', 1, now() - interval '2 days', n FROM generate_series(1, 5001) n""")
    assert await store.expire_keys(86400) == 5001


async def test_expiry_does_not_read_the_keys_that_stay(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await beside.execute("""
        INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, seq)
        SELECT 1, int8send(n) || int8send(n), '', 1, now() - make_interval(days => n % 100 / 99 * 2), n
          FROM generate_series(1, 5000) n;
        ANALYZE fencegate.idempotency_key""")
    now = datetime.now(UTC)
    plan = "\n".join(row[0] for row in await beside.fetch("EXPLAIN (ANALYZE, COSTS OFF) " + EXPIRE, 86400.0, 2000, now))
    assert "Index Cond: (created_at <" in plan, plan
    assert "Rows Removed" not in plan
    assert await store.expire_keys(86400) == 0, "all 50 that were old are gone"
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 4950


async def test_the_survey_of_all_fences_changes_with_a_token_and_not_with_a_write(
    store: PostgresStore, dsn: str
) -> None:
    control = Control(dsn, Server(), sessions=1, limit=5.0, connect_limit=5.0)
    _, before = await control.survey()
    await open_term(store, 1)
    _, claimed = await control.survey()
    await store.append(write(1), 5.0)
    _, written = await control.survey()
    assert await store.set_draining(ROLE, 1, True)
    _, draining = await control.survey()
    assert before != claimed == written != draining
    await control.close()


async def test_a_renewal_gets_through_a_flood_of_writes_in_time(
    store: PostgresStore, make_store: Callable[..., Any]
) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    clock = await open_term(store, 1)
    stop = asyncio.Event()

    async def flood(n: int) -> None:
        while not stop.is_set():
            await (store, other)[n % 2].append(write(1), 10.0)

    floods = [asyncio.create_task(flood(n)) for n in range(200)]
    await asyncio.sleep(0.2)
    loop = asyncio.get_running_loop()
    waits = []
    for _ in range(10):
        began = loop.time()
        assert await store.extend(ROLE, 1, HOLDER, clock, 60) is None
        waits.append(loop.time() - began)
    await open_term(other, 2)
    stop.set()
    await asyncio.gather(*floods)
    assert max(waits) < LeaseTimings().renew_deadline / 2, "in time, as timed by default"


async def test_a_role_whose_lock_is_held_delays_no_other_roles_renewal(
    make_store: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    store: PostgresStore = await make_store(control_limit=4.0)
    await store.ensure_roles({ROLE: "lease", "stuck": "lease"})
    clock = await open_term(store, 1)
    holder = await connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT 1 FROM fencegate.fence WHERE role = 'stuck' FOR UPDATE")
    stuck = asyncio.create_task(store.claim("stuck", 1, HOLDER, clock, 60))
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await store.extend(ROLE, 1, HOLDER, clock, 60) is None
    assert loop.time() - began < 3.0
    with pytest.raises(Unavailable):
        await stuck
    assert loop.time() - began < 7.0
    await transaction.rollback()


async def test_the_elector_is_told_when_every_session_is_busy(
    make_store: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    store: PostgresStore = await make_store(control_limit=2.5)
    await store.ensure_roles({ROLE: "lease"})
    clock = await store.clock()
    holder = await connect()
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT 1 FROM fencegate.fence FOR UPDATE")
    loop = asyncio.get_running_loop()
    began = loop.time()
    results = await asyncio.gather(*(store.claim(ROLE, 1, HOLDER, clock, 60) for _ in range(9)), return_exceptions=True)
    assert [type(r) for r in results] == [Unavailable] * 9
    assert loop.time() - began < 6.0
    await transaction.rollback()
    await open_term(store, 1)


async def test_what_changes_in_a_fence_is_observed_once(make_store: Callable[..., Any]) -> None:
    seen: list[Observation] = []
    store: PostgresStore = await make_store(observe=seen.append, monitor_period=0.05)
    await store.ensure_roles({ROLE: "lease"})

    def fences() -> list[Observation]:
        return [o for o in seen if isinstance(o, FenceSeen)]

    async def count(n: int) -> bool:
        return len(fences()) >= n

    await until(lambda: count(1))
    await open_term(store, 4)
    await until(lambda: count(2))
    await store.set_draining(ROLE, 4, True)
    await until(lambda: count(3))
    await asyncio.sleep(0.2)
    assert fences() == [FenceSeen(ROLE, 0, False), FenceSeen(ROLE, 4, False), FenceSeen(ROLE, 4, True)]


async def test_a_peek_applies_nothing(store: PostgresStore) -> None:
    await open_term(store, 4)
    before = await store.read(ROLE)
    verdicts = [(await store.peek(ROLE, token, 10.0))[0] for token in (3, 4, 5)]
    assert verdicts == [Verdict.STALE, Verdict.ADMIT, Verdict.ABOVE]
    assert await store.read(ROLE) == before
