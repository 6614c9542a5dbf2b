"""The elector against an election and a store in memory, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from fencegate.election.elector import Elector
from fencegate.election.storeless import StorelessTerm
from fencegate.errors import Unavailable
from fencegate.fence import FenceStore, Verdict
from fencegate.leadership.words import State
from fencegate.lease import Candidate, LeaseLost, LeaseTimings, SealRecord
from fencegate.observations import (
    ClaimWasRefused,
    EarlierTermEnded,
    LeadershipGained,
    LeadershipLost,
    LeaseRenewalFailed,
    LeaseRenewed,
    NodeNameShared,
    Observation,
    SourceUnavailable,
    TermSealed,
    TokenRegressed,
)
from fencegate.steady_clock import sleepless, steady_clock
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import VirtualTimeLoop, run_in_virtual_time
from fencegate.tokens import MAX_TOKEN

TIMINGS = LeaseTimings()
ROLE = "ledger"


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Region:
    """One region: its store, its way to the quorum, its elector."""

    name: str
    world: World
    store: MemoryStore
    backend: MemoryElection
    told: list[Observation] = field(default_factory=list)
    elector: Elector = field(init=False)
    running: asyncio.Task[None] | None = None

    def start(self, node: str | None = None, **options: Any) -> Elector:
        who = Candidate(node or f"gw-{self.name}", self.name, f"https://{self.name}.example")
        options = {"clock": now, "jitter": lambda: 0.5, **options}
        store: FenceStore = options.pop("store", self.store)
        self.elector = Elector(ROLE, who, self.backend, store, TIMINGS, self.told.append, **options)
        self.running = asyncio.create_task(self.elector.run())
        return self.elector

    async def crash(self) -> None:
        """The process ends without a word: nothing is sealed or withdrawn."""
        assert self.running
        self.backend.cut = True
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running
        self.backend = MemoryElection(self.world.quorum, TIMINGS)

    def facts(self, *kinds: type[Observation]) -> list[Observation]:
        return [fact for fact in self.told if isinstance(fact, kinds)]


class World:
    def __init__(self) -> None:
        self.quorum = MemoryQuorum(now)
        self.a, self.b = self.region("eu"), self.region("dr")

    def region(self, name: str) -> Region:
        return Region(name, self, MemoryStore([ROLE], now), MemoryElection(self.quorum, TIMINGS))

    async def until(self, reached: Callable[[], object], within: float = 120.0) -> None:
        async with asyncio.timeout(within):
            while not reached():
                await asyncio.sleep(0.05)
                assert not (self.a.store.is_open(ROLE) and self.b.store.is_open(ROLE)), "two open stores"

    async def pass_time(self, seconds: float) -> None:
        ends = now() + seconds
        await self.until(lambda: now() >= ends, seconds + 1)


@contextlib.asynccontextmanager
async def new_world() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        for region in (world.a, world.b):
            if region.running and not region.running.done():
                region.running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await region.running


def in_world(story: Callable[[World], Any]) -> None:
    async def play() -> None:
        async with new_world() as world:
            await story(world)

    run_in_virtual_time(play())


# -- winning and holding --------------------------------------------------------------------------


def test_it_wins_claims_announces_and_opens_its_store() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)

        assert elector.state is State.LEADING
        assert world.a.store.write(ROLE, elector.token or 0) is Verdict.ADMIT
        term = await world.b.backend.read(ROLE, 1)
        assert term is not None
        assert (term.token, term.region, term.active) == (elector.token, "eu", True)

    in_world(story)


def test_each_renewal_asks_the_stores_clock_before_the_quorum_and_extends_after() -> None:
    async def story(world: World) -> None:
        order: list[str] = []
        world.a.store.calls = order
        world.a.backend.calls = order
        world.a.start()
        await world.pass_time(5)

        assert order[:3] == ["read", "read", "issued_up_to"]  # was there an earlier life, or a restore?
        assert order[3:8] == ["clock", "acquire", "clock", "read", "renew"]
        assert order[8:12] == ["claim", "clock", "renew active", "extend"]
        assert order[12:15] == ["clock", "renew active", "extend"]

    in_world(story)


def test_it_holds_the_role_for_hours_with_one_token() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        world.b.start()
        await world.until(lambda: elector.token)
        token = elector.token
        for _ in range(20):
            await asyncio.sleep(360)
            assert elector.token == token
            assert world.a.store.is_open(ROLE)

        assert world.a.facts(LeadershipLost) == []
        assert len(world.a.facts(LeaseRenewed)) > 3_000

    in_world(story)


def test_nonsense_timings_are_refused() -> None:
    async def story(world: World) -> None:
        who = Candidate("n", "eu", "https://eu.example")
        with pytest.raises(ValueError, match="renew_deadline"):
            Elector(ROLE, who, world.a.backend, world.a.store, LeaseTimings(10, 15), lambda _: None)

    in_world(story)


def test_running_it_twice_is_an_error() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="already"):
            await elector.run()

    in_world(story)


# -- failing over ---------------------------------------------------------------------------------


# Field case 66: patroni/patroni#2587, patroni/patroni#1182.
def test_when_the_leader_crashes_the_other_region_opens_after_the_first_has_closed() -> None:
    async def story(world: World) -> None:
        first, second = world.a.start(), world.b.start()
        await world.until(lambda: first.token or second.token)
        leader, other = (world.a, world.b) if first.token else (world.b, world.a)
        old = leader.elector.token or 0
        await leader.crash()

        await world.until(lambda: other.elector.token, within=25)

        assert (other.elector.token or 0) > old
        assert leader.store.write(ROLE, old) is Verdict.NOT_LEADING

    in_world(story)


def test_a_leader_frozen_for_twice_the_lease_wakes_as_no_leader() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        token = elector.token or 0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)

        loop.freeze(2 * TIMINGS.lease_duration)

        assert elector.token is None
        assert elector.remaining == 0.0
        assert world.a.store.write(ROLE, token) is Verdict.NOT_LEADING
        await asyncio.sleep(0.1)
        assert world.a.facts(LeadershipLost) == [LeadershipLost(ROLE, token, "renew_deadline")]
        await world.until(lambda: elector.token, within=40)
        assert (elector.token or 0) > token

    in_world(story)


# Field case 1: kubernetes/kubernetes#23731.
# Field case 67: cloudnative-pg/cloudnative-pg#7407, fly-apps/postgres-flex#55.
def test_cut_off_from_the_quorum_it_steps_down_by_its_own_clock_and_seals() -> None:
    async def story(world: World) -> None:
        elector, other = world.a.start(), world.b
        await world.until(lambda: elector.token)
        token = elector.token or 0
        other.start()
        world.a.backend.cut = True
        cut_at = now()

        await world.until(lambda: elector.token is None)
        assert now() - cut_at <= TIMINGS.renew_deadline + 0.1
        await world.until(lambda: world.a.facts(TermSealed))
        await world.until(lambda: other.elector.token)

        assert world.a.facts(TermSealed) == [TermSealed(ROLE, token, True)]
        assert {fact.cause for fact in world.a.facts(LeaseRenewalFailed) if isinstance(fact, LeaseRenewalFailed)} == {
            "connection"
        }

    in_world(story)


# Field case 3: kubernetes/kubernetes#44887.
def test_a_quorum_that_hangs_ends_the_term_at_the_deadline() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        world.a.backend.hanging = True
        hung_at = now()

        await world.until(lambda: elector.token is None)

        assert now() - hung_at <= TIMINGS.renew_deadline + 0.1

    in_world(story)


@pytest.mark.parametrize("fault", ["down", "hanging"])
def test_a_store_that_fails_gives_the_leadership_to_the_other_region(fault: str) -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        other = world.b.start()
        if fault == "down":
            world.a.store.down = True
        else:
            world.a.store.hanging = {"clock", "extend", "seal", "claim", "set_draining", "read"}

        await world.until(lambda: other.token, within=60)
        held = other.token
        await world.pass_time(100)

        assert other.token == held
        assert world.a.facts(LeadershipLost)[-1] == LeadershipLost(ROLE, 1, "store")

    in_world(story)


# Field case 75: PostHog/posthog#76100.
def test_when_its_store_comes_back_it_stands_again() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        world.a.store.down = True
        await world.pass_time(60)
        world.a.store.down = False

        await world.until(lambda: elector.token, within=30)

    in_world(story)


# Field case 30: prisma-risk/tsoracle#229.
def test_nine_passing_failures_of_the_claim_need_no_new_election() -> None:
    async def story(world: World) -> None:
        world.a.store.hanging = set()
        real, failures = world.a.store.claim, iter(range(9))

        async def claim(*arguments: Any) -> Any:
            if next(failures, None) is not None:
                raise Unavailable("not yet")
            return await real(*arguments)

        world.a.store.claim = claim  # type: ignore[method-assign]
        elector = world.a.start()

        await world.until(lambda: elector.token, within=10)

        assert elector.token == 1

    in_world(story)


def test_a_store_failover_ends_the_term_and_the_next_one_serves() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        world.a.store.fail_over()
        assert world.a.store.write(ROLE, 1) is Verdict.OTHER_INCARNATION

        await world.until(lambda: elector.token is None, within=5)
        await world.until(lambda: elector.token, within=40)

        assert elector.token == 2
        assert world.a.store.write(ROLE, 2) is Verdict.ADMIT
        # A seal on a server where the term was not open does not count.
        assert world.a.facts(TermSealed) == [TermSealed(ROLE, 1, False)]

    in_world(story)


def test_a_claim_whose_answer_was_lost_is_not_tried_again_on_a_promoted_server() -> None:
    async def story(world: World) -> None:
        a = world.a
        a.store.hanging.add("claim")  # sent, perhaps taken, never answered
        a.start()
        await world.until(lambda: "claim" in a.store.calls)
        a.store.fail_over()
        a.store.hanging.clear()
        await world.until(lambda: a.store.is_open(ROLE))
        assert [f.reason for f in a.told if isinstance(f, ClaimWasRefused)] == ["incarnation"]
        gained = a.facts(LeadershipGained)
        assert len(gained) == 1

    in_world(story)


def test_a_claim_whose_answer_was_lost_is_not_tried_again_on_another_standby_of_the_same_timeline() -> None:
    """The first one that was promoted may be up, have taken the claim, and take writes of the term for a lease."""

    async def story(world: World) -> None:
        a = world.a
        a.store.hanging.add("claim")
        a.start()
        await world.until(lambda: "claim" in a.store.calls)
        a.store.fail_over(same_timeline=True)
        a.store.hanging.clear()
        await world.until(lambda: a.store.is_open(ROLE))
        assert [f.reason for f in a.told if isinstance(f, ClaimWasRefused)] == ["incarnation"]
        assert a.store.write(ROLE, 1) is Verdict.STALE

    in_world(story)


def test_a_renewal_that_hangs_past_its_limit_is_told_as_a_failure() -> None:
    async def story(world: World) -> None:
        a = world.a
        a.start()
        await world.until(lambda: a.elector.token)
        a.store.hanging.add("extend")
        await world.until(lambda: not a.elector.token)
        assert {f.cause for f in a.told if isinstance(f, LeaseRenewalFailed)} == {"store"}

    in_world(story)


# Field case 33: etcd-io/etcd#16028, etcd-io/etcd#16029, etcd-io/etcd#9775.
def test_an_issuer_gone_back_is_alarmed_and_nothing_opens() -> None:
    async def story(world: World) -> None:
        world.quorum.next_token = 1200
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await elector.resign("restore", 5)
        world.quorum.next_token = 900

        await world.until(lambda: world.a.facts(TokenRegressed), within=60)
        await world.pass_time(60)

        assert TokenRegressed(ROLE, 900, 1200) in world.a.told
        assert elector.token is None
        assert not world.a.store.is_open(ROLE)

    in_world(story)


def test_after_a_restore_it_stays_out_until_the_issuer_was_moved_up() -> None:
    async def story(world: World) -> None:
        world.quorum.next_token = 1200
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await elector.resign("restore", 5)
        world.quorum.next_token = 900
        await world.until(lambda: world.a.facts(TokenRegressed), within=60)
        await world.pass_time(60)
        tried = world.quorum.next_token
        await world.pass_time(60)
        assert world.quorum.next_token == tried  # each number that is won in vain would keep others from the role

        await world.b.backend.rebase(ROLE, 5000, "ops", 1)
        await world.until(lambda: elector.token, within=60)

        assert (elector.token or 0) > 5000
        assert world.a.store.write(ROLE, elector.token or 0) is Verdict.ADMIT
        assert world.a.store.write(ROLE, 1200) is Verdict.STALE

    in_world(story)


def test_a_number_that_another_region_held_is_not_taken_though_the_own_store_never_saw_it() -> None:
    async def story(world: World) -> None:
        world.quorum.next_token = 1200
        a = world.a.start()
        await world.until(lambda: a.token)
        b = world.b.start()
        await world.pass_time(5)
        world.a.backend.cut = True
        world.quorum.next_token = 1200  # restored to the moment before the first term
        world.quorum.holders.clear()

        await world.until(lambda: world.b.facts(TokenRegressed), within=60)
        assert TokenRegressed(ROLE, 1200, 1200) in world.b.told
        assert not world.b.facts(LeadershipGained)
        assert world.b.store.write(ROLE, 1200) is not Verdict.ADMIT

        await MemoryElection(world.quorum, TIMINGS).rebase(ROLE, 5000, "ops", 1)
        await world.until(lambda: b.token, within=60)
        assert (b.token or 0) > 5000

    in_world(story)


def test_a_number_that_was_claimed_before_is_not_taken_again() -> None:
    """The store alone could not tell: the token is not lower, and the holder's name is the same."""

    async def story(world: World) -> None:
        world.quorum.next_token = 7
        elector = world.a.start()
        await world.until(lambda: elector.token)
        world.a.backend.cut = True
        world.a.store.hanging.add("seal")  # as a crash would: the term is over and was not sealed
        await world.until(lambda: not world.a.store.is_open(ROLE))
        world.quorum.next_token = 7
        world.quorum.holders.clear()
        world.a.store.hanging.clear()
        world.a.backend.cut = False

        await world.until(lambda: world.a.facts(TokenRegressed), within=60)

        assert world.a.facts(TokenRegressed) == [TokenRegressed(ROLE, 7, 7)]
        assert not world.a.store.is_open(ROLE)
        await world.until(lambda: elector.token, within=120)
        assert elector.token == 8

    in_world(story)


