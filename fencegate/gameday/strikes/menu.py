"""Every strike there is."""

from __future__ import annotations

from typing import Final

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.clock_step import ClockStep
from fencegate.gameday.strikes.contract import Strike
from fencegate.gameday.strikes.disk_full import DiskFull
from fencegate.gameday.strikes.failover import Failover
from fencegate.gameday.strikes.freeze import Freeze
from fencegate.gameday.strikes.handoff import Handoff
from fencegate.gameday.strikes.kill import Kill
from fencegate.gameday.strikes.kill_at_step import KillAtStep
from fencegate.gameday.strikes.link import Link
from fencegate.gameday.strikes.packets_lost import PacketsLost
from fencegate.gameday.strikes.pooler import Pooler
from fencegate.gameday.strikes.quorum_restored import QuorumRestored
from fencegate.gameday.strikes.read_only import ReadOnly
from fencegate.gameday.strikes.sessions_gone import SessionsGone

STRIKES: Final[tuple[Strike, ...]] = (
    Freeze(),
    Kill(),
    KillAtStep(),
    Link(),
    PacketsLost(),
    Handoff(),
    ReadOnly(),
    DiskFull(),
    SessionsGone(),
    Pooler(),
    Failover(),
    ClockStep(),
    QuorumRestored(),
)

_FULLEST: Final = (
    Shape("lagging", small_disk=True, clocks=True, packets=True),
    Shape("lagging", small_disk=True, clocks=True, packets=True, upstream=1.0),
)


def menu(shape: Shape) -> list[Dish]:
    """What can be drawn for a stage of this shape."""
    return [dish for strike in STRIKES for dish in strike.dishes(shape)]


async def play(stage: ChaosStage, fault: Fault) -> None:
    """Strike as the fault says, and return when it is over. Raises ``KeyError`` for a strike that is on no menu."""
    await _BY_NAME[fault.strike].strike(stage, fault)


_BY_NAME: Final = {dish.strike: strike for strike in STRIKES for shape in _FULLEST for dish in strike.dishes(shape)}
