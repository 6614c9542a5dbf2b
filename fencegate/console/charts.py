"""Small pictures over time as SVG, each with its meaning in words. Pure; they scale, print, and need no script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fencegate.console.memory import WINDOW

_WIDTH: Final = 480
_LEFT, _RIGHT = 62, 470
_ROWS: Final = {2: 22, 1: 56, 0: 90}
_TALL, _TOP, _BOTTOM = 178, 14, 150
_SHORTEST, _LONGEST = 0.001, 30.0
_TICKS: Final = (0.001, 0.01, 0.1, 1.0)


def leader_count(line: Sequence[tuple[float, int]]) -> str:
    """leader_count out of (age, count) steps, the oldest first: 1 is right, 0 and 2 are bands, changes are marks."""
    steps = [(age, count) for age, count in line if age <= WINDOW]
    before = [count for age, count in line if age > WINDOW]
    if not steps and not before:
        return "<p>No node has gained or lost this role since it was started.</p>"
    now = (steps or [(0.0, before[-1])])[-1][1]
    marks = "".join(f'<line class="turn" x1="{_x(age)}" x2="{_x(age)}" y1="6" y2="106"/>' for age, _ in steps)
    words = {2: "2 or more", 1: "1", 0: "0"}
    labels = "".join(_label(_LEFT - 8, y + 5, words[count], "end") for count, y in _ROWS.items() if count < 2)
    labels += _label(_LEFT - 8, _ROWS[2] + 5, "≥ 2", "end")
    alt = f"leader_count, the last {WINDOW / 60:.0f} minutes: now {now}, {_counted(len(steps), 'change')}."
    bands = "".join(
        f'<rect class="bad" x="{_LEFT}" y="{y - 15}" width="{_RIGHT - _LEFT}" height="30"/>' for y in (22, 90)
    )
    path = " ".join(_points(steps, before))
    return (
        _svg(128, alt, f'{bands}{labels}{marks}<polyline points="{path}"/>{_ages(121)}')
        + '<p class="quiet">1 is right; the bands are 0 (nobody may write) and 2 (somebody is wrong).</p>'
    )


def durations(what: str, found: Mapping[str, Any], limits: Sequence[tuple[str, float]] = ()) -> str:
    """How long ``what`` took, on a scale of powers of ten: the longest of each half minute, against ``limits`` (s)."""
    series = [(float(age), float(took)) for age, took in found.get("series") or () if age <= WINDOW]
    if not series:
        return "<p>Nothing was measured in the last 15 minutes.</p>"
    slowest = max(took for _, took in series)
    beside = ", ".join(f"{name} {_seconds(limit)}" for name, limit in limits)
    alt = f"{what}, the longest of each half minute, the last 15 minutes: at most {_seconds(slowest)}"
    alt += f"; beside it {beside}." if beside else "."
    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{_y(tick)}" y2="{_y(tick)}"/>'
        + _label(_LEFT - 6, _y(tick) + 4, _seconds(tick), "end")
        for tick in _TICKS
    )
    bars = "".join(_bar(age, took, limits) for age, took in series)
    drawn = _svg(_TALL, alt, grid + bars + "".join(_limits(limits)) + _ages(_TALL - 8))
    quantiles = [f"{name} {_seconds(found[key])}" for name, key in (("last", "last"), ("p50", "p50"), ("p99", "p99"))
                 if found.get(key) is not None]  # fmt: skip
    return f'{drawn}<p class="quiet">{", ".join(quantiles)}; longest shown {_seconds(slowest)}.</p>'


def _bar(age: float, took: float, limits: Sequence[tuple[str, float]]) -> str:
    kind = "late" if any(took > limit for _, limit in limits) else "took"
    top = min(_y(took), _BOTTOM - 2)
    return f'<rect class="{kind}" x="{_x(age) - 5}" y="{top}" width="10" height="{_BOTTOM - top}"/>'


def _limits(limits: Sequence[tuple[str, float]]) -> Iterator[str]:
    # Every other label is on the left and below its line: 10 s and 15 s are close to one another on this scale.
    for number, (name, limit) in enumerate(limits):
        y = _y(limit)
        yield f'<line class="limit" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        x, below, anchor = ((_RIGHT - 4, -4, "end"), (_LEFT + 4, 14, "start"))[number % 2]
        yield _label(x, y + below, f"{name} {_seconds(limit)}", anchor, "name")


def _points(steps: Sequence[tuple[float, int]], before: Sequence[int]) -> Iterator[str]:
    y = _ROWS[min(2, before[-1])] if before else None
    if y is not None:
        yield f"{_x(WINDOW)},{y}"
    for age, count in steps:
        if y is not None:
            yield f"{_x(age)},{y}"
        y = _ROWS[min(2, count)]
        yield f"{_x(age)},{y}"
    yield f"{_RIGHT},{y}"


def _svg(height: int, alt: str, inside: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{alt}"><title>{alt}</title>{inside}</svg>'


def _label(x: int, y: int, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def _ages(y: int) -> str:
    return _label(_LEFT, y, "15 min ago", "start") + _label(_RIGHT, y, "now", "end")


def _x(age: float) -> int:
    return round(_LEFT + (_RIGHT - _LEFT) * (1 - min(age, WINDOW) / WINDOW))


def _y(took: float) -> int:
    share = math.log(min(max(took, _SHORTEST), _LONGEST) / _SHORTEST) / math.log(_LONGEST / _SHORTEST)
    return round(_BOTTOM - (_BOTTOM - _TOP) * share)


def _seconds(took: float) -> str:
    """``12 ms``, ``0.4 ms``, ``2 s``."""
    if took < 0.9995:
        return f"{1000 * took:.1f} ms" if took < 0.00995 and took != 0.001 else f"{1000 * took:.0f} ms"
    return f"{took:.3g} s"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
