"""The safety rules that live in the store, one by one: R1, R2, R3, R5, R7, R9, R10, R11 and R12."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import Unavailable
from fencegate.fence import ClaimRefused, Effect, StoreClock, Verdict
from fencegate.observations import Observation, OrphanedMarkExpired
from fencegate.store import migrate
from fencegate.store.postgres import PostgresStore
from store.standby import Standby
from store.writing import HOLDER, ROLE, answer, bodies, forward, open_term, until, whole_ledger, write

LOCK = "SELECT 1 FROM fencegate.fence WHERE role = 'ledger' FOR UPDATE"
APPEND = "SELECT verdicts[1] FROM fencegate.append(ARRAY['ledger'], ARRAY[{}::bigint], ARRAY[0::bigint], ARRAY[true], \
ARRAY[1], '', decode(repeat('00', 16), 'hex'), decode(repeat('00', 16), 'hex'), '\"raw\"')"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def until_waiting(beside: asyncpg.Connection, count: int = 1) -> None:
    """Returns when so many sessions wait for a lock."""

    async def waiting() -> bool:
        return bool(await beside.fetchval(WAITING) >= count)

    await until(waiting)


async def until_past(beside: asyncpg.Connection) -> None:
    """Returns when the lease of the role has run out, by the store's own clock."""
    await until(
        lambda: beside.fetchval("SELECT clock_timestamp() >= valid_until FROM fencegate.fence WHERE role = 'ledger'")
    )


# -- R1 -----------------------------------------------------------------------------------------


