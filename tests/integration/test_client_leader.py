"""lead(): a leader process over an election kept in memory, with calls that fail and hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fencegate.client import Grants, LeadershipLost, LeaderTerm, OutcomeUnknown, Refused, lead
from fencegate.errors import ConfigurationError, Unavailable
from fencegate.grant import verify
from fencegate.key_ring import SharedKey
from fencegate.lease import (
    Candidate,
    ElectionBackend,
    ElectionUnavailable,
    Held,
    LeaseLost,
    LeaseTimings,
    SealRecord,
    Term,
    Won,
)
from fencegate.observations import LeadershipGained, LeaseRenewalFailed, Observation, SourceUnavailable
from fencegate.observations import LeadershipLost as LossObserved
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.scripted_gate import Accept, Raw, Refuse, ScriptedGate, Slow

ME = Candidate("worker-1", "eu", "https://worker-1.example")
RIVAL = Candidate("worker-2", "eu", "https://worker-2.example")
TIMINGS = LeaseTimings(lease_duration=9.0, renew_deadline=6.0, retry_period=0.1, margin=0.1)
"""A machine may be busy for seconds while a gate is there; without one, time is virtual (conftest.py)."""


def now() -> float:
    return asyncio.get_running_loop().time()


class Election(ElectionBackend):
    """One role's lease in memory. ``faults`` are thrown, ``stubborn`` and ``hang`` make a renewal hang."""

    name = "memory"

    def __init__(self) -> None:
        self.issued = 0
        self.holder: tuple[str, int] | None = None
        self.until = 0.0
        self.faults: list[Exception] = []
        self.hang = asyncio.Event()
        self.stubborn = False
        self.delay = 0.0
        self.let_go = asyncio.Event()
        self.announced: list[int] = []
        self.released: list[tuple[int, SealRecord]] = []
        self.withdrawn = 0
        self.renewals = 0
        self.calls: list[str] = []

    def _fault(self) -> None:
        if self.faults:
            raise self.faults.pop(0)

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        self.calls.append("acquire")
        self._fault()
        if self.holder is not None and self.holder[0] != candidate.holder and now() < self.until:
            return Held(None)
        if self.holder is None or self.holder[0] != candidate.holder or now() >= self.until:
            self.issued += 1
            self.holder = (candidate.holder, self.issued)
            self.until = now() + TIMINGS.lease_duration
        return Won(self.holder[1])

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        self.calls.append("renew")
        self._fault()
        await asyncio.sleep(self.delay)
        if self.hang.is_set():
            await self._hang()
        if self.holder != (candidate.holder, token):
            raise LeaseLost("another holds it")
        self.until = now() + TIMINGS.lease_duration
        self.renewals += 1
        if active:
            self.announced.append(token)

    async def _hang(self) -> None:
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        self.calls.append("release")
        self._fault()
        self.released.append((token, sealed))
        held = self.holder is not None and self.holder[1] == token
        if held:
            self.holder = None
        return held

    async def withdraw(self, role: str, deadline: float) -> None:
        self.withdrawn += 1

    async def read(self, role: str, deadline: float) -> Term | None:
        raise NotImplementedError

    def changes(self, role: str) -> AsyncIterator[None]:
        raise NotImplementedError

    async def close(self) -> None:
        raise AssertionError("the backend belongs to the caller")


class Unreachable(Election):
    """Tries until its time is up, and then says what was in the way."""

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        await asyncio.sleep(deadline)
        raise ElectionUnavailable("http://etcd-1:2379: Connection refused", "connection")


async def test_why_an_election_cannot_be_reached_is_told_and_not_only_that_it_did_not_answer() -> None:
    told: list[Observation] = []
    asking = lead("nightly", backend=Unreachable(), candidate=ME, timings=TIMINGS, clock=now, observer=told.append)
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMINGS.renew_deadline + 0.3), asking:
            pass
    assert [fact.detail for fact in told if isinstance(fact, SourceUnavailable)] == [
        "http://etcd-1:2379: Connection refused"
    ]


@pytest.fixture
async def election() -> AsyncIterator[Election]:
    made = Election()
    yield made
    made.let_go.set()
    await asyncio.sleep(0)


@pytest.fixture
async def gate() -> AsyncIterator[ScriptedGate]:
    async with ScriptedGate() as made:
        yield made


def leading(election: Election, **options: Any) -> Any:
    return lead("cron", backend=election, candidate=ME, timings=TIMINGS, **{"clock": now, **options})


