"""The election over a Postgres row: a server that freezes, dies, goes read-only; clocks that lie; rows under attack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from fencegate.election.postgres import PostgresElection
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import Unavailable
from fencegate.lease import Candidate, Held, LeaseLost, LeaseTimings, SealRecord, Won
from fencegate.store import migrate
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.loop_lag import LoopLag
from fencegate.tokens import MAX_TOKEN

TIMINGS = LeaseTimings()
LIMIT = 20.0
"""Seconds that a call may take, and what is waited for: servers that are well need a thousandth of it."""
ROLE = "ledger"
EU = Candidate("gw-eu", "eu", "https://eu.example")
DR = Candidate("gw-dr", "dr", "https://dr.example")


@pytest.fixture
async def dsn(fresh_dsn: str) -> str:
    await migrate.apply(fresh_dsn)
    return fresh_dsn


@pytest.fixture
async def join(dsn: str) -> AsyncIterator[Callable[..., PostgresElection]]:
    made: list[PostgresElection] = []

    def make(address: str = "", timings: LeaseTimings = TIMINGS, **options: Any) -> PostgresElection:
        made.append(PostgresElection(address or dsn, timings, **options))
        return made[-1]

    yield make
    for election in made:
        await election.close()


@pytest.fixture
async def beside(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    connection.terminate()


Join = Callable[..., PostgresElection]


async def lead(election: PostgresElection, who: Candidate = EU) -> int:
    won = await election.acquire(ROLE, who, LIMIT)
    assert isinstance(won, Won)
    await election.renew(ROLE, won.token, who, active=True, deadline=LIMIT)
    return won.token


async def until_somebody_listens(beside: asyncpg.Connection) -> None:
    async with asyncio.timeout(LIMIT):
        while not await beside.fetchval(  # noqa: ASYNC110
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen %'"
        ):
            await asyncio.sleep(0.02)


# -- take-over ------------------------------------------------------------------------------------


async def test_the_first_look_never_takes_a_held_row_however_old_it_may_be(join: Join) -> None:
    await lead(join())
    clock = HandClock()
    clock.now = 10**9

    assert isinstance(await join(clock=clock).acquire(ROLE, DR, LIMIT), Held)


async def test_a_row_is_taken_only_after_a_whole_lease_without_a_sign_of_life(join: Join) -> None:
    token = await lead(join())
    clock = HandClock()
    rival = join(clock=clock)
    assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)

    clock.now += TIMINGS.lease_duration - 0.001
    assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)
    clock.now += 0.001
    won = await rival.acquire(ROLE, DR, LIMIT)

    assert won == Won(token + 1, None)


async def test_each_sign_of_life_starts_the_wait_anew(join: Join) -> None:
    holder, clock = join(), HandClock()
    token = await lead(holder)
    rival = join(clock=clock)

    for _ in range(5):
        assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)
        clock.now += TIMINGS.lease_duration - 1
        await holder.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_a_renewal_between_the_look_and_the_take_over_wins(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, clock = join(), HandClock()
    token = await lead(holder)
    rival = join(clock=clock)
    await rival.acquire(ROLE, DR, LIMIT)
    clock.now += TIMINGS.lease_duration
    look = rival._look

    async def slow_look(role: str, deadline: float) -> asyncpg.Record | None:
        row = await look(role, deadline)
        await holder.renew(ROLE, token, EU, active=True, deadline=LIMIT)
        return row

    monkeypatch.setattr(rival, "_look", slow_look)

    assert await rival.acquire(ROLE, DR, LIMIT) == Held(None)
    await holder.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_a_release_between_the_look_and_the_take_over_is_not_overlooked(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, clock = join(), HandClock()
    token = await lead(holder)
    rival = join(clock=clock)
    await rival.acquire(ROLE, DR, LIMIT)
    clock.now += TIMINGS.lease_duration
    look = rival._look

    async def slow_look(role: str, deadline: float) -> asyncpg.Record | None:
        row = await look(role, deadline)
        await holder.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
        return row

    monkeypatch.setattr(rival, "_look", slow_look)
    assert await rival.acquire(ROLE, DR, LIMIT) == Held(None)
    monkeypatch.undo()

    assert await rival.acquire(ROLE, DR, LIMIT) == Won(token + 1, SealRecord(token, "eu"))


async def test_a_win_whose_answer_was_lost_is_recognised(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    election = join()
    fetch = election._fetch

    async def lose(deadline: float, query: str, *arguments: Any) -> list[asyncpg.Record]:
        rows = await fetch(deadline, query, *arguments)
        if "INSERT" in query:
            raise Unavailable("the answer was lost")
        return rows

    monkeypatch.setattr(election, "_fetch", lose)
    with pytest.raises(Unavailable):
        await election.acquire(ROLE, EU, LIMIT)
    monkeypatch.undo()

    assert await election.acquire(ROLE, EU, LIMIT) == Won(1, None)


async def test_a_term_without_a_sign_of_life_for_its_lease_leads_no_more(join: Join) -> None:
    token = await lead(join())
    clock = HandClock()
    reader = join(clock=clock)
    term = await reader.read(ROLE, LIMIT)
    assert term is not None
    assert (term.token, term.expires_in) == (token, TIMINGS.lease_duration)

    clock.now += 5
    term = await reader.read(ROLE, LIMIT)
    assert term is not None
    assert term.expires_in == 10.0
    clock.now += 10
    assert await reader.read(ROLE, LIMIT) is None


async def test_the_servers_clock_is_asked_for_nothing(beside: asyncpg.Connection, join: Join) -> None:
    """No column holds a time and no function that runs reads one: stepping the server's clock cannot matter."""
    columns = await beside.fetch(
        "SELECT data_type FROM information_schema.columns WHERE table_schema = 'fencegate' AND table_name = 'election'"
    )
    sources = await beside.fetch("SELECT prosrc FROM pg_proc WHERE proname LIKE 'election\\_%'")

    assert columns
    assert not any("time" in row["data_type"] or "date" in row["data_type"] for row in columns)
    assert sources
    assert not any("now(" in row["prosrc"] or "timestamp" in row["prosrc"] for row in sources)


