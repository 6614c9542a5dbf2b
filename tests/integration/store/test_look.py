"""Looks at the fence that take no lock: when one is enough, and that everything else goes to the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from fencegate.errors import Unavailable
from fencegate.fence import Admission, Effect, Verdict
from fencegate.store import look
from fencegate.store.postgres import PostgresStore
from fencegate.store.witness import Witness
from store.writing import ROLE, answer, forward, open_term, until

NO_MORE_XACTS = "SELECT pg_snapshot_xmax(pg_current_snapshot())"


@pytest.fixture
async def gate(store: PostgresStore) -> PostgresStore:
    """A store whose term 4 has a mark: a write is under way."""
    await open_term(store, 4)
    await admitted(store)
    return store


async def admitted(store: PostgresStore, token: int = 4, role: str = ROLE, **more: Any) -> Admission:
    found = await store.admit(forward(token, role=role, **more), 5.0)
    assert (found.verdict, found.effect, found.max_token_seen) == (Verdict.ADMIT, Effect.APPLIED, token)
    return found


async def refused(store: PostgresStore, token: int = 4) -> Verdict:
    found = await store.admit(forward(token), 5.0)
    assert (found.effect, found.ticket) == (None, 0)
    return found.verdict


async def lock(beside: asyncpg.Connection) -> Any:
    holding = beside.transaction()
    await holding.start()
    await beside.execute("SELECT FROM fencegate.fence FOR UPDATE")
    return holding


async def looks_suffice(store: PostgresStore, beside: asyncpg.Connection) -> bool:
    """Whether a write is admitted while somebody else has the fence row's lock."""
    holding = await lock(beside)
    asked = asyncio.ensure_future(store.admit(forward(4), 20.0))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def decided() -> bool:
        return asked.done() or bool(await beside.fetchval(waiting))

    await until(decided)
    suffices = asked.done()
    await holding.rollback()
    assert (await asked).effect is Effect.APPLIED
    return suffices


async def test_where_the_mark_stands_a_write_is_admitted_without_the_lock_and_nothing_is_written(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    before = await beside.fetchval(NO_MORE_XACTS)
    found = await admitted(gate)
    assert found.ticket > 0
    assert found.good_until < float("inf")
    assert await beside.fetchval(NO_MORE_XACTS) == before
    assert await looks_suffice(gate, beside)


@pytest.mark.parametrize("change", ["mark gone", "mark of another", "mark soon over", "older mark"])
async def test_without_the_mark_and_all_its_time_the_lock_is_gone_to(
    gate: PostgresStore, beside: asyncpg.Connection, change: str
) -> None:
    await beside.execute(
        {
            "mark gone": "DELETE FROM fencegate.mark",
            "mark of another": "UPDATE fencegate.mark SET gateway = 'another'",
            "mark soon over": "UPDATE fencegate.mark SET expires_at = clock_timestamp() + interval '5.9 seconds'",
            "older mark": "INSERT INTO fencegate.mark SELECT role_id, 3, 'old', clock_timestamp() FROM fencegate.mark",
        }[change]
    )
    assert not await looks_suffice(gate, beside)
    assert await looks_suffice(gate, beside)  # The lock has left it as it has to be.


async def test_a_key_goes_to_the_lock(gate: PostgresStore, beside: asyncpg.Connection) -> None:
    before = await beside.fetchval(NO_MORE_XACTS)
    first = await admitted(gate, key="k")
    assert await beside.fetchval(NO_MORE_XACTS) > before
    await gate.settle(first.ticket, answer())
    assert (await gate.admit(forward(4, key="k"), 5.0)).effect is Effect.REPLAYED


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ("UPDATE fencegate.fence SET max_token_seen = 5", Verdict.STALE),
        ("UPDATE fencegate.fence SET sealed = 4", Verdict.NOT_LEADING),
        ("UPDATE fencegate.fence SET valid_until = clock_timestamp()", Verdict.NOT_LEADING),
        ("UPDATE fencegate.fence SET incarnation = 'another'", Verdict.OTHER_INCARNATION),
        ("UPDATE fencegate.fence SET draining = true", Verdict.DRAINING),
    ],
)
async def test_what_the_fence_refuses_is_refused_by_name_though_the_mark_stands(
    gate: PostgresStore, beside: asyncpg.Connection, change: str, verdict: Verdict
) -> None:
    await beside.execute(change)
    assert await refused(gate) is verdict


