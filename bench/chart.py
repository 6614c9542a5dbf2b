"""The ratios as one SVG: a bar from 0, a line over the range, the goal beside the name. Amounts have no place in it."""

from __future__ import annotations

from html import escape
from typing import Any

_ROW, _LEFT, _WIDTH = 34, 680, 380


def svg(answers: list[dict[str, Any]]) -> str:
    """Of answers as :meth:`bench.rounds.Answer.document` gives them."""
    found = [answer for answer in answers if answer["peer"] is not None]
    most = max(max(answer["ratios"]) for answer in found) * 1.05
    height = _ROW * len(found) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, answer in enumerate(found):
        top = 20 + place * _ROW
        end, low, high = (_WIDTH * value / most for value in (answer["ratio"], *answer["ratio_range"]))
        name = escape(f"{answer['question']} (goal {answer['goal']})")
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{name}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{end:.1f}" height="20" fill="#4c78a8"/>',
            f'<line x1="{_LEFT + low:.1f}" x2="{_LEFT + high:.1f}" y1="{top + 10}" y2="{top + 10}" '
            'stroke="black" stroke-width="2"/>',
            f'<text x="{_LEFT + high + 8:.1f}" y="{top + 14}">{answer["ratio"]:.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
