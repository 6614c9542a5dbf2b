"""The steps of a scenario, done to a stage: each waits for what it says, and tells the spectators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fencegate.gameday.held_faults import Lift
from fencegate.gameday.history import History
from fencegate.gameday.judge import Turn
from fencegate.gameday.population import Names
from fencegate.gameday.scenario import EITHER, ExtraFault, Step
from fencegate.gameday.scene import Countdown, Scene
from fencegate.gameday.stage import DrillFailed, Stage
from fencegate.gameday.tail import tail_of
from fencegate.gameday.watch import Watch

Result = TypeVar("Result")

_HANDOFF_LIMIT = 10.0
_TAIL_MARGIN = 10.0
_CALM = 3.0


@dataclass(frozen=True, slots=True)
class Around:
    """What the steps work with. ``tail`` is the seconds that a stale record lives on.

    ``check`` raises what broke in the background, ``spawn`` does something there.
    """

    stage: Stage
    scene: Scene
    history: History
    names: Names
    watch: Watch
    tail: float
    check: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], None]


class Player:
    """Plays step after step. ``turns`` are what became of each change of leader, ``expired`` is when the last stale
    record ran out, and ``watched`` whether the end of the tail was waited for.
    """

    def __init__(self, around: Around) -> None:
        self._stage, self._scene = around.stage, around.scene
        self._history, self._names, self._watch = around.history, around.names, around.watch
        self._tail_lasts = around.tail
        self._check, self._spawn = around.check, around.spawn
        self._clock = around.scene.clock
        self._lifts: dict[str, Lift] = {}
        self._over = False
        self._cause = (self._clock(), "")
        self.turns: list[Turn] = []
        self.expired = float("inf")
        self.watched = False

    async def play(self, step: Step) -> None:
        """Raises :class:`DrillFailed` where what it waits for does not come."""
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
        await self._lift_part(step.part)
        lift = self._lifts[step.part] = await self._stage.strike(step.strike, step.part)
        if lasts := step.lasts(self._stage.lease):
            self._spawn(self._lift_after(lasts, step.part, lift))

    async def _lift_after(self, lasts: float, part: str, lift: Lift) -> None:
        """Unless the part has been lifted meanwhile: it may be struck again by then, and that is another's to end."""
        await asyncio.sleep(lasts)
        if self._lifts.get(part) is lift and await self._lift_part(part):
            self._scene.tell(f"{part} goes on")

    async def strike_by_the_way(self, fault: ExtraFault) -> None:
        """A fault beside the steps. It is left out where its part is struck already, or the play is over."""
        await asyncio.sleep(fault.at)
        if self._over or fault.part in self._lifts:
            why = "the play is over" if self._over else f"{fault.part} is struck already"
            self._scene.tell(f"{why}: {fault.strike} is left out")
            return
        self._scene.tell(f"{fault.part} is struck: {fault.strike}, for {fault.lasts:g} s", "act")
        lift = self._lifts[fault.part] = await self._stage.strike(fault.strike, fault.part)
        await self._lift_after(fault.lasts, fault.part, lift)

    async def _lift(self, step: Step) -> None:
        await self._lift_part(step.part)
        self._say(step, f"{step.part} goes on")

    async def _lift_part(self, part: str) -> bool:
        """Whether there was anything to lift."""
        lift = self._lifts.pop(part, None)
        if lift is not None:
            await lift()
        return lift is not None

    async def _wait(self, step: Step) -> None:
        regions = self._scene.regions
        names = list(regions) if step.region == EITHER else [called(self._stage, step.region)]
        limit = step.within * self._stage.lease
        whose = "a region" if step.region == EITHER else names[0]
        if step.until == "up":
            await self._until_up(names, limit, whose)
        elif step.until == "closed":
            await self.until(lambda: not any(regions[n].open for n in names), limit, f"{whose}'s store to close")
            self._scene.tell(f"{whose}'s store is closed by its own word{': ' * bool(step.say)}{step.say}")
        else:
            await self.until(lambda: any(regions[n].open for n in names), limit, f"{whose} to lead")
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
            self.turns.append(self._turn(step.turn, region))
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
        region, before = called(self._stage, step.region), self._names.region
        slack = self._tail_lasts if step.stale else 0.0
        if step.stale and region != before:
            self._watch.elsewhere, self._watch.stale_since = before, float("inf")
            self.expired = self._clock() + slack
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
        to, limit = called(self._stage, step.region), step.within * self._stage.lease
        self._say(step, f"the role is handed to {to}: writes stop, the old store is sealed, the new one opens")
        self._because()
        until = self._clock() + limit
        while said := await self._meanwhile(self._stage.hand_over(to, _HANDOFF_LIMIT)):
            if self._clock() >= until:
                raise DrillFailed(f"the handoff to {to} was not made in {limit:g} s: {said}")
            await self._play(0.3, f"a handoff to {to}")

    async def _resign(self, step: Step) -> None:
        region = called(self._stage, step.region)
        self._because()
        # It drains, seals its store and gives the lease back; the other opens once it holds every entry.
        if await self._meanwhile(self._stage.resign(region)):
            self._say(step, f"{region} sealed its store and gave the lease back")

    async def _make_standby(self, step: Step) -> None:
        await self._stage.make_standby(called(self._stage, step.region))
        self._say(step)

    async def _promote(self, step: Step) -> None:
        self._say(step)
        self._because()
        await self._stage.promote_standby(called(self._stage, step.region))

    async def _tail(self, step: Step) -> None:
        """Until the last stale record has expired, and a while more to see that nothing is refused any longer."""
        scene, told = self._scene, 0
        deadline = self._clock() + self._tail_lasts + _TAIL_MARGIN
        while self._names.stale() and self._clock() < deadline:
            scene.countdown = Countdown("the last stale record", self.expired)
            await self._play(0.1)
            told = self._tell_tail(told)
        self.expired = self._clock()
        scene.tell("the last stale record has expired: now the refusals must end", "good")
        await self._play(step.seconds or _CALM, "nothing more to be refused")
        self.watched = True

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

    async def lift_all(self) -> None:
        """Whatever is still struck goes on, and nothing more is struck."""
        self._over = True
        for part in list(self._lifts):
            if await self._lift_part(part):
                self._scene.tell(f"{part} goes on")

    # -- waiting --------------------------------------------------------------------------------

    def _say(self, step: Step, otherwise: str = "") -> None:
        if text := step.say or otherwise:
            self._scene.tell(text, "act")

    def _because(self) -> None:
        """What comes next comes of what happens now."""
        self._cause = (self._clock(), leading(self._scene))

    async def _play(self, seconds: float, what: str = "") -> None:
        """Lets time pass; what broke in the background is raised here."""
        until = self._clock() + seconds
        if what:
            self._scene.countdown = Countdown(what, until)
        while (left := until - self._clock()) > 0:
            self._check()
            await asyncio.sleep(min(left, 0.1))

    async def _meanwhile(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Waits for ``work``; what broke in the background is raised here, and ends it."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                self._check()
                await asyncio.wait({task}, timeout=0.1)
            return task.result()
        finally:
            task.cancel()

    async def until(self, happened: Callable[[], bool], limit: float, what: str) -> None:
        until = self._clock() + limit
        self._scene.countdown = Countdown(what, until)
        while not happened():
            if self._clock() >= until:
                raise DrillFailed(f"waited {limit:g} s for {what}")
            await self._play(0.02)


def called(stage: Stage, region: str) -> str:
    """The region that the scenario means."""
    return stage.called[region]


def leading(scene: Scene) -> str:
    """The region that leads now, or did last."""
    return max(scene.regions.values(), key=lambda region: (region.open, region.max_token)).name
