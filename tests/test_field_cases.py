"""The index of public reports: each case names the tests that hold it, and each of them names the case.

``field_cases.toml`` is read by people too: what is not held of a report stands there in so many words.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
INDEX = tomllib.loads((ROOT / "tests" / "field_cases.toml").read_text())
CASES: dict[str, dict[str, Any]] = INDEX["case"]

REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+", re.ASCII)
ATTACKS = 21


@cache
def beside_tests(path: str) -> dict[str, str]:
    """The comment right above each test of a file, by the test's name and class, its lines joined."""
    text = (ROOT / path).read_text()
    lines, found = text.splitlines(), {}

    def look(body: list[ast.stmt], within: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{within}{node.name}::")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                at = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 2
                comment: list[str] = []
                while at >= 0 and lines[at].strip().startswith("#"):
                    comment.insert(0, lines[at].strip().removeprefix("#").strip())
                    at -= 1
                found[within + node.name] = " ".join(comment)

    look(ast.parse(text).body, "")
    return found


def test_every_number_of_the_index_is_a_case_or_was_never_given() -> None:
    unused = set(INDEX["numbers"]["unused"])
    given = {str(number) for number in range(1, INDEX["numbers"]["last"] + 1) if number not in unused}
    assert set(CASES) == given | {f"A{number}" for number in range(1, ATTACKS + 1)}


@pytest.mark.parametrize("number", CASES)
def test_a_case_is_held_by_tests_that_name_it_or_says_why_not(number: str) -> None:
    case = CASES[number]
    assert set(case) <= {"promise", "reports", "why_no_report", "tests", "not_held", "said_in"}
    assert case["promise"].endswith(".")
    assert case["reports"] or case["why_no_report"]
    assert all(REPORT.fullmatch(report) for report in case["reports"])
    assert case["tests"] or case["not_held"]
    comments = []
    for node in case["tests"]:
        path, _, name = node.partition("::")
        assert name in beside_tests(path), f"there is no test {node}"
        comments.append(beside_tests(path)[name])
    if case["tests"]:
        named = ": ".join([f"Field case {number}", *([", ".join(case["reports"])] if case["reports"] else [])])
        assert any(f"{named}." in comment for comment in comments), f"none of its tests says: # {named}."


@pytest.mark.parametrize(
    "number", [number for number, case in CASES.items() if "not_held" in case or "said_in" in case]
)
def test_what_is_not_held_of_a_case_is_said_where_users_read_it(number: str) -> None:
    case = CASES[number]
    assert case["not_held"].endswith(".")
    path, _, anchor = case["said_in"].partition("#")
    assert path == "README.md" or path.startswith("docs/")
    headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_no_comment_names_a_case_that_is_not_the_tests_own() -> None:
    for path in sorted([*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "fencegate" / "testing").glob("*.py")]):
        if path == Path(__file__):
            continue
        where = str(path.relative_to(ROOT))
        for name, comment in beside_tests(where).items():
            for number in re.findall(r"Field case (\w+)", comment):
                assert f"{where}::{name}" in CASES[number]["tests"], (where, name, number)
