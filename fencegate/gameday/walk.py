"""Walks the protocol step by step, and strikes at each: a leader's end is provoked where the step waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fencegate.gameday.chaos_stage import TIMINGS, ChaosStage
from fencegate.gameday.plain_http import NoAnswer, NotSent
from fencegate.gameday.regions import Region
from fencegate.gameday.steps import QUORUM_STEPS, STORE_STEPS, Moment, Trap

_LIMIT: Final = 5 * TIMINGS.lease_duration
_DOWN: Final = 0.3
_TRIES: Final = 3
_AT_A_HANDOFF: Final = frozenset({"set_draining", "seal", "release", "claim"})
_OF_THE_NEXT: Final = frozenset({"claim", "join"})


@dataclass(frozen=True, slots=True)
class Blow:
    """kill -9 of the "gateway" or the "store" that is at ``step``."""

    step: str
    moment: Moment
    victim: str

    def __str__(self) -> str:
        return f"kill the {self.victim} {self.moment} {self.step}"


def every_blow(victims: Sequence[str] = ("gateway", "store")) -> list[Blow]:
    """Each step of claim, renewal, handoff, seal and group commit, before and after."""
    moments: tuple[Moment, Moment] = ("before", "after")
    return [
        Blow(step, moment, victim)
        for victim in victims
        for step in (*STORE_STEPS, *QUORUM_STEPS)
        for moment in moments
        if victim == "gateway" or step in STORE_STEPS
    ]


async def walk(stage: ChaosStage, blows: Sequence[Blow]) -> list[Blow]:
    """Deal every blow, one after the other, each to a stage that works again; those whose step never came.

    A handoff may be refused or undone, and its later steps do not come then: so there are a few tries.
    """
    missed = []
    for blow in blows:
        for _ in range(_TRIES):
            if await _dealt(stage, blow):
                break
        else:
            missed.append(blow)
            stage.leave_out(str(blow), "the step did not come")
    return missed


async def _dealt(stage: ChaosStage, blow: Blow) -> bool:
    leading = stage.leading()
    assert leading is not None
    here, _ = leading
    there = stage.other(here.name)
    struck = there if blow.step in _OF_THE_NEXT else here
    part = stage.parts[f"{struck.name}-{blow.victim}"]
    trap = Trap(blow.step, blow.moment, struck.name, part.kill)
    stage.traps.append(trap)
    provoking = asyncio.create_task(_provoke(here, there, trap)) if blow.step in _AT_A_HANDOFF else None
    with suppress(TimeoutError):
        async with asyncio.timeout(_LIMIT):
            await trap.sprung.wait()
    stage.traps.remove(trap)
    stage.say(f"{blow}, in {struck.name}" + ("" if trap.sprung.is_set() else ": never came"))
    if provoking is not None:
        provoking.cancel()
        await asyncio.gather(provoking, return_exceptions=True)
    stage.book.played[f"kill {blow.moment} {blow.step}"] += trap.sprung.is_set()
    await asyncio.sleep(_DOWN)
    await part.start()
    if await stage.accepting(_LIMIT) == float("inf"):
        stage.say(f"{blow}: no write was accepted for {_LIMIT:g} s")
    return trap.sprung.is_set()


async def _provoke(here: Region, there: Region, trap: Trap) -> None:
    """Handoffs, until one is not refused: the successor may be holding back, or starting."""
    while not trap.sprung.is_set():
        with suppress(NotSent, NoAnswer):
            await here.hand_over(there.name, limit=4.0)
        await asyncio.sleep(0.3)
