"""The command line of a game day: what it takes, what it refuses before anything starts, what it writes."""

from __future__ import annotations

import io
import json
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencegate.cli.gameday import _files, gameday, rendered, replay
from fencegate.cli.gameday_verdict import show
from fencegate.cli.look import console
from fencegate.errors import ConfigurationError, FencegateError
from fencegate.gameday import scenario_file
from fencegate.gameday.judge import Report, Turn
from fencegate.gameday.report import document
from fencegate.gameday.scenario import ExtraFault
from fencegate.gameday.tail import Tail
from fencegate.gameday.verify import Verdict

TURN = Turn("failover", "eu", "us", 10.0, 4.0, 5.0, 1.0, 1.5)
GOOD = Report(
    scenario=scenario_file.load("drill-26"),
    kind="embedded",
    role="ledger",
    called={"primary": "eu", "dr": "us"},
    fenced=True,
    seed=1,
    lease=5.0,
    stale_for=1200.0,
    speed=60.0,
    verdict=Verdict({"eu": 9, "us": 9}, {}, (), ()),
    accepted={"eu": 6, "us": 3},
    stale_clients=8,
    stale_accepted=0,
    tail=Tail(20.0, 40.0, True, Counter({"not_leader": 5}), 39.0),
    turns=(TURN,),
    terms=(2, 11, 30),
    leader="eu",
    most_leaders=1,
    unfinished=0,
    elapsed=58.0,
)


def said(report: Report) -> str:
    stream = io.StringIO()
    show(report, console(stream))
    return stream.getvalue()


def test_the_shipped_scenarios_are_listed_with_where_they_can_be_played() -> None:
    result = CliRunner().invoke(gameday, ["--list"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert set(lines) == set(scenario_file.shipped())
    assert "also with --target" in lines["failback"]
    assert "meant to fail" in lines["zombie"]
    listed = json.loads(CliRunner().invoke(gameday, ["--list", "--json"]).output)
    assert [each["name"] for each in listed] == list(lines)
    assert {each["name"] for each in listed if each["target"]} == {"failback", "flapping", "zombie"}
    assert {each["name"] for each in listed if each["verdict"] == "fail"} == {"zombie"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--stale-for", "soon"], "expected a duration such as 90s, 20m or 1h"),
        (["--fault", "kill"], "expected STRIKE:PART"),
        (["--speed", "0"], "--speed"),
        (["--clients", "1"], "--clients"),
        (["--role", "canary"], "--role and --token-file go with --target"),
        (["--target", "http://127.0.0.1:1", "--scenario", "split-from-quorum"], "is not broken on purpose"),
        (["--target", "http://127.0.0.1:1", "--fault", "kill:dr-store"], "kill:dr-store"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_starts(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(gameday, arguments)
    assert result.exit_code == 2
    assert expected in result.output


def test_faults_of_a_scenario_and_of_the_command_line_are_faults_of_a_configuration(tmp_path: Path) -> None:
    for arguments in (["--scenario", "dril"], ["--fault", "kill:moon"], ["--report", "/proc/nowhere/report.html"]):
        result = CliRunner().invoke(gameday, arguments)
        assert isinstance(result.exception, ConfigurationError), result.output


def test_where_a_report_goes_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "v1.2").mkdir()
    expected = {
        "out.html": [(".html", "out.html")],
        "OUT.JSON": [(".json", "OUT.JSON")],
        "out": [(".html", "out/report.html"), (".json", "out/report.json"), (".xml", "out/junit.xml")],
        "v1.2": [(".html", "v1.2/report.html"), (".json", "v1.2/report.json"), (".xml", "v1.2/junit.xml")],
    }
    (tmp_path / "out.html").write_text("of another day")
    for name, files in expected.items():
        assert _files(tmp_path / name, None) == tuple((form, tmp_path / file) for form, file in files)
    # That each can be written was looked at, and nothing is left of it.
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["out.html"]
    assert (tmp_path / "out.html").read_text() == "of another day"


def test_a_report_of_a_form_that_there_is_not_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(gameday, ["--report", str(tmp_path / "out.pdf")])
    assert isinstance(result.exception, ConfigurationError)
    assert "out.pdf: expected a file that ends in .html, .json, .xml, or a directory" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_in_the_end_takes_no_verdict_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(*_: object) -> Report:
        (tmp_path / "out.html").mkdir()
        return GOOD

    monkeypatch.setattr("fencegate.cli.gameday._play", play)
    result = CliRunner().invoke(gameday, ["--report", str(tmp_path / "out.html")])
    assert "PASSED" in result.output
    assert isinstance(result.exception, FencegateError)
    assert f"the report cannot be written to {tmp_path / 'out.html'}: Is a directory" in str(result.exception)


def test_the_command_that_plays_it_again_has_everything_that_was_asked_for() -> None:
    faults = (ExtraFault("freeze", "dr-store", 5.0, 0.5),)
    text = replay("my drill.toml", ("http://a:1",), "canary", "/t", 8, 1200.0, 60.0, faults, 7)
    assert shlex.split(text) == [
        *("fencegate", "gameday", "--scenario", "my drill.toml", "--seed", "7", "--target", "http://a:1"),
        *("--role", "canary", "--token-file", "/t", "--clients", "8", "--stale-for", "1200s", "--speed", "60"),
        *("--fault", "freeze:dr-store,at=5,for=0.5"),
    ]
    assert scenario_file.parse_fault("freeze:dr-store,at=5,for=0.5") == faults[0]


def test_each_form_of_the_report_is_made_of_the_same_document() -> None:
    made = document(GOOD)
    assert json.loads(rendered(made, ".json")) == json.loads(json.dumps(made))
    assert rendered(made, ".html").startswith("<!doctype html>")
    assert rendered(made, ".xml").startswith("<?xml")


def test_the_verdict_is_said_in_a_sentence() -> None:
    assert "PASSED: 11 checks, and all of them hold." in said(GOOD)
    late = replace(GOOD, tail=replace(GOOD.tail, after=3, senders=("zombie-1",)))
    text = said(late)
    assert "FAILED: it does not hold that the tail cleared." in text
    assert "of zombie-1" in text
    meant = replace(late, scenario=scenario_file.load("zombie"))
    assert "the verdict is the one to be expected" in said(meant)
    assert "meant to fail, and did not" in said(
        replace(GOOD, scenario=scenario_file.load("zombie"), leader="us", terms=(2, 3))
    )
