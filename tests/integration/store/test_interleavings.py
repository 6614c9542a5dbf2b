"""Two real transactions, interleaved at every statement boundary: one winner order, whatever the order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from typing import Any

import asyncpg
import pytest

from fencegate.fence import Effect, Verdict
from fencegate.store.chain import verify_chain
from fencegate.store.postgres import PostgresStore
from store.writing import ROLE, digest, open_term, until, whole_ledger, write

APPEND = """SELECT verdicts[1] AS verdict, effects FROM fencegate.append(
    ARRAY['ledger'], ARRAY[$1::bigint], ARRAY[0::bigint], ARRAY[true], ARRAY[1], $2, $3, $4, '1')"""
CLAIM = "SELECT fencegate.claim('ledger', $1, $2, clock_timestamp(), 60, fencegate.incarnation())"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

Statement = tuple[str, tuple[Any, ...]]


def append(token: int, key: str = "") -> Statement:
    return APPEND, (token, key, digest(key), digest("1"))


def claim(token: int) -> Statement:
    return CLAIM, (token, f"holder-{token}")


class Session:
    """One transaction, its steps given one at a time; a step that must wait for the other is left waiting."""

    def __init__(self, connection: asyncpg.Connection, beside: asyncpg.Connection, statement: Statement) -> None:
        self.connection = connection
        self.beside = beside
        self.statement = statement
        self.running: asyncio.Task[Any] | None = None
        self.answer: Any = None

    async def step(self, name: str) -> None:
        if self.running is not None:
            await self.running
        steps = {"begin": self._begin, "run": self._run, "commit": self._commit}
        self.running = asyncio.create_task(steps[name]())
        await self._settled()

    async def _settled(self) -> None:
        """Until the step is done or waits for a lock."""
        assert self.running is not None
        running = self.running

        async def at_rest() -> bool:
            return running.done() or bool(await self.beside.fetchval(BLOCKED))

        await until(at_rest)

    async def _begin(self) -> None:
        await self.connection.execute("BEGIN")

    async def _run(self) -> None:
        self.answer = (await self.connection.fetch(self.statement[0], *self.statement[1]))[0]

    async def _commit(self) -> None:
        await self.connection.execute("COMMIT")


# Every way to weave two transactions of begin, run, commit that keeps each one's own order.
WEAVES = sorted(set(permutations("aaabbb")))


async def weave(pattern: tuple[str, ...], a: Session, b: Session) -> None:
    """Plays the pattern. A step of a session that still waits for the other's lock is put off until it has it."""
    left = {"a": ["begin", "run", "commit"], "b": ["begin", "run", "commit"]}
    sessions = {"a": a, "b": b}
    put_off: list[str] = []
    for name in pattern:
        session = sessions[name]
        if session.running is not None and not session.running.done():
            put_off.append(name)
            continue
        await session.step(left[name].pop(0))
    for name in put_off:
        await sessions[name].step(left[name].pop(0))
    for session in (a, b):
        assert session.running is not None
        await session.running
    assert not left["a"]
    assert not left["b"]


@pytest.fixture
async def pair(store: PostgresStore, beside: asyncpg.Connection, connect: Callable[..., Any]) -> Callable[..., Any]:
    one, two = await connect(), await connect()
    return lambda a, b: (Session(one, beside, a), Session(two, beside, b))


