"""The pictures of a report: inline SVG out of its document. Pure; every text goes through one escaping function.

Shapes are told apart by their place and a label as well as by colour, so that they can be printed in grey.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

Document = Mapping[str, Any]

_WIDTH: Final = 900
_LEFT: Final = 34
_RIGHT: Final = 890
_TOP: Final = 26
_FOOT: Final = 20
_HUES: Final = 5
"""How many colours the page's style has for the parts of a stack: ``h0`` to ``h4``."""


def rejections(document: Document) -> str:
    """What was refused in each second, by reason, with the tail behind the last change of leader."""
    series = document["series"]["refused"]
    totals: dict[str, int] = defaultdict(int)
    for _, counts in series:
        for reason, count in counts.items():
            totals[reason] += count
    reasons = sorted(totals, key=lambda reason: (-totals[reason], reason))
    stacks = {second: [(hue_of(reasons, reason), n) for reason, n in counts.items()] for second, counts in series}
    legend = [(hue_of(reasons, reason), f"{reason} {totals[reason]}") for reason in reasons]
    tail = document["tail"]
    marks = [(turn["at_s"], turn["name"]) for turn in document["turns"]]
    if tail["expired_s"] is not None and tail["began_s"] is not None:
        marks.append((tail["expired_s"], "last stale record"))
    return _bars(document, stacks, legend, marks, "Writes refused in each second")


def accepted(document: Document) -> str:
    """What was accepted in each second, by region, with each term's token where it begins."""
    regions = list(document["regions"].values())
    stacks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    totals: dict[str, int] = defaultdict(int)
    for second, region, _, count in document["series"]["accepted"]:
        stacks[second].append((hue_of(regions, region), count))
        totals[region] += count
    legend = [(hue_of(regions, region), f"{region} {totals[region]}") for region in regions]
    marks = [(term["opened_s"], f"term {term['token']}: {term['region']}") for term in document["terms"]]
    return _bars(document, stacks, legend, marks, "Writes accepted in each second, by region and term")