def test_a_backend_that_breaks_its_contract_is_told_and_survived() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        real = world.a.backend.renew

        async def broken(*arguments: Any, **options: Any) -> None:
            raise KeyError("bug")

        world.a.backend.renew = broken  # type: ignore[method-assign]
        await world.pass_time(5)
        assert SourceUnavailable(ROLE, "memory", "KeyError('bug')") in world.a.told
        world.a.backend.renew = real  # type: ignore[method-assign]
        await world.pass_time(5)

        assert elector.token == 1

    in_world(story)


@pytest.mark.parametrize("number", [-1000, MAX_TOKEN + 1])
def test_a_number_that_is_no_token_is_never_led_under_and_told_once(number: int) -> None:
    async def story(world: World) -> None:
        world.quorum.next_token = number
        elector = world.a.start()
        await world.pass_time(60)
        assert elector.token is None
        assert not world.a.store.accepted
        [told] = world.a.facts(SourceUnavailable)
        assert isinstance(told, SourceUnavailable)
        assert f"{number}, no token" in told.detail

        world.quorum.holders.clear()
        world.quorum.next_token = 7
        await world.until(lambda: elector.token == 7)

    in_world(story)


def test_a_lost_answer_to_a_renewal_is_a_failed_renewal() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        world.a.backend.lose_answers = True
        await world.until(lambda: elector.token is None, within=11)
        world.a.backend.lose_answers = False

        await world.until(lambda: elector.token, within=60)

    in_world(story)