# -- the row's own defence ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack",
    [
        "DELETE FROM fencegate.election",
        "TRUNCATE fencegate.election",
        "UPDATE fencegate.election SET token = token - 1",
        "UPDATE fencegate.election SET role = 'other'",
    ],
)
async def test_the_row_refuses_to_be_removed_or_lowered(beside: asyncpg.Connection, join: Join, attack: str) -> None:
    election = join()
    await lead(election)
    await election.release(ROLE, 1, SealRecord(1, "eu"), LIMIT)
    token = await lead(election)

    with pytest.raises(asyncpg.RaiseError, match="never removed and tokens never fall"):
        await beside.execute(attack)

    await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)


# -- the link -------------------------------------------------------------------------------------


async def test_a_link_that_was_cut_is_made_anew(beside: asyncpg.Connection, join: Join) -> None:
    election = join()
    token = await lead(election)
    await beside.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencegate election'"
    )
    await asyncio.sleep(0.1)

    for _ in range(2):
        try:
            await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
        except Unavailable:
            continue

    await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_hints_end_when_their_link_is_cut(beside: asyncpg.Connection, join: Join) -> None:
    election = join()

    async def until_it_ends() -> None:
        async for _ in election.changes(ROLE):
            pass

    watching = asyncio.create_task(until_it_ends())
    await until_somebody_listens(beside)
    await beside.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencegate election'"
    )

    async with asyncio.timeout(LIMIT):
        await watching


