from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

import pytest

from fencegate.election.follower import Follower
from fencegate.election.followers import Followers
from fencegate.errors import Unavailable
from fencegate.fence import Verdict
from fencegate.lease import Candidate, LeaseTimings
from fencegate.observations import (
    ClaimWasRefused,
    LeaderObserved,
    Observation,
    SourceUnavailable,
    TermSealed,
    TokenRegressed,
)
from fencegate.testing.background import in_background
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import run_in_virtual_time

TIMINGS = LeaseTimings()
ROLE = "shard"


def now() -> float:
    return asyncio.get_running_loop().time()


class Scene:
    def __init__(self) -> None:
        self.quorum = MemoryQuorum(now, next_token=7)
        self.backend = MemoryElection(self.quorum, TIMINGS)
        self.store = MemoryStore([ROLE], now, mode="token")
        self.told: list[Observation] = []
        self.followers = Followers([ROLE], self.backend, self.store, TIMINGS, self.told.append)
        self.follower = self.followers.by_role[ROLE]

    async def lead(self, node: str, *, active: bool = True) -> int:
        """An application process takes the role over."""
        self.quorum.holders.clear()
        process, who = MemoryElection(self.quorum, TIMINGS), Candidate(node, "eu", "")
        await process.acquire(ROLE, who, 1)
        token = self.quorum.last_won[ROLE]
        if active:
            await process.renew(ROLE, token, who, active=True, deadline=1)
        return token

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with in_background(self.followers.run()):
            await asyncio.sleep(0.5)
            yield


def test_a_new_active_term_raises_the_fence_at_once() -> None:
    async def story() -> None:
        scene = Scene()
        async with scene.running():
            old = await scene.lead("app-1")
            await asyncio.sleep(0.1)
            new = await scene.lead("app-2")
            await asyncio.sleep(0.1)

            assert scene.store.write(ROLE, old) is Verdict.STALE
            assert scene.store.write(ROLE, new) is Verdict.ADMIT
            assert scene.follower.token == new
        assert scene.told == [LeaderObserved(ROLE, old, "eu", "app-1"), LeaderObserved(ROLE, new, "eu", "app-2")]

    run_in_virtual_time(story())


def test_the_clock_is_read_before_the_quorum_and_the_claim_comes_last() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead("app-1")
        order: list[str] = []
        scene.backend.calls = scene.store.calls = order

        await scene.follower.look()

        assert order == ["clock", "read", "claim"]

    run_in_virtual_time(story())


def test_a_term_that_is_not_announced_is_not_claimed() -> None:
    async def story() -> None:
        scene = Scene()
        token = await scene.lead("app-1", active=False)

        await scene.follower.look()

        assert scene.store.write(ROLE, token) is Verdict.NOT_LEADING

    run_in_virtual_time(story())


@pytest.mark.parametrize("together", [False, True])
def test_a_lower_number_that_is_not_announced_closes_nothing(together: bool) -> None:
    async def story() -> None:
        scene = Scene()
        token = await scene.lead("app-1")
        await scene.follower.look()
        scene.quorum.next_token = 3
        await scene.lead("app-2", active=False)
        scene.quorum.holders[ROLE].expires_at = math.inf
        if together:
            async with scene.running():
                await asyncio.sleep(2 * TIMINGS.lease_duration)
        else:
            await asyncio.sleep(2 * TIMINGS.lease_duration)
            await scene.follower.look()

        assert not any(isinstance(fact, TokenRegressed) for fact in scene.told)
        assert scene.store.write(ROLE, token) is Verdict.ADMIT

    run_in_virtual_time(story())


def test_a_term_is_claimed_once_and_stays_open_without_further_claims() -> None:
    async def story() -> None:
        scene = Scene()
        token = await scene.lead("app-1")
        for _ in range(10):
            await scene.follower.look()

        assert scene.store.calls.count("claim") == 1
        await asyncio.sleep(10_000)
        assert scene.store.write(ROLE, token) is Verdict.ADMIT

    run_in_virtual_time(story())


def test_after_a_store_failover_the_fence_is_seeded_anew_from_the_quorum() -> None:
    async def story() -> None:
        scene = Scene()
        old = await scene.lead("app-1")
        await scene.follower.look()
        new = await scene.lead("app-2")
        await scene.follower.look()

        scene.store.fail_over(forget=1)
        assert scene.store.write(ROLE, old) is Verdict.OTHER_INCARNATION
        await scene.follower.look()

        assert scene.store.write(ROLE, old) is Verdict.STALE
        assert scene.store.write(ROLE, new) is Verdict.ADMIT

    run_in_virtual_time(story())


