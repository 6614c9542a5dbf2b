"""Scenario files: every shipped one is sound, every fault of another is told at once, nothing else is ever raised."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.errors import ConfigurationError
from fencegate.gameday import scenario_file
from fencegate.gameday.held_faults import STRIKES
from fencegate.gameday.scenario import STEPS, ExtraFault

ASKED_FOR = {
    "drill-26", "paused-leader-short", "paused-leader-long", "split-from-quorum", "store-failover", "election-down",
    "zombie", "flapping", "failback",
}  # fmt: skip
DOC = (Path(__file__).parents[2] / "docs" / "gameday.md").read_text("utf-8")
GOOD = 'title = "t"\n[expect]\ntail = "none"\n[[step]]\ndo = "play"\nseconds = 1\n'


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        scenario_file.parse(text, "x")
    return caught.value.faults


def test_every_shipped_scenario_is_sound_and_tells_what_it_is_about() -> None:
    assert set(scenario_file.shipped()) == ASKED_FOR
    for name in ASKED_FOR:
        found = scenario_file.load(name)
        assert found.name == name
        assert len(found.about) > 80
        assert "\n" not in found.about


def test_one_of_them_is_meant_to_fail_and_three_or_more_suit_a_running_deployment() -> None:
    all_of_them = [scenario_file.load(name) for name in ASKED_FOR]
    assert [one.name for one in all_of_them if one.expect.verdict == "fail"] == ["zombie"]
    assert {one.name for one in all_of_them if not one.only_embedded()} == {"failback", "flapping", "zombie"}


def test_every_fault_of_a_file_is_told_at_once_with_its_place_and_what_was_expected() -> None:
    found = faults(
        'titel = "x"\n[clients]\ncount = "many"\nzombies = true\n[expect]\nterms = [3, 1]\nverdict = "maybe"\n'
        '[[step]]\ndo = "play"\n[[step]]\ndo = "dance"\n[[step]]\ndo = "wait"\nregion = "eu"\nuntil = "late"\n'
        '[[step]]\ndo = "handoff"\nregion = "either"\nseconds = 3\n[[step]]\nact = "x"\n'
        '[[step]]\ndo = "wait"\nregion = "dr"\nuntil = "closed"\nturn = "x"\n'
    )
    text = "\n".join(found)
    for told in (
        "titel: no such key",
        "title: missing; expected a text of 1 to 100 characters",
        "clients.count: expected a whole number of 2 to 200; it is 'many'",
        "clients.zombies: expected a whole number",
        "expect.terms: expected a whole number, or two as [fewest, most]; it is [3, 1]",
        "expect.verdict: expected one of pass, fail",
        "step 1: expected seconds or leases",
        "step 2: do: expected one of play",
        "step 3: region: expected one of primary, dr, either; it is 'eu'",
        "step 3: until: expected one of open, closed, up; it is 'late'",
        "step 4: region: expected one of primary, dr; only a wait takes either",
        "step 4: seconds: no such key",
        "step 5: do: expected one of play",
        'step 6: turn: expected only with until = "open"',
    ):
        assert told in text
    assert all(fault.startswith("scenario x: ") for fault in found)


def test_a_file_that_is_no_toml_and_one_without_steps_are_refused() -> None:
    assert "not TOML" in faults("= 3")[0]
    assert any("step: missing" in fault for fault in faults('title = "t"'))
    assert any("at least one [[step]]" in fault for fault in faults('title = "t"\nstep = []'))


def test_the_scenario_in_the_documentation_is_one_and_its_tables_name_every_step_and_scenario() -> None:
    (example,) = [block for block in re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL) if "[[step]]" in block]
    assert scenario_file.parse(example, "example").expect.leader == "dr"
    for name in (*STEPS, *STRIKES, *ASKED_FOR):
        assert f"`{name}`" in DOC


VALUES = st.one_of(
    st.text(max_size=20), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["play", "strike", "wait", "dr", "primary", "open", "kill", "primary-gateway"]),
)  # fmt: skip
KEYS = st.sampled_from(["do", "region", "until", "part", "strike", "seconds", "leases", "stale", "turn", "x y"])


def toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(c if c.isalnum() or c in "- " else f"\\u{ord(c) & 0xD7FF:04x}" for c in value) + '"'
    return repr(value)


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=6), max_size=5))
def test_whatever_a_file_says_it_is_a_scenario_or_a_list_of_faults(steps: list[dict[str, object]]) -> None:
    tables = ["[[step]]\n" + "".join(f'"{key}" = {toml(value)}\n' for key, value in step.items()) for step in steps]
    with suppress(ConfigurationError):
        scenario_file.parse('title = "t"\n' + "".join(tables), "x")


def test_a_file_of_ones_own_is_read_and_an_unknown_name_is_told_the_known_ones(tmp_path: Path) -> None:
    own = tmp_path / "ours.toml"
    own.write_text(GOOD)
    assert scenario_file.load(str(own)).name == "ours"
    with pytest.raises(ConfigurationError) as caught:
        scenario_file.load("dril-26")
    assert "drill-26" in caught.value.faults[0]
    with pytest.raises(ConfigurationError) as caught:
        scenario_file.load(str(tmp_path / "absent.toml"))
    assert "cannot read it" in caught.value.faults[0]
    own.write_text(GOOD + "x = 1\n")
    with pytest.raises(ConfigurationError) as caught:
        scenario_file.load(str(own))
    assert caught.value.faults[0].startswith(str(own))


@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1200), ("90", 90), ("1.5h", 5400), ("250ms", 0.25), ("0s", 0), ("24h", 86400)]
)
def test_durations(text: str, seconds: float) -> None:
    assert scenario_file.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3s", "1d", "25h", "1e3", "٣s", "1 s", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        scenario_file.parse_duration(text)


def test_a_fault_of_the_command_line() -> None:
    assert scenario_file.parse_fault("kill:dr-store") == ExtraFault("kill", "dr-store", 5.0, 2.0)
    assert scenario_file.parse_fault("freeze:dr-store,for=500ms,at=1m") == ExtraFault("freeze", "dr-store", 60.0, 0.5)


@pytest.mark.parametrize("text", ["", "kill", "kill:", ":dr", "kill:dr,when=3", "kill:dr,at"])
def test_what_is_no_fault_is_told_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected STRIKE:PART"):
        scenario_file.parse_fault(text)