async def test_a_link_for_hints_that_does_not_come_about_holds_up_no_renewal(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = join()
    token = await lead(election)
    dialled = asyncio.Event()

    async def hang(limit: float) -> asyncpg.Connection:
        dialled.set()
        await asyncio.sleep(limit)
        raise TimeoutError

    monkeypatch.setattr(election, "_connect", hang)  # the link in use is well, a new one gets no answer
    watching = asyncio.create_task(anext(election.changes(ROLE), None))
    await dialled.wait()
    await election.renew(ROLE, token, EU, active=True, deadline=2)
    watching.cancel()
    await asyncio.wait([watching])


async def test_a_link_over_which_nobody_came_to_listen_is_not_taken_for_one_that_gives_hints(
    beside: asyncpg.Connection, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, watcher = join(), join()
    token = await lead(holder)
    listen = asyncpg.Connection.add_listener

    async def late(connection: asyncpg.Connection, *_: Any) -> None:
        await connection.execute("SET statement_timeout = 50; SELECT pg_sleep(9)")

    monkeypatch.setattr(asyncpg.Connection, "add_listener", late)
    assert [hint async for hint in watcher.changes(ROLE)] == []
    monkeypatch.setattr(asyncpg.Connection, "add_listener", listen)

    hinted = asyncio.ensure_future(anext(watcher.changes(ROLE)))
    await until_somebody_listens(beside)
    await holder.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
    async with asyncio.timeout(LIMIT):
        await hinted


async def test_a_mere_renewal_gives_no_hint(beside: asyncpg.Connection, join: Join) -> None:
    holder, watcher = join(), join()
    token = await lead(holder)
    hints = watcher.changes(ROLE)
    hinted = asyncio.ensure_future(anext(hints))
    await until_somebody_listens(beside)

    await holder.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    await asyncio.sleep(0.3)
    assert not hinted.done()
    await holder.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
    async with asyncio.timeout(LIMIT):
        await hinted


# Field case 18: hashicorp/consul#18271.
async def test_a_frozen_server_ends_every_call_at_its_deadline_and_is_used_again_after(
    make_postgres: Callable[..., EmbeddedPostgres], join: Join
) -> None:
    server = make_postgres()
    await server.start()
    await migrate.apply(server.dsn)
    election = join(server.dsn)
    token = await lead(election)
    server.freeze()

    async with LoopLag() as lag:
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await election.renew(ROLE, token, EU, active=True, deadline=2)
            assert time.monotonic() - began < 3.9
    assert lag.worst < 0.5

    server.thaw()
    await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_a_server_that_dies_loses_no_token(make_postgres: Callable[..., EmbeddedPostgres], join: Join) -> None:
    server = make_postgres()
    await server.start()
    await migrate.apply(server.dsn)
    election = join(server.dsn)
    token = await lead(election)

    server.kill()
    with pytest.raises(Unavailable):
        await election.renew(ROLE, token, EU, active=True, deadline=1)
    await server.start()

    await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_a_server_that_takes_no_writes_is_not_listened_to(
    fresh_dsn: str, beside: asyncpg.Connection, join: Join
) -> None:
    await lead(join())
    name = fresh_dsn.rsplit("/", 1)[-1].split("?")[0]
    await beside.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')

    with pytest.raises(Unavailable):
        await join().read(ROLE, 2)


async def test_a_session_is_left_once_its_server_takes_no_writes_any_more(join: Join) -> None:
    election = join()
    token = await lead(election)
    await election._fetch(5, "SET default_transaction_read_only = on")

    with pytest.raises(Unavailable, match="takes no writes"):
        await election.read(ROLE, LIMIT)

    term = await election.read(ROLE, LIMIT)
    assert term is not None
    assert term.token == token


async def test_a_database_without_the_table_says_what_to_do(fresh_dsn: str, join: Join) -> None:
    connection = await asyncpg.connect(fresh_dsn)
    await connection.execute("DROP SCHEMA fencegate CASCADE")
    await connection.close()

    with pytest.raises(Unavailable, match="fencegate migrate"):
        await join().probe(5)


async def test_a_session_that_may_forget_commits_is_corrected(fresh_dsn: str, beside: asyncpg.Connection) -> None:
    name = fresh_dsn.rsplit("/", 1)[-1].split("?")[0]
    await beside.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    election = PostgresElection(fresh_dsn, TIMINGS)
    await election.probe(5)

    rows = await election._fetch(5, "SELECT current_setting('synchronous_commit')")
    await election.close()

    assert rows[0][0] == "on"


async def test_another_process_cannot_renew_our_term(join: Join) -> None:
    token = await lead(join())
    other = join()
    await other.acquire(ROLE, DR, LIMIT)

    with pytest.raises(LeaseLost):
        await other.renew(ROLE, token, DR, active=True, deadline=LIMIT)


# -- the way up -----------------------------------------------------------------------------------


async def test_a_row_that_says_given_back_is_waited_for_after_a_rebase(join: Join, beside: asyncpg.Connection) -> None:
    """A restored row tells of a term that was given back, and not of those that came after it."""
    first = join()
    token = await lead(first)
    assert await first.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
    await join().rebase(ROLE, 1000, "ops@desk", LIMIT)
    clock = HandClock()
    second = join(clock=clock)

    assert isinstance(await second.acquire(ROLE, DR, LIMIT), Held)
    clock.now += TIMINGS.lease_duration + 0.1
    won = await second.acquire(ROLE, DR, LIMIT)

    assert won == Won(1001)
    kept = await beside.fetch("SELECT role, by, from_token, to_token FROM fencegate.election_rebase")
    assert [tuple(row) for row in kept] == [(ROLE, "ops@desk", token, 1000)]
    with pytest.raises(LeaseLost):
        await first.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_neither_the_floor_nor_the_record_of_who_raised_it_can_be_taken_back(
    join: Join, beside: asyncpg.Connection
) -> None:
    await join().rebase(ROLE, 1000, "ops@desk", LIMIT)

    for statement in (
        "UPDATE fencegate.election SET token_floor = 5",
        "DELETE FROM fencegate.election_rebase",
        "UPDATE fencegate.election_rebase SET by = 'nobody'",
        "TRUNCATE fencegate.election_rebase",
    ):
        with pytest.raises(asyncpg.RaiseError):
            await beside.execute(statement)


@pytest.mark.parametrize("pool_mode", ["transaction", "session"])
async def test_a_pooler_in_the_way_is_found_out_and_refused(
    fresh_dsn: str, make_pgbouncer: Callable[..., str], join: Join, pool_mode: str
) -> None:
    lenient = {"ignore_startup_parameters": "default_transaction_isolation, statement_timeout"}
    for settings in ({}, lenient):
        election = join(make_pgbouncer(fresh_dsn, pool_mode=pool_mode, **settings))
        with pytest.raises(Unavailable, match="a pooler stands between"):
            await election.acquire(ROLE, EU, LIMIT)


# Field case 46: apache/kafka#3183.
async def test_after_the_last_token_there_is_nobody_is_elected_and_it_says_so(
    join: Join, beside: asyncpg.Connection
) -> None:
    first = join()
    token = await lead(first)
    await beside.execute("UPDATE fencegate.election SET token = $1", MAX_TOKEN)
    await beside.execute("UPDATE fencegate.election SET sealed_token = token, sealed_region = 'eu'")
    for _ in range(2):
        with pytest.raises(Unavailable, match="out of range"):
            await join().acquire(ROLE, DR, LIMIT)
    assert await beside.fetchval("SELECT token FROM fencegate.election") == MAX_TOKEN > token
