"""The threat model: each threat names what holds it and the tests that show it, and each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
SECTIONS = dict(part.partition("\n")[::2] for part in PAGE.split("\n## ")[1:])
TEST = re.compile(r"`((?:\w+/)*test_\w+\.py)::(test_\w+)`")


def rows(section: str) -> list[list[str]]:
    """The cells of the table's rows, without its head."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


THREATS = [
    (section, row)
    for section, text in SECTIONS.items()
    if "| threat | what holds it | shown by |" in text
    for row in rows(section)
]


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("section", "row"), THREATS, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_each_threat_names_what_holds_it_and_tests_that_exist(section: str, row: list[str]) -> None:
    threat, holds, shown = row
    assert threat
    assert holds
    named = TEST.findall(shown)
    assert named, f"{threat}: no test shows it; what nothing holds belongs below 'What is not held'"
    assert TEST.sub("", shown).strip(", ") == "", f"{threat}: something else than tests"
    for path, name in named:
        assert (ROOT / "tests" / path).is_file(), f"there is no file tests/{path}"
        assert name in functions_of(path), f"there is no test {name} in tests/{path}"


def test_every_actor_has_its_threats_and_what_is_not_held_is_said() -> None:
    assert len(THREATS) > 50
    assert {section for section, _ in THREATS} == {
        "A client with a stale or guessed token",
        "A client that means harm",
        "Somebody on the network",
        "An upstream that means harm",
        "A member of the election store that means harm",
        "Operators, and who plays one",
        "Whoever has a gateway's host",
    }
    assert len(rows("Who may attack")) == len({section for section, _ in THREATS})
    assert SECTIONS["What is not held"].count("\n- **") >= 8


def test_who_finds_a_hole_is_told_where_to_report_it_and_no_address_is_made_up() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text
    assert "## Supported versions" in text
    assert "docs/security.md" in text
    assert "@" not in text
