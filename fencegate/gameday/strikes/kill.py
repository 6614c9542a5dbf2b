"""SIGKILL, and started again in the end."""

from __future__ import annotations

import asyncio

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import processes


class Kill:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("kill", processes(shape), 3.0)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        stage.parts[fault.part].kill()
        await asyncio.sleep(fault.lasts)
        await stage.parts[fault.part].start()
