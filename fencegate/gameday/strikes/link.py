"""A way between two parts that loses, delays, cuts or halves what passes."""

from __future__ import annotations

import asyncio

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.fault_proxy import Trouble
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import each


class Link:
    def dishes(self, shape: Shape) -> list[Dish]:
        links = each("store-link") + each("quorum-link")
        if shape.replication != "none":
            links += each("replication-link")
        if shape.upstream:
            links += each("upstream-link")
        return [Dish(trouble.value, links, 1.2) for trouble in Trouble if trouble is not Trouble.NONE]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        for proxy in stage.proxies[fault.part]:
            proxy.trouble = Trouble(fault.strike)
        await asyncio.sleep(fault.lasts)
        for proxy in stage.proxies[fault.part]:
            proxy.trouble = Trouble.NONE
