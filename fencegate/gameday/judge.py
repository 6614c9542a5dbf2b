"""What a drill came to, and the checks that make its verdict. Pure; times are seconds on the drill's clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fencegate.gameday.history import Attempt
from fencegate.gameday.scenario import EITHER, Scenario
from fencegate.gameday.scene import Happening
from fencegate.gameday.stage import Kind
from fencegate.gameday.tail import Tail
from fencegate.gameday.verify import Verdict
from fencegate.gameday.watch import Change

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Turn:
    """A change of leader from ``old`` to ``new`` that the scenario asked for.

    Seconds: ``closed`` and ``opened`` from the cause until the old store was closed and the new one open,
    ``leaderless`` with no store open, ``pause`` without an acknowledged write. Infinite for never.
    """

    name: str
    old: str
    new: str
    at: float
    closed: float
    opened: float
    leaderless: float
    pause: float


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: ``detail`` says what was found, and where it is not ok what was expected."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run. ``started`` is the drill's begin, ``began`` the clients'.

    ``failed`` is the step that did not come true, or ``""``.
    ``changes`` are all openings and closings of the stores, in order. ``called`` says which regions the scenario's
    ``primary`` and ``dr`` were.
    """

    scenario: Scenario
    kind: Kind
    role: str
    called: dict[str, str]
    fenced: bool
    seed: int
    lease: float
    stale_for: float
    speed: float
    verdict: Verdict
    accepted: dict[str, int]
    stale_clients: int
    stale_accepted: int
    tail: Tail
    turns: tuple[Turn, ...]
    terms: tuple[int, ...]
    leader: str
    most_leaders: int
    unfinished: int
    elapsed: float
    started: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    failed: str = ""
    changes: tuple[Change, ...] = ()
    attempts: Sequence[Attempt] = field(default=(), repr=False)
    timeline: tuple[Happening, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the ledgers and the answers hold together and no two stores were open at once."""
        return self.verdict.ok and self.most_leaders <= 1

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def as_expected(self) -> bool:
        """Whether it came to what the scenario is meant to come to. None is meant to lose or to double anything."""
        return self.ok if self.scenario.expect.verdict == "pass" else self.sound and not self.ok

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(_checks(self))

    @property
    def stale_refused(self) -> Counter[str]:
        return self.tail.refused

    def turn(self, name: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.name == name), None)


def _checks(report: Report) -> Iterator[Check]:
    yield Check("every step came true", not report.failed, report.failed or f"{len(report.scenario.steps)} steps")
    yield from _soundness(report)
    for turn in report.turns:
        yield from _bounds(report, turn)
    yield from _expected(report)
    yield _tail(report)
    detail = f"{report.unfinished} never answered" if report.unfinished else "none is left"
    yield Check("every decision was answered in the end", not report.unfinished, detail)


def _soundness(report: Report) -> Iterator[Check]:
    violations = report.verdict.violations
    if not violations:
        writes = sum(report.accepted.values())
        yield Check("ledgers and answers hold together", True, f"{writes} accepted writes, each there once")
    for violation in violations:
        evidence = "; ".join(violation.evidence)
        yield Check(f"no {violation.kind}", False, f"{violation.count} found: {evidence}")
    detail = f"at most {report.most_leaders} at one moment, by the stores' own word"
    yield Check("never two leaders", report.most_leaders <= 1, detail)


def _bounds(report: Report, turn: Turn) -> Iterator[Check]:
    expect = report.scenario.expect
    for what, region, took, leases in (
        ("closed", turn.old, turn.closed, expect.closed_within),
        ("open", turn.new, turn.opened, expect.open_within),
    ):
        limit = leases * report.lease
        detail = f"{region} after {seconds(took)}, expected within {seconds(limit)}"
        yield Check(f"{turn.name}: {what} in time", took <= limit, detail)


def _expected(report: Report) -> Iterator[Check]:
    expect = report.scenario.expect
    if expect.leader != EITHER:
        wanted = report.called[expect.leader]
        yield Check("the right region leads in the end", report.leader == wanted, f"{report.leader} leads")
    if expect.terms is not None:
        fewest, most = expect.terms
        count = len(report.terms)
        between = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        yield Check("as many terms as there should be", fewest <= count <= most, f"{count}, expected {between}")
    refused = report.tail.refused.total()
    if expect.refused:
        detail = f"{refused} stale writes refused, expected {expect.refused} or more"
        yield Check("stale clients did try", refused >= expect.refused, detail)
    detail = f"{report.stale_accepted} accepted by a region whose term was over"
    yield Check("no stale write was accepted", not report.stale_accepted, detail)


def _tail(report: Report) -> Check:
    tail, name = report.tail, "the tail cleared"
    if report.scenario.expect.tail == "none":
        return Check(name, True, "this scenario has none")
    if not tail.watched:
        return Check(name, False, "tail not cleared: its end was not reached")
    if tail.after:
        senders = ", ".join(tail.senders)
        return Check(
            name, False, f"tail not cleared: {tail.after} writes refused after the last stale record, of {senders}"
        )
    if not tail.refused:
        return Check(name, True, "no stale write was refused")
    return Check(name, True, f"the last refusal came {seconds(max(0.0, tail.last - tail.began))} after the new term")


def seconds(value: float) -> str:
    """``0.9 s``, or ``never``."""
    return "never" if value == NEVER else f"{value:.1f} s"
