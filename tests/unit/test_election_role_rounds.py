from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

from fencegate.election.role_rounds import LOOKS_AT_ONCE, WAVE_SPACING, Release, RoleRounds, read_roles
from fencegate.errors import Unavailable
from fencegate.lease import LeadershipSource, Reading, Term
from fencegate.testing.background import in_background
from fencegate.testing.virtual_time import run_in_virtual_time

PERIOD = 2.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Watched(LeadershipSource):
    """A source that is only watched: what a hint names is put into ``told``."""

    name = "watched"

    def __init__(self, *, a_read: int, a_watch: int = 1_000_000) -> None:
        self.roles_a_read, self.roles_a_watch = a_read, a_watch
        self.told: asyncio.Queue[str | None] = asyncio.Queue()
        self.watches: list[tuple[str, ...]] = []

    async def read(self, role: str, deadline: float) -> Term | None:
        raise NotImplementedError

    def changes(self, role: str) -> AsyncIterator[None]:
        raise NotImplementedError

    async def changes_among(self, roles: Sequence[str]) -> AsyncIterator[str | None]:
        self.watches.append(tuple(roles))
        while (role := await self.told.get()) != "end":
            yield role

    async def close(self) -> None: ...


class Scene:
    def __init__(self, count: int, *, a_read: int = 10, a_watch: int = 1_000_000, takes: float = 0.0) -> None:
        self.roles = [f"shard/{number}" for number in range(count)]
        self.source = Watched(a_read=a_read, a_watch=a_watch)
        self.takes = takes
        self.looks: list[tuple[float, tuple[str, ...]]] = []
        self.under_way: Counter[str] = Counter()
        self.hints: list[str] = []
        self.rounds = RoleRounds(dict.fromkeys(self.roles), self.source, PERIOD, self.look, self.hints.append)

    async def look(self, roles: Sequence[str], release: Release) -> None:
        self.looks.append((now(), tuple(roles)))
        self.under_way.update(roles)
        assert max(self.under_way.values()) == 1, "two looks at one role"
        await asyncio.sleep(self.takes)
        self.under_way.subtract(roles)

    def times_of(self, role: str) -> list[float]:
        return [at for at, roles in self.looks if role in roles]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with in_background(self.rounds.run()):
            await asyncio.sleep(0)
            yield
        assert not +self.under_way or self.takes, "no look outlives the rounds"


def test_every_role_is_looked_at_once_a_period_in_few_looks() -> None:
    async def story() -> None:
        scene = Scene(95)
        began = now()
        async with scene.running():
            await asyncio.sleep(3 * PERIOD + 0.1)
        assert all([at - began for at in scene.times_of(role)] == [0, 2, 4, 6] for role in scene.roles)
        assert len(scene.looks) == 4 * 10

    run_in_virtual_time(story())


def test_few_looks_are_under_way_at_once_and_all_have_their_turn() -> None:
    async def story() -> None:
        scene = Scene(200, takes=0.3)
        most = 0
        async with scene.running():
            for _ in range(60):
                await asyncio.sleep(0.1)
                most = max(most, sum((+scene.under_way).values()))
        assert most == LOOKS_AT_ONCE * 10
        assert all(len(scene.times_of(role)) >= 2 for role in scene.roles)

    run_in_virtual_time(story())


def test_a_hint_brings_a_look_at_its_role_at_once_and_at_no_other() -> None:
    async def story() -> None:
        scene = Scene(50)
        async with scene.running():
            await asyncio.sleep(0.7)
            before = len(scene.looks)
            scene.source.told.put_nowait("shard/7")
            await asyncio.sleep(0.01)
        assert [roles for _, roles in scene.looks[before:]] == [("shard/7",)]
        assert scene.hints == ["shard/7"]

    run_in_virtual_time(story())


def test_a_hint_that_names_nobody_is_one_for_all_and_one_of_a_stranger_for_none() -> None:
    async def story() -> None:
        scene = Scene(25)
        async with scene.running():
            await asyncio.sleep(0.7)
            before = len(scene.looks)
            scene.source.told.put_nowait("another/role")
            await asyncio.sleep(0.1)
            assert len(scene.looks) == before
            scene.source.told.put_nowait(None)
            await asyncio.sleep(0.01)
        assert sorted(role for _, roles in scene.looks[before:] for role in roles) == sorted(scene.roles)

    run_in_virtual_time(story())


def test_a_hint_during_a_look_at_its_role_brings_another_one_after_it() -> None:
    async def story() -> None:
        scene = Scene(1, takes=0.5)
        async with scene.running():
            await asyncio.sleep(0.2)
            scene.source.told.put_nowait("shard/0")
            await asyncio.sleep(0.5)
            assert [at - scene.looks[0][0] for at in scene.times_of("shard/0")] == [0, pytest.approx(0.5)]

    run_in_virtual_time(story())


