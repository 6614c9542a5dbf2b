"""Batches of every mixture: several roles, terms of one role, refused ones, keys seen before, in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencegate.fence import Effect, Fence, Verdict, Write, WriteResult, decide
from fencegate.observations import FenceChecked
from fencegate.store import ledger
from fencegate.store.chain import verify_chain
from fencegate.store.link import Link
from fencegate.store.postgres import PostgresStore
from store.writing import ROLE, forward, open_term, until, whole_ledger, write

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

# -- one batch against the same writes one after the other --------------------------------------------


@dataclass
class Model:
    """One role. ``fence`` is ``None`` where the store has no row."""

    fence: Fence | None
    entries: list[tuple[int, str, bytes, str]] = field(default_factory=list)
    keys: dict[str, tuple[bytes, int]] = field(default_factory=dict)

    def group(self, writes: list[Write]) -> list[tuple[Verdict, Effect | None, int | None, int | None]]:
        """Verdict, effect, ``max_token_seen`` and seq of each: they share role, token and ``enforce``."""
        first = writes[0]
        issued = max(w.issued for w in writes)
        verdict = decide(self.fence, first.token, issued=issued, now=0, incarnation="here")
        if self.fence is not None and verdict is Verdict.ADMIT:
            self.fence = replace(self.fence, max_token_seen=first.token)
        is_open = self.fence is not None and (verdict is Verdict.ADMIT or not first.enforce)
        highest = self.fence.max_token_seen if self.fence else None
        return [(verdict, *self._one(w, is_open=is_open, highest=highest)) for w in writes]

    def _one(self, w: Write, *, is_open: bool, highest: int | None) -> tuple[Effect | None, int | None, int | None]:
        if w.key in self.keys:
            body, seq = self.keys[w.key]
            return (Effect.REPLAYED, highest, seq) if body == w.body else (Effect.KEY_REUSED, highest, None)
        if not is_open:
            return None, highest, None
        self.entries.append((w.token, w.key, w.body, w.caller))
        if w.key:
            self.keys[w.key] = (w.body, len(self.entries))
        return Effect.APPLIED, highest, len(self.entries)


KINDS = {"lease": ("lease", False), "token": ("token", False), "sealed": ("lease", True)}
"""A role's name in a generated batch, its mode and whether it is sealed; any other has no row."""

one_write = st.tuples(
    st.sampled_from([*KINDS, "none"]),
    st.sampled_from([2, 3, 3, 3, 4, 5]),
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from([b"1", b"2"]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([0, 4, 9]),
    st.sampled_from(["", "", "alice", "CN=b, O=e"]),
)
examples = count()


@pytest.fixture
def session(migrated_dsn: str) -> Iterator[tuple[asyncio.Runner, PostgresStore, Link]]:
    link = Link(migrated_dsn, "test", limit=5.0, statement_timeout=5.0)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        store = runner.run(PostgresStore.open(migrated_dsn, gateway="gw-1", monitor_period=600.0))
        yield runner, store, link
        runner.run(store.close())
        runner.run(link.close())


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=st.lists(st.lists(one_write, min_size=1, max_size=14), min_size=1, max_size=3))
def test_a_batch_is_answered_as_if_its_writes_had_come_one_after_the_other(
    session: tuple[asyncio.Runner, PostgresStore, Link],
    batches: list[list[tuple[str, int, str, bytes, bool, int, str]]],
) -> None:
    runner, store, link = session
    number = next(examples)
    runner.run(_play(store, link, f"{number}/", batches))


async def _play(store: PostgresStore, link: Link, prefix: str, batches: list[list[Any]]) -> None:
    models = {prefix + "none": Model(None)}
    for name, (mode, sealed) in KINDS.items():
        role = prefix + name
        await store.ensure_roles({role: mode})  # type: ignore[dict-item]
        clock = await open_term(store, 3, role=role)
        if sealed:
            assert await store.seal(role, 3, clock.incarnation)
        until = float("-inf") if sealed else float("inf")
        models[role] = Model(Fence(role, mode, 3, 3 if sealed else 0, until, "here", ""))  # type: ignore[arg-type]
    for batch in batches:
        writes = [
            write(token, body, key=key, role=prefix + name, enforce=enforce, issued=issued, caller=caller)
            for name, token, key, body, enforce, issued, caller in batch
        ]
        order = sorted(range(len(writes)), key=lambda i: (writes[i].role, writes[i].token, writes[i].enforce))
        expected: dict[int, tuple[Verdict, Effect | None, int | None, int | None]] = {}
        for _, places in groupby(order, key=lambda i: (writes[i].role, writes[i].token, writes[i].enforce)):
            at = list(places)
            expected |= zip(at, models[writes[at[0]].role].group([writes[i] for i in at]), strict=True)
        results = await ledger.append(link, 5.0, writes)
        assert [_seen(r) for r in results] == [expected[i] for i in range(len(writes))]
    for role, model in models.items():
        entries = await whole_ledger(store, role)
        assert [(e.token, e.key or "", e.body, e.caller or "") for e in entries] == model.entries
        assert verify_chain(role, entries) is None
        fence = await store.read(role)
        seen = (fence.max_token_seen, fence.last_seq) if fence else None
        assert seen == (model.fence and (model.fence.max_token_seen, len(entries)))


def _seen(result: Any) -> tuple[Verdict, Effect | None, int | None, int | None]:
    assert isinstance(result, WriteResult)
    return result.verdict, result.effect, result.max_token_seen, result.entry and result.entry.seq


