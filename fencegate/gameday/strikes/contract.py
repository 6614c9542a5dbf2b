"""The contract of a strike: what it can be drawn for, and how it is played. One file each, beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import QUORUM, REGIONS, Dish, Fault


class Strike(Protocol):
    """One way to break a part."""

    def dishes(self, shape: Shape) -> Sequence[Dish]:
        """What the menu has of it, for a stage of this shape. The names of the dishes begin with the strike's."""

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        """Break it, wait, and mend it. Never raises for what a broken stage does; says what it left out."""


def each(end: str) -> tuple[str, ...]:
    """The parts of this kind, one in each region."""
    return tuple(f"{region}-{end}" for region in REGIONS)


def processes(shape: Shape) -> tuple[str, ...]:
    """Everything that runs, by name."""
    standbys = each("standby") if shape.replication != "none" else ()
    return (*each("gateway"), *each("store"), *QUORUM, *standbys)


def region_of(part: str) -> str:
    """The region that a part is in."""
    return part.partition("-")[0]