# -- leaving --------------------------------------------------------------------------------------


def test_resigning_seals_then_releases_and_the_other_region_wins() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        other = world.b.start()
        await asyncio.sleep(1)
        world.a.store.calls.clear()

        assert await elector.resign("operator", 5)

        assert world.a.store.calls[:3] == ["set_draining", "in_flight", "seal"]
        assert world.quorum.seals[ROLE] == SealRecord(1, "eu")
        assert elector.last_end is not None
        assert elector.last_end.released
        await world.until(lambda: other.token, within=3)
        await world.pass_time(100)
        assert other.token == 2

    in_world(story)


def test_a_resignation_whose_writes_do_not_end_seals_and_leaves_the_lease_to_lapse() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        other = world.b.start()
        await asyncio.sleep(1)
        world.a.store.under_way[ROLE] = 1

        assert not await elector.resign("operator", 60)

        assert elector.last_end is not None
        assert elector.last_end.sealed
        assert not elector.last_end.released
        assert ROLE not in world.quorum.seals
        await world.until(lambda: other.token, within=20)

    in_world(story)


def test_resigning_without_a_term_is_true_at_once() -> None:
    async def story(world: World) -> None:
        world.b.start()
        await asyncio.sleep(1)
        elector = world.a.start()
        await asyncio.sleep(1)
        before = now()

        assert await elector.resign("operator", 5)
        assert now() == before

    in_world(story)


