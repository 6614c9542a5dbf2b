"""Paired rounds: ours and the peer in turn, so that a noisy neighbour meets both; medians and ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from statistics import median

from bench.load import Run
from bench.servers import cpu_seconds


@dataclass
class Measured:
    """One run, and the CPU microseconds a request that each watched process used."""

    run: Run
    micros: dict[str, float]


def measured(work: Callable[[], Run], **pids: int) -> Measured:
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    run = work()
    return Measured(run, {name: (cpu_seconds(pid) - before[name]) / run.count * 1e6 for name, pid in pids.items()})


@dataclass
class Answer:
    """One line of the table. ``ratios`` are ours ÷ peer's, one per round; without a peer they are what was measured."""

    question: str
    goal: str
    ratios: list[float]
    ours: list[Measured]
    peer: list[Measured]
    unit: str = "/s"
    of: str = "rate"
    more: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    def middle(self, runs: list[Measured]) -> float:
        return median(getattr(entry.run, self.of) for entry in runs)

    def document(self) -> dict[str, object]:
        return {
            "question": self.question,
            "goal": self.goal,
            "ratio": self.ratio,
            "ratio_range": [min(self.ratios), max(self.ratios)],
            "ratios": self.ratios,
            "ours": self.middle(self.ours),
            "peer": self.middle(self.peer) if self.peer else None,
            "unit": self.unit,
            "cpu_us_ours": micros(self.ours),
            "cpu_us_peer": micros(self.peer),
            "more": self.more,
            "rounds": [
                {"ours": asdict(a), **({"peer": asdict(b)} if b else {})} for a, b in zip_longest(self.ours, self.peer)
            ],
        }


def micros(runs: list[Measured]) -> dict[str, float]:
    """CPU microseconds a request, the median of the rounds."""
    return {name: median(entry.micros[name] for entry in runs) for name in (runs[0].micros if runs else {})}


def paired(
    rounds: int, ours: Callable[[], Measured], peer: Callable[[], Measured]
) -> tuple[list[Measured], list[Measured]]:
    """``rounds`` pairs; who goes first changes with each."""
    a, b = in_turn(rounds, ours, peer)
    return a, b


def in_turn(rounds: int, *works: Callable[[], Measured]) -> list[list[Measured]]:
    """Each of ``works`` once a round; who goes first changes with each. The runs of each, by round."""
    for work in works:
        work()  # Unmeasured: connections, caches, prepared statements.
    found: list[list[Measured]] = [[] for _ in works]
    for number in range(rounds):
        for place in range(len(works)):
            turn = (place + number) % len(works)
            found[turn].append(works[turn]())
    return found


def plain(question: str, goal: str, found: list[float], unit: str) -> Answer:
    """An answer without a peer: the goal is an amount."""
    return Answer(question, goal, found, [Measured(Run(0, value, value, 1), {}) for value in found], [], unit, "p50")


def answers(
    question: str, goal: str, ours: list[Measured], peer: list[Measured], *, of: str = "rate", unit: str = "/s"
) -> Answer:
    ratios = [getattr(a.run, of) / getattr(b.run, of) for a, b in zip(ours, peer, strict=True)]
    return Answer(question, goal, ratios, ours, peer, unit, of)