async def test_the_block_begins_when_the_role_is_won_and_announced(election: Election) -> None:
    async with leading(election) as term:
        assert (term.token, election.announced, term.lost.is_set()) == (1, [1], False)
        assert 0 < term.remaining() <= TIMINGS.renew_deadline
        term.check()


async def test_it_waits_while_another_holds_the_role(election: Election) -> None:
    await election.acquire("cron", RIVAL, 1.0)
    started = now()
    async with leading(election) as term:
        assert term.token == 2
        assert TIMINGS.lease_duration <= now() - started < TIMINGS.lease_duration + 1


async def test_the_term_is_kept_for_longer_than_a_lease_by_renewing(election: Election) -> None:
    async with leading(election) as term:
        await asyncio.sleep(TIMINGS.lease_duration * 1.5)
        term.check()
    assert election.renewals > 5


async def test_a_campaign_survives_an_election_that_cannot_answer(election: Election) -> None:
    election.faults = [Unavailable("down"), TimeoutError(), OSError("reset"), Unavailable("still down")]
    async with leading(election) as term:
        assert term.token == 1


async def test_giving_up_the_campaign_leaves_the_line(election: Election) -> None:
    await election.acquire("cron", RIVAL, 1.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), leading(election):
            pytest.fail("not won")
    assert election.withdrawn == 1


async def test_transient_faults_cost_no_term(election: Election) -> None:
    async with leading(election) as term:
        election.faults = [Unavailable("down"), RuntimeError("a bug in the backend")]
        await asyncio.sleep(TIMINGS.renew_deadline)
        term.check()


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_hung_renewal_ends_the_term_at_the_deadline_and_not_when_it_returns(
    election: Election, stubborn: bool
) -> None:
    async with leading(election) as term:
        election.stubborn = stubborn
        election.hang.set()
        hung = now()
        await asyncio.wait_for(term.lost.wait(), 2 * TIMINGS.renew_deadline)
        assert now() - hung <= TIMINGS.renew_deadline
        assert term.remaining() == 0
        election.let_go.set()
        await asyncio.sleep(0.05)
        with pytest.raises(LeadershipLost) as caught:
            term.check()
    assert (caught.value.reason, caught.value.token, caught.value.role) == ("renew_deadline", 1, "cron")


async def test_the_first_renewal_hanging_wins_nothing(election: Election) -> None:
    election.hang.set()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * TIMINGS.lease_duration), leading(election):
            pytest.fail("an unconfirmed win is no win")
    assert election.announced == []


async def test_check_looks_at_the_clock_and_not_only_at_the_event(election: Election) -> None:
    clock = HandClock(1000.0)
    async with leading(election, clock=clock) as term:
        clock.now += TIMINGS.renew_deadline + 0.01  # the process was paused: no timer has run yet
        assert term.remaining() == 0
        with pytest.raises(LeadershipLost):
            term.check()
        term.renewed(clock.now)
        assert term.remaining() == 0, "a term that has run out once never comes back"


def test_a_renewal_counts_from_its_start_and_never_moves_the_end_back() -> None:
    clock = HandClock(0.0)
    term = LeaderTerm("cron", 1, TIMINGS, 0.0, clock)
    clock.now = 0.3
    term.renewed(0.1)
    assert term.remaining() == pytest.approx(TIMINGS.renew_deadline - 0.2)
    term.renewed(0.05)
    assert term.remaining() == pytest.approx(TIMINGS.renew_deadline - 0.2)


def test_a_renewal_that_comes_back_after_the_end_does_not_bring_the_term_back() -> None:
    clock = HandClock(0.0)
    term = LeaderTerm("cron", 1, TIMINGS, 0.0, clock)
    clock.now = TIMINGS.renew_deadline + 0.1
    term.renewed(clock.now - 0.2)
    assert (term.remaining(), term.reason) == (0.0, "renew_deadline")


async def test_a_slow_renewal_counts_from_when_it_was_asked(election: Election) -> None:
    election.delay = 0.15
    seen = []
    async with leading(election) as term:
        ends = now() + 1.0
        while now() < ends:
            seen.append(term.remaining())
            await asyncio.sleep(0.005)
        term.check()
    assert election.renewals >= 3
    assert max(seen) <= TIMINGS.renew_deadline - election.delay + 0.01


async def test_losing_the_lease_ends_the_term_for_good_and_the_next_has_another_token(election: Election) -> None:
    async with leading(election) as term:
        election.holder = None
        await asyncio.wait_for(term.lost.wait(), 1.0)
        assert term.reason == "lost"
    async with leading(election) as second:
        assert second.token > term.token