def test_resigning_with_a_store_that_cannot_seal_is_false_and_nothing_is_released() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        world.a.store.down = True

        assert not await elector.resign("operator", 5)

        assert ROLE not in world.quorum.seals
        assert world.quorum.holder(ROLE) is not None

    in_world(story)


def test_resigning_without_a_quorum_is_false_and_the_store_is_sealed_all_the_same() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        world.a.backend.cut = True

        assert not await elector.resign("operator", 5)

        assert world.a.store.write(ROLE, 1) is Verdict.NOT_LEADING

    in_world(story)


def test_stopping_ends_run_with_the_term_sealed_and_released() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)

        assert await elector.stop(5)
        assert world.a.running
        await asyncio.wait_for(world.a.running, 1)

        assert elector.state is State.STOPPED
        assert world.quorum.holder(ROLE) is None
        assert world.a.facts(LeadershipLost) == [LeadershipLost(ROLE, 1, "shutdown")]

    in_world(story)


def test_stopping_before_running_lets_a_later_run_end_at_once() -> None:
    async def story(world: World) -> None:
        who = Candidate("n", "eu", "https://eu.example")
        elector = Elector(ROLE, who, world.a.backend, world.a.store, TIMINGS, lambda _: None, clock=now)

        assert await elector.stop(5)
        await asyncio.wait_for(elector.run(), 1)

        assert elector.state is State.STOPPED

    in_world(story)