def test_a_second_standby_of_the_same_timeline_is_seeded_as_well() -> None:
    """Its incarnation is that of the server where the claim stands: nothing but its start tells it from that one."""

    async def story() -> None:
        scene = Scene()
        old = await scene.lead("app-1")
        await scene.follower.look()
        new = await scene.lead("app-2")
        await scene.follower.look()

        scene.store.fail_over(forget=1, same_timeline=True)
        await scene.follower.look()

        assert scene.store.write(ROLE, old) is Verdict.STALE
        assert scene.store.write(ROLE, new) is Verdict.ADMIT

    run_in_virtual_time(story())


@pytest.mark.parametrize("together", [False, True])
def test_a_row_that_has_fallen_behind_the_source_is_claimed_anew_within_a_lease(together: bool) -> None:
    """A dump of before, loaded into the same server: nothing else of the store tells."""

    async def story() -> None:
        scene = Scene()
        old = await scene.lead("app-1")
        await scene.follower.look()
        before = scene.store._fences[ROLE]
        await scene.lead("app-2")
        await scene.follower.look()
        scene.store._fences[ROLE] = before
        assert scene.store.write(ROLE, old) is Verdict.ADMIT
        scene.quorum.holders[ROLE].expires_at = math.inf
        if together:
            async with scene.running():
                await asyncio.sleep(2 * TIMINGS.lease_duration)
        else:
            await asyncio.sleep(2 * TIMINGS.lease_duration)
            await scene.follower.look()

        assert scene.store.write(ROLE, old) is Verdict.STALE

    run_in_virtual_time(story())


def test_a_term_whose_number_falls_is_alarmed_once_and_never_claimed() -> None:
    async def story() -> None:
        scene = Scene()
        high = await scene.lead("app-1")
        await scene.follower.look()
        scene.quorum.next_token = 3
        low = await scene.lead("app-2")

        for _ in range(5):
            await scene.follower.look()

        assert scene.told[1:] == [
            TermSealed(ROLE, high, True),
            TokenRegressed(ROLE, low, high),
            ClaimWasRefused(ROLE, low, "regressed"),
        ]

    run_in_virtual_time(story())


def test_while_the_number_is_down_neither_term_may_write_and_a_higher_one_opens_again() -> None:
    async def story() -> None:
        scene = Scene()
        high = await scene.lead("app-1")
        await scene.follower.look()
        scene.quorum.next_token = 3
        low = await scene.lead("app-2")
        await scene.follower.look()

        assert scene.store.write(ROLE, low) is Verdict.NOT_LEADING
        assert scene.store.write(ROLE, high) is Verdict.NOT_LEADING, "its holder leads no more"

        scene.quorum.next_token = high
        await scene.lead("app-3")
        await scene.follower.look()
        assert scene.store.write(ROLE, high) is Verdict.NOT_LEADING, "the same number again is no new term"
        scene.quorum.next_token = high + 1
        new = await scene.lead("app-4")
        await scene.follower.look()
        assert scene.store.write(ROLE, new) is Verdict.ADMIT

    run_in_virtual_time(story())


def test_the_same_number_under_another_holder_has_not_grown() -> None:
    async def story() -> None:
        scene = Scene()
        token = await scene.lead("app-1")
        await scene.follower.look()
        scene.quorum.next_token = token
        assert await scene.lead("app-2") == token

        await scene.follower.look()

        assert TokenRegressed(ROLE, token, token) in scene.told
        assert scene.store.write(ROLE, token) is Verdict.NOT_LEADING

    run_in_virtual_time(story())


def test_a_term_that_a_write_brought_in_is_claimed_under_its_number() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead("app-1")
        await scene.follower.look()
        new = await scene.lead("app-2")
        assert scene.store.write(ROLE, new, issued=new) is Verdict.ADMIT

        await scene.follower.look()

        assert scene.follower.token == new
        assert not any(isinstance(fact, TokenRegressed) for fact in scene.told)

    run_in_virtual_time(story())


