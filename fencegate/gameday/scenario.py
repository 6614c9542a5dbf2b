"""A rehearsal as data: who writes, what is done to the system step by step, and what is expected of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from fencegate.gameday.held_faults import unfit

REGIONS: Final = ("primary", "dr")
"""The region that leads at the start, whatever it is called, and the other one."""
EITHER: Final = "either"

Tail = Literal["clears", "none"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Which fields count depends on ``do``, see ``STEPS``.

    ``seconds`` and ``leases`` (multiples of the lease duration) add up; ``within`` is in leases. ``act`` begins a new
    act of that name; ``say`` is told to the spectators as the step begins, or with what came of it. ``turn`` names the
    change of leader that a wait for an open region ends.
    """

    do: str
    act: str = ""
    say: str = ""
    region: str = ""
    until: str = ""
    within: float = 4.0
    turn: str = ""
    seconds: float = 0.0
    leases: float = 0.0
    strike: str = ""
    part: str = ""
    stale: bool = False

    def lasts(self, lease: float) -> float:
        """Seconds, where the lease takes ``lease`` seconds."""
        return self.seconds + self.leases * lease


@dataclass(frozen=True, slots=True)
class StepRule:
    """The keys of a step: those it needs, and those it may have beside ``do``, ``act`` and ``say``."""

    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    timed: bool = False
    """It takes ``seconds``, ``leases`` or both."""
    anywhere: bool = False
    """A running deployment lets us do it too."""


STEPS: Final = {
    "play": StepRule(timed=True, anywhere=True),
    "strike": StepRule(needs=("strike", "part"), may=("seconds", "leases")),
    "lift": StepRule(needs=("part",)),
    "wait": StepRule(needs=("region", "until"), may=("within", "turn"), anywhere=True),
    "point": StepRule(needs=("region",), may=("stale",), anywhere=True),
    "handoff": StepRule(needs=("region",), may=("within",), anywhere=True),
    "resign": StepRule(needs=("region",)),
    "standby": StepRule(needs=("region",)),
    "promote": StepRule(needs=("region",)),
    "tail": StepRule(may=("seconds",), anywhere=True),
}
STATES: Final = ("open", "closed", "up")
"""What can be waited for: a store's own word, and a gateway that answers."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Who writes. ``stale`` of ``count`` have a cached DNS record, ``zombies`` beside them one that never expires."""

    count: int = 20
    stale: float = 0.4
    zombies: int = 0

    @property
    def stale_count(self) -> int:
        return max(1, round(self.count * self.stale)) if self.stale else 0

    @property
    def fresh_count(self) -> int:
        return max(1, self.count - self.stale_count)


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be so in the end, beside what :mod:`fencegate.gameday.verify` asks of every run.

    ``closed_within`` and ``open_within`` are leases: from the cause of a turn to the old store's end, and to the new
    one's begin. ``terms`` are the fewest and the most that may have been open. ``refused`` is how many stale writes
    must have been refused at least, or nothing was tried. ``verdict`` is what this scenario is meant to come to.
    """

    verdict: Literal["pass", "fail"] = "pass"
    leader: str = EITHER
    terms: tuple[int, int] | None = None
    closed_within: float = 2.0
    open_within: float = 4.0
    tail: Tail = "clears"
    refused: int = 0


@dataclass(frozen=True, slots=True)
class ExtraFault:
    """``--fault``: ``part`` is struck ``at`` seconds after the clients began, for ``lasts`` seconds."""

    strike: str
    part: str
    at: float
    lasts: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """One rehearsal. ``name`` is the shipped one's, or the file's."""

    name: str
    title: str
    about: str
    steps: tuple[Step, ...]
    clients: Clients = Clients()
    expect: Expected = Expected()
    faults: tuple[ExtraFault, ...] = field(default=())

    def only_embedded(self) -> list[str]:
        """The steps and faults that a running deployment does not let us do, each as ``3: strike``."""
        found = [f"step {n}: {s.do}" for n, s in enumerate(self.steps, start=1) if not STEPS[s.do].anywhere]
        return found + [f"--fault {fault.strike}:{fault.part}" for fault in self.faults]

    def with_clients(self, count: int) -> Scenario:
        return replace(self, clients=replace(self.clients, count=count))

    def paced(self, factor: float) -> Scenario:
        """The same with each ``play`` that many times as long; leases and waits are what they are."""
        return replace(self, steps=tuple(_paced(step, factor) for step in self.steps))


def _paced(step: Step, factor: float) -> Step:
    return replace(step, seconds=step.seconds * factor) if step.do in ("play", "tail") else step


def inconsistencies(scenario: Scenario) -> Iterator[str]:
    """What is well formed and still cannot be played."""
    struck: dict[str, int] = {}
    standbys: set[str] = set()
    dns, stale = "primary", False
    for number, step in enumerate(scenario.steps, start=1):
        where = f"step {number}"
        if step.do == "strike":
            if fault := unfit(step.strike, step.part):
                yield f"{where}: {fault}"
            elif step.part in struck:
                yield f"{where}: {step.part} is struck already, by step {struck[step.part]}; lift that first"
            elif not step.seconds and not step.leases:
                struck[step.part] = number
        elif step.do == "lift" and struck.pop(step.part, None) is None:
            yield f"{where}: expected a part that an earlier step has struck without an end; {step.part!r} is none"
        elif step.do == "standby":
            standbys.add(step.region)
        elif step.do == "promote" and step.region not in standbys:
            yield f"{where}: expected a step before it that makes a standby of {step.region}"
        elif step.do == "point":
            stale = stale or (step.stale and step.region != dns)
            dns = step.region
        elif step.do == "tail" and not stale:
            yield f"{where}: expected a step before it that points DNS elsewhere with stale = true"
    if scenario.expect.tail != "none" and not any(step.do == "tail" for step in scenario.steps):
        yield f'expect.tail: expected "none", or a step that waits for the tail; it is {scenario.expect.tail!r}'
    for extra in scenario.faults:
        if fault := unfit(extra.strike, extra.part):
            yield f"--fault {extra.strike}:{extra.part}: {fault}"
