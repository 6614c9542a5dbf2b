"""The protocol, checked in every state that its models have: README.md says which rule each of them holds.

``FENCEGATE_MODEL=large`` searches larger models: up to some minutes and some GB each.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from model.cases import HOLDS, LIMITS, NAIVE, REACHED, RULES, Breaks, Holds
from model.spin import HERE, need_spin, search

LARGE = os.environ.get("FENCEGATE_MODEL") == "large"
MEMORY, SECONDS = (9000, 1800) if LARGE else (2000, 300)


@pytest.fixture(autouse=True, scope="module")
def spin() -> None:
    need_spin()


def _name(case: object) -> str:
    if isinstance(case, Holds | Breaks):
        return "-".join((case.model, *case.switches))
    return str(case)


@pytest.mark.timeout(SECONDS + 100)
@pytest.mark.parametrize("case", HOLDS, ids=_name)
def test_with_every_rule_no_state_violates_anything(case: Holds, tmp_path: Path) -> None:
    switches = case.large if LARGE and case.large is not None else case.switches
    found = search(case.model, switches, tmp_path, memory=MEMORY, seconds=SECONDS)
    assert found.violated is None, "\n".join((*found.story, found.output))
    assert found.complete, found.output
    assert found.unreached == ()


@pytest.mark.parametrize("case", RULES, ids=_name)
def test_without_the_rule_it_breaks(case: Breaks, tmp_path: Path) -> None:
    assert search(case.model, case.switches, tmp_path, shortest=True).violated == case.violated


@pytest.mark.parametrize("case", LIMITS, ids=_name)
def test_what_no_rule_covers_breaks_as_the_readme_says(case: Breaks, tmp_path: Path) -> None:
    assert search(case.model, case.switches, tmp_path, shortest=True).violated == case.violated


@pytest.mark.parametrize("model", NAIVE)
def test_each_naive_fence_lets_an_older_term_write_after_a_newer_one(model: str, tmp_path: Path) -> None:
    found = search(model, (), tmp_path, shortest=True)
    assert found.violated == "an_older_term_wrote_after_a_newer_one"
    told = "\n".join(f"{n}. {line.strip()}" for n, line in enumerate(found.story, 1))
    assert told in (HERE / "README.md").read_text(), told


@pytest.mark.parametrize(("model", "switches", "state"), REACHED)
def test_what_the_rules_protect_can_happen(model: str, switches: tuple[str, ...], state: str, tmp_path: Path) -> None:
    assert search(model, switches, tmp_path, shortest=True, reach=state).violated == "reached"


def test_every_switch_of_the_models_is_tried() -> None:
    switches = set()
    for path in HERE.glob("*.pml"):
        for line in re.findall(r"^#(?:if|ifdef|ifndef|elif) (.*)$", path.read_text(), re.MULTILINE):
            switches |= {(path.stem, word) for word in re.findall(r"[A-Z][A-Z0-9_]{4,}", line)}
    bounds = {"TERMS", "LEASE", "ROUNDS", "HANDOFFS", "TRIES"}
    tried = {(case.model, switch) for case in (*HOLDS, *RULES, *LIMITS) for switch in case.switches}
    assert {(model, switch) for model, switch in switches if switch not in bounds} <= tried | {("lease", "BOTH")}


def test_no_model_is_left_out() -> None:
    models = {path.stem for path in HERE.glob("*.pml")}
    assert models == {case.model for case in HOLDS} | set(NAIVE)
