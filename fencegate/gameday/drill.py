"""Plays a scenario on a stage, under clients that write all the time, and judges what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from fencegate.gameday.history import History
from fencegate.gameday.judge import Report, Turn
from fencegate.gameday.player import Around, Player, called, leading
from fencegate.gameday.population import Names, Population, World
from fencegate.gameday.scenario import EITHER, Scenario
from fencegate.gameday.scene import RegionScene, Scene
from fencegate.gameday.stage import DrillFailed, Stage
from fencegate.gameday.tail import tail_of
from fencegate.gameday.watch import Watch

_FINISH_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a scenario is played. ``stale_for`` seconds of stale DNS pass ``speed`` times as fast; leases do not."""

    stale_for: float = 1200.0
    speed: float = 60.0
    seed: int = 0

    @property
    def tail(self) -> float:
        """Seconds that the last stale record lives on."""
        return self.stale_for / self.speed


class Drill:
    """One run of ``scenario`` on ``stage``, told on ``scene``. The stage is started by :meth:`run` and left running."""

    def __init__(self, stage: Stage, scene: Scene, scenario: Scenario, plan: Plan) -> None:
        self._stage = stage
        self._scene = scene
        self._scenario = scenario
        self._plan = plan
        self._clock = scene.clock
        self._history = History()
        self._population: Population | None = None
        self._background: list[asyncio.Task[None]] = []
        self._began = 0.0
        scene.steps = len(scenario.steps)

    async def run(self) -> Report:
        """Plays and judges. A step that does not come true ends the play, and the report says so.

        Raises :class:`DrillFailed` where it could not even begin, or what an embedded server raises. However it ends,
        the clients are gone then, and a system that is not the drill's own is as it was.
        """
        stage, scene = self._stage, self._scene
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._restore)
            stack.push_async_callback(self._end_background)
            await stage.prepare(scene.tell)
            for name in stage.origins:
                scene.regions.setdefault(name, RegionScene(name))
            self._names = Names(self._clock, called(stage, "primary"))
            self._watch = Watch(stage, scene, self._history, self._names)
            self._player = Player(
                Around(stage, scene, self._history, self._names, self._watch, self._plan.tail, self._check, self._spawn)
            )
            for job in (*self._watch.jobs(), *stage.jobs()):
                self._spawn(job)
            await stage.begin(scene.tell, self._player.until, lambda region: scene.regions[region].open)
            for region in scene.regions.values():
                region.process = "running"
            failed = await self._play_all()
            await self._player.lift_all()
            report = await self._judge(failed)
            await self._end_background()
            left = await stage.restore(scene.tell)
            return replace(report, failed=report.failed or left, timeline=tuple(scene.timeline))

    async def _restore(self) -> None:
        """Where it was cut short. What is left to do is said, and raised."""
        if left := await self._stage.restore(self._scene.tell):
            raise DrillFailed(left)

    async def _play_all(self) -> str:
        self._let_clients_write()
        try:
            for number, step in enumerate(self._scenario.steps, start=1):
                self._scene.step = number
                self._expect_next(number - 1)
                await self._player.play(step)
        except DrillFailed as error:
            self._scene.tell(str(error), "bad")
            return f"step {self._scene.step} ({self._scenario.steps[self._scene.step - 1].do}): {error}"
        finally:
            self._scene.countdown = None
        return ""

    def _let_clients_write(self) -> None:
        stage, scene, clients = self._stage, self._scene, self._scenario.clients
        leader = leading(self._scene)
        scene.tell(f"{leader} leads under token {scene.regions[leader].token}", "good")
        zombies = f", and {clients.zombies} that never let go of an old term" if clients.zombies else ""
        scene.tell(
            f"{clients.fresh_count} clients that follow the leader and {clients.stale_count} with a cached DNS record"
            f"{zombies} begin to write",
            "act",
        )
        world = World(
            dict(stage.origins), stage.path, stage.role, self._names, self._history, self._clock,
            apart=stage.apart, run=stage.run, seed=self._plan.seed,
        )  # fmt: skip
        self._population = Population(
            world, sdk=clients.fresh_count, stale=clients.stale_count, zombies=clients.zombies
        )
        self._population.start()
        scene.stale_total = clients.stale_count
        self._began = self._clock()
        for fault in self._scenario.faults:
            self._spawn(self._player.strike_by_the_way(fault))

    # -- the end --------------------------------------------------------------------------------

    async def _judge(self, failed: str) -> Report:
        scene, history, stage = self._scene, self._history, self._stage
        scene.act, ended = "The verdict", self._clock()
        scene.tell("clients finish what they are at; every ledger is read and compared", "act")
        unfinished = await self._population.stop(_FINISH_LIMIT) if self._population else 0
        await stage.settle(5.0)
        await self._watch.look()
        ledgers, leader, watch = await stage.ledgers(), leading(self._scene), self._watch
        return Report(
            scenario=self._scenario,
            kind=stage.kind,
            role=stage.role,
            called=dict(stage.called),
            fenced=scene.fenced,
            seed=self._plan.seed,
            lease=stage.lease,
            stale_for=self._plan.stale_for,
            speed=self._plan.speed,
            verdict=stage.judge(history.attempts, ledgers, leader).with_seals(history.attempts, watch.seals),
            accepted={name: history.accepted(name) for name in ledgers},
            stale_clients=self._scenario.clients.stale_count + self._scenario.clients.zombies,
            stale_accepted=history.accepted(watch.elsewhere, watch.stale_since, watch.newest),
            tail=tail_of(history.attempts, watch.first_stale, self._player.expired, watched=self._player.watched),
            turns=tuple(self._with_pause(turn) for turn in self._player.turns),
            terms=tuple(sorted({change.token for change in watch.changes if change.open})),
            leader=leader,
            most_leaders=scene.most_leaders,
            unfinished=unfinished,
            elapsed=scene.elapsed,
            started=scene.started,
            began=self._began,
            ended=ended,
            failed=failed,
            changes=tuple(watch.changes),
            attempts=tuple(history.attempts),
            timeline=tuple(scene.timeline),
        )

    def _with_pause(self, turn: Turn) -> Turn:
        pause = self._history.handover(turn.old, turn.new, turn.at)
        return replace(turn, pause=pause)

    def _expect_next(self, index: int) -> None:
        """Whose turn it is, by the next wait for an open region: another one that opens then does so unasked."""
        waits = (s for s in self._scenario.steps[index:] if s.do == "wait" and s.until == "open")
        awaited = next(waits, None)
        self._watch.expected = called(self._stage, awaited.region) if awaited and awaited.region != EITHER else ""

    def _check(self) -> None:
        if self._population is not None:
            self._population.check()
        for task in self._background:
            if task.done() and not task.cancelled():
                task.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.append(asyncio.create_task(work))

    async def _end_background(self) -> None:
        if self._population is not None:
            await self._population.abandon()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