# -- what makes it one transaction, and cheap ---------------------------------------------------------


async def _roles(store: PostgresStore, number: int) -> list[str]:
    roles = [f"shard/{n}" for n in range(number)]
    await store.ensure_roles(dict.fromkeys(roles, "lease"))
    for role in roles:
        await open_term(store, 1, role=role)
    return roles


async def test_the_roles_of_a_batch_share_one_transaction_and_one_instant(
    store: PostgresStore, dsn: str, beside: asyncpg.Connection
) -> None:
    roles = await _roles(store, 6)
    link = Link(dsn, "test", limit=5.0, statement_timeout=5.0)
    await ledger.append(link, 5.0, [write(1, key=f"k{n}", role=role) for n in range(3) for role in roles])
    await link.close()
    found = await beside.fetchrow(
        "SELECT count(*) AS entries, count(DISTINCT xmin::text) AS transactions,"
        " count(DISTINCT recorded_at) AS instants FROM fencegate.entry"
    )
    assert found is not None
    assert tuple(found) == (18, 1, 1)


async def test_r1_the_check_of_each_role_sees_what_was_committed_during_the_lock_wait(
    store: PostgresStore, dsn: str, beside: asyncpg.Connection, connect: Callable[..., Any]
) -> None:
    first, second = await _roles(store, 2)
    await store.append(write(1, role=second), 5.0)
    other = await connect()
    link = Link(dsn, "test", limit=10.0, statement_timeout=10.0)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE fencegate.fence SET max_token_seen = 2 WHERE role = $1", second)
    batch = asyncio.create_task(ledger.append(link, 10.0, [write(1, role=first), write(1, role=second)]))
    await until(lambda: beside.fetchval(WAITING))
    await transaction.commit()
    good, stale = await batch
    await link.close()
    assert _seen(good) == (Verdict.ADMIT, Effect.APPLIED, 1, 1)
    assert _seen(stale) == (Verdict.STALE, None, 2, None)
    assert len(await whole_ledger(store, second)) == 1


async def test_two_gateways_that_write_to_the_same_roles_never_deadlock(
    store: PostgresStore, make_store: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    roles = await _roles(store, 8)
    results = await asyncio.gather(
        *(
            (store, other)[n % 2].append(write(1, key=f"k{n}", role=roles[(n * 5 + n // 16) % 8]), 10.0)
            for n in range(800)
        )
    )
    assert {r.effect for r in results} == {Effect.APPLIED}
    for role in roles:
        entries = await whole_ledger(store, role)
        assert len(entries) == 100
        assert verify_chain(role, entries) is None
    database = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await beside.fetchval(database) == 0


async def test_no_statement_of_a_batch_is_planned_anew_for_each_call(
    store: PostgresStore, dsn: str, beside: asyncpg.Connection
) -> None:
    """A plan made for one call holds that call's arrays as constants; one that is kept holds parameters."""
    roles = await _roles(store, 3)
    try:
        await beside.execute("LOAD 'auto_explain'")
    except asyncpg.UndefinedFileError:
        pytest.skip("this Postgres comes without auto_explain")
    plans: list[str] = []
    beside.add_log_listener(lambda _, message: plans.append(message.message))
    await beside.execute(
        "SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
        "SET auto_explain.log_level = notice; SET auto_explain.log_verbose = on;"
        "SET auto_explain.log_parameter_max_length = 0"
    )

    class Beside(Link):
        async def fetch(self, limit: float, query: str, *arguments: Any) -> list[asyncpg.Record]:
            return list(await beside.fetch(query, *arguments))

    link = Beside(dsn, "test", limit=5.0, statement_timeout=5.0)
    for batch in range(12):
        plans.clear()
        size = 1 + batch % 5
        one = [write(1, key=f"one-{batch}-{n}", role=roles[0]) for n in range(size)]
        several = [write(1, key=f"{role}-{batch}-{n}", role=role) for n in range(size) for role in roles]
        await ledger.append(link, 5.0, one)
        await ledger.append(link, 5.0, several)
        await ledger.append(link, 5.0, several)  # replays
    await asyncio.sleep(0)  # let the listener have its turn
    nested = [plan for plan in plans if "idempotency_key" in plan or "fencegate.entry" in plan or "fence t" in plan]
    assert len(nested) >= 6
    for plan in nested:
        assert "'{" not in plan, "an array as a constant"


async def test_each_batch_tells_once_how_long_the_check_took_and_of_which_roles(make_store: Callable[..., Any]) -> None:
    told: list[FenceChecked] = []
    store = await make_store(observe=lambda fact: told.append(fact) if isinstance(fact, FenceChecked) else None)
    await store.ensure_roles({ROLE: "lease", "other": "lease"})
    for role in (ROLE, "other"):
        await open_term(store, 7, role=role)

    await asyncio.gather(*(store.append(write(7), 5.0) for _ in range(20)), store.append(write(7, role="other"), 5.0))
    await store.append(write(6), 5.0)
    admission = await store.admit(forward(7), 5.0)
    await store.settle(admission.ticket, None, sent=False)

    assert {role for fact in told for role in fact.roles} == {ROLE, "other"}
    assert all(len(set(fact.roles)) == len(fact.roles) for fact in told)
    assert 3 <= len(told) <= 8, "a batch, a refusal, an admission: not one for each write"
    assert all(0 < fact.duration < 5 for fact in told)