def test_hints_that_come_before_it_runs_are_not_kept() -> None:
    """A store that waits for its tables may do so for days, and each renewal of another region's leader is a hint."""

    async def story(world: World) -> None:
        who = Candidate("n", "eu", "https://eu.example")
        elector = Elector(ROLE, who, world.a.backend, world.a.store, TIMINGS, lambda _: None, clock=now)
        for _ in range(100):
            elector.hint()
        assert elector._inbox.empty()

    in_world(story)


def test_cancelling_a_leader_leaves_its_lease_to_lapse() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        assert world.a.running
        world.a.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await world.a.running

        assert world.quorum.holder(ROLE) is not None
        assert ROLE not in world.quorum.seals

    in_world(story)


def test_a_restart_of_the_same_node_does_not_wait_for_its_old_lease() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await world.a.crash()

        elector = world.a.start()
        await world.until(lambda: elector.token, within=2)

        assert elector.token == 2
        assert world.quorum.seals[ROLE] == SealRecord(1, "eu")
        assert world.a.facts(EarlierTermEnded) == [EarlierTermEnded(ROLE, 1)]

    in_world(story)


def test_a_restart_leaves_its_old_lease_while_a_write_of_its_earlier_life_is_under_way() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await world.a.crash()
        world.a.store.under_way[ROLE] = 1

        elector = world.a.start()
        await world.pass_time(8)
        assert not elector.token
        assert ROLE not in world.quorum.seals

        await world.until(lambda: elector.token, within=20)
        assert elector.token == 2

    in_world(story)


def test_another_node_of_the_region_does_not_end_a_term_that_is_not_its_own() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await world.a.crash()
        world.a.store.calls.clear()

        elector = world.a.start(node="gw-eu-2")
        await world.pass_time(5)

        assert elector.token is None
        assert "seal" not in world.a.store.calls

    in_world(story)


def test_a_second_process_of_the_same_name_takes_over_once_and_the_first_tells_of_it_once() -> None:
    async def story(world: World) -> None:
        first = world.a.start()
        await world.until(lambda: first.token)
        namesake = Region("eu", world, world.a.store, MemoryElection(world.quorum, TIMINGS))
        second = namesake.start()
        try:
            await world.until(lambda: second.token)
            await world.pass_time(60)
        finally:
            await namesake.crash()

        assert world.a.facts(NodeNameShared) == [NodeNameShared(ROLE, "gw-eu", 2)]
        assert not namesake.facts(NodeNameShared)
        assert len(namesake.facts(LeadershipGained)) == len(world.a.facts(LeadershipGained)) == 1

    in_world(story)


def test_a_term_that_was_won_and_never_claimed_is_no_namesakes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: object, **__: object) -> None:
        raise LeaseLost("its session ended")

    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await elector.resign("operator", 5)
        monkeypatch.setattr(world.a.backend, "renew", lost)
        await world.until(lambda: world.quorum.last_won[ROLE] > 1)
        world.a.backend._candidacy.clear()  # as the end of a session takes a place along
        await world.until(lambda: world.quorum.last_won[ROLE] > 2, within=300)

        assert not world.a.facts(NodeNameShared)

    in_world(story)


