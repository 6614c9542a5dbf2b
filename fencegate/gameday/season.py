"""Many runs of faults, one after the other, and what they add up to."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fencegate.gameday import private_network
from fencegate.gameday.chaos import GENTLE, Pressure, run
from fencegate.gameday.chaos_stage import TIMINGS, shape_of
from fencegate.gameday.faults import schedule
from fencegate.gameday.figures import Figures
from fencegate.gameday.measured import measure
from fencegate.gameday.strikes.menu import menu


@dataclass(frozen=True, slots=True)
class Season:
    """``schedules`` schedules of ``seconds`` each, from seed ``first`` on; ``per_stage`` of them on one stage.

    The first seed of a stage gives its shape. ``handoffs`` of 0 or more: each stage first measures what is promised of
    a leader's end, with so many planned handoffs.
    """

    first: int
    schedules: int
    seconds: float
    per_stage: int = 1
    handoffs: int = -1
    pressure: Pressure = GENTLE

    def stages(self) -> Iterator[list[int]]:
        """The seeds of each stage."""
        last = self.first + self.schedules
        for start in range(self.first, last, self.per_stage):
            yield list(range(start, min(start + self.per_stage, last)))


class Failed(AssertionError):
    """A stage whose verdict is bad, or that did not recover. The message has its seeds and the evidence."""


async def play(season: Season, directory: Path, tally: Path | None, say: Callable[[str], None]) -> Figures:
    """Play it; its figures, added to ``tally`` after each stage. Raises :class:`Failed` at the first bad stage.

    The directory of a bad stage, with the logs of everything, is left where the message says.
    """
    total = Figures()
    for seeds in season.stages():
        shape = shape_of(seeds[0], packets=not private_network.missing())
        schedules = [schedule(seed, season.seconds, TIMINGS.lease_duration, menu(shape)) for seed in seeds]
        say(f"\nseeds {seeds[0]} to {seeds[-1]}: {sum(map(len, schedules))} faults, {shape}")
        folder = Path(tempfile.mkdtemp(prefix=f"seed-{seeds[0]}-", dir=directory))
        outcome = await run(
            folder,
            schedules,
            seconds=season.seconds,
            shape=shape,
            prelude=partial(measure, handoffs=season.handoffs) if season.handoffs >= 0 else None,
            pressure=season.pressure,
            say=say,
        )
        say(str(outcome))
        total.add(outcome.figures)
        if tally is not None:
            add_to(tally, outcome.figures)
        if not outcome.ok:
            raise Failed(f"seeds {seeds[0]} to {seeds[-1]} ({shape}), logs in {folder}\n{outcome}")
        shutil.rmtree(folder, ignore_errors=True)
    return total


def add_to(tally: Path, figures: Figures) -> None:
    """Add to the figures in a file of JSON, which is made where it is missing."""
    sums = Figures.from_json(json.loads(tally.read_text("utf-8"))) if tally.exists() else Figures()
    sums.add(figures)
    fresh = tally.with_suffix(".new")
    fresh.write_text(json.dumps(sums.as_json(), indent=1) + "\n", "utf-8")
    fresh.replace(tally)
