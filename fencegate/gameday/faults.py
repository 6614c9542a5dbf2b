"""Which faults strike a run, when, and for how long: made from a seed, so that a run can be told again. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fencegate.gameday.fault_proxy import Trouble


class Strike(StrEnum):
    """What is done to a part."""

    FREEZE = "freeze"
    """SIGSTOP, and SIGCONT in the end."""
    KILL = "kill"
    """SIGKILL, and started again in the end."""
    SILENCE = "silence"
    DEAF = "deaf"
    LATE = "late"
    RESET = "reset"
    HALF = "half"
    """The links' troubles, see :class:`~fencegate.gameday.fault_proxy.Trouble`."""
    HANDOFF = "handoff"
    """The region is asked to hand the role to the other."""


REGIONS: Final = ("primary", "dr")
QUORUM: Final = ("quorum-0", "quorum-1", "quorum-2")
_LINKS: Final = tuple(f"{region}-{end}" for region in REGIONS for end in ("store-link", "quorum-link"))
_PROCESSES: Final = (*(f"{region}-{part}" for region in REGIONS for part in ("gateway", "store")), *QUORUM)
_GATEWAYS: Final = tuple(f"{region}-gateway" for region in REGIONS)
_TROUBLES: Final = tuple(Strike(trouble.value) for trouble in Trouble if trouble is not Trouble.NONE)


@dataclass(frozen=True, slots=True)
class Fault:
    """``part`` is struck ``at`` seconds into the run, for ``lasts`` seconds."""

    at: float
    strike: Strike
    part: str
    lasts: float

    @property
    def ends(self) -> float:
        return self.at + self.lasts

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.strike} {self.part} for {self.lasts:.1f} s"


def schedule(seed: int, seconds: float, lease: float) -> list[Fault]:
    """Faults that overlap in any way, but no two at one part at once; all of them end before ``seconds`` are over.

    Half of them are shorter than a third of ``lease`` seconds, the others up to twice as long as it.
    """
    dice = random.Random(seed)
    return list(_dealt(dice, seconds, lease))


def _dealt(dice: random.Random, seconds: float, lease: float) -> Iterator[Fault]:
    free: dict[str, float] = {}
    at = dice.uniform(0.5, 2.0)
    while at < seconds:
        strike, part = _drawn(dice)
        lasts = 0.0 if strike is Strike.HANDOFF else _length(dice, lease)
        fault = Fault(round(at, 1), strike, part, round(lasts, 1))
        if free.get(part, 0.0) <= fault.at and fault.ends < seconds:
            free[part] = fault.ends + 0.5
            yield fault
        at += dice.expovariate(1 / 1.5)


def _drawn(dice: random.Random) -> tuple[Strike, str]:
    kind = dice.random()
    if kind < 0.15:
        return Strike.HANDOFF, dice.choice(_GATEWAYS)
    if kind < 0.60:
        return dice.choice((Strike.FREEZE, Strike.KILL)), dice.choice(_PROCESSES)
    return dice.choice(_TROUBLES), dice.choice(_LINKS)


def _length(dice: random.Random, lease: float) -> float:
    return dice.uniform(0.1, lease / 3) if dice.random() < 0.5 else dice.uniform(lease / 3, 2 * lease)
