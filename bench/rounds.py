"""Paired rounds: ours and the peer in turn, so that a noisy neighbour meets both; medians and ranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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
    """One line of the table. ``ratios`` are ours ÷ peer's, one per round."""

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
            "peer": self.middle(self.peer),
            "unit": self.unit,
            "cpu_us_ours": micros(self.ours),
            "cpu_us_peer": micros(self.peer),
            "more": self.more,
            "rounds": [{"ours": asdict(a), "peer": asdict(b)} for a, b in zip(self.ours, self.peer, strict=True)],
        }


def micros(runs: list[Measured]) -> dict[str, float]:
    """CPU microseconds a request, the median of the rounds."""
    return {name: median(entry.micros[name] for entry in runs) for name in (runs[0].micros if runs else {})}


def paired(
    rounds: int, ours: Callable[[], Measured], peer: Callable[[], Measured]
) -> tuple[list[Measured], list[Measured]]:
    """``rounds`` pairs; who goes first changes with each."""
    ours(), peer()  # Unmeasured: connections, caches, prepared statements.
    a: list[Measured] = []
    b: list[Measured] = []
    for number in range(rounds):
        if number % 2:
            b.append(peer())
            a.append(ours())
        else:
            a.append(ours())
            b.append(peer())
    return a, b


def answers(
    question: str, goal: str, ours: list[Measured], peer: list[Measured], *, of: str = "rate", unit: str = "/s"
) -> Answer:
    ratios = [getattr(a.run, of) / getattr(b.run, of) for a, b in zip(ours, peer, strict=True)]
    return Answer(question, goal, ratios, ours, peer, unit, of)
