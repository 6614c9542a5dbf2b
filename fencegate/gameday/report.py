"""A drill's report as one JSON document: all that its HTML page and its JUnit file are made of. Pure.

The shape is described in ``docs/gameday.md``. Times are seconds since the start of the drill; ``null`` is "never".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from fencegate import __version__
from fencegate.errors import PROBLEMS
from fencegate.gameday.judge import Report, Turn
from fencegate.gameday.watch import Change

FORMAT: Final = 1
"""Raised when a key changes its meaning or goes; new ones may come at any time."""

Document = dict[str, Any]


def document(report: Report, *, replay: str = "") -> Document:
    """The whole report. ``replay`` is the command that plays it again."""
    expect, start = report.scenario.expect, report.started
    return {
        "format": FORMAT,
        "fencegate": __version__,
        "verdict": "pass" if report.ok else "fail",
        "expected": expect.verdict,
        "as_expected": report.as_expected,
        "scenario": {
            "name": report.scenario.name,
            "title": report.scenario.title,
            "about": report.scenario.about,
            "clients": report.scenario.clients.count,
            "stale_clients": report.stale_clients,
        },
        "stage": report.kind,
        "fenced": report.fenced,
        "role": report.role,
        "regions": report.called,
        "seed": report.seed,
        "replay": replay,
        "pace": {
            "lease_s": report.lease,
            "stale_for_s": report.stale_for,
            "speed": report.speed,
            "tail_s": _rounded(report.stale_for / report.speed),
        },
        "began_s": _rounded(max(0.0, report.began - report.started)),
        "elapsed_s": _rounded(report.elapsed),
        "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in report.checks],
        "violations": [
            {"kind": str(v.kind), "count": v.count, "evidence": list(v.evidence)} for v in report.verdict.violations
        ],
        "ledgers": {
            region: {
                "entries": count,
                "behind": report.verdict.behind.get(region, 0),
                "accepted": report.accepted.get(region, 0),
            }
            for region, count in report.verdict.entries.items()
        },
        "leader": report.leader,
        "most_leaders": report.most_leaders,
        "terms": [
            {"token": c.token, "region": c.region, "opened_s": _rounded(c.at - start)} for c in _terms(report.changes)
        ],
        "turns": [_turn(report, turn) for turn in report.turns],
        "tail": _tail(report),
        "series": {
            "leader_count": [[_rounded(at - start), count] for at, count in _leader_count(report)],
            "refused": [[second, dict(counts)] for second, counts in _refused(report)],
            "accepted": [[second, region, token, count] for second, region, token, count in _accepted(report)],
        },
        "timeline": [{"at_s": _rounded(h.at), "text": h.text, "tone": h.tone} for h in report.timeline],
    }


def _turn(report: Report, turn: Turn) -> Document:
    expect = report.scenario.expect
    return {
        "name": turn.name,
        "from": turn.old,
        "to": turn.new,
        "at_s": _rounded(turn.at - report.started),
        "closed_s": _rounded(turn.closed),
        "closed_within_s": _rounded(expect.closed_within * report.lease),
        "open_s": _rounded(turn.opened),
        "open_within_s": _rounded(expect.open_within * report.lease),
        "leaderless_s": _rounded(turn.leaderless),
        "no_write_accepted_s": _rounded(turn.pause),
    }


def _tail(report: Report) -> Document:
    tail = report.tail
    return {
        "refused": dict(tail.refused),
        "accepted": report.stale_accepted,
        "began_s": _rounded(tail.began - report.started),
        "expired_s": _rounded(tail.expired - report.started),
        "last_s": _rounded(tail.last - report.started),
        "after": tail.after,
        "cleared": tail.cleared,
        "senders": list(tail.senders),
    }


def _terms(changes: tuple[Change, ...]) -> Iterator[Change]:
    """The first opening of each term."""
    seen = set()
    for change in changes:
        if change.open and change.token not in seen:
            seen.add(change.token)
            yield change


def _leader_count(report: Report) -> Iterator[tuple[float, int]]:
    """Every moment at which the number of open stores changed, from the first client's begin on."""
    opened: set[str] = set()
    at, last = report.began, -1
    for change in report.changes:
        if change.at > report.began and len(opened) != last:
            yield max(at, report.began), len(opened)
            last = len(opened)
        (opened.add if change.open else opened.discard)(change.region)
        at = change.at
    if len(opened) != last:
        yield max(at, report.began), len(opened)


def _refused(report: Report) -> Iterator[tuple[int, Counter[str]]]:
    """By second and reason, every client's."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for attempt in report.attempts:
        if attempt.answered == "refused" and attempt.reason in PROBLEMS:
            found[int(attempt.ended - report.started)][attempt.reason] += 1
    yield from sorted(found.items())


def _accepted(report: Report) -> Iterator[tuple[int, str, int, int]]:
    found: Counter[tuple[int, str, int]] = Counter()
    for attempt in report.attempts:
        if attempt.answered == "accepted" and not attempt.replayed:
            found[int(attempt.ended - report.started), attempt.region, attempt.token] += 1
    for (second, region, token), count in sorted(found.items()):
        yield second, region, token, count


def _rounded(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
