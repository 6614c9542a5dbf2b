"""The election over a session lock: poolers, sessions that end, and links that fall silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from fencegate.election.postgres_advisory import PostgresAdvisoryElection, lock_key
from fencegate.lease import Candidate, ElectionUnavailable, Held, LeaseLost, LeaseTimings, SealRecord, Won
from fencegate.store import migrate

SHORT = LeaseTimings(3, 2, 0.4, 0.2)
LIMIT = 20.0
"""Seconds that a call may take, and what is waited for: servers that are well need a thousandth of it."""
ROLE = "ledger"
EU = Candidate("gw-eu", "eu", "https://eu.example")
DR = Candidate("gw-dr", "dr", "https://dr.example")

Join = Callable[..., PostgresAdvisoryElection]


@pytest.fixture
async def dsn(fresh_dsn: str) -> str:
    await migrate.apply(fresh_dsn)
    return fresh_dsn


@pytest.fixture
async def join(dsn: str) -> AsyncIterator[Join]:
    made: list[PostgresAdvisoryElection] = []

    def make(address: str = "", timings: LeaseTimings = SHORT) -> PostgresAdvisoryElection:
        made.append(PostgresAdvisoryElection(address or dsn, timings))
        return made[-1]

    yield make
    for election in made:
        await election.close()


@pytest.fixture
async def beside(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    connection.terminate()


async def lead(election: PostgresAdvisoryElection, who: Candidate = EU) -> int:
    won = await election.acquire(ROLE, who, LIMIT)
    assert isinstance(won, Won)
    await election.renew(ROLE, won.token, who, active=True, deadline=LIMIT)
    return won.token


async def until_won(election: PostgresAdvisoryElection, who: Candidate, within: float) -> int:
    async with asyncio.timeout(within):
        while not isinstance(won := await election.acquire(ROLE, who, LIMIT), Won):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return won.token


async def lock_holder(beside: asyncpg.Connection) -> int | None:
    """The backend that holds the role's lock."""
    key = lock_key(ROLE)
    pid = await beside.fetchval(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND ((classid::bigint << 32) | objid::bigint) = $1",
        key,
    )
    return None if pid is None else int(pid)


async def until_free(beside: asyncpg.Connection, within: float) -> None:
    async with asyncio.timeout(within):
        while await lock_holder(beside) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# -- poolers --------------------------------------------------------------------------------------


OURS = (
    "idle_session_timeout, idle_in_transaction_session_timeout, tcp_user_timeout, tcp_keepalives_idle,"
    " tcp_keepalives_interval, tcp_keepalives_count, default_transaction_isolation, statement_timeout"
)


# Field case 49: pgbouncer/pgbouncer#102, pgbouncer/pgbouncer#418, pgbouncer/pgbouncer#617, goauthentik/authentik#23876,
#   PostHog/posthog#66932, pgdogdev/pgdog#1407.
@pytest.mark.parametrize("lenient", [False, True])
async def test_a_transaction_pooler_in_the_way_is_found_out_and_refused(
    dsn: str, make_pgbouncer: Callable[..., str], join: Join, lenient: bool
) -> None:
    options = {"ignore_startup_parameters": OURS} if lenient else {}
    address = make_pgbouncer(dsn, pool_mode="transaction", **options)
    with pytest.raises(ElectionUnavailable, match="a pooler stands between") as caught:
        await join(address).acquire(ROLE, EU, LIMIT)

    assert caught.value.cause == "refused"


# -- sessions that end ----------------------------------------------------------------------------


async def test_the_leader_holds_the_lock_and_a_release_frees_it(join: Join, beside: asyncpg.Connection) -> None:
    election = join()
    token = await lead(election)
    assert await lock_holder(beside) is not None
    assert await election.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
    assert await lock_holder(beside) is None


async def test_a_session_that_ended_frees_the_lock_but_not_the_lease(join: Join, beside: asyncpg.Connection) -> None:
    election, rival = join(), join()
    renewed = time.monotonic()
    token = await lead(election)
    assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)
    await beside.execute("SELECT pg_terminate_backend($1)", await lock_holder(beside))
    await until_free(beside, LIMIT)

    newer = await until_won(rival, DR, LIMIT)

    assert newer > token
    assert time.monotonic() - renewed >= SHORT.lease_duration
    with pytest.raises(LeaseLost):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)


# Field case 27: neochaotic/leoflow#1199.
async def test_a_lost_link_costs_the_session_and_not_the_term(join: Join, beside: asyncpg.Connection) -> None:
    election = join()
    token = await lead(election)
    first = await lock_holder(beside)
    await beside.execute("SELECT pg_terminate_backend($1)", first)
    await until_free(beside, LIMIT)

    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
                break
            except ElectionUnavailable:
                await asyncio.sleep(0.05)

    assert await lock_holder(beside) not in (None, first)
    assert (await election.acquire(ROLE, EU, LIMIT)) == Won(token)


