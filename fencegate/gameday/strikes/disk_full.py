"""A store whose disk is full to the last byte. Postgres may stop for it; then it is started again in the end."""

from __future__ import annotations

import asyncio

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import each, region_of


class DiskFull:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("disk-full", each("store"), 1.5)] if shape.small_disk else []

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        disk = stage.disks.get(region_of(fault.part))
        if disk is None or fault.part in {f"{promotion.region}-store" for promotion in stage.book.promotions}:
            stage.leave_out(fault.strike, "the store is not on a small disk")
            return
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(fault.lasts)
        await asyncio.to_thread(disk.free)
        await asyncio.sleep(0.1)
        await stage.parts[fault.part].start()
