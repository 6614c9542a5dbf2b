"""How fencegate looks in a terminal: a few styles, and plain text without control characters everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

# Colours out of the terminal's own sixteen, so that they fit a light background as well as a dark one.
THEME: Final = Theme(
    {
        "good": "bold green",
        "bad": "bold red",
        "act": "bold cyan",
        "plain": "none",
        "quiet": "dim",
        "open": "bold white on green",
        "closed": "bold white on bright_black",
        "draining": "bold black on yellow",
        "killed": "bold white on red",
    }
)
_BADGES: Final = frozenset({"open", "closed", "draining", "killed"})
_WIDEST: Final = 112


def console(stream: TextIO | None = None) -> Console:
    """A console on ``stream`` (stdout): coloured on a terminal, plain where the output goes to a file or a pipe."""
    made = Console(file=stream or sys.stdout, theme=THEME, highlight=False, markup=False, emoji=False)
    if made.is_terminal and made.width > _WIDEST:
        made.width = _WIDEST  # lines that are too long to follow with the eye
    return made


def title(what: Text, when: Text) -> RenderableType:
    """The first line of every picture: what is shown on the left, how it stands on the right."""
    row = Table.grid(expand=True)
    row.add_column(ratio=1)
    row.add_column(justify="right")
    row.add_row(what, when)
    return row


def badge(word: str) -> Text:
    """How a fence or a process is, in capitals, and in colour where the terminal has it; other words as they are."""
    return Text(f" {word.upper()} ", word) if word in _BADGES else Text(word, "quiet")


def minutes(seconds: float) -> str:
    """``00:14``: minutes and seconds."""
    whole = max(0, int(seconds))
    return f"{whole // 60:02d}:{whole % 60:02d}"


def duration(seconds: float) -> str:
    """``0.9 s``, or ``never`` for an infinite one."""
    return "never" if seconds == float("inf") else f"{seconds:.1f} s"


def printable(text: str, longest: int = 100) -> str:
    """``text`` cut to ``longest`` characters, with whatever might steer a terminal shown as an escape."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def counted(count: int, thing: str) -> str:
    """``1 write``, ``2 writes``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def tally(counts: Mapping[str, int]) -> str:
    """``not_leader 93, stale_token 2``, the most frequent first; ``none`` for nothing."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in ordered if count) or "none"


def bar(left: int, total: int, width: int, style: str = "bad") -> Text:
    """A bar that is full while everything is left, and empty at zero."""
    full = round(width * left / total) if total else 0
    if left and not full:
        full = 1
    return Text.assemble(("█" * full, style), ("░" * (width - full), "quiet"))
