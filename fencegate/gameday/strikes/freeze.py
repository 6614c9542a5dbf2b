"""SIGSTOP, and SIGCONT in the end: for shorter and for longer than the lease."""

from __future__ import annotations

import asyncio

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import processes


class Freeze:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("freeze", processes(shape), 4.0)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        part = stage.parts[fault.part]
        part.freeze()
        await asyncio.sleep(fault.lasts)
        part.thaw()
