"""Plays a scenario on a stage, under clients that write all the time, and judges what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from fencegate.gameday.held_faults import Lift
from fencegate.gameday.history import History
from fencegate.gameday.judge import Report, Turn
from fencegate.gameday.population import Names, Population, World
from fencegate.gameday.scenario import EITHER, ExtraFault, Scenario, Step
from fencegate.gameday.scene import Countdown, RegionScene, Scene
from fencegate.gameday.stage import DrillFailed, Stage
from fencegate.gameday.tail import tail_of
from fencegate.gameday.watch import Watch

_HANDOFF_LIMIT = 10.0
_TAIL_MARGIN = 10.0
_CALM = 3.0
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
        self._lifts: dict[str, Lift] = {}
        self._turns: list[Turn] = []
        self._cause = (scene.clock(), "")
        self._began = 0.0
        self._expired = float("inf")
        self._watched = False
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
            self._names = Names(self._clock, self._called("primary"))
            self._watch = Watch(stage, scene, self._history, self._names)
            for job in (*self._watch.jobs(), *stage.jobs()):
                self._spawn(job)
            await stage.begin(scene.tell, self._until, lambda region: scene.regions[region].open)
            for region in scene.regions.values():
                region.process = "running"
            failed = await self._play_all()
            await self._lift_all()
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
                await self._play_step(step)
        except DrillFailed as error:
            self._scene.tell(str(error), "bad")
            return f"step {self._scene.step} ({self._scenario.steps[self._scene.step - 1].do}): {error}"
        finally:
            self._scene.countdown = None
        return ""

    def _let_clients_write(self) -> None:
        stage, scene, clients = self._stage, self._scene, self._scenario.clients
        leader = self._leader()
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
            self._spawn(self._strike_by_the_way(fault))

    # -- the steps ------------------------------------------------------------------------------

    async def _play_step(self, step: Step) -> None:
        if step.act:
            self._scene.act = step.act[:1].upper() + step.act[1:]
            self._scene.tell(step.act, "act")
        steps: dict[str, Callable[[Step], Awaitable[None]]] = {
            "play": self._let_time_pass,
            "strike": self._strike,
            "lift": self._lift,
            "wait": self._wait,
            "point": self._point,
            "handoff": self._hand_over,
            "resign": self._resign,
            "standby": self._make_standby,
            "promote": self._promote,
            "tail": self._tail,
        }
        await steps[step.do](step)

    async def _let_time_pass(self, step: Step) -> None:
        lasts = step.lasts(self._stage.lease)
        self._say(step)
        await self._play(lasts, "clients write")

    async def _strike(self, step: Step) -> None:
        self._say(step, f"{step.part} is struck: {step.strike}")
        self._because()
        lift = await self._stage.strike(step.strike, step.part)
        lasts = step.lasts(self._stage.lease)
        if lasts:
            self._spawn(self._lift_after(lasts, step.part, lift))
        else:
            self._lifts[step.part] = lift

    async def _lift_after(self, lasts: float, part: str, lift: Lift) -> None:
        await asyncio.sleep(lasts)
        await lift()
        self._scene.tell(f"{part} goes on")

    async def _strike_by_the_way(self, fault: ExtraFault) -> None:
        await asyncio.sleep(fault.at)
        self._scene.tell(f"{fault.part} is struck: {fault.strike}, for {fault.lasts:g} s", "act")
        await self._lift_after(fault.lasts, fault.part, await self._stage.strike(fault.strike, fault.part))

    async def _lift(self, step: Step) -> None:
        await self._lifts.pop(step.part)()
        self._say(step, f"{step.part} goes on")

    async def _wait(self, step: Step) -> None:
        regions = self._scene.regions
        names = list(regions) if step.region == EITHER else [self._called(step.region)]
        limit = step.within * self._stage.lease
        whose = "a region" if step.region == EITHER else names[0]
        if step.until == "up":
            await self._until_up(names, limit, whose)
        elif step.until == "closed":
            await self._until(lambda: not any(regions[n].open for n in names), limit, f"{whose}'s store to close")
            self._scene.tell(f"{whose}'s store is closed by its own word{': ' * bool(step.say)}{step.say}")
        else:
            await self._until(lambda: any(regions[n].open for n in names), limit, f"{whose} to lead")
            self._opened(next(n for n in names if regions[n].open), step)

    async def _until_up(self, names: list[str], limit: float, whose: str) -> None:
        until = self._clock() + limit
        while not all([await self._stage.answers(name) for name in names]):
            if self._clock() >= until:
                raise DrillFailed(f"waited {limit:g} s for {whose}'s gateway to answer")
            await self._play(0.1)

    def _opened(self, region: str, step: Step) -> None:
        token = self._scene.regions[region].token
        self._scene.tell(f"{region} leads under token {token}{': ' * bool(step.say)}{step.say}", "good")
        if step.turn:
            self._turns.append(self._turn(step.turn, region))
        if self._watch.elsewhere and region == self._names.region and self._watch.stale_since == float("inf"):
            self._watch.stale_from(region)

    def _turn(self, name: str, new: str) -> Turn:
        at, old = self._cause
        old = old or new
        return Turn(
            name, old, new, at,
            closed=self._watch.first(False, old, at) - at,
            opened=self._watch.first(True, new, at) - at,
            leaderless=self._watch.leaderless(old, new, at),
            pause=float("inf"),
        )  # fmt: skip

    async def _point(self, step: Step) -> None:
        region, before = self._called(step.region), self._names.region
        slack = self._plan.tail if step.stale else 0.0
        if step.stale and region != before:
            self._watch.elsewhere, self._watch.stale_since = before, float("inf")
            self._expired = self._clock() + slack
        self._names.point(region, slack)
        self._scene.stale_left = self._names.stale()
        if step.stale:
            count = self._scene.stale_left
            self._say(step, f"DNS now names {region}; {count} cached records still name {before}, for {slack:g} s")
        else:
            self._say(step, f"DNS now names {region}")
        if self._scene.regions[region].open and self._watch.stale_since == float("inf") and self._watch.elsewhere:
            self._watch.stale_from(region)

    async def _hand_over(self, step: Step) -> None:
        to, limit = self._called(step.region), step.within * self._stage.lease
        self._say(step, f"the role is handed to {to}: writes stop, the old store is sealed, the new one opens")
        self._because()
        until = self._clock() + limit
        while said := await self._stage.hand_over(to, _HANDOFF_LIMIT):
            if self._clock() >= until:
                raise DrillFailed(f"the handoff to {to} was not made in {limit:g} s: {said}")
            await self._play(0.3, f"a handoff to {to}")

    async def _resign(self, step: Step) -> None:
        region = self._called(step.region)
        self._because()
        # It drains, seals its store and gives the lease back; the other opens once it holds every entry.
        if await self._stage.resign(region):
            self._say(step, f"{region} sealed its store and gave the lease back")

    async def _make_standby(self, step: Step) -> None:
        await self._stage.make_standby(self._called(step.region))
        self._say(step)

    async def _promote(self, step: Step) -> None:
        self._say(step)
        self._because()
        await self._stage.promote_standby(self._called(step.region))

    async def _tail(self, step: Step) -> None:
        """Until the last stale record has expired, and a while more to see that nothing is refused any longer."""
        scene, told = self._scene, 0
        deadline = self._clock() + self._plan.tail + _TAIL_MARGIN
        while self._names.stale() and self._clock() < deadline:
            scene.countdown = Countdown("the last stale record", self._expired)
            await self._play(0.1)
            told = self._tell_tail(told)
        self._expired = self._clock()
        scene.tell("the last stale record has expired: now the refusals must end", "good")
        await self._play(step.seconds or _CALM, "nothing more to be refused")
        self._watched = True

    def _tell_tail(self, told: int) -> int:
        scene, where = self._scene, self._watch.elsewhere
        if told == 0 and scene.stale_refused >= 3:
            reasons = sorted(tail_of(self._history.attempts, self._watch.first_stale, 0.0, watched=False).refused)
            scene.tell(f"{where} refuses the stale writes ({', '.join(reasons)}): nothing applied", "act")
            return 1
        if told == 0 and scene.wrongly >= 3:
            scene.tell(f"{where} accepts the stale writes, and nothing errors: two regions now own one ledger", "bad")
            return 1
        if told == 1 and scene.stale_left <= scene.stale_total // 2:
            scene.tell(f"{scene.stale_left} of {scene.stale_total} stale records left")
            return 2
        return told

    # -- the end --------------------------------------------------------------------------------

    async def _judge(self, failed: str) -> Report:
        scene, history, stage = self._scene, self._history, self._stage
        scene.act, ended = "The verdict", self._clock()
        scene.tell("clients finish what they are at; every ledger is read and compared", "act")
        unfinished = await self._population.stop(_FINISH_LIMIT) if self._population else 0
        await stage.settle(5.0)
        await self._watch.look()
        ledgers, leader, watch = await stage.ledgers(), self._leader(), self._watch
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
            verdict=stage.judge(history.attempts, ledgers, leader),
            accepted={name: history.accepted(name) for name in ledgers},
            stale_clients=self._scenario.clients.stale_count + self._scenario.clients.zombies,
            stale_accepted=history.accepted(watch.elsewhere, watch.stale_since, watch.newest),
            tail=tail_of(history.attempts, watch.first_stale, self._expired, watched=self._watched),
            turns=tuple(self._with_pause(turn) for turn in self._turns),
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

    def _leader(self) -> str:
        """The region that leads now, or did last."""
        regions = self._scene.regions.values()
        return max(regions, key=lambda region: (region.open, region.max_token)).name

    # -- playing --------------------------------------------------------------------------------

    def _called(self, region: str) -> str:
        return self._stage.called[region]

    def _say(self, step: Step, otherwise: str = "") -> None:
        if text := step.say or otherwise:
            self._scene.tell(text, "act")

    def _because(self) -> None:
        """What comes next comes of what happens now."""
        self._cause = (self._clock(), self._leader())

    def _expect_next(self, index: int) -> None:
        """Whose turn it is, by the next wait for an open region: another one that opens then does so unasked."""
        waits = (s for s in self._scenario.steps[index:] if s.do == "wait" and s.until == "open")
        awaited = next(waits, None)
        self._watch.expected = self._called(awaited.region) if awaited and awaited.region != EITHER else ""

    async def _play(self, seconds: float, what: str = "") -> None:
        """Lets time pass; what broke in the background is raised here."""
        until = self._clock() + seconds
        if what:
            self._scene.countdown = Countdown(what, until)
        while (left := until - self._clock()) > 0:
            self._check()
            await asyncio.sleep(min(left, 0.1))

    async def _until(self, happened: Callable[[], bool], limit: float, what: str) -> None:
        until = self._clock() + limit
        self._scene.countdown = Countdown(what, until)
        while not happened():
            if self._clock() >= until:
                raise DrillFailed(f"waited {limit:g} s for {what}")
            await self._play(0.02)

    def _check(self) -> None:
        if self._population is not None:
            self._population.check()
        for task in self._background:
            if task.done() and not task.cancelled():
                task.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._background.append(asyncio.create_task(work))

    async def _lift_all(self) -> None:
        while self._lifts:
            part, lift = self._lifts.popitem()
            await lift()
            self._scene.tell(f"{part} goes on")

    async def _end_background(self) -> None:
        if self._population is not None:
            await self._population.abandon()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
