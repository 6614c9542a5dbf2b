"""SIGKILL or SIGSTOP at a step of the protocol: just before a server is asked, or after it has done it unheard."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.steps import QUORUM_STEPS, TERM_STEPS, UPSTREAM_STEPS, Moment, Trap
from fencegate.gameday.strikes.contract import each, region_of

_PATIENCE = 6.0
"""Seconds for the step to come: some come with a change of leaders only."""


class KillAtStep:
    def dishes(self, shape: Shape) -> list[Dish]:
        found = []
        writes = UPSTREAM_STEPS if shape.upstream else ("append",)
        for step in (*writes, *TERM_STEPS, *QUORUM_STEPS):
            parts = each("gateway") + (each("store") if step not in QUORUM_STEPS else ())
            for moment in ("before", "after"):
                found.append(Dish(f"kill {moment} {step}", parts, 0.15))
                found.append(Dish(f"freeze {moment} {step}", each("gateway"), 0.1))
        return found

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        how, moment, step = fault.strike.split(" ")
        part = stage.parts[fault.part]
        kills = how == "kill"
        trap = Trap(step, as_moment(moment), region_of(fault.part), part.kill if kills else part.freeze, drops=kills)
        stage.traps.append(trap)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(_PATIENCE, fault.lasts)):
                await trap.sprung.wait()
        stage.traps.remove(trap)
        if not trap.sprung.is_set():
            stage.leave_out(fault.strike, "the step did not come in time")
            return
        await asyncio.sleep(fault.lasts)
        if kills:
            await stage.parts[fault.part].start()
        else:
            part.thaw()


def as_moment(text: str) -> Moment:
    return "before" if text == "before" else "after"
