"""Which faults strike a run, when, and for how long: made from a seed, so that a run can be told again. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

REGIONS: Final = ("primary", "dr")
QUORUM: Final = ("quorum-0", "quorum-1", "quorum-2")
_BETWEEN: Final = 1.3
"""Seconds from one fault to the next, on average."""


@dataclass(frozen=True, slots=True)
class Dish:
    """One way to strike, as the menu has it: at one of ``parts``, ``weight`` times as often as one of weight 1.

    ``once``: at each part at most once in a run. ``lasting``: an instant where it is False.
    """

    strike: str
    parts: tuple[str, ...]
    weight: float = 1.0
    once: bool = False
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """``part`` is struck ``at`` seconds into the run, for ``lasts`` seconds."""

    at: float
    strike: str
    part: str
    lasts: float

    @property
    def ends(self) -> float:
        return self.at + self.lasts

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.strike} {self.part} for {self.lasts:.1f} s"


def schedule(seed: int, seconds: float, lease: float, menu: Sequence[Dish]) -> list[Fault]:
    """Faults that overlap in any way, but no two at one part at once; all of them end before ``seconds`` are over.

    Half of them are shorter than a third of ``lease`` seconds, the others up to twice as long as it.
    """
    return list(_dealt(random.Random(seed), seconds, lease, [dish for dish in menu if dish.parts]))


def _dealt(dice: random.Random, seconds: float, lease: float, menu: Sequence[Dish]) -> Iterator[Fault]:
    free: dict[str, float] = {}
    done: set[tuple[str, str]] = set()
    at = dice.uniform(0.5, 2.0)
    while at < seconds:
        [dish] = dice.choices(menu, [dish.weight for dish in menu])
        part = dice.choice(dish.parts)
        lasts = _length(dice, lease) if dish.lasting else 0.0
        fault = Fault(round(at, 1), dish.strike, part, round(lasts, 1))
        again = dish.once and (dish.strike, part) in done
        if free.get(part, 0.0) <= fault.at and fault.ends < seconds and not again:
            free[part] = fault.ends + 0.5
            done.add((dish.strike, part))
            yield fault
        at += dice.expovariate(1 / _BETWEEN)


def _length(dice: random.Random, lease: float) -> float:
    return dice.uniform(0.1, lease / 3) if dice.random() < 0.5 else dice.uniform(lease / 3, 2 * lease)