@pytest.mark.parametrize("shared_store", [False, True])
async def test_the_next_block_over_the_same_backend_has_a_token_of_its_own(shared_store: bool) -> None:
    """A request of the first block may still be on its way: under the same token no store could tell it apart."""
    backend = MemoryElection(MemoryQuorum(now), TIMINGS)

    def block() -> Any:
        return lead("cron", backend=backend, candidate=ME, timings=TIMINGS, shared_store=shared_store, clock=now)

    with pytest.raises(ZeroDivisionError):
        async with block() as term:
            raise ZeroDivisionError
    async with block() as second:
        assert second.token > term.token
    async with block() as third:
        assert third.token > second.token


async def test_a_term_that_ran_out_is_not_gone_on_with_by_the_next_block() -> None:
    backend = MemoryElection(MemoryQuorum(now), TIMINGS)
    async with lead("cron", backend=backend, candidate=ME, timings=TIMINGS, clock=now) as term:
        backend.cut = True
        await asyncio.wait_for(term.lost.wait(), 2 * TIMINGS.renew_deadline)
        backend.cut = False
    async with lead("cron", backend=backend, candidate=ME, timings=TIMINGS, clock=now) as second:
        assert second.token > term.token


async def test_two_blocks_at_a_time_over_one_backend_are_refused_and_two_roles_are_not(election: Election) -> None:
    async with leading(election) as term:
        with pytest.raises(RuntimeError, match="a backend of its own"):
            async with leading(election):
                raise AssertionError("two leaders under one token")
        other = lead(
            "other", backend=MemoryElection(MemoryQuorum(now), TIMINGS), candidate=ME, timings=TIMINGS, clock=now
        )
        async with other:
            term.check()
    async with leading(election) as again:
        again.check()


async def test_what_lead_gave_can_be_entered_again_and_cancels_again(election: Election) -> None:
    made = leading(election, cancel_on_loss=True)

    async def block() -> None:
        async with made:
            election.holder = None
            await asyncio.sleep(30)

    for _ in range(2):
        with pytest.raises(LeadershipLost):
            await block()


async def test_cancel_on_loss_ends_the_block_with_the_reason(election: Election) -> None:
    async def block() -> None:
        async with leading(election, cancel_on_loss=True):
            election.holder = None
            await asyncio.sleep(30)

    with pytest.raises(LeadershipLost) as caught:
        await block()
    assert caught.value.reason == "lost"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_stays_one(election: Election) -> None:
    async def work() -> None:
        async with leading(election, cancel_on_loss=True):
            await asyncio.sleep(30)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_block_that_catches_the_cancellation_itself_leaves_none_behind(election: Election) -> None:
    async with leading(election, cancel_on_loss=True) as term:
        election.holder = None
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
    assert term.reason == "lost"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_loss_that_the_block_finds_out_itself_is_not_cancelled_on_top(election: Election) -> None:
    async with leading(election, cancel_on_loss=True) as term:
        term.over("stale_token")
        await asyncio.sleep(0)
    assert term.reason == "stale_token"


async def test_without_a_shared_store_the_lease_is_left_to_lapse(election: Election) -> None:
    async with leading(election) as term:
        pass
    assert (election.released, election.holder) == ([], (ME.holder, term.token))
    assert term.lost.is_set()
    with pytest.raises(LeadershipLost, match="resigned"):
        term.check()


async def test_with_a_shared_store_the_lease_is_given_back_after_the_term_is_over_here(election: Election) -> None:
    async with leading(election, shared_store=True) as term:
        pass
    assert election.released == [(1, SealRecord(1, "eu"))]
    assert term.lost.is_set()
    assert election.calls[-1] == "release"


async def test_a_block_that_failed_gives_nothing_back(election: Election) -> None:
    with pytest.raises(ZeroDivisionError):
        async with leading(election, shared_store=True):
            raise ZeroDivisionError
    assert election.released == []


async def test_a_lost_term_gives_nothing_back(election: Election) -> None:
    async with leading(election, shared_store=True) as term:
        election.holder = None
        await asyncio.wait_for(term.lost.wait(), 1.0)
    assert election.released == []


async def test_a_request_under_way_keeps_the_lease_from_being_given_back(
    election: Election, gate: ScriptedGate
) -> None:
    gate.otherwise = Slow(0.3, Accept())
    async with leading(election, shared_store=True) as term:
        client = await term.client([gate.url]).__aenter__()
        task = asyncio.create_task(client.post("/v1/entries"))
        await gate.received(writes=1)
    assert election.released == []
    await task
    await client.close()


