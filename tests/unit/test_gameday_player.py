"""Faults of a rehearsal last as long as their steps say, whatever else struck the same part before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fencegate.gameday.held_faults import Lift
from fencegate.gameday.history import History
from fencegate.gameday.player import Around, Player
from fencegate.gameday.population import Names
from fencegate.gameday.scenario import ExtraFault, Step
from fencegate.gameday.scene import RegionScene, Scene
from fencegate.gameday.stage import Stage
from fencegate.gameday.watch import Watch
from fencegate.testing.virtual_time import run_in_virtual_time

PART = "dr-store"


class Struck:
    """A stage that writes down when a part was struck and lifted, in seconds."""

    lease = 5.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._began = clock, clock()
        self.story: list[tuple[float, str]] = []

    async def strike(self, how: str, part: str) -> Lift:
        self._note(how)

        async def lift() -> None:
            self._note(f"{how} lifted")

        return lift

    def _note(self, what: str) -> None:
        self.story.append((self._clock() - self._began, what))


def played(*steps: Step | ExtraFault) -> tuple[list[tuple[float, str]], list[str]]:
    """What was done to the part, and what was told, when these were begun one after the other."""

    async def play() -> tuple[list[tuple[float, str]], list[str]]:
        clock, tasks = asyncio.get_running_loop().time, []
        stage, scene = Struck(clock), Scene(clock, {"primary": RegionScene("primary"), "dr": RegionScene("dr")}, True)

        def spawn(work: Coroutine[Any, Any, None]) -> None:
            tasks.append(asyncio.create_task(work))

        watch = cast(Watch, SimpleNamespace())
        around = Around(cast(Stage, stage), scene, History(), Names(clock, "primary"), watch, 0.0, lambda: None, spawn)
        player = Player(around)
        for step in steps:
            if isinstance(step, Step):
                await player.play(step)
            else:
                spawn(player.strike_by_the_way(step))
        await player.lift_all()
        await asyncio.gather(*tasks)
        return stage.story, [happening.text for happening in scene.timeline]

    story, told = run_in_virtual_time(play())
    return [(round(at, 3), what) for at, what in story], told


def test_a_fault_that_ends_by_itself_does_not_end_the_one_that_came_after_it() -> None:
    first, second = Step("strike", strike="freeze", part=PART, seconds=4), Step("strike", strike="kill", part=PART)
    story, _ = played(first, Step("play", seconds=2), second, Step("play", seconds=10))
    assert story == [(0, "freeze"), (2, "freeze lifted"), (2, "kill"), (12, "kill lifted")]


def test_a_fault_beside_the_steps_does_not_end_one_of_theirs() -> None:
    extra = ExtraFault("freeze", PART, at=1.0, lasts=4.0)
    story, _ = played(
        extra, Step("play", seconds=2), Step("strike", strike="kill", part=PART), Step("play", seconds=10)
    )
    assert story == [(1, "freeze"), (2, "freeze lifted"), (2, "kill"), (12, "kill lifted")]


def test_a_fault_that_ends_by_itself_is_lifted_in_its_time_and_told_of() -> None:
    story, told = played(Step("strike", strike="freeze", part=PART, leases=1), Step("play", seconds=8))
    assert story == [(0, "freeze"), (5, "freeze lifted")]
    assert told[-1] == f"{PART} goes on"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Step("strike", strike="kill", part=PART), f"{PART} is struck already"),
        (Step("play", seconds=0.1), "the play is over"),
    ],
)
def test_a_fault_that_is_left_out_is_told_of_with_the_reason(step: Step, why: str) -> None:
    late = ExtraFault("freeze", PART, at=1.0, lasts=4.0)
    steps = (late, step, Step("play", seconds=2)) if step.do == "strike" else (late, step)
    story, told = played(*steps)
    assert "freeze" not in [what for _, what in story]
    assert f"{why}: freeze is left out" in told
