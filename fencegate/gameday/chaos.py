"""Breaks a two-region set in ways drawn from a seed, under clients that write all the time; a checker judges it.

Nothing copies between the two stores here: each ledger is judged by what its own clients were told, and both by who
wrote when. At the end of each schedule every fault is lifted, and the set must open again by itself within a bounded
time. Several schedules may be played on one stage, one after the other; it is judged once, in the end.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Final

from fencegate.fence import Entry
from fencegate.gameday.chaos_stage import TIMINGS, Book, ChaosStage, Shape
from fencegate.gameday.faults import Fault
from fencegate.gameday.figures import Figures
from fencegate.gameday.hammer import Hammer
from fencegate.gameday.history import Attempt, History
from fencegate.gameday.ledgers import LedgerReader
from fencegate.gameday.measured import Measured
from fencegate.gameday.regions import PATH, ROLE, Mode
from fencegate.gameday.strikes.menu import play
from fencegate.gameday.verify import Verdict, verify_apart
from fencegate.gameday.verify_effects import late, verify_effects
from fencegate.gameday.verify_promotions import left_behind

RECOVERY_LIMIT: Final = 3 * TIMINGS.lease_duration + 25.0
"""Seconds for a term that nobody knows of to lapse, twice, and for processes to start on a busy machine."""


@dataclass(slots=True)
class Outcome:
    """One stage. ``recovered_after`` has a number for each schedule: seconds after its last fault until a write was
    accepted, infinite where none was within the limit.
    """

    verdict: Verdict
    attempts: Sequence[Attempt]
    terms: int
    recovered_after: list[float]
    figures: Figures
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.figures.not_recovered

    def __str__(self) -> str:
        answers = Counter(f"{a.answered} {a.reason}".strip() for a in self.attempts)
        lines = [
            f"{len(self.attempts)} writes: " + ", ".join(f"{name} {n}" for name, n in answers.most_common()),
            f"{self.terms} terms wrote, of {self.figures.changes}; accepting again after the last fault: "
            + ", ".join(f"{seconds:.1f} s" for seconds in self.recovered_after),
        ]
        lines += [f"VIOLATION: {v.kind} ({v.count}): {'; '.join(v.evidence)}" for v in self.verdict.violations]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Pressure:
    """How hard the clients press: see :class:`~fencegate.gameday.hammer.Hammer`."""

    clients: int = 12
    pace: float = 0.03
    burst: int = 4


GENTLE: Final = Pressure()

Prelude = Callable[[ChaosStage, Measured], Awaitable[None]]
"""What is played first, on a stage that works."""


async def run(
    directory: Path,
    schedules: Sequence[Sequence[Fault]],
    *,
    seconds: float,
    shape: Shape,
    mode: Mode = "enforce",
    prelude: Prelude | None = None,
    pressure: Pressure = GENTLE,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Play each of ``schedules`` over ``seconds`` in ``directory``, lift its faults, wait for recovery; then judge.

    ``mode`` "observe" takes the fence off. Raises :class:`~fencegate.embedded.process.EmbeddedServerError` where the
    set does not start.
    """
    history, clock, seen = History(), asyncio.get_running_loop().time, Measured()
    stage, began, used = ChaosStage(directory, mode, shape, history, clock, say), clock(), process_time()
    recovered: list[float] = []
    try:
        await stage.start_servers()
        await asyncio.gather(*(region.start() for region in stage.regions.values()))
        origins = {name: region.url for name, region in stage.regions.items()}
        hammer = Hammer(
            origins, PATH, ROLE, history, clock,
            clients=pressure.clients, pace=pressure.pace, burst=pressure.burst,
            # Each is admitted in a way of its own to an upstream: with the fence's lock, or by a look without it.
            unkeyed=0.5 if shape.upstream else 0.0,
        )  # fmt: skip
        hammer.start()
        await stage.accepting(RECOVERY_LIMIT)
        if prelude is not None:
            await prelude(stage, seen)
        for faults in schedules:
            recovered.append(await _played(stage, faults, seconds))
            say(f"every fault is lifted; accepting after {recovered[-1]:.1f} s")
        await hammer.stop()
        # A share near one core says that these clients, with the proxies, are what limits the rate.
        say(f"clients and proxies took {(process_time() - used) / (clock() - began):.0%} of a core")
        ledgers = await _ledgers(stage)
    finally:
        await stage.stop()
    terms = {entry.token for entries in ledgers.values() for entry in entries}
    logs = {name: region.log.read_text("utf-8", "replace") for name, region in stage.regions.items()}
    figures = seen.figures(ledgers)
    if stage.upstream is None:
        verdict = verify_apart(history.attempts, ledgers, role=ROLE, promotions=stage.book.promotions)
    else:
        verdict = verify_effects(history.attempts, stage.upstream.effects, limit=shape.upstream)
        figures.late = late(stage.upstream.effects)
    figures.add(_counted(stage.book, history, ledgers, verdict, logs, recovered, clock() - began))
    return Outcome(verdict, history.attempts, len(terms), recovered, figures, logs)


async def _ledgers(stage: ChaosStage) -> dict[str, list[Entry]]:
    readers = {name: LedgerReader(name, r.postgres.dsn, ROLE) for name, r in stage.regions.items()}
    found = {name: await reader.entries() for name, reader in readers.items()}
    await asyncio.gather(*(reader.close() for reader in readers.values()))
    return found


def _counted(
    book: Book,
    history: History,
    ledgers: Mapping[str, Sequence[Entry]],
    verdict: Verdict,
    logs: dict[str, str],
    recovered: list[float],
    seconds: float,
) -> Figures:
    gained = {
        fact["token"]
        for log in logs.values()
        for line in log.splitlines()
        if '"leadership_gained"' in line and (fact := json.loads(line))["event"] == "leadership_gained"
    }
    return Figures(
        stages=1,
        schedules=len(recovered),
        requests=sum(1 for a in history.attempts if a.reason != "unreachable"),
        accepted=sum(1 for a in history.attempts if a.answered == "accepted"),
        changes=len(gained),
        violations=sum(v.count for v in verdict.violations),
        not_recovered=sum(1 for after in recovered if after == float("inf")),
        left_behind=len(left_behind(history.attempts, ledgers, book.promotions)),
        seconds=round(seconds, 1),
        strikes=book.played,
        left_out=book.left_out,
    )


async def _played(stage: ChaosStage, faults: Sequence[Fault], seconds: float) -> float:
    """Seconds from the end of a schedule to the first write that is accepted again."""
    started = stage.clock()
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(_strike(stage, fault, started))
        await asyncio.sleep(seconds)
    lifted = stage.clock()
    return await stage.accepting(RECOVERY_LIMIT) - lifted


async def _strike(stage: ChaosStage, fault: Fault, started: float) -> None:
    await asyncio.sleep(max(0.0, started + fault.at - stage.clock()))
    if fault.part in stage.struck:
        stage.say(f"{fault}: left out, it has not come back from the last one")
        return
    stage.say(str(fault))
    stage.struck.add(fault.part)
    stage.book.played[fault.strike] += 1
    try:
        await play(stage, fault)
    finally:
        stage.struck.discard(fault.part)