def leader_count(document: Document) -> str:
    """The line of ``leader_count``, with a band wherever it is not 1."""
    height, rows = 110, {2: 30, 1: 56, 0: 82}
    axis = _axis_of(document)
    points = document["series"]["leader_count"]
    bands, line = [], ""
    for (at, count), until in zip(points, [*(at for at, _ in points[1:]), axis.end], strict=True):
        left, right, y = axis.x(at), axis.x(until), rows[max(0, min(2, count))]
        line += f"{'M' if not line else 'L'}{left:.1f} {y}L{right:.1f} {y}"
        if count != 1:
            kind = "none" if count < 1 else "two"
            bands.append(f'<rect class="band {kind}" x="{left:.1f}" y="18" width="{max(1.0, right - left):.1f}"/>')
    labels = "".join(f'<text x="4" y="{y + 4}">{count}</text>' for count, y in rows.items())
    lines = "".join(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>' for y in rows.values())
    content = f'{"".join(bands)}{lines}{labels}<path class="line" d="{line}"/>{axis.drawn(height)}'
    return _svg("leader_count by the stores' own word", height, content)


def times(document: Document) -> str:
    """How long each change of leader took until the old store was closed and the new one open, against the limits."""
    turns = document["turns"]
    rows = [(turn, what) for turn in turns for what in ("closed", "open")]
    longest = max([1.0, *(_of(turn, what) for turn, what in rows), *(turn["open_within_s"] for turn in turns)])
    height, content = 10 + 26 * len(rows), []
    for number, (turn, what) in enumerate(rows):
        y = 6 + 26 * number
        took, limit = turn[f"{what}_s"], turn[f"{what}_within_s"]
        region = turn["from"] if what == "closed" else turn["to"]
        text = f"{turn['name']}: {region} {what} after " + ("never" if took is None else f"{took:.1f} s")
        late = " late" if took is None or took > limit else ""
        width = _span(longest if took is None else took, longest)
        content.append(
            f'<rect class="bar h{0 if what == "closed" else 1}{late}" x="{_LEFT}" y="{y}" width="{width:.1f}" '
            f'height="18"/><line class="limit" x1="{_LEFT + _span(limit, longest):.1f}" '
            f'x2="{_LEFT + _span(limit, longest):.1f}" y1="{y - 2}" y2="{y + 20}"/>'
            f'<text x="{_LEFT + 6}" y="{y + 13}">{_text(text)}, limit {limit:g} s</text>'
        )
    return _svg("Time to closed and to open", height, "".join(content)) if rows else ""


def hue_of(names: Sequence[str], name: str) -> int:
    """Which of the style's colours stands for ``name``."""
    return names.index(name) % _HUES if name in names else _HUES - 1


def _of(turn: Document, what: str) -> float:
    return float(turn[f"{what}_s"] or 0.0)


def _bars(
    document: Document,
    stacks: Mapping[int, Sequence[tuple[int, int]]],
    legend: Sequence[tuple[int, str]],
    marks: Sequence[tuple[float, str]],
    title: str,
) -> str:
    height, axis = 190, _axis_of(document)
    highest = max([1, *(sum(n for _, n in stack) for stack in stacks.values())])
    content = "".join(_stacked(stacks, highest, axis, height))
    foot = height - _FOOT
    content += f'<text x="4" y="{_TOP + 12}">{highest}</text><text x="4" y="{foot}">0</text>'
    content += "".join(_marks(marks, axis, height))
    content += axis.drawn(height)
    return _svg(title, height, content) + _legend(legend)


def _stacked(stacks: Mapping[int, Sequence[tuple[int, int]]], highest: int, axis: _Axis, height: int) -> Iterator[str]:
    foot, scale = height - _FOOT, (height - _FOOT - _TOP) / highest
    wide = max(1.0, (_RIGHT - _LEFT) / axis.lasts - 1)
    for second, stack in sorted(stacks.items()):
        y = float(foot)
        for hue, count in stack:
            y -= count * scale
            yield (
                f'<rect class="bar h{hue}" x="{axis.x(second):.1f}" y="{y:.1f}" width="{wide:.1f}" '
                f'height="{count * scale:.1f}"/>'
            )


def _marks(marks: Sequence[tuple[float, str]], axis: _Axis, height: int) -> Iterator[str]:
    """Labels go to the left of their line in the right half, and never over the one before."""
    taken = {0: -1.0, 1: -1.0}
    for at, label in sorted(marks):
        x = axis.x(at)
        wide, right = 7.0 * len(label), x > _WIDTH * 0.75
        begin = x - wide if right else x
        row = 0 if taken[0] <= begin else 1
        taken[row] = begin + wide + 8
        anchor = ' text-anchor="end"' if right else ""
        yield (
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{10 + 12 * row}" y2="{height - _FOOT}"/>'
            f'<text x="{x + (-4 if right else 4):.1f}" y="{12 + 12 * row}"{anchor}>{_text(label)}</text>'
        )


def _legend(entries: Sequence[tuple[int, str]]) -> str:
    items = "".join(f'<li><span class="key h{hue}"></span>{_text(label)}</li>' for hue, label in entries)
    return f'<ul class="legend">{items}</ul>' if items else ""


@dataclass(frozen=True, slots=True)
class _Axis:
    """The seconds that a picture is wide: from the clients' begin to the drill's end."""

    begin: float
    end: float

    @property
    def lasts(self) -> float:
        return max(1.0, self.end - self.begin)

    def x(self, at: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(1.0, max(0.0, (at - self.begin) / self.lasts))

    def drawn(self, height: int) -> str:
        step = next((s for s in (5, 10, 30, 60, 300, 900, 3600) if self.lasts / s <= 12), 7200)
        first = -(-int(self.begin) // step) * step
        ticks = "".join(
            f'<text x="{self.x(at):.1f}" y="{height - 4}" text-anchor="middle">{at} s</text>'
            for at in range(first, int(self.end) + 1, step)
        )
        return f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{height - _FOOT}" y2="{height - _FOOT}"/>{ticks}'


def _axis_of(document: Document) -> _Axis:
    return _Axis(math.floor(document["began_s"]), document["elapsed_s"])


def _span(value: float, longest: float) -> float:
    return (_RIGHT - _LEFT) * min(1.0, value / longest)


def _svg(title: str, height: int, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_text(title)}">'
        f"<title>{_text(title)}</title>{content}</svg>"
    )


def _text(value: object) -> str:
    return escape(str(value), quote=True)
