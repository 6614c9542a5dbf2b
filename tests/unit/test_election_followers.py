from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence

from fencegate.election.followers import Followers
from fencegate.errors import Unavailable
from fencegate.fence import Fence, Verdict
from fencegate.lease import Candidate, LeaseTimings, Reading
from fencegate.observations import ClaimWasRefused, LeaderObserved, Observation, SourceUnavailable, TokenRegressed
from fencegate.testing.background import in_background
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import run_in_virtual_time

TIMINGS = LeaseTimings()
ROLES = [f"shard/{number}" for number in range(40)]


def now() -> float:
    return asyncio.get_running_loop().time()


class Partly(MemoryElection):
    """An election that fails for some roles."""

    refused: frozenset[str] = frozenset()
    reads = 0

    async def read_many(self, roles: Sequence[str], deadline: float) -> Mapping[str, Reading]:
        self.reads += 1
        found: dict[str, Reading] = {role: await self.read(role, deadline) for role in roles}
        return found | {role: Unavailable("this one is broken") for role in roles if role in self.refused}


class Store(MemoryStore):
    """``stuck``: roles whose row is locked by somebody."""

    def __init__(self) -> None:
        super().__init__(ROLES, now, mode="token")
        self.stuck: set[str] = set()

    async def claim(self, role: str, *arguments: object) -> object:  # type: ignore[override]
        if role in self.stuck:
            await asyncio.Event().wait()
        return await super().claim(role, *arguments)  # type: ignore[arg-type]

    def raise_unseen(self, role: str, to: int) -> None:
        """Another gateway has claimed a later term."""
        fence = self._fences[role]
        self._fences[role] = Fence(role, "token", to, 0, math.inf, fence.incarnation, "eu/other")


class Scene:
    def __init__(self) -> None:
        self.quorum = MemoryQuorum(now, next_token=7)
        self.source = Partly(self.quorum, TIMINGS)
        self.store = Store()
        self.told: list[Observation] = []
        self.followers = Followers(ROLES, self.source, self.store, TIMINGS, self.told.append)

    async def lead(self, role: str) -> int:
        self.quorum.holders.pop(role, None)
        process, who = MemoryElection(self.quorum, TIMINGS), Candidate("app", "eu", "")
        await process.acquire(role, who, 1)
        token = self.quorum.last_won[role]
        await process.renew(role, token, who, active=True, deadline=1)
        self.quorum.holders[role].expires_at = math.inf
        return token

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with in_background(self.followers.run()):
            await asyncio.sleep(0.5)
            yield


def test_many_roles_are_claimed_after_one_clock_and_one_question() -> None:
    async def story() -> None:
        scene = Scene()
        scene.source.roles_a_read = 100
        tokens = {role: await scene.lead(role) for role in ROLES}
        async with scene.running():
            assert scene.store.calls.count("clock") == 1
            assert scene.source.reads == 1
            assert scene.store.calls[0] == "clock", "rules R3 and R9: before the quorum is asked"
            assert scene.store.calls.count("claim") == len(ROLES)
            assert all(scene.store.write(role, token) is Verdict.ADMIT for role, token in tokens.items())
            await asyncio.sleep(60)
            assert scene.store.calls.count("claim") == len(ROLES), "each once"

    run_in_virtual_time(story())


def test_no_task_is_left_for_an_idle_role() -> None:
    async def story() -> None:
        scene = Scene()
        scene.source.roles_a_watch = 1_000_000
        scene.source.changes_among = lambda _roles: scene.source.changes("any")  # type: ignore[method-assign,assignment,return-value]
        before = len(asyncio.all_tasks())
        async with scene.running():
            await asyncio.sleep(5)
            assert len(asyncio.all_tasks()) - before <= 2

    run_in_virtual_time(story())


def test_a_role_whose_row_is_locked_holds_up_no_other() -> None:
    async def story() -> None:
        scene = Scene()
        async with scene.running():
            scene.store.stuck = {"shard/3", "shard/9"}
            for role in ROLES:
                await scene.lead(role)
            await asyncio.sleep(1)
            fresh = {role: await scene.lead(role) for role in ROLES if role not in scene.store.stuck}
            await asyncio.sleep(1)

            assert all(scene.store.write(role, token) is Verdict.ADMIT for role, token in fresh.items())
            await asyncio.sleep(2 * TIMINGS.renew_deadline)
            failed = [fact.role for fact in scene.told if isinstance(fact, SourceUnavailable)]
            assert sorted(failed) == ["shard/3", "shard/9"], "and each is said once"

            scene.store.stuck = set()
            await asyncio.sleep(2 * TIMINGS.renew_deadline)
            assert all(follower.token for follower in scene.followers.by_role.values())

    run_in_virtual_time(story())


def test_what_fails_for_one_role_is_said_of_it_alone() -> None:
    async def story() -> None:
        scene = Scene()
        scene.source.refused = frozenset({"shard/5"})
        tokens = {role: await scene.lead(role) for role in ROLES}
        async with scene.running():
            await asyncio.sleep(30)
            assert scene.store.write("shard/6", tokens["shard/6"]) is Verdict.ADMIT
            assert scene.store.write("shard/5", tokens["shard/5"]) is Verdict.NOT_LEADING
        assert [fact.role for fact in scene.told if isinstance(fact, SourceUnavailable)] == ["shard/5"]

    run_in_virtual_time(story())


def test_a_fall_is_found_for_the_role_that_fell_and_for_no_other() -> None:
    async def story() -> None:
        scene = Scene()
        tokens = {role: await scene.lead(role) for role in ROLES}
        async with scene.running():
            scene.store.raise_unseen("shard/2", 1000)
            await asyncio.sleep(2 * TIMINGS.lease_duration)

            assert [fact for fact in scene.told if isinstance(fact, TokenRegressed | ClaimWasRefused)] == [
                TokenRegressed("shard/2", tokens["shard/2"], 1000),
                ClaimWasRefused("shard/2", tokens["shard/2"], "regressed"),
            ]
            assert scene.store.write("shard/2", 1000) is Verdict.NOT_LEADING
            assert scene.store.write("shard/1", tokens["shard/1"]) is Verdict.ADMIT
            assert scene.store.calls.count("read_some") <= 2 * math.ceil(len(ROLES) / scene.source.roles_a_read) * 2

    run_in_virtual_time(story())


def test_what_was_read_too_long_ago_is_not_acted_upon() -> None:
    async def story() -> None:
        scene = Scene()
        scene.source.roles_a_read = 100
        for role in ROLES:
            await scene.lead(role)
        scene.store.stuck = set(ROLES[:16])
        async with scene.running():
            await asyncio.sleep(TIMINGS.renew_deadline - 1)
            assert scene.store.calls.count("claim") == 0, "the others wait behind sixteen that hang"
            newer = {role: await scene.lead(role) for role in ROLES[16:]}
            await asyncio.sleep(TIMINGS.retry_period)
        claimed = {fact.role: fact.token for fact in scene.told if isinstance(fact, LeaderObserved)}
        assert claimed == newer
        assert scene.store.calls.count("claim") == len(newer), "and the older terms never"

    run_in_virtual_time(story())