@pytest.mark.parametrize("how", ["cancelled", "lost"])
async def test_a_request_that_may_still_be_under_way_keeps_the_lease_from_being_given_back(
    election: Election, gate: ScriptedGate, how: str
) -> None:
    gate.otherwise = Slow(0.5, Accept())
    async with leading(election, shared_store=True) as term, term.client([gate.url], try_timeout=0.2) as client:
        if how == "cancelled":
            task = asyncio.create_task(client.post("/v1/entries"))
            await gate.received(writes=1)
            task.cancel()
            await asyncio.wait({task})
        else:
            with pytest.raises(OutcomeUnknown):
                await client.post("/v1/entries", idempotency_key=False)
        assert client.in_flight == 0
    assert election.released == []


async def test_a_request_whose_end_is_known_keeps_nothing(election: Election, gate: ScriptedGate) -> None:
    gate.otherwise = Accept()
    async with leading(election, shared_store=True) as term, term.client([gate.url]) as client:
        await client.post("/v1/entries")
    assert len(election.released) == 1


async def test_a_release_that_fails_is_left_to_lapse(election: Election) -> None:
    async with leading(election, shared_store=True):
        election.faults = []
        await asyncio.sleep(0)
        election.faults = [Unavailable("down")]
    assert election.released == []


@pytest.mark.parametrize("who", ["an observer", "a listener"])
async def test_a_lost_term_cancels_its_block_whatever_those_raise_who_are_told(election: Election, who: str) -> None:
    told: list[str] = []

    def fail(*_: object) -> None:
        told.append("first")
        raise ZeroDivisionError

    def observe(fact: Observation) -> None:
        if who == "an observer" and isinstance(fact, LossObserved):
            fail()

    async def block() -> None:
        async with leading(election, cancel_on_loss=True, observer=observe) as term:
            if who == "a listener":
                term.on_loss(fail)
            term.on_loss(lambda: told.append("second"))
            election.holder = None
            try:
                await asyncio.sleep(5.0)
            except asyncio.CancelledError:
                told.append("the block")
                raise

    with pytest.raises((LeadershipLost, ZeroDivisionError)):
        await block()
    assert sorted(told) == ["first", "second", "the block"]


async def test_an_observer_that_raises_at_the_end_of_a_block_keeps_nobody_from_the_next(election: Election) -> None:
    def observe(fact: Observation) -> None:
        if isinstance(fact, LossObserved):
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            async with leading(election, observer=observe):
                pass
    assert election.withdrawn == 2


async def test_each_fact_is_observed_once(election: Election) -> None:
    seen: list[Observation] = []
    async with leading(election, observer=seen.append) as term:
        election.faults = [Unavailable("down")]
        await asyncio.sleep(0.3)
        election.holder = None
        await asyncio.wait_for(term.lost.wait(), 1.0)
    assert [fact for fact in seen if isinstance(fact, LeadershipGained)] == [LeadershipGained("cron", 1)]
    assert [fact for fact in seen if isinstance(fact, LossObserved)] == [LossObserved("cron", 1, "lost")]
    causes = [fact.cause for fact in seen if isinstance(fact, LeaseRenewalFailed)]
    assert causes == ["connection", "lost"]


def test_timings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="lease_duration"):
        lead("cron", backend=Election(), candidate=ME, timings=LeaseTimings(lease_duration=5.0))


# -- the term's own client ------------------------------------------------------------------------


async def test_the_terms_client_presents_its_token_without_discovery(election: Election, gate: ScriptedGate) -> None:
    gate.otherwise = Accept()
    election.issued = 41
    async with leading(election) as term, term.client([gate.url]) as client:
        await client.post("/v1/entries", json=1)
        with pytest.raises(ValueError, match="no other"):
            await client.post("/v1/entries", json=1, token=43)
    assert [write.header("X-Fencing-Token") for write in gate.writes] == ["42"]
    assert gate.discoveries == []
    assert int(gate.writes[0].header("X-Fencing-Timeout-Ms") or 0) <= TIMINGS.renew_deadline * 1000


