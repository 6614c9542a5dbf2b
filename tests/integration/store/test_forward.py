"""Writes that leave the store: admitted, settled, replayed, in doubt, taken back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from fencegate.errors import OutcomeUnknown
from fencegate.fence import Admission, Effect, StoredAnswer, Verdict
from fencegate.store.batch import NoAnswer, TooBusy
from fencegate.store.postgres import PostgresStore
from store.writing import ROLE, answer, digest, forward, open_term, until, write

OTHERS_ROW = """
    INSERT INTO fencegate.idempotency_key (role_id, key, token, created_at, owner, running_until)
    SELECT role_id, $1, 4, clock_timestamp(), $2, clock_timestamp() + interval '1 minute' FROM fencegate.fence"""


@pytest.fixture
async def gate(store: PostgresStore) -> PostgresStore:
    await open_term(store, 4)
    return store


async def test_an_answer_is_kept_and_replayed_to_a_retry_at_any_gateway(
    gate: PostgresStore, make_store: Callable[..., Any]
) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    first = await gate.admit(forward(4, key="k"), 10.0)
    assert (first.verdict, first.effect, first.max_token_seen) == (Verdict.ADMIT, Effect.APPLIED, 4)
    running = await other.admit(forward(4, key="k"), 10.0)
    assert (running.effect, running.ticket, running.stored) == (Effect.IN_PROGRESS, 0, None)
    await gate.settle(first.ticket, answer())
    for store in (gate, other):
        again = await store.admit(forward(4, key="k"), 10.0)
        assert (again.effect, again.ticket, again.stored) == (Effect.REPLAYED, 0, answer())
    await open_term(gate, 5)
    stale = await other.admit(forward(4, key="k"), 10.0)
    assert (stale.verdict, stale.effect, stale.stored) == (Verdict.STALE, Effect.REPLAYED, answer())


async def test_a_replay_does_not_wait_for_the_drain(gate: PostgresStore) -> None:
    done = await gate.admit(forward(4, key="k"), 10.0)
    await gate.settle(done.ticket, answer())
    await gate.admit(forward(4), 10.0)
    await open_term(gate, 5)
    again = await gate.admit(forward(5, key="k"), 5.0)
    assert (again.verdict, again.effect) == (Verdict.UNDRAINED, Effect.REPLAYED)


async def test_a_body_too_large_to_keep_is_replayed_without_it(gate: PostgresStore) -> None:
    first = await gate.admit(forward(4, key="k"), 10.0)
    await gate.settle(first.ticket, answer(body=None))
    assert (await gate.admit(forward(4, key="k"), 10.0)).stored == answer(body=None)


async def test_an_outcome_that_stays_unknown_is_told_as_such_and_holds_the_mark(gate: PostgresStore) -> None:
    first = await gate.admit(forward(4, key="k", upstream_limit=2.5), 10.0)
    await gate.settle(first.ticket, None)
    assert (await gate.admit(forward(4, key="k"), 10.0)).effect is Effect.IN_PROGRESS
    assert await gate.in_flight(ROLE, 4) == 1

    async def limit_passed() -> bool:
        return (await gate.admit(forward(4, key="k", upstream_limit=0.0), 10.0)).effect is Effect.UNKNOWN

    await until(limit_passed)


async def test_a_forward_that_was_never_sent_gives_mark_and_key_back(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    first = await gate.admit(forward(4, key="k"), 10.0)
    await gate.settle(first.ticket, None, sent=False)
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 0
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))
    assert (await gate.admit(forward(4, key="k"), 10.0)).effect is Effect.APPLIED


@pytest.mark.parametrize("kept", [None, answer()])
async def test_a_settlement_that_comes_late_touches_no_other_tries_row(
    gate: PostgresStore, beside: asyncpg.Connection, kept: StoredAnswer | None
) -> None:
    """The key expired and another gateway has admitted it anew: its row is neither freed nor answered by ours."""
    first = await gate.admit(forward(4, key="k"), 10.0)
    await beside.execute("DELETE FROM fencegate.idempotency_key")
    await beside.execute(OTHERS_ROW, digest("k"), b"o" * 16)
    await gate.settle(first.ticket, kept, sent=kept is not None)
    [row] = await beside.fetch("SELECT owner, payload FROM fencegate.idempotency_key")
    assert (row["owner"], row["payload"]) == (b"o" * 16, None)


async def test_settling_twice_or_an_unknown_ticket_is_nothing(gate: PostgresStore) -> None:
    first = await gate.admit(forward(4, key="k"), 10.0)
    await gate.settle(first.ticket, answer(201))
    await gate.settle(first.ticket, answer(500))
    await gate.settle(12345, answer())
    assert (await gate.admit(forward(4, key="k"), 10.0)).stored == answer(201)


async def test_an_answer_that_cannot_be_kept_leaves_the_outcome_unknown(gate: PostgresStore) -> None:
    bad, good = await gate.admit(forward(4, key="a"), 1.0), await gate.admit(forward(4, key="b"), 10.0)
    broken = StoredAnswer(200, (("X", "\udcff"),), b"", digest("p"))
    await asyncio.gather(gate.settle(bad.ticket, broken), gate.settle(good.ticket, answer()))
    assert (await gate.admit(forward(4, key="a"), 10.0)).effect is Effect.IN_PROGRESS
    assert (await gate.admit(forward(4, key="b"), 10.0)).effect is Effect.REPLAYED


async def test_a_key_of_another_target_is_no_stored_answer(gate: PostgresStore) -> None:
    await gate.append(write(4, key="k"), 5.0)
    assert (await gate.admit(forward(4, key="k"), 10.0)).effect is Effect.KEY_REUSED


async def test_a_cancelled_admission_leaves_neither_mark_nor_key(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    asking = asyncio.create_task(gate.admit(forward(4, key="k"), 5.0))
    await asyncio.sleep(0.002)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    clean = "SELECT (SELECT count(*) FROM fencegate.mark) + (SELECT count(*) FROM fencegate.idempotency_key) = 0"
    await until(lambda: beside.fetchval(clean))


@pytest.mark.parametrize("ends", ["its time is up", "it is cancelled"])
async def test_an_admission_that_nobody_waits_for_any_more_leaves_no_key_though_it_is_committed_later(
    gate: PostgresStore, beside: asyncpg.Connection, ends: str
) -> None:
    """Its caller was told that nothing was applied, so that a retry must not find the outcome unknown for ever."""
    blocking = beside.transaction()
    await blocking.start()
    await beside.execute("SELECT FROM fencegate.fence FOR UPDATE")
    asking = asyncio.create_task(gate.admit(forward(4, key="k"), 1.5 if ends == "its time is up" else 10.0))
    await until(lambda: asyncio.sleep(0, gate._forwards._admissions.exclusive.locked()))
    if ends == "it is cancelled":
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    else:
        with pytest.raises(OutcomeUnknown):
            await asking
    await asyncio.sleep(0.3)
    await blocking.commit()

    async def admitted() -> bool:
        return (await gate.admit(forward(4, key="k"), 10.0)).effect is Effect.APPLIED

    await until(admitted)


class Heard:
    """What was told of so many questions, which were asked at once."""

    def __init__(self, store: PostgresStore, *limits: float, time_limit: float = 10.0) -> None:
        self.found: list[Admission | Exception] = []
        for limit in limits:
            store.ask(forward(4, upstream_limit=limit), time_limit, self.found.append)
        self.count = len(limits)

    async def all(self) -> list[Admission | Exception]:
        await until(lambda: asyncio.sleep(0, len(self.found) == self.count))
        return self.found

    async def tickets(self) -> list[int]:
        return [found.ticket for found in await self.all() if isinstance(found, Admission)]


MARKS = "SELECT count(*), max(expires_at - clock_timestamp()) > interval '20 seconds' FROM fencegate.mark"


async def test_writes_of_one_term_share_a_look_and_a_mark_and_each_has_its_own_ticket(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    heard = Heard(gate, 5.0, 5.0, 30.0, 5.0)
    first, *others = await heard.tickets()
    assert len({first, *others}) == 4
    assert tuple(await beside.fetchrow(MARKS)) == (1, True)
    for ticket in others:
        await gate.settle(ticket, answer())
        await gate.settle(ticket, answer())  # harmless: the ticket was its own
    await asyncio.sleep(0.3)
    assert await beside.fetchval(MARKS) == 1
    await gate.settle(first, answer())
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))


async def test_of_a_shared_look_that_is_late_all_are_told_so_and_its_mark_does_not_stay(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    blocking = beside.transaction()
    await blocking.start()
    await beside.execute("SELECT FROM fencegate.fence FOR UPDATE")
    heard = Heard(gate, 30.0, 30.0, 30.0, time_limit=0.5)
    assert [type(found) for found in await heard.all()] == [NoAnswer] * 3
    await blocking.commit()
    await until(lambda: asyncio.sleep(0, not gate._forwards._marks._under_way))
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))


async def test_nobody_joins_a_look_whose_time_is_over(gate: PostgresStore, beside: asyncpg.Connection) -> None:
    blocking = beside.transaction()
    await blocking.start()
    await beside.execute("SELECT FROM fencegate.fence FOR UPDATE")
    first = Heard(gate, 5.0)  # it holds the lane
    await until(lambda: asyncio.sleep(0, gate._forwards._admissions.exclusive.locked()))
    late = Heard(gate, 5.0, time_limit=0.01)
    assert [type(found) for found in await late.all()] == [TooBusy]
    later = Heard(gate, 5.0, time_limit=0.01)
    assert [type(found) for found in await later.all()] == [TooBusy]
    await blocking.commit()
    await gate.settle(*await first.tickets(), answer())
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))


async def test_one_of_several_that_share_a_look_gives_up_and_the_others_go_on(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    gone = asyncio.create_task(gate.admit(forward(4), 10.0))
    await asyncio.sleep(0)
    heard = Heard(gate, 5.0, 5.0)
    gone.cancel()
    tickets = await heard.tickets()
    assert len(tickets) == 2
    for ticket in tickets:
        await gate.settle(ticket, answer())
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))


async def test_admissions_with_and_without_a_key_that_are_given_up_together_are_each_taken_back(
    gate: PostgresStore, beside: asyncpg.Connection
) -> None:
    for key in ("", "k", "", "l"):
        asking = [asyncio.create_task(gate.admit(forward(4, key=key), 10.0))]
        await asyncio.sleep(0)
        asking[0].cancel()
    clean = "SELECT (SELECT count(*) FROM fencegate.mark) + (SELECT count(*) FROM fencegate.idempotency_key) = 0"
    await until(lambda: beside.fetchval(clean))
    assert not gate._forwards._tickets


async def test_of_a_refused_look_all_are_told_the_verdict(gate: PostgresStore) -> None:
    await open_term(gate, 5)
    found = await Heard(gate, 5.0, 5.0).all()
    assert [(one.verdict, one.effect) for one in found if isinstance(one, Admission)] == [(Verdict.STALE, None)] * 2


async def test_a_question_that_breaks_its_contract_is_not_put_with_others(gate: PostgresStore) -> None:
    heard = Heard(gate, 5.0)
    for limit in (math.inf, -1.0):
        with pytest.raises(ValueError, match="upstream_limit"):
            gate.ask(forward(4, upstream_limit=limit), 10.0, heard.found.append)
    await gate.settle(*await heard.tickets(), answer())


async def test_a_storm_of_refused_tokens_removes_no_marks_that_were_never_made(
    gate: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    removals = 0
    real = gate._forwards._marks._unmark

    async def counted(term: tuple[str, int]) -> bool:
        nonlocal removals
        removals += 1
        return await real(term)

    monkeypatch.setattr(gate._forwards._marks, "_unmark", counted)
    await open_term(gate, 1000)
    refused = await asyncio.gather(*(gate.admit(forward(n + 1), 5.0) for n in range(300)))
    assert {a.verdict for a in refused} == {Verdict.STALE}
    await asyncio.sleep(0.3)
    assert removals == 0


async def test_many_at_once_each_send_a_key_exactly_once(gate: PostgresStore, make_store: Callable[..., Any]) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    sent: list[str] = []

    async def client(store: PostgresStore, key: str) -> StoredAnswer:
        while True:
            admission = await store.admit(forward(4, key=key), 10.0)
            if admission.effect is Effect.APPLIED:
                sent.append(key)
                await asyncio.sleep(0.01)
                made = answer(body=key.encode())
                await store.settle(admission.ticket, made)
                return made
            if admission.effect is Effect.REPLAYED:
                assert admission.stored is not None
                return admission.stored
            assert admission.effect is Effect.IN_PROGRESS
            await asyncio.sleep(0.01)

    got = await asyncio.gather(*(client((gate, other)[n % 2], f"k-{n % 60}") for n in range(240)))
    assert sorted(sent) == sorted(f"k-{n}" for n in range(60))
    assert all(a.body == b"k-%d" % (n % 60) for n, a in enumerate(got))

    await until(lambda: _drained(gate))


async def test_what_an_observing_route_lets_through_against_the_fences_word_holds_up_no_term_and_no_drain(
    gate: PostgresStore, make_store: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    other: PostgresStore = await make_store(gateway="gw-2")
    for token in (0, 3):  # without a token, and with an old one
        let_through = await other.admit(forward(token, enforce=False), 10.0)
        assert let_through.effect is Effect.APPLIED
        assert let_through.ticket
    admitted = await gate.admit(forward(4), 10.0)
    assert (admitted.verdict, admitted.effect) == (Verdict.ADMIT, Effect.APPLIED)
    await gate.settle(admitted.ticket, answer())
    await gate.set_draining(ROLE, 4, True)
    assert (await other.admit(forward(4, enforce=False), 10.0)).effect is Effect.APPLIED
    await until(lambda: _drained(gate))


async def test_a_term_waits_for_what_the_fence_admitted_on_an_observing_route_too(gate: PostgresStore) -> None:
    """A route's gateways are switched from observing to enforcing one after the other."""
    observed = await gate.admit(forward(4, enforce=False), 10.0)
    await open_term(gate, 5)
    assert (await gate.admit(forward(5), 2.0)).verdict is Verdict.DRAINING
    await gate.settle(observed.ticket, answer())
    assert (await gate.admit(forward(5), 5.0)).verdict is Verdict.ADMIT


async def _drained(store: PostgresStore) -> bool:
    return await store.in_flight(ROLE, 4) == 0


async def test_one_that_waits_for_the_drain_says_so_though_its_time_ends_while_the_store_is_busy(
    gate: PostgresStore,
) -> None:
    await gate.admit(forward(4), 10.0)
    await open_term(gate, 5)
    admissions = gate._forwards._admissions
    waiting = asyncio.create_task(gate.admit(forward(5), 3.0))
    looks, look = 0, admissions._send

    async def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return await look(*arguments)

    admissions._send = counted
    await until(lambda: asyncio.sleep(0, looks > 0))
    async with admissions.exclusive:
        assert (await waiting).verdict is Verdict.DRAINING
