"""The region is asked to hand the role to the other."""

from __future__ import annotations

from contextlib import suppress

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.plain_http import NoAnswer, NotSent
from fencegate.gameday.strikes.contract import each, region_of


class Handoff:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("handoff", each("gateway"), 5.0, lasting=False)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        region = region_of(fault.part)
        with suppress(NotSent, NoAnswer):
            await stage.regions[region].hand_over(stage.other(region).name, limit=4.0)
