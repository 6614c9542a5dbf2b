"""The kernel loses the packets between two parts, one way or both, and tells nobody."""

from __future__ import annotations

import asyncio

from fencegate.gameday import private_network
from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import each

_WAYS = {
    "lose-requests": (True, False),
    "lose-answers": (False, True),
    "lose-all": (True, True),
}


class PacketsLost:
    """Links by the ports of their proxies; members of the quorum by their peers' port, which only the others know."""

    def dishes(self, shape: Shape) -> list[Dish]:
        if not shape.packets:
            return []
        links = each("store-link") + each("quorum-link") + ("quorum-0", "quorum-1", "quorum-2")
        if shape.replication != "none":
            links += each("replication-link")
        return [Dish(way, links, 2.0) for way in _WAYS]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        if reason := private_network.missing():
            stage.leave_out(fault.strike, reason)
            return
        ports = stage.ports(fault.part)
        requests, answers = _WAYS[fault.strike]
        await asyncio.to_thread(private_network.lose, ports, requests=requests, answers=answers)
        await asyncio.sleep(fault.lasts)
        await asyncio.to_thread(private_network.find, ports)