async def test_a_stale_write_that_began_before_the_raise_commits_before_it_or_is_refused(
    store: PostgresStore, pair: Callable[..., Any]
) -> None:
    outcomes = set()
    for n, pattern in enumerate(WEAVES):
        old, new = 2 * n + 1, 2 * n + 2
        await open_term(store, old)
        before = len(await whole_ledger(store))
        writer, raiser = pair(append(old), claim(new))
        await weave(pattern, writer, raiser)
        assert raiser.answer[0] is None, "a newer term is claimed in every order"
        landed = await whole_ledger(store)
        admitted = writer.answer["verdict"] == Verdict.ADMIT
        assert admitted or writer.answer["verdict"] == Verdict.STALE
        assert len(landed) - before == admitted
        outcomes.add(admitted)
        assert (await store.append(write(old), 5.0)).verdict is Verdict.STALE
        assert (await store.append(write(new), 5.0)).effect is Effect.APPLIED
        tokens = [entry.token for entry in await whole_ledger(store)]
        assert tokens == sorted(tokens), pattern
    assert outcomes == {True, False}, "both orders were played"


# Field case 42: slatedb/slatedb#266, slatedb/slatedb#271.
async def test_two_raises_in_any_order_have_one_winner(store: PostgresStore, pair: Callable[..., Any]) -> None:
    for n, pattern in enumerate(WEAVES):
        low, high = pair(claim(2 * n + 1), claim(2 * n + 2))
        await weave(pattern, low, high)
        assert high.answer[0] is None
        assert low.answer[0] in (None, "superseded")
        fence = await store.read(ROLE)
        assert fence is not None
        assert (fence.max_token_seen, fence.holder) == (2 * n + 2, f"holder-{2 * n + 2}"), pattern


# Field case 44: golemcloud/golem#3845.
# Field case A2: golemcloud/golem#3845.
async def test_two_candidates_with_one_token_have_one_winner(store: PostgresStore, pair: Callable[..., Any]) -> None:
    for n, pattern in enumerate(WEAVES):
        a, b = pair((CLAIM, (n + 1, "a")), (CLAIM, (n + 1, "b")))
        await weave(pattern, a, b)
        fence = await store.read(ROLE)
        assert fence is not None
        assert {a.answer[0], b.answer[0]} == {None, "superseded"}
        assert fence.holder == ("a" if a.answer[0] is None else "b")


async def test_two_first_tries_of_one_key_are_one_effect_in_every_order(
    store: PostgresStore, pair: Callable[..., Any]
) -> None:
    await open_term(store, 1)
    for n, pattern in enumerate(WEAVES):
        a, b = pair(append(1, f"k-{n}"), append(1, f"k-{n}"))
        await weave(pattern, a, b)
        assert sorted(str(s.answer["effects"]) for s in (a, b)) == sorted(["None", "[1]"]), pattern
    entries = await whole_ledger(store)
    assert [entry.key for entry in entries] == [f"k-{n}" for n in range(len(WEAVES))]
    assert verify_chain(ROLE, entries) is None


async def test_a_write_that_is_rolled_back_leaves_no_gap_and_no_key(
    store: PostgresStore, pair: Callable[..., Any]
) -> None:
    await open_term(store, 1)
    a, b = pair(append(1, "k"), append(1, "k"))
    await a.step("begin")
    await a.step("run")
    await b.step("begin")
    await b.step("run")
    await a.connection.execute("ROLLBACK")
    assert b.running is not None
    await b.running
    await b.step("commit")
    assert b.answer["effects"] is None, "the first try never happened"
    assert [(e.seq, e.key) for e in await whole_ledger(store)] == [(1, "k")]


async def test_replays_race_first_tries_from_two_gateways(store: PostgresStore, make_store: Callable[..., Any]) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    await open_term(store, 1)
    results = await asyncio.gather(
        *((store, other)[n % 2].append(write(1, key=f"k-{n % 40}"), 10.0) for n in range(400))
    )
    assert sorted(r.effect for r in results if r.effect is not None) == [Effect.APPLIED] * 40 + [Effect.REPLAYED] * 360
    by_key: dict[int, set[Any]] = {}
    for n, result in enumerate(results):
        assert result.entry is not None
        by_key.setdefault(n % 40, set()).add((result.entry.seq, result.entry.hash))
    assert all(len(seen) == 1 for seen in by_key.values())
    assert len(await whole_ledger(store)) == 40