async def test_r1_another_isolation_level_is_refused_inside_the_transaction(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await open_term(store, 1)
    for level in ("repeatable_read", "serializable"):
        with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED") as refused:
            async with beside.transaction(isolation=level):
                await beside.execute(APPEND.format(1))
        assert refused.value.sqlstate == "ZF501"
    assert await whole_ledger(store) == []


async def test_r1_a_database_that_defaults_to_another_isolation_is_served_all_the_same(
    store: PostgresStore, beside: asyncpg.Connection, make_store: Callable[..., Any]
) -> None:
    name = await beside.fetchval("SELECT current_database()")
    await beside.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    other = await make_store(gateway="gw-2")
    await open_term(other, 1)
    assert (await other.append(write(1), 5.0)).effect is Effect.APPLIED


# Field case 38: apache/bookkeeper#4701.
async def test_r1_the_check_sees_what_was_committed_during_the_lock_wait(
    store: PostgresStore, beside: asyncpg.Connection, connect: Callable[..., Any]
) -> None:
    await open_term(store, 1)
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE fencegate.fence SET max_token_seen = 2")
    stale = asyncio.create_task(store.append(write(1), 5.0))
    await until_waiting(beside)
    await transaction.commit()
    result = await stale
    assert (result.verdict, result.effect, result.max_token_seen) == (Verdict.STALE, None, 2)
    assert await whole_ledger(store) == []


# -- R2 -----------------------------------------------------------------------------------------


async def test_r2_the_clock_is_looked_at_after_the_lock_wait(
    store: PostgresStore, beside: asyncpg.Connection, connect: Callable[..., Any]
) -> None:
    await open_term(store, 1, valid_for=0.4)
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(LOCK)
    late = asyncio.create_task(store.append(write(1, key="k"), 5.0))
    await until_waiting(beside)
    await until_past(beside)
    await transaction.commit()
    result = await late
    assert (result.verdict, result.effect) == (Verdict.NOT_LEADING, None)
    assert await whole_ledger(store) == []
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 0


async def test_r2_the_clock_is_looked_at_last_even_after_a_slow_function(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await beside.execute("""
        CREATE TABLE done (n int);
        CREATE FUNCTION slow(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO done VALUES (1); PERFORM pg_sleep(0.7); RETURN '1'; END $$""")
    await open_term(store, 1, valid_for=0.4)
    result = await store.call("slow", write(1, key="k"), 5.0)
    assert (result.verdict, result.effect) == (Verdict.NOT_LEADING, None)
    assert await beside.fetchval("SELECT count(*) FROM done") == 0


@pytest.mark.parametrize("table", ["entry", "mark"])
async def test_r2_the_clock_is_looked_at_last_even_where_the_wait_comes_behind_the_check(
    store: PostgresStore, beside: asyncpg.Connection, connect: Callable[..., Any], table: str
) -> None:
    await open_term(store, 1)
    await store.append(write(1, b"0"), 5.0)  # so that the session is open before the short lease begins
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(f"LOCK TABLE fencegate.{table} IN SHARE MODE")  # takes no write
    await open_term(store, 2, valid_for=3.0)
    late = asyncio.create_task(store.append(write(2), 5.0) if table == "entry" else store.admit(forward(2), 5.0))
    await until_waiting(beside)
    await until_past(beside)
    await transaction.commit()
    assert (await late).verdict is Verdict.NOT_LEADING
    assert await bodies(store) == [b"0"]
    assert await beside.fetchval("SELECT count(*) FROM fencegate.mark") == 0


async def test_r2_a_lease_that_ends_between_two_groups_of_a_batch_stops_both(
    store: PostgresStore, beside: asyncpg.Connection, connect: Callable[..., Any]
) -> None:
    await store.ensure_roles({"zz": "lease"})
    await open_term(store, 1, role="zz")
    await store.append(write(1, role="zz"), 5.0)  # so that the session is open before the short lease begins
    await open_term(store, 1, valid_for=3.0)
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute(LOCK.replace("ledger", "zz"))
    # The first occupies the lane, so that the other two travel together and wait for the second role's lock.
    first = asyncio.create_task(store.append(write(1, b"0"), 5.0))
    await asyncio.sleep(0)
    both = [asyncio.create_task(store.append(write(1, b"1", role=role), 5.0)) for role in (ROLE, "zz")]
    await until_waiting(beside)
    await until_past(beside)
    await transaction.commit()
    late, good = await asyncio.gather(*both)
    assert (await first).effect is Effect.APPLIED
    assert (late.verdict, late.effect) == (Verdict.NOT_LEADING, None)
    assert good.effect is Effect.APPLIED
    assert await bodies(store) == [b"0"]


# -- R3 -----------------------------------------------------------------------------------------


async def test_r3_an_extension_never_shortens(store: PostgresStore) -> None:
    clock = await open_term(store, 1, valid_for=60)
    before = await store.read(ROLE)
    assert before is not None
    assert before.valid_until == pytest.approx(clock.now + 60, abs=1e-5)
    assert await store.extend(ROLE, 1, HOLDER, clock, 5) is None
    assert await store.claim(ROLE, 1, HOLDER, clock, 5) is None
    assert await store.read(ROLE) == before


async def test_r3_an_extension_counts_from_the_clock_read_before_the_quorum_was_asked(store: PostgresStore) -> None:
    clock = await open_term(store, 1, valid_for=1)
    earlier = StoreClock(clock.now - 3.0, clock.incarnation)
    assert await store.extend(ROLE, 1, HOLDER, earlier, 10) is None
    fence = await store.read(ROLE)
    assert fence is not None
    assert fence.valid_until == pytest.approx(clock.now + 7, abs=1e-5)


async def test_r3_an_extension_that_comes_after_its_own_end_is_none(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """The store's clock may have stepped ahead since it was read: an elector would announce a term that is closed."""
    clock = await open_term(store, 4, valid_for=3.0)
    late = StoreClock(clock.now - 10, clock.incarnation)
    assert await store.extend(ROLE, 4, HOLDER, late, 9) is None, "the lease that it has goes on"
    await until_past(beside)
    assert await store.extend(ROLE, 4, HOLDER, late, 9) is ClaimRefused.EXPIRED
    assert await store.extend(ROLE, 4, HOLDER, await store.clock(), 9) is None
    assert (await store.append(write(4), 5.0)).effect is Effect.APPLIED


async def test_r3_an_extension_is_refused_to_any_other_term_holder_or_incarnation(store: PostgresStore) -> None:
    clock = await open_term(store, 5)
    before = await store.read(ROLE)
    assert await store.extend(ROLE, 4, HOLDER, clock, 99) is ClaimRefused.SUPERSEDED
    assert await store.extend(ROLE, 6, HOLDER, clock, 99) is ClaimRefused.SUPERSEDED
    assert await store.extend(ROLE, 5, "us/gw-9", clock, 99) is ClaimRefused.SUPERSEDED
    other = StoreClock(clock.now, "1234/00000002")
    assert await store.extend(ROLE, 5, HOLDER, other, 99) is ClaimRefused.INCARNATION
    assert await store.extend("nowhere", 5, HOLDER, clock, 99) is ClaimRefused.NO_FENCE
    assert await store.read(ROLE) == before


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
async def test_r3_a_lease_without_end_is_refused_in_lease_mode(store: PostgresStore, seconds: float) -> None:
    clock = await store.clock()
    with pytest.raises(Unavailable, match="finite"):
        await store.claim(ROLE, 1, HOLDER, clock, seconds)
    await open_term(store, 1, valid_for=30)
    with pytest.raises(Unavailable, match="finite"):
        await store.extend(ROLE, 1, HOLDER, clock, seconds)
    fence = await store.read(ROLE)
    assert fence is not None
    assert fence.valid_until < clock.now + 60


# -- R5 -----------------------------------------------------------------------------------------


async def test_r5_a_claim_raises_the_fence_before_any_write(store: PostgresStore) -> None:
    await open_term(store, 4)
    fence = await store.read(ROLE)
    assert fence is not None
    assert (fence.max_token_seen, fence.holder, fence.sealed, fence.last_seq) == (4, HOLDER, 0, 0)
    assert (await store.append(write(3), 5.0)).verdict is Verdict.STALE


async def test_r5_a_claim_needs_a_higher_token_or_the_same_holder(store: PostgresStore) -> None:
    clock = await open_term(store, 4)
    before = await store.read(ROLE)
    assert await store.claim(ROLE, 3, HOLDER, clock, 60) is ClaimRefused.SUPERSEDED
    assert await store.claim(ROLE, 4, "us/gw-9", clock, 60) is ClaimRefused.SUPERSEDED
    assert await store.claim("nowhere", 9, HOLDER, clock, 60) is ClaimRefused.NO_FENCE
    assert await store.read(ROLE) == before
    assert await store.claim(ROLE, 4, HOLDER, clock, 60) is None
    assert await store.claim(ROLE, 5, "us/gw-9", clock, 60) is None


async def test_r5_a_claim_that_comes_after_its_own_lease_opens_nothing(store: PostgresStore) -> None:
    clock = await store.clock()
    late = StoreClock(clock.now - 10, clock.incarnation)
    assert await store.claim(ROLE, 4, HOLDER, late, 9) is ClaimRefused.EXPIRED
    assert (await store.append(write(4), 5.0)).verdict is Verdict.NOT_LEADING


async def test_r5_a_region_that_wins_again_does_not_revive_its_older_terms_writes(store: PostgresStore) -> None:
    await open_term(store, 4)
    await open_term(store, 9)
    assert (await store.append(write(4), 5.0)).verdict is Verdict.STALE
    assert (await store.append(write(9), 5.0)).effect is Effect.APPLIED


# -- R7 -----------------------------------------------------------------------------------------


async def test_r7_a_late_renewal_does_not_undo_the_seal(store: PostgresStore) -> None:
    clock = await open_term(store, 4)
    assert await store.seal(ROLE, 4, clock.incarnation)
    assert await store.extend(ROLE, 4, HOLDER, clock, 600) is ClaimRefused.SEALED
    assert await store.claim(ROLE, 4, HOLDER, clock, 600) is ClaimRefused.SEALED
    assert not await store.set_draining(ROLE, 4, True)
    assert (await store.append(write(4), 5.0)).verdict is Verdict.NOT_LEADING
    await open_term(store, 5)
    assert (await store.append(write(5), 5.0)).effect is Effect.APPLIED


# Field case 76: yandex/pgconsul#200.
async def test_r7_the_seal_waits_for_transactions_in_flight(store: PostgresStore, connect: Callable[..., Any]) -> None:
    clock = await open_term(store, 4)
    other, third = await connect(), await connect()
    transaction = other.transaction()
    await transaction.start()
    assert await other.fetchval(APPEND.format(4)) == Verdict.ADMIT
    sealing = asyncio.create_task(store.seal(ROLE, 4, clock.incarnation))
    await until_waiting(third)
    assert not sealing.done()
    await transaction.commit()
    assert await sealing
    assert await bodies(store) == [b'"raw"']


async def test_r7_the_seal_of_an_older_term_does_not_close_a_newer_one(store: PostgresStore) -> None:
    clock = await open_term(store, 4)
    await open_term(store, 6)
    assert await store.seal(ROLE, 4, clock.incarnation)
    assert (await store.append(write(6), 5.0)).effect is Effect.APPLIED
    assert await store.extend(ROLE, 6, HOLDER, clock, 60) is None


async def test_r7_a_term_sealed_before_its_claim_never_opens(store: PostgresStore) -> None:
    clock = await open_term(store, 4)
    assert not await store.seal(ROLE, 7, clock.incarnation), "it may be open at another server"
    assert await store.claim(ROLE, 7, HOLDER, clock, 60) is ClaimRefused.SEALED
    assert await store.claim(ROLE, 6, HOLDER, clock, 60) is ClaimRefused.SEALED
    await open_term(store, 8)


async def test_r7_the_seal_is_a_token_that_never_falls(store: PostgresStore) -> None:
    clock = await open_term(store, 4)
    await store.seal(ROLE, 4, clock.incarnation)
    await store.seal(ROLE, 2, clock.incarnation)
    fence = await store.read(ROLE)
    assert fence is not None
    assert (fence.sealed, fence.valid_until) == (4, -math.inf)


# -- R9 -----------------------------------------------------------------------------------------


async def test_r9_a_seal_does_not_count_in_a_row_that_knows_of_no_term_on_this_server(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    """Two standbys of one primary, promoted one after the other, are both on its next timeline and look the same. The
    second's row is as the primary left it, while the term is open at the first: another region must not open yet.
    """
    clock = await store.clock()
    for left_by_the_primary in ("''", "'1234/00000001'"):
        await beside.execute(f"UPDATE fencegate.fence SET max_token_seen = 4, incarnation = {left_by_the_primary}")
        assert not await store.seal(ROLE, 5, clock.incarnation)
    assert await store.claim(ROLE, 5, HOLDER, clock, 60) is ClaimRefused.SEALED, "it is sealed all the same"


async def test_r9_a_seal_does_not_count_where_only_an_earlier_term_was_claimed_on_this_server(
    store: PostgresStore,
) -> None:
    """The same two standbys: the earlier term was open at this one, the later at the other, which is still up."""
    clock = await open_term(store, 4)
    assert not await store.seal(ROLE, 5, clock.incarnation)
    assert await store.claim(ROLE, 5, HOLDER, clock, 60) is ClaimRefused.SEALED
    await open_term(store, 7)
    assert await store.seal(ROLE, 6, clock.incarnation), "over, since a later one was claimed here"


# Field case A20: EnterpriseDB/repmgr#475.
async def test_r9_another_incarnation_in_the_row_closes_every_way_in(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    clock = await open_term(store, 4)
    await beside.execute("UPDATE fencegate.fence SET incarnation = '1234/00000002'")
    assert (await store.append(write(4), 5.0)).verdict is Verdict.OTHER_INCARNATION
    assert (await store.admit(forward(4), 10.0)).verdict is Verdict.OTHER_INCARNATION
    assert (await store.peek(ROLE, 4, 10.0))[0] is Verdict.OTHER_INCARNATION
    assert await store.extend(ROLE, 4, HOLDER, clock, 60) is ClaimRefused.INCARNATION
    assert await store.claim(ROLE, 4, HOLDER, clock, 60) is ClaimRefused.INCARNATION
    assert not await store.seal(ROLE, 4, clock.incarnation), "a seal here says nothing of the server of the claim"
    assert await whole_ledger(store) == []
    assert await beside.fetchval("SELECT count(*) FROM fencegate.mark") == 0
    await open_term(store, 5)
    assert (await store.append(write(5), 5.0)).effect is Effect.APPLIED


async def test_r9_a_promoted_standby_is_closed_until_a_new_term(
    primary: EmbeddedPostgres, standby: Standby, make_store: Callable[..., Any]
) -> None:
    old: PostgresStore = await make_store(primary.dsn)
    await old.ensure_roles({ROLE: "lease"})
    await standby.start()
    clock = await open_term(old, 4, valid_for=600)
    assert (await old.append(write(4, key="k"), 5.0)).effect is Effect.APPLIED
    await standby.caught_up()
    await standby.promote()
    new: PostgresStore = await make_store(standby.dsn)
    promoted = await new.clock()
    assert promoted.incarnation.split("/")[0] == clock.incarnation.split("/")[0]
    assert promoted.incarnation.split("/")[1] > clock.incarnation.split("/")[1]
    refused = await new.append(write(4), 5.0)
    assert (refused.verdict, refused.effect) == (Verdict.OTHER_INCARNATION, None)
    assert (await new.append(write(4, key="k"), 5.0)).effect is Effect.REPLAYED
    with pytest.raises(Unavailable, match="since its clock was read"):
        await new.extend(ROLE, 4, HOLDER, clock, 60)
    # The incarnation refuses by itself, where nobody can tell when the server was started.
    assert await new.extend(ROLE, 4, HOLDER, replace(clock, started=""), 60) is ClaimRefused.INCARNATION
    assert await new.extend(ROLE, 4, HOLDER, promoted, 60) is ClaimRefused.INCARNATION
    assert await new.claim(ROLE, 4, HOLDER, promoted, 60) is ClaimRefused.INCARNATION
    assert not await new.seal(ROLE, 3, clock.incarnation)
    await open_term(new, 5)
    assert (await new.append(write(5), 5.0)).effect is Effect.APPLIED


async def test_r9_a_second_standby_of_the_same_timeline_is_told_by_its_start(
    primary: EmbeddedPostgres, standby: Standby, make_store: Callable[..., Any], tmp_path: Path
) -> None:
    """Two standbys of one primary, each promoted without having heard of the other: one incarnation, two servers."""
    second = Standby(primary, tmp_path / "second")
    old: PostgresStore = await make_store(primary.dsn)
    await old.ensure_roles({ROLE: "lease"})
    await standby.start()
    await standby.caught_up()
    await standby.promote()
    try:
        await second.make()
        await second.start()
        await second.promote()
        stores: list[PostgresStore] = [await make_store(each.dsn) for each in (standby, second)]
        first, twin = [await store.clock() for store in stores]
        assert (first.incarnation, bool(first.started)) == (twin.incarnation, True)
        for term in (stores[1].claim, stores[1].extend):
            with pytest.raises(Unavailable, match="since its clock was read"):
                await term(ROLE, 4, HOLDER, first, 60)
        assert await stores[0].claim(ROLE, 4, HOLDER, first, 60) is None
        assert (await stores[1].append(write(4), 5.0)).verdict is Verdict.NOT_LEADING
    finally:
        await second.remove()


# Field case 35: EnterpriseDB/repmgr#475, dolthub/dolt#9725, instantdb/instant#2764.
async def test_r9_a_standby_that_lacks_the_last_raise_admits_no_older_token(
    primary: EmbeddedPostgres, standby: Standby, make_store: Callable[..., Any]
) -> None:
    old: PostgresStore = await make_store(primary.dsn)
    await old.ensure_roles({ROLE: "lease", "shared": "token"})
    await open_term(old, 4, valid_for=600, holder="eu/gw-4")
    await open_term(old, 4, role="shared", valid_for=math.inf, holder="eu/app-4")
    await standby.start()
    await standby.caught_up()
    await standby.stop()
    clock = await open_term(old, 5, valid_for=600, holder="eu/gw-5")
    await open_term(old, 5, role="shared", valid_for=math.inf, holder="eu/app-5")
    await standby.start(streaming=False)
    await standby.promote()
    new: PostgresStore = await make_store(standby.dsn)
    promoted = await new.clock()
    fence = await new.read(ROLE)
    assert fence is not None
    assert fence.max_token_seen == 4, "the raise to 5 is lost"
    for role in (ROLE, "shared"):
        for token in (4, 5):
            result = await new.append(write(token, role=role, issued=5), 5.0)
            assert (result.verdict, result.effect) == (Verdict.OTHER_INCARNATION, None)
    assert await new.extend(ROLE, 4, "eu/gw-4", promoted, 60) is ClaimRefused.INCARNATION
    assert await new.claim(ROLE, 4, "eu/gw-4", promoted, 60) is ClaimRefused.INCARNATION
    assert await new.extend(ROLE, 5, "eu/gw-5", replace(clock, started=""), 60) is ClaimRefused.SUPERSEDED
    # Token mode: re-seeded with the highest token issued, and only then open.
    assert await new.claim("shared", 5, "eu/app-5", promoted, math.inf) is None
    assert (await new.append(write(4, role="shared", issued=5), 5.0)).verdict is Verdict.STALE
    assert (await new.append(write(5, role="shared"), 5.0)).effect is Effect.APPLIED


async def test_r9_token_mode_is_seeded_again_with_the_same_term_after_a_failover(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await store.ensure_roles({"shared": "token"})
    await open_term(store, 4, role="shared", valid_for=math.inf)
    await beside.execute("UPDATE fencegate.fence SET incarnation = '1234/00000002' WHERE role = 'shared'")
    assert (await store.append(write(4, role="shared"), 5.0)).verdict is Verdict.OTHER_INCARNATION
    await open_term(store, 4, role="shared", valid_for=math.inf)
    assert (await store.append(write(4, role="shared"), 5.0)).effect is Effect.APPLIED


# -- R10 ----------------------------------------------------------------------------------------


async def test_r10_the_fence_is_never_deleted_and_never_lowered(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    clock = await open_term(store, 4)
    await store.append(write(4), 5.0)
    await store.seal(ROLE, 2, clock.incarnation)
    before = await store.read(ROLE)
    for statement in (
        "DELETE FROM fencegate.fence",
        "TRUNCATE fencegate.fence",
        "UPDATE fencegate.fence SET max_token_seen = 3",
        "UPDATE fencegate.fence SET sealed = 1",
        "UPDATE fencegate.fence SET last_seq = 0",
        "UPDATE fencegate.fence SET role = 'another'",
    ):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await beside.execute(statement)
        assert refused.value.sqlstate == "ZF500", statement
    assert await store.read(ROLE) == before


# Field case 39: apache/bookkeeper#4462.
async def test_r10_a_missing_row_is_closed_and_is_not_made_by_asking(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await beside.execute("CREATE FUNCTION f(jsonb, jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';")
    clock = await store.clock()
    missing = {"role": "never-made"}
    assert (await store.append(write(9, key="k", **missing), 5.0)).verdict is Verdict.NO_FENCE
    assert (await store.call("f", write(9, key="k", **missing), 5.0)).verdict is Verdict.NO_FENCE
    assert (await store.admit(forward(9, key="k", **missing), 10.0)).verdict is Verdict.NO_FENCE
    assert await store.peek("never-made", 9, 10.0) == (Verdict.NO_FENCE, None)
    assert await store.claim("never-made", 9, HOLDER, clock, 60) is ClaimRefused.NO_FENCE
    assert not await store.seal("never-made", 9, clock.incarnation)
    assert not await store.set_draining("never-made", 9, True)
    assert await store.read("never-made") is None
    assert [fence.role for fence in await store.read_all()] == [ROLE]


async def test_r10_a_token_of_an_issuer_gone_back_is_refused(store: PostgresStore) -> None:
    clock = await open_term(store, 1200)
    assert await store.claim(ROLE, 900, "us/gw-9", clock, 60) is ClaimRefused.SUPERSEDED
    fence = await store.read(ROLE)
    assert fence is not None
    assert fence.max_token_seen == 1200


# -- R11 ----------------------------------------------------------------------------------------

FORGED = 2**63 - 1


async def test_r11_a_token_never_issued_does_not_raise_the_fence(store: PostgresStore) -> None:
    await store.ensure_roles({"shared": "token"})
    await open_term(store, 4, role="shared", valid_for=math.inf)
    result = await store.append(write(FORGED, role="shared", issued=4), 5.0)
    assert (result.verdict, result.effect, result.max_token_seen) == (Verdict.ABOVE, None, 4)
    assert (await store.append(write(5, role="shared"), 5.0)).verdict is Verdict.ABOVE
    assert (await store.admit(forward(FORGED, role="shared", issued=4), 10.0)).verdict is Verdict.ABOVE
    assert (await store.append(write(4, role="shared"), 5.0)).effect is Effect.APPLIED


async def test_r11_in_token_mode_an_issued_token_raises_and_its_holder_may_still_claim(store: PostgresStore) -> None:
    await store.ensure_roles({"shared": "token"})
    clock = await open_term(store, 4, role="shared", valid_for=math.inf)
    result = await store.append(write(6, role="shared", issued=6), 5.0)
    assert (result.effect, result.max_token_seen) == (Effect.APPLIED, 6)
    assert (await store.append(write(5, role="shared", issued=6), 5.0)).verdict is Verdict.STALE
    assert await store.claim("shared", 6, "eu/app-6", clock, math.inf) is None
    assert await store.claim("shared", 6, "eu/app-7", clock, math.inf) is ClaimRefused.SUPERSEDED
    assert (await store.admit(forward(7, role="shared", issued=7), 10.0)).effect is Effect.APPLIED
    assert await store.claim("shared", 7, "eu/app-7", clock, math.inf) is None


async def test_r11_in_lease_mode_no_write_ever_raises(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await beside.execute("CREATE FUNCTION f(jsonb, jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';")
    await open_term(store, 4)
    assert (await store.append(write(5, issued=FORGED), 5.0)).verdict is Verdict.ABOVE
    assert (await store.call("f", write(5, issued=FORGED), 5.0)).verdict is Verdict.ABOVE
    assert (await store.admit(forward(5, issued=FORGED), 10.0)).verdict is Verdict.ABOVE
    fence = await store.read(ROLE)
    assert fence is not None
    assert fence.max_token_seen == 4


# -- R12 ----------------------------------------------------------------------------------------


async def test_r12_the_mark_is_committed_before_the_gateway_may_forward(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await open_term(store, 4)
    admission = await store.admit(forward(4), 10.0)
    assert (admission.effect, admission.ticket > 0) == (Effect.APPLIED, True)
    [mark] = await beside.fetch("SELECT token, expires_at - clock_timestamp() AS left FROM fencegate.mark")
    assert mark["token"] == 4
    assert mark["left"].total_seconds() > 5, "it stands for longer than the upstream's limit"
    assert await store.in_flight(ROLE, 4) == 1
    assert await store.in_flight(ROLE, 3) == 0


async def test_r12_a_refused_forward_leaves_no_mark(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await open_term(store, 4)
    assert (await store.admit(forward(3, key="k"), 10.0)).verdict is Verdict.STALE
    assert await beside.fetchval("SELECT count(*) FROM fencegate.mark") == 0
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 0


# Field case 60: sorintlab/stolon#310.
async def test_r12_every_write_of_a_newer_term_waits_until_all_gateways_have_drained(
    store: PostgresStore, make_store: Callable[..., Any]
) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    await open_term(store, 4)
    here, there = await store.admit(forward(4), 10.0), await other.admit(forward(4), 10.0)
    await open_term(store, 5)
    assert (await store.admit(forward(4), 10.0)).verdict is Verdict.STALE
    waiting = [asyncio.create_task(s.admit(forward(5), 5.0)) for s in (store, other) for _ in range(3)]
    await store.settle(here.ticket, answer())
    done, _ = await asyncio.wait(waiting, timeout=0.4)
    assert not done, "the other gateway's older write is still under way"
    await other.settle(there.ticket, answer())
    assert [a.effect for a in await asyncio.gather(*waiting)] == [Effect.APPLIED] * 6


async def test_r12_a_newer_write_that_waits_too_long_is_told_draining(store: PostgresStore) -> None:
    await open_term(store, 4)
    await store.admit(forward(4), 10.0)
    await open_term(store, 5)
    # Of so many different ends some fall between a look at the marks and its answer.
    waiting = await asyncio.gather(*(store.admit(forward(5), 0.2 + 0.001 * n) for n in range(60)))
    assert {(admission.verdict, admission.effect) for admission in waiting} == {(Verdict.DRAINING, None)}


async def test_r12_a_mark_left_by_a_crash_blocks_until_the_upstreams_limit_and_is_then_counted(
    store: PostgresStore, beside: asyncpg.Connection, make_store: Callable[..., Any]
) -> None:
    seen: list[Observation] = []
    next_one: PostgresStore = await make_store(gateway="gw-2", observe=seen.append)
    await open_term(store, 4)
    await store.admit(forward(4, upstream_limit=0.1), 10.0)
    stands_until = await beside.fetchval("SELECT extract(epoch FROM expires_at)::float8 FROM fencegate.mark")
    await open_term(next_one, 5)
    assert (await next_one.admit(forward(5), 5.0)).effect is Effect.APPLIED
    assert (await next_one.clock()).now >= stands_until
    assert [o for o in seen if isinstance(o, OrphanedMarkExpired)] == [OrphanedMarkExpired(ROLE, 5)]


async def test_r12_a_removal_that_the_server_carries_out_late_takes_no_newer_mark_away(
    store: PostgresStore, beside: asyncpg.Connection, connect: Callable[..., Any]
) -> None:
    """The removal of a mark hangs, we give up on it and admit again: when it goes through, the new mark stays."""
    fast: PostgresStore = store
    await open_term(fast, 4)
    first = await fast.admit(forward(4), 10.0)
    [old] = await beside.fetch("SELECT gateway FROM fencegate.mark")
    await fast.settle(first.ticket, answer())
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))
    assert (await fast.admit(forward(4), 10.0)).effect is Effect.APPLIED
    # What a late removal would do: the very statement, with the name of the mark's earlier life.
    await beside.execute("DELETE FROM fencegate.mark WHERE gateway = $1", old["gateway"])
    assert await fast.in_flight(ROLE, 4) == 1


async def test_r12_admissions_and_removals_that_race_never_leave_a_write_without_its_mark(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await open_term(store, 4)

    async def one(n: int) -> None:
        for _ in range(6):
            admission = await store.admit(forward(4), 5.0)
            assert admission.effect is Effect.APPLIED
            assert await beside_counts() >= 1
            await asyncio.sleep(0.001 * n)
            assert await beside_counts() >= 1
            await store.settle(admission.ticket, answer())
            await asyncio.sleep(0.1)

    lock = asyncio.Lock()

    async def beside_counts() -> int:
        async with lock:
            return int(await beside.fetchval("SELECT count(*) FROM fencegate.mark"))

    await asyncio.gather(*(one(n) for n in range(5)))
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))


async def test_r12_a_gateway_that_closes_takes_its_idle_marks_along(
    store: PostgresStore, dsn: str, beside: asyncpg.Connection
) -> None:
    await open_term(store, 4)
    other = await PostgresStore.open(dsn, gateway="gw-2", monitor_period=60.0)
    admission = await other.admit(forward(4), 10.0)
    await other.settle(admission.ticket, answer())
    await other.close()
    assert await beside.fetchval("SELECT count(*) FROM fencegate.mark") == 0


# -- durable ------------------------------------------------------------------------------------


# Field case 43: oxia-db/oxia#87.
async def test_a_database_with_synchronous_commit_off_is_refused(
    store: PostgresStore, beside: asyncpg.Connection, make_store: Callable[..., Any]
) -> None:
    name = await beside.fetchval("SELECT current_database()")
    await beside.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    other: PostgresStore = await make_store(gateway="gw-2")
    assert not other.up
    with pytest.raises(Unavailable, match="synchronous_commit = off"):
        await other.append(write(1), 5.0)
    with pytest.raises(Unavailable, match="synchronous_commit = off"):
        await other.clock()


async def test_synchronous_commit_turned_off_inside_the_session_is_refused(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await open_term(store, 1)
    await beside.execute("SET synchronous_commit = off")
    for statement in (
        APPEND.format(1),
        "SELECT fencegate.claim('ledger', 2, 'x', now(), 60, fencegate.incarnation())",
        "SELECT fencegate.extend('ledger', 1, 'eu/gw-1', now(), 60, fencegate.incarnation())",
        "SELECT fencegate.seal('ledger', 1, fencegate.incarnation())",
    ):
        with pytest.raises(asyncpg.PostgresError, match="synchronous_commit") as refused:
            await beside.execute(statement)
        assert refused.value.sqlstate == "ZF501"


async def test_a_server_with_fsync_off_is_refused(
    make_postgres: Callable[..., EmbeddedPostgres], make_store: Callable[..., Any]
) -> None:
    server = make_postgres("loose", settings={"fsync": "off"})
    await server.start()
    await migrate.apply(server.dsn)
    store: PostgresStore = await make_store(server.dsn)
    assert not store.up
    with pytest.raises(Unavailable, match="fsync = off"):
        await store.append(write(1), 5.0)