def test_a_read_that_was_overtaken_by_another_gateways_claim_is_no_fall() -> None:
    async def story() -> None:
        scene = Scene()
        old = await scene.lead("app-1")
        twin = Follower(ROLE, scene.backend, scene.store, TIMINGS, scene.told.append)
        scene.store.delay = 1.0
        slow = asyncio.create_task(scene.follower.look())  # its claim comes a second after its read
        await asyncio.sleep(1.5)
        scene.store.delay = 0.0
        new = await scene.lead("app-2")
        await twin.look()
        await slow

        assert new > old
        assert not any(isinstance(fact, TokenRegressed) for fact in scene.told)
        assert scene.store.write(ROLE, new) is Verdict.ADMIT

    run_in_virtual_time(story())


def test_a_source_that_went_back_to_our_own_term_is_found_by_comparing_with_the_row() -> None:
    async def story() -> None:
        scene = Scene()
        twin = Follower(ROLE, scene.backend, scene.store, TIMINGS, scene.told.append)
        old = await scene.lead("app-1")
        before = dict(scene.quorum.holders)
        before[ROLE].expires_at = math.inf
        await scene.follower.look()
        new = await scene.lead("app-2")
        await twin.look()
        scene.quorum.holders.update(before)  # and the twin's gateway is gone

        async with scene.running():
            await asyncio.sleep(2 * TIMINGS.lease_duration)

        assert TokenRegressed(ROLE, old, new) in scene.told
        assert scene.store.write(ROLE, new) is Verdict.NOT_LEADING

    run_in_virtual_time(story())


def test_after_a_restart_the_store_remembers_what_the_follower_does_not() -> None:
    async def story() -> None:
        scene = Scene()
        high = await scene.lead("app-1")
        await scene.follower.look()
        scene.quorum.next_token = 3
        low = await scene.lead("app-2")

        again = Follower(ROLE, scene.backend, scene.store, TIMINGS, scene.told.append)
        await again.look()

        regressed = TokenRegressed(ROLE, low, high)
        assert scene.told[1:] == [TermSealed(ROLE, high, True), regressed, ClaimWasRefused(ROLE, low, "superseded")]

        third = Follower(ROLE, scene.backend, scene.store, TIMINGS, scene.told.append)
        await third.look()
        assert scene.told[4:] == [regressed, ClaimWasRefused(ROLE, low, "sealed")], "each start alarms anew"

    run_in_virtual_time(story())


def test_a_fall_whose_seal_failed_is_alarmed_at_once_and_sealed_at_a_later_look() -> None:
    async def story() -> None:
        scene = Scene()
        high = await scene.lead("app-1")
        async with scene.running():
            scene.store.hanging = {"seal"}
            scene.quorum.next_token = 3
            low = await scene.lead("app-2")
            scene.quorum.holders[ROLE].expires_at = math.inf
            await asyncio.sleep(2 * TIMINGS.renew_deadline)
            assert TokenRegressed(ROLE, low, high) in scene.told
            assert scene.store.write(ROLE, high) is Verdict.ADMIT, "the seal did not get through"

            scene.store.hanging = set()
            await asyncio.sleep(2 * TIMINGS.renew_deadline)
            assert scene.store.write(ROLE, high) is Verdict.NOT_LEADING

    run_in_virtual_time(story())


def test_two_followers_of_one_store_agree() -> None:
    async def story() -> None:
        scene = Scene()
        twin = Follower(ROLE, scene.backend, scene.store, TIMINGS, scene.told.append)
        token = await scene.lead("app-1")
        await scene.follower.look()
        await twin.look()

        assert twin.token == token
        assert not any(isinstance(fact, ClaimWasRefused) for fact in scene.told)

    run_in_virtual_time(story())


@pytest.mark.parametrize("part", ["store", "backend", "hang"])
def test_a_failure_is_told_once_and_the_fence_stays_as_it_was(part: str) -> None:
    async def story() -> None:
        scene = Scene()
        token = await scene.lead("app-1")
        async with scene.running():
            scene.store.down, scene.backend.cut = part == "store", part == "backend"
            scene.store.hanging = {"clock"} if part == "hang" else set()
            await asyncio.sleep(60)
            scene.store.down = scene.backend.cut = False
            assert scene.store.write(ROLE, token) is Verdict.ADMIT
        assert sum(isinstance(fact, SourceUnavailable) for fact in scene.told) == 1

    run_in_virtual_time(story())


def test_look_says_when_it_cannot() -> None:
    async def story() -> None:
        scene = Scene()
        scene.store.down = True
        with pytest.raises(Unavailable):
            await scene.follower.look()

    run_in_virtual_time(story())
