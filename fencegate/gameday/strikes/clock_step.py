"""The wall clock of one process is set, forwards by up to an hour or backwards, and set right again in the end.

A gateway's may be anything: it decides nothing. A store's may jump forwards by anything, and backwards by less than the
margin, which is what the margin is for (rule R4); more than that is outside of what fencegate promises, and not played.
"""

from __future__ import annotations

import asyncio
import random

from fencegate.gameday.chaos_stage import TIMINGS, ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import each


class ClockStep:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("clock-step", each("gateway") + each("store"), 2.0)] if shape.clocks else []

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        clocks = stage.clocks
        if clocks is None or clocks.missing:
            stage.leave_out(fault.strike, clocks.missing if clocks else "no clock of this stage can be set")
            return
        dice = random.Random(str(fault))
        if fault.part.endswith("-gateway"):
            clocks.set(fault.part, dice.choice((-3600.0, -5.0, 5.0, 3600.0)))
            await asyncio.sleep(fault.lasts)
            clocks.set(fault.part, 0.0)
        elif dice.random() < 0.5:
            # For good: what goes forwards and is set right again has gone backwards by as much.
            clocks.leap(fault.part, dice.choice((1.0, 5.0, 3600.0)))
        else:
            clocks.set(fault.part, -dice.uniform(0.1, 0.6) * TIMINGS.margin)
            await asyncio.sleep(fault.lasts)
            clocks.set(fault.part, 0.0)
