"""What runs of faults add up to, as a table that a reader can hold against what was promised. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, Self

from fencegate.lease import LeaseTimings


@dataclass(slots=True)
class Figures:
    """Sums over runs. The lists hold seconds, one for each time it was measured with nothing else broken.

    ``requests`` are those that left: a connection that nobody took is none. ``changes`` counts terms that some elector
    said it had gained. ``left_behind`` are acknowledged writes that a promoted standby lacked because it lagged, which
    no fence can help (rule R13).
    """

    stages: int = 0
    schedules: int = 0
    requests: int = 0
    accepted: int = 0
    changes: int = 0
    violations: int = 0
    not_recovered: int = 0
    left_behind: int = 0
    seconds: float = 0.0
    strikes: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    death: list[float] = field(default_factory=list)
    """From kill -9 of the leader to the first write that the next one acknowledged."""
    frozen: list[float] = field(default_factory=list)
    cut_off: list[float] = field(default_factory=list)
    """From SIGSTOP of the leader, or its cut from the quorum, to the last entry of its term; negative: before it."""
    pauses: list[float] = field(default_factory=list)
    """From the last acknowledged write before a planned handoff to the first one after it."""
    late: list[float] = field(default_factory=list)
    """Writes of an old term that an upstream applied behind a newer term's: how long after the newer one's first."""

    def add(self, more: Figures) -> None:
        for name in _NAMES:
            mine, value = getattr(self, name), getattr(more, name)
            if isinstance(value, Counter):
                mine.update(value)
            else:
                setattr(self, name, mine + value)

    def as_json(self) -> dict[str, Any]:
        """Plain values, seconds to the millisecond."""
        return {name: _plain(getattr(self, name)) for name in _NAMES}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Raises ``TypeError`` for a name that is no figure."""
        counted = {name: Counter(raw.get(name, {})) for name in ("strikes", "left_out")}
        return cls(**{**raw, **counted})


_NAMES = [each.name for each in fields(Figures)]


def _plain(value: Any) -> Any:
    if isinstance(value, Counter):
        return dict(sorted(value.items()))
    return [round(each, 3) for each in value] if isinstance(value, list) else value


def table(figures: Figures, timings: LeaseTimings) -> str:
    """What was reached beside what was wanted, in Markdown."""
    death_limit = timings.lease_duration + timings.retry_period + 1.0
    rows: list[tuple[str, str, str]] = [
        ("violations", str(figures.violations), "0"),
        ("schedules of random faults", f"{figures.schedules:,}", "200 or more"),
        ("faults played", f"{sum(figures.strikes.values()):,}", ""),
        ("leadership changes", f"{figures.changes:,}", "1,000"),
        ("requests", f"{figures.requests:,}", "10,000,000"),
        ("of these acknowledged", f"{figures.accepted:,}", ""),
        ("schedules after which writes did not come back", str(figures.not_recovered), "0"),
        ("acknowledged writes lost with a store whose standby lagged", f"{figures.left_behind:,}", "see rule R13"),
        ("leader killed → first write of the next", _most(figures.death), f"at most {death_limit:g} s"),
        ("leader frozen → last write of its term", _most(figures.frozen), f"at most {timings.lease_duration:g} s"),
        ("leader cut off → last write of its term", _most(figures.cut_off), f"at most {timings.lease_duration:g} s"),
        ("planned handoff, pause", _p99(figures.pauses), "p99 under 1 s"),
    ]
    if figures.late:
        row = ("write of an old term that an upstream applied behind a newer one's", _most(figures.late))
        rows.append((*row, "at most the route's `timeout`"))
    lines = ["| figure | reached | wanted |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def strikes(figures: Figures) -> str:
    """How often each kind of fault was played, and which were left out and why, in Markdown."""
    lines = ["| fault | played |", "| --- | --- |"]
    lines += [f"| {name} | {count:,} |" for name, count in sorted(figures.strikes.items()) if count]
    if figures.left_out:
        lines += ["", "| left out | times |", "| --- | --- |"]
        lines += [f"| {reason} | {count:,} |" for reason, count in sorted(figures.left_out.items())]
    return "\n".join(lines)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of them do not exceed. Raises ``ValueError`` where there is none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _most(values: Iterable[float]) -> str:
    found = list(values)
    if not found:
        return "not measured"
    return f"{max(found):.2f} s at most, {quantile(found, 0.5):.2f} s median (n = {len(found)})"


def _p99(values: Sequence[float]) -> str:
    if not values:
        return "not measured"
    p99, median = quantile(values, 0.99), quantile(values, 0.5)
    return f"p99 {p99:.2f} s, median {median:.2f} s, longest {max(values):.2f} s (n = {len(values)})"
