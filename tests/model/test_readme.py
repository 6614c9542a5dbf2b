"""README.md speaks of switches, functions and tests: each of them exists."""

from __future__ import annotations

import re

from model.cases import LIMITS, RULES
from model.spin import HERE

ROOT = HERE.parent.parent
TEXT = (HERE / "README.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| R")]


def test_the_table_has_a_row_for_everything_that_is_left_out() -> None:
    told = sorted((row[3], re.findall(r"`(WITHOUT_\w+)`", row[1])[0]) for row in ROWS)
    assert told == sorted((case.model, case.switches[0]) for case in RULES)


def test_each_rule_of_the_design_has_its_rows() -> None:
    assert list(dict.fromkeys(row[0] for row in ROWS)) == [f"R{number}" for number in range(1, 16)]
    assert all(row[1].startswith(f"`WITHOUT_{row[0]}") for row in ROWS)


def test_what_no_rule_covers_is_told() -> None:
    told = re.findall(r"^\| (\w+) `(\w+)` \|", TEXT, re.MULTILINE)
    assert sorted(told) == sorted((case.model, case.switches[0]) for case in LIMITS)


def test_each_function_and_each_test_that_is_named_exists() -> None:
    named = re.findall(r"`([\w/]+\.(?:py|sql)):(\w+)`", TEXT)
    assert len(named) > 60
    missing = [
        f"{path}:{name}"
        for path, name in named
        if not re.search(rf"(?:\bdef |\bclass |FUNCTION fencegate\.){name}\b", (ROOT / path).read_text())
    ]
    assert missing == []


def test_each_model_names_files_that_exist() -> None:
    for path in HERE.glob("*.pml"):
        for name in re.findall(r"(?:fencegate/)?((?:leadership|election|store|gateway)/\w+\.py)", path.read_text()):
            assert (ROOT / "fencegate" / name).is_file(), f"{path.name}: {name}"