@pytest.mark.parametrize("code", ["stale_token", "not_leader"])
async def test_being_told_that_its_token_is_over_ends_the_term_and_adopts_nothing(
    election: Election, gate: ScriptedGate, code: str
) -> None:
    async with ScriptedGate() as newer:
        gate.play(Refuse(code, max_seen=9, leader=newer.url, leader_token=9))
        async with leading(election) as term, term.client([gate.url, newer.url]) as client:
            with pytest.raises(LeadershipLost) as caught:
                await client.post("/v1/entries")
            assert (term.lost.is_set(), caught.value.reason) == (True, code)
            with pytest.raises(LeadershipLost):
                await client.post("/v1/entries")
        assert newer.connections == 0
    assert len(gate.writes) == 1


# Field case 92: hashicorp/vault#10898, hashicorp/vault#1337, kelseyhightower/confd#492.
async def test_a_hint_of_the_same_token_is_followed(election: Election, gate: ScriptedGate) -> None:
    async with ScriptedGate() as other:
        other.otherwise = Accept()
        gate.play(Refuse("not_leader", leader=other.url, leader_token=1))
        async with leading(election) as term, term.client([gate.url, other.url]) as client:
            assert (await client.post("/v1/entries")).origin == other.url
            assert not term.lost.is_set()


async def test_a_lost_term_sends_nothing_more_but_still_reads(election: Election, gate: ScriptedGate) -> None:
    gate.otherwise = Accept(status=200)
    async with leading(election) as term, term.client([gate.url]) as client:
        term.end("lost")
        with pytest.raises(LeadershipLost):
            await client.post("/v1/entries")
        assert (await client.get("/v1/entries")).status == 200
    assert [write.method for write in gate.writes] == ["GET"]


async def test_a_loss_while_a_write_waits_for_its_next_try_wakes_it(election: Election, gate: ScriptedGate) -> None:
    gate.play(Refuse("overloaded", retry_after=10))
    async with leading(election) as term, term.client([gate.url]) as client:
        task = asyncio.create_task(client.post("/v1/entries"))
        await gate.received(writes=1)
        await asyncio.sleep(0.05)
        term.end("lost")
        with pytest.raises(LeadershipLost):
            await asyncio.wait_for(task, 5.0)
    assert len(gate.writes) == 1


async def test_a_loss_after_a_lost_answer_is_an_unknown_outcome(election: Election, gate: ScriptedGate) -> None:
    gate.otherwise = Raw(b"")
    async with leading(election) as term, term.client([gate.url], backoff_base=5.0, backoff_cap=5.0) as client:
        task = asyncio.create_task(client.post("/v1/entries"))
        await gate.received(writes=1)
        await asyncio.sleep(0.05)
        term.end("lost")
        with pytest.raises(OutcomeUnknown) as caught:
            await asyncio.wait_for(task, 5.0)
    assert caught.value.code == "leadership_lost"
    assert caught.value.idempotency_key


async def test_a_stale_answer_after_a_lost_one_is_an_unknown_outcome_and_still_ends_the_term(
    election: Election, gate: ScriptedGate
) -> None:
    gate.play(Raw(b""), Refuse("stale_token", max_seen=9))
    async with leading(election) as term, term.client([gate.url], backoff_base=0.01) as client:
        with pytest.raises(OutcomeUnknown):
            await client.post("/v1/entries")
        assert (term.lost.is_set(), term.reason) == (True, "stale_token")


async def test_a_term_signs_its_own_writes_and_goes_on_after_a_grant_that_was_refused(
    tmp_path: Path, gate: ScriptedGate
) -> None:
    file = tmp_path / "grant.keys"
    file.write_text(f"one {'s' * 32}\n")
    gate.play(Accept(), Refuse("grant_expired"), Accept())
    async with leading(Election(), grants=Grants(file, "CN=worker-1")) as term, term.client([gate.url]) as client:
        await client.post("/v1/entries", json={})
        await client.post("/v1/entries", json={})
        assert not term.lost.is_set()
        assert term.grant() == gate.writes[0].header("X-Fencing-Grant")
    keys = SharedKey("one", b"s" * 32)
    for write in gate.writes:
        grant = (write.header("X-Fencing-Grant") or "").encode()
        assert verify([keys], grant, "cron", term.token, "CN=worker-1", time.time()).subject == "CN=worker-1"
    assert gate.discoveries == []


async def test_a_grant_that_is_refused_for_good_is_no_end_of_the_term(gate: ScriptedGate) -> None:
    gate.otherwise = Refuse("grant_required")
    async with leading(Election()) as term, term.client([gate.url]) as client:
        with pytest.raises(Refused) as refused:
            await client.post("/v1/entries", json={})
        assert refused.value.code == "grant_required"
        assert not term.lost.is_set()
    assert [write.header("X-Fencing-Grant") for write in gate.writes] == [None] * 3