def test_a_term_that_was_won_unheard_and_withdrawn_from_is_no_namesakes() -> None:
    """As where the election's database, which is the store's as well, restarts at the very moment."""

    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await elector.resign("operator", 5)
        world.a.backend.lose_answers = True
        await world.until(lambda: world.quorum.last_won[ROLE] > 1)
        world.a.store.down, world.a.backend.lose_answers = True, False
        world.a.backend.calls.clear()
        await world.until(lambda: "withdraw" in world.a.backend.calls)
        world.a.store.down = False
        await world.until(lambda: elector.token, within=300)

        assert elector.token is not None
        assert elector.token > 2, "the one that was won unheard lapsed"
        assert not world.a.facts(NodeNameShared)

    in_world(story)


def test_an_earlier_life_of_our_own_is_no_namesake() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        await world.until(lambda: elector.token)
        await world.a.crash()
        world.a.store = MemoryStore([ROLE], now)  # which does not show the term: it is waited for

        elector = world.a.start()
        await world.until(lambda: elector.token)

        assert not world.a.facts(NodeNameShared)

    in_world(story)


def test_a_term_that_was_never_claimed_here_is_not_ended_by_a_restart() -> None:
    async def story(world: World) -> None:
        who = Candidate("gw-eu", "eu", "https://eu.example")
        await MemoryElection(world.quorum, TIMINGS).acquire(ROLE, who, 1)

        world.a.start()
        await world.pass_time(5)

        assert ROLE not in world.quorum.seals

    in_world(story)


# -- waiting strictly, and without a store ----------------------------------------------------------


def test_strict_wait_opens_only_after_a_lease_and_the_margin() -> None:
    async def story(world: World) -> None:
        first = world.a.start()
        await world.until(lambda: first.token)
        await world.a.crash()
        second = world.b.start(strict_wait=True)
        await world.until(lambda: second.state is State.SETTLING)
        won_at = now()

        await world.until(lambda: second.token)

        # Both ends are seen by looking every twentieth of a second.
        assert now() - won_at >= TIMINGS.lease_duration + TIMINGS.margin - 0.1

    in_world(story)


def test_without_a_store_it_leads_and_gives_back_all_the_same() -> None:
    async def story(world: World) -> None:
        elector = world.a.start(store=StorelessTerm())
        await world.until(lambda: elector.token)
        assert await elector.stop(5)

        assert world.quorum.holder(ROLE) is None

    in_world(story)


def test_changed_wakes_whoever_waits_for_the_term() -> None:
    async def story(world: World) -> None:
        elector = world.a.start()
        while elector.token is None:
            await elector.changed()
        waiting = asyncio.create_task(elector.changed())
        await asyncio.sleep(0)
        world.a.backend.cut = True
        await asyncio.wait_for(waiting, 11)

        assert elector.token is None

    in_world(story)


def test_a_hint_is_taken_at_once() -> None:
    async def story(world: World) -> None:
        first = world.a.start()
        await world.until(lambda: first.token)
        second = world.b.start()
        await asyncio.sleep(5.1)
        await first.stop(5)

        second.hint()
        await world.until(lambda: second.token, within=0.5)

    in_world(story)


def test_it_leaves_no_task_behind() -> None:
    async def story(world: World) -> None:
        before = len(asyncio.all_tasks())
        for _ in range(100):
            elector = world.a.start()
            await world.until(lambda elector=elector: elector.token)
            await elector.stop(5)
            assert world.a.running
            await world.a.running

        assert len(asyncio.all_tasks()) == before
        assert len(world.a.facts(LeadershipGained)) == 100

    in_world(story)


def test_the_steady_clock_is_one_that_goes_on_during_a_suspend() -> None:
    """That of macOS by what its manual says: no machine of that kind can be suspended here."""
    of_linux = {"CLOCK_MONOTONIC": 1, "CLOCK_MONOTONIC_RAW": 4, "CLOCK_BOOTTIME": 7}
    of_macos = {"CLOCK_MONOTONIC": 6, "CLOCK_MONOTONIC_RAW": 4, "CLOCK_UPTIME_RAW": 8}
    assert sleepless("linux", of_linux) == 7
    assert sleepless("darwin", of_macos) == 4
    assert sleepless("win32", {}) is None

    going_on = sleepless(sys.platform, vars(time))
    before = steady_clock()
    between = time.monotonic() if going_on is None else time.clock_gettime(going_on)
    assert before <= between <= steady_clock()
