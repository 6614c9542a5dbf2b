"""``docs/chaos.md`` shows the figures of ``docs/chaos.json``, and what is on the menu, and nothing else."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from fencegate.gameday.chaos_stage import TIMINGS, Shape
from fencegate.gameday.figures import Figures, strikes, table
from fencegate.gameday.strikes.menu import menu

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, TALLY = DOCS / "chaos.md", DOCS / "chaos.json"
WRITE = "FENCEGATE_WRITE_DOCS"
WRITING = bool(os.environ.get(WRITE))


def shown(text: str, name: str) -> tuple[str, str, str]:
    """What lies before, between and behind the marks of a section."""
    before, begin, rest = text.partition(f"<!-- {name} -->\n")
    between, end, behind = rest.partition(f"<!-- end of {name} -->")
    assert begin, f"the page has no section {name}"
    assert end, f"the section {name} has no end"
    return before + begin, between, end + behind


def test_the_page_shows_the_figures_that_were_added_up() -> None:
    figures = Figures.from_json(json.loads(TALLY.read_text("utf-8")))
    text = PAGE.read_text("utf-8")
    for name, section in (("figures", table(figures, TIMINGS)), ("faults", strikes(figures))):
        before, between, behind = shown(text, name)
        if WRITING:
            text = before + section + "\n" + behind
            PAGE.write_text(text, "utf-8")
        else:
            assert between == section + "\n", f"write it anew: {WRITE}=1 pytest {Path(__file__).name}"


def test_every_strike_is_told_of() -> None:
    text = PAGE.read_text("utf-8")
    everything = Shape("lagging", small_disk=True, clocks=True, packets=True, upstream=1.0)
    names = {re.sub(r" (before|after) \w+$", "", dish.strike) for dish in menu(everything)}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_a_run_with_a_violation_is_not_counted_as_proof() -> None:
    figures = Figures.from_json(json.loads(TALLY.read_text("utf-8")))
    assert figures.violations == 0
    assert figures.not_recovered == 0