async def test_a_raise_that_is_not_committed_yet_waits_for_what_is_admitted_beside_it(
    gate: PostgresStore, make_store: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    raising = beside.transaction()
    await raising.start()
    await beside.execute("UPDATE fencegate.fence SET max_token_seen = 5")
    late = await admitted(gate)
    await raising.commit()
    assert await refused(gate) is Verdict.STALE
    other: PostgresStore = await make_store(gateway="gw-2")
    found: list[Admission | Exception] = []
    other.ask(forward(5), 5.0, found.append)
    await until(lambda: asyncio.sleep(0, found))
    [first] = found
    assert isinstance(first, Admission)
    assert first.verdict is Verdict.UNDRAINED
    waiting = asyncio.ensure_future(other.admit(forward(5), 20.0))
    for ticket in range(1, late.ticket + 1):
        await gate.settle(ticket, answer())
    assert (await waiting).effect is Effect.APPLIED


async def test_a_server_that_waits_for_a_standby_is_not_believed_without_a_commit(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    """One that was left behind would never get its standby's word; that the look would not bring out."""
    session = gate._forwards._admissions._link._connection
    assert session is not None
    await beside.execute(
        "CREATE OR REPLACE FUNCTION fencegate.standby_names() RETURNS text LANGUAGE sql AS $$ SELECT 'one' $$"
    )
    text = await beside.fetchval("SELECT pg_get_functiondef('fencegate.look'::regproc)")
    assert text.count("current_setting('synchronous_standby_names', true)") == 1
    # Set for real it would hold up every other test of this server.
    await beside.execute(
        text.replace("current_setting('synchronous_standby_names', true)", "fencegate.standby_names()")
    )
    before = await beside.fetchval(NO_MORE_XACTS)
    await admitted(gate)
    assert await beside.fetchval(NO_MORE_XACTS) > before


async def test_a_session_that_may_not_write_admits_nothing(gate: PostgresStore) -> None:
    session = gate._forwards._admissions._link._connection
    assert session is not None
    await session.execute("SET default_transaction_read_only = on")
    with pytest.raises(Unavailable, match="read-only"):
        await gate.admit(forward(4), 5.0)
    await admitted(gate)  # By a new session.


async def test_of_several_terms_each_is_looked_at_by_itself(
    store: PostgresStore, make_store: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    roles = ["a", "b", "c"]
    await store.ensure_roles(dict.fromkeys(roles, "lease"))
    for role in roles:
        await open_term(store, 7, role=role)
        await admitted(store, 7, role)
    await beside.execute(
        "DELETE FROM fencegate.mark m USING fencegate.fence f WHERE m.role_id = f.role_id AND role = 'b'"
    )
    await beside.execute("UPDATE fencegate.fence SET max_token_seen = 9 WHERE role = 'c'")
    found = await asyncio.gather(*(store.admit(forward(7, role=role), 5.0) for role in ("c", "b", "a")))
    assert [one.verdict for one in found] == [Verdict.STALE, Verdict.ADMIT, Verdict.ADMIT]
    assert await beside.fetchval("SELECT count(*) FROM fencegate.mark m JOIN fencegate.fence USING (role_id)") == 3


async def test_a_lease_that_ends_while_the_look_is_under_way_sends_it_to_the_lock(
    gate: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked = look.Looks.ask, []

    async def late(self: look.Looks, *arguments: Any) -> list[float | None]:
        found = await ask(self, *arguments)
        asked.append(found)
        return [0.0 for _ in found]

    monkeypatch.setattr(look.Looks, "ask", late)
    found = await admitted(gate)
    assert asked
    assert found.good_until < float("inf")


async def test_looks_that_never_suffice_are_left_out_for_a_while(
    gate: PostgresStore, beside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(look, "monotonic", lambda: now)
    looks = look.Looks(Witness())
    link = gate._forwards._admissions._link
    for _ in range(3):
        assert looks.worth_it()
        assert await looks.ask(link, 5.0, [(ROLE, 3)], ["nobody"], [5.0]) == [None]
    assert not looks.worth_it()
    now += look._PAUSE
    assert looks.worth_it()
    name = await beside.fetchval("SELECT gateway FROM fencegate.mark")
    found = await looks.ask(link, 5.0, [(ROLE, 3), (ROLE, 4)], [name, name], [5.0, 5.0])
    assert found[0] is None
    assert 0 < (found[1] or 0) <= 60
    now -= look._PAUSE
    assert looks.worth_it()


def test_a_store_in_portability_mode_is_never_looked_at_without_a_write() -> None:
    assert not look.Looks(Witness(), portable=True).worth_it()
