"""The room in which refused writes wait: who is let go, when, in what order, and who is not taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fencegate.errors import Unavailable
from fencegate.fence import Verdict
from fencegate.gateway.holding import MOST_BYTES
from fencegate.gateway.request import Departure
from fencegate.gateway.waiting_room import LOOK_PERIOD, Held, LetGo, WaitingRoom
from fencegate.observations import HoldEnded, HoldRefused, Observation, WriteHeld
from fencegate.testing.scripted_view import ScriptedView
from fencegate.testing.virtual_time import run_in_virtual_time

ROLE, URL = "ledger/eu-1", "https://eu.example"


class Scene:
    """A room over a scripted view and a fence that says ``verdict``."""

    def __init__(self, capacity: int = 750) -> None:
        self.view = ScriptedView()
        self.verdict = Verdict.NOT_LEADING
        self.looks: list[tuple[str, int]] = []
        self.failure: Unavailable | None = None
        self.told: list[Observation] = []
        self.capacity = capacity
        self.room = WaitingRoom(self.view, self._peek, lambda: self.capacity, self.told.append, jitter=lambda: 0.5)

    async def _peek(self, role: str, token: int, time_limit: float) -> tuple[Verdict, int | None]:
        self.looks.append((role, token))
        if self.failure is not None:
            raise self.failure
        return self.verdict, 41

    def begin(
        self, seconds: float = 30.0, role: str = ROLE, *, size: int = 0, departure: Departure | None = None
    ) -> asyncio.Task[LetGo]:
        write = Held(role, "ledger/{shard}", 41, Verdict.NOT_LEADING, size)
        return asyncio.create_task(self.room.wait(write, seconds, departure or Departure()))

    @property
    def ends(self) -> list[str]:
        return [fact.why for fact in self.told if isinstance(fact, HoldEnded)]


def now() -> float:
    return asyncio.get_running_loop().time()


def played(story: Callable[[Scene], Coroutine[Any, Any, None]], **options: int) -> Scene:
    """Plays the story to its end in virtual time; at its end nothing may be left behind."""
    scene = Scene(**options)

    async def whole() -> None:
        await story(scene)
        await asyncio.sleep(0)
        assert len(scene.room) == 0
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, "a watch of a role without held writes goes on"

    run_in_virtual_time(whole())
    return scene


def test_a_write_waits_until_somebody_leads_and_goes_on_to() -> None:
    async def story(scene: Scene) -> None:
        waiting, began = scene.begin(), now()
        await asyncio.sleep(1)
        scene.view.nobody(ROLE)
        scene.view.lead(ROLE, 41, "eu", URL, draining_to="dr")
        scene.view.lead("another", 42, "dr", URL)
        await asyncio.sleep(1)
        assert not waiting.done()
        scene.view.lead(ROLE, 42, "dr", URL)
        assert await waiting is LetGo.NEWS
        assert now() - began < 2.01

    scene = played(story)
    assert scene.told == [WriteHeld("ledger/{shard}"), HoldEnded("ledger/{shard}", "news", scene.told[-1].duration)]  # type: ignore[attr-defined]


def test_a_write_waits_no_longer_than_it_was_told_to() -> None:
    async def story(scene: Scene) -> None:
        began = now()
        assert await scene.begin(1.5) is LetGo.EXPIRED
        assert 1.5 <= now() - began < 1.51

    assert played(story).ends == ["expired"]


def test_what_changes_in_the_fence_alone_is_seen_by_one_look_for_all() -> None:
    async def story(scene: Scene) -> None:
        waiting = [scene.begin() for _ in range(100)]
        await asyncio.sleep(5)
        assert not any(task.done() for task in waiting)
        assert len(scene.looks) <= 5 / LOOK_PERIOD + 1
        scene.verdict = Verdict.ADMIT
        assert set(await asyncio.gather(*waiting)) == {LetGo.NEWS}

    assert set(played(story).looks) == {(ROLE, 41)}


def test_a_handoff_that_takes_its_course_in_the_fence_lets_nobody_go() -> None:
    async def story(scene: Scene) -> None:
        waiting = scene.begin(3)
        await asyncio.sleep(1)
        scene.verdict = Verdict.DRAINING
        assert await waiting is LetGo.EXPIRED

    played(story)


def test_a_store_that_does_not_answer_lets_nobody_go() -> None:
    async def story(scene: Scene) -> None:
        scene.failure = Unavailable("down")
        assert await scene.begin(3) is LetGo.EXPIRED

    assert len(played(story).looks) > 3


def test_those_let_go_together_go_one_after_another_in_their_order() -> None:
    async def story(scene: Scene) -> None:
        ended: list[tuple[int, float]] = []

        async def one(number: int) -> None:
            await scene.begin()
            ended.append((number, now()))

        tasks = []
        for number in range(300):
            tasks.append(asyncio.create_task(one(number)))
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        scene.view.lead(ROLE, 42, "dr", URL)
        await asyncio.gather(*tasks)
        assert [number for number, _ in ended] == list(range(300))
        assert 0.29 < ended[-1][1] - ended[0][1] < 0.31

    played(story)


def test_a_write_whose_turn_would_come_after_its_time_goes_at_its_time() -> None:
    async def story(scene: Scene) -> None:
        first = [scene.begin(0.2) for _ in range(400)]
        await asyncio.sleep(0.1)
        scene.view.lead(ROLE, 42, "dr", URL)
        began = now()
        ends = await asyncio.gather(*first)
        assert {*ends} == {LetGo.NEWS, LetGo.EXPIRED}
        assert now() - began < 0.11

    played(story)


def test_a_client_that_leaves_is_let_go_at_once_and_known_as_such() -> None:
    async def story(scene: Scene) -> None:
        departure = Departure()
        waiting = scene.begin(departure=departure)
        await asyncio.sleep(1)
        departure.happens()
        assert await waiting is LetGo.LEFT
        assert departure.tell is None

    assert played(story).ends == ["left"]


def test_a_client_that_has_left_before_is_not_held() -> None:
    async def story(scene: Scene) -> None:
        departure = Departure()
        departure.happens()
        assert await scene.begin(departure=departure) is LetGo.LEFT

    assert played(story).told == []


def test_a_cancelled_wait_leaves_no_place_taken() -> None:
    async def story(scene: Scene) -> None:
        waiting = scene.begin()
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    assert played(story).ends == ["left"]


def test_at_the_end_of_the_process_all_are_let_go_and_none_is_taken() -> None:
    async def story(scene: Scene) -> None:
        waiting = [scene.begin(role=role) for role in ("a", "a", "b")]
        await asyncio.sleep(1)
        scene.room.close()
        assert await asyncio.gather(*waiting) == [LetGo.STOPPING] * 3
        assert await scene.begin() is LetGo.FULL

    assert played(story).ends == ["stopping"] * 3


def test_a_role_that_fills_its_places_leaves_some_to_another() -> None:
    async def story(scene: Scene) -> None:
        many = [scene.begin(2, "a") for _ in range(30)]
        await asyncio.sleep(0.1)
        held = len(scene.room)
        assert 0 < held < 12
        other = scene.begin(2, "b")
        await asyncio.sleep(0.1)
        assert len(scene.room) == held + 1
        assert [*await asyncio.gather(*many)].count(LetGo.FULL) == 30 - held
        assert await other is LetGo.EXPIRED

    told = played(story, capacity=12).told
    assert sum(isinstance(fact, HoldRefused) for fact in told) + sum(isinstance(fact, WriteHeld) for fact in told) == 31


def test_the_bodies_in_memory_are_bounded_as_well_as_the_count() -> None:
    async def story(scene: Scene) -> None:
        large = [scene.begin(1, size=MOST_BYTES // 10) for _ in range(10)]
        await asyncio.sleep(0.1)
        kept = len(scene.room)
        assert 4 <= kept <= 7
        small = scene.begin(1)
        await asyncio.sleep(0.1)
        assert len(scene.room) == kept + 1
        await asyncio.gather(*large, small)
        assert await scene.begin(0.5, size=MOST_BYTES // 10) is LetGo.EXPIRED

    played(story)


def test_the_number_of_places_follows_a_reload() -> None:
    async def story(scene: Scene) -> None:
        scene.capacity = 0
        assert await scene.begin() is LetGo.FULL
        scene.capacity = 4
        assert await scene.begin(0.5) is LetGo.EXPIRED

    played(story)


ROLES = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("arrives"), ROLES, st.floats(0.01, 3.0), st.sampled_from([0, MOST_BYTES // 8])),
    st.tuples(st.just("leaves"), st.integers(0, 20)),
    st.tuples(st.just("leads"), ROLES),
    st.tuples(st.just("opens"), st.booleans()),
    st.tuples(st.just("passes"), st.floats(0.0, 1.0)),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=60), capacity=st.integers(1, 20), closes=st.booleans())
def test_whatever_happens_each_wait_ends_in_time_and_gives_its_place_back(
    steps: list[tuple[Any, ...]], capacity: int, closes: bool
) -> None:
    async def story(scene: Scene) -> None:
        departures: list[Departure] = []
        waits: list[asyncio.Task[None]] = []

        async def one(role: str, seconds: float, size: int, departure: Departure) -> None:
            began = now()
            why = await scene.begin(seconds, role, size=size, departure=departure)
            assert now() - began <= seconds + 0.001
            # Who found no place had its answer before it left.
            assert why is LetGo.FULL or (why is LetGo.LEFT) == departure.happened

        for what, *how in steps:
            match what:
                case "arrives":
                    departures.append(Departure())
                    waits.append(asyncio.create_task(one(*how, departures[-1])))
                case "leaves" if how[0] < len(departures) and not waits[how[0]].done():
                    departures[how[0]].happens()
                case "leads":
                    scene.view.lead(how[0], 42, "dr", URL)
                case "opens":
                    scene.verdict = Verdict.ADMIT if how[0] else Verdict.NOT_LEADING
                case "passes":
                    await asyncio.sleep(how[0])
            await asyncio.sleep(0)
            assert len(scene.room) < max(1, capacity)
        if closes:
            scene.room.close()
        await asyncio.gather(*waits)

    told = played(story, capacity=capacity).told
    assert sum(isinstance(fact, WriteHeld) for fact in told) == sum(isinstance(fact, HoldEnded) for fact in told)