async def test_a_renewal_without_the_lock_is_refused_while_another_session_holds_it(
    join: Join, beside: asyncpg.Connection
) -> None:
    election = join()
    token = await lead(election)
    await beside.execute("SELECT pg_terminate_backend($1)", await lock_holder(beside))
    await until_free(beside, LIMIT)
    assert await beside.fetchval("SELECT pg_try_advisory_lock($1)", lock_key(ROLE))
    await asyncio.sleep(0.1)

    for _ in range(2):
        with pytest.raises(ElectionUnavailable):
            await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_a_lock_that_vanished_within_a_living_session_is_noticed(join: Join, beside: asyncpg.Connection) -> None:
    election = join()
    token = await lead(election)
    session = election._sessions[ROLE]
    assert session.connection is not None
    await session.connection.execute("SELECT pg_advisory_unlock_all()")  # as a pooler's DISCARD ALL would

    with pytest.raises(ElectionUnavailable):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    assert await lock_holder(beside) is not None


# Field case 26: GreptimeTeam/greptimedb#7670, nicolastakashi/prom-analytics-proxy#585.
async def test_a_call_that_is_cancelled_in_the_middle_leaves_no_lock_behind(
    join: Join, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = join()

    async def hang(*_: Any) -> bool:
        session = election._sessions[ROLE]
        assert session.connection is not None
        await session.connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_key(ROLE))
        await session.connection.execute("SELECT pg_sleep(60)")
        return True

    monkeypatch.setattr("fencegate.election.postgres_advisory._locked", hang)
    call = asyncio.create_task(election.acquire(ROLE, EU, 30))
    async with asyncio.timeout(LIMIT):
        while await lock_holder(beside) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    # The backend sleeps in its statement: the statement's own limit of one lease ends it at the latest.
    await until_free(beside, LIMIT)


async def test_who_withdraws_keeps_no_lock_although_its_place_in_line_could_not_be_given_up(
    join: Join, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, ours = join(timings=LeaseTimings()), join(timings=LeaseTimings())
    token = await lead(first, DR)
    assert isinstance(await ours.acquire(ROLE, EU, LIMIT), Held)
    await first.release(ROLE, token, SealRecord(token, "dr"), LIMIT)
    await lead(ours)
    assert await lock_holder(beside) is not None

    async def refused(*_: Any) -> Any:
        raise ElectionUnavailable("the server lets nobody in", "connection")

    monkeypatch.setattr(ours, "_fetch", refused)
    with pytest.raises(ElectionUnavailable):
        await ours.withdraw(ROLE, LIMIT)
    await until_free(beside, LIMIT)


# Field case 28: liquibase/liquibase#872, madelson/DistributedLock#230.
async def test_a_silent_holder_loses_the_lock_to_the_servers_own_clock(join: Join, beside: asyncpg.Connection) -> None:
    election = join()
    await lead(election)
    await until_free(beside, LIMIT)


async def test_whoever_listens_is_not_ended_for_saying_nothing(join: Join) -> None:
    """The limit on silence is for sessions that hold a lock."""
    watcher, holder = join(), join()
    hinted = asyncio.ensure_future(anext(watcher.changes(ROLE), "the link was lost"))
    await asyncio.sleep(SHORT.lease_duration + 0.7)

    assert not hinted.done()
    await lead(holder)
    async with asyncio.timeout(LIMIT):
        assert await hinted is None


async def test_a_call_under_way_at_the_close_takes_no_lock_and_leaves_no_session(
    join: Join, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = join(timings=LeaseTimings())
    check, reached, closed = election._check_direct, asyncio.Event(), asyncio.Event()
    await election.read(ROLE, LIMIT)

    async def slow(connection: asyncpg.Connection) -> None:
        await check(connection)
        reached.set()
        await closed.wait()

    monkeypatch.setattr(election, "_check_direct", slow)
    call = asyncio.create_task(election.acquire(ROLE, EU, LIMIT))
    await reached.wait()
    await election.close()
    closed.set()

    with pytest.raises(ElectionUnavailable, match="was closed"):
        await call
    assert await lock_holder(beside) is None
    assert await beside.fetchval("SELECT count(*) FROM fencegate.election") == 0


def test_two_roles_do_not_share_a_lock_and_its_number_fits() -> None:
    keys = {lock_key(f"ledger/{number}") for number in range(10_000)}
    assert len(keys) == 10_000
    assert all(0 <= key < 2**63 for key in keys)