def test_a_look_that_hangs_holds_up_its_own_roles_only() -> None:
    async def story() -> None:
        scene = Scene(20)
        look = scene.look

        async def hangs_for_one(roles: Sequence[str], release: Release) -> None:
            await look(roles, release)
            if "shard/3" in roles:
                for role in roles:
                    if role != "shard/3":
                        release(role)
                await asyncio.Event().wait()

        scene.rounds = RoleRounds(dict.fromkeys(scene.roles), scene.source, PERIOD, hangs_for_one)
        async with scene.running():
            await asyncio.sleep(2 * PERIOD + 0.1)
        assert len(scene.times_of("shard/3")) == 1
        assert all(len(scene.times_of(role)) == 3 for role in scene.roles if role != "shard/3")

    run_in_virtual_time(story())


def test_a_hint_of_a_role_that_is_being_looked_at_keeps_no_other_ones_waiting() -> None:
    async def story() -> None:
        scene = Scene(2, a_read=1)

        async def look(roles: Sequence[str], release: Release) -> None:
            scene.looks.append((now(), tuple(roles)))
            await asyncio.sleep(1.9 if "shard/0" in roles else 0)

        scene.rounds = RoleRounds(dict.fromkeys(scene.roles), scene.source, PERIOD, look)
        async with scene.running():
            await asyncio.sleep(0.1)
            scene.source.told.put_nowait("shard/0")
            await asyncio.sleep(0.1)
            hinted = now()
            scene.source.told.put_nowait("shard/1")
            await asyncio.sleep(0.1)
            assert [at - hinted for at in scene.times_of("shard/1") if at >= hinted] == [pytest.approx(0, abs=0.05)]
            await asyncio.sleep(1.65)
            assert len(scene.times_of("shard/0")) == 2, "it has its own look after the one that was under way"

    run_in_virtual_time(story())


def test_a_storm_of_hints_is_followed_in_waves_and_starves_nobody() -> None:
    async def story() -> None:
        scene = Scene(500, a_read=10, takes=0.01)

        async def storm() -> None:
            while True:
                for number in range(100):
                    scene.source.told.put_nowait(f"shard/{number}")
                await asyncio.sleep(0.001)

        async with scene.running():
            storming = asyncio.create_task(storm())
            await asyncio.sleep(3 * PERIOD)
            storming.cancel()
        assert len(scene.times_of("shard/0")) <= 3 * PERIOD / WAVE_SPACING + 4
        assert all(len(scene.times_of(role)) >= 2 for role in scene.roles[100:])

    run_in_virtual_time(story())


def test_a_watch_that_ended_is_begun_again_after_a_period() -> None:
    async def story() -> None:
        scene = Scene(6, a_watch=4)
        async with scene.running():
            await asyncio.sleep(0.5)
            assert scene.source.watches == [tuple(scene.roles[:4]), tuple(scene.roles[4:])]
            scene.source.told.put_nowait("end")
            await asyncio.sleep(PERIOD - 0.1)
            assert len(scene.source.watches) == 2
            await asyncio.sleep(0.2)
            assert len(scene.source.watches) == 3

    run_in_virtual_time(story())


class Apart(Watched):
    """One question answers for one role here, and some roles are broken."""

    async def read(self, role: str, deadline: float) -> Term | None:
        await asyncio.sleep(1)
        if role == "broken":
            raise Unavailable("this one is broken")
        return Term(role, 7, "app", "eu", "", True, 15) if role != "nobodys" else None


def test_a_source_without_an_answer_for_many_is_asked_for_each_at_the_same_time() -> None:
    async def story() -> None:
        began = now()
        found = await read_roles(Apart(a_read=10), ["a", "broken", "nobodys", "b"], 5)
        assert now() - began == 1
        assert list(found) == ["a", "broken", "nobodys", "b"]
        assert [term.role for term in found.values() if isinstance(term, Term)] == ["a", "b"]
        assert found["nobodys"] is None
        assert isinstance(found["broken"], Unavailable)

    run_in_virtual_time(story())


def test_an_answer_that_leaves_a_role_out_is_no_answer() -> None:
    class Forgetful(Watched):
        async def read_many(self, roles: Sequence[str], deadline: float) -> dict[str, Reading]:
            return {roles[0]: None}

    async def story() -> None:
        with pytest.raises(Unavailable, match="KeyError"):
            await read_roles(Forgetful(a_read=10), ["a", "b"], 5)

    run_in_virtual_time(story())
