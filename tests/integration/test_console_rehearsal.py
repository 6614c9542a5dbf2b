"""The console's game days as processes. What they play is a few lines that take the command's options."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fencegate.console import rehearsal
from fencegate.console.rehearsal import Rehearsal, Rehearsals
from fencegate.testing.raw_http import eventually

PLAY = """
import pathlib, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
token = pathlib.Path(options["--token-file"]).read_text()
print("a token of", len(token.strip()), "characters;", *sys.argv[1:])
role = options["--role"]
if role == "long":
    signal.signal(signal.SIGTERM, lambda *_: (print("handed back"), sys.exit(143)))
if role == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if role in ("long", "stubborn"):
    print("waits")
    time.sleep(60)
if role == "talks":
    print("x" * 300_000, flush=True)
    time.sleep(0.5)
    print("the end")
if role != "wrong":
    pathlib.Path(options["--report"]).write_text("<p>the report")
sys.exit({"passes": 0, "talks": 0, "fails": 1, "wrong": 78}[role])
"""
SECRET = "token-for-actions"
TARGETS = ["http://a:1", "https://b:2"]


@pytest.fixture
async def rehearsals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rehearsals]:
    monkeypatch.setattr(rehearsal.tempfile, "tempdir", str(tmp_path))
    made = Rehearsals((sys.executable, "-c", PLAY))
    yield made
    await made.close()
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


async def ended(rehearsals: Rehearsals) -> Rehearsal:
    told = rehearsals.latest
    assert told is not None
    await eventually(lambda: told.ended is not None, 20)
    return told


async def says(rehearsals: Rehearsals, word: str) -> None:
    told = rehearsals.latest
    assert told is not None
    await eventually(lambda: word in told.lines, 20)


async def test_a_line_without_an_end_does_not_end_it(rehearsals: Rehearsals) -> None:
    assert await rehearsals.begin("talks", TARGETS, SECRET, 60)
    told = await ended(rehearsals)
    assert (told.outcome, told.report) == ("passed", "<p>the report")
    assert [line for line in told.lines if not line.startswith("x")][1:] == ["the end"]
    assert max(map(len, told.lines)) <= 4096


@pytest.mark.parametrize(
    ("role", "outcome", "report"),
    [("passes", "passed", "<p>the report"), ("fails", "failed", "<p>the report"), ("wrong", "could not begin", "")],
)
async def test_its_end_is_told_by_its_exit_code_and_its_report_is_kept(
    rehearsals: Rehearsals, role: str, outcome: str, report: str
) -> None:
    assert await rehearsals.begin(role, TARGETS, SECRET, 60)
    assert rehearsals.latest is not None
    assert rehearsals.latest.outcome == "under way"
    told = await ended(rehearsals)
    assert (told.outcome, told.report) == (outcome, report)
    [line] = told.lines
    assert line.startswith(
        f"a token of {len(SECRET)} characters; --target http://a:1 --target https://b:2 --role {role}"
    )
    assert SECRET not in line, "a token on a command line is everybody's"


async def test_one_at_a_time_and_one_that_is_broken_off_hands_back_before_it_ends(rehearsals: Rehearsals) -> None:
    assert not rehearsals.break_off()
    assert await rehearsals.begin("long", TARGETS, SECRET, 60)
    await says(rehearsals, "waits")
    assert not await rehearsals.begin("passes", TARGETS, SECRET, 60)
    assert rehearsals.break_off()
    told = await ended(rehearsals)
    assert (told.outcome, told.lines[-1]) == ("broken off", "handed back")
    assert await rehearsals.begin("passes", TARGETS, SECRET, 60)
    assert (await ended(rehearsals)).outcome == "passed"


async def test_what_goes_on_after_its_limit_is_broken_off(rehearsals: Rehearsals) -> None:
    assert await rehearsals.begin("long", TARGETS, SECRET, 3)
    told = await ended(rehearsals)
    assert told.outcome == "broken off"
    assert list(told.lines)[1:] == ["waits", "The time limit of 3 s is over: it is broken off.", "handed back"]


async def test_what_does_not_hand_back_in_time_is_killed_and_has_failed(
    rehearsals: Rehearsals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "_TO_HAND_BACK", 0.2)
    assert await rehearsals.begin("stubborn", TARGETS, SECRET, 3)
    assert (await ended(rehearsals)).outcome == "failed"


@pytest.mark.parametrize(("role", "outcome"), [("long", "broken off"), ("stubborn", "failed")])
async def test_the_end_of_the_gateway_is_the_end_of_it(
    rehearsals: Rehearsals, monkeypatch: pytest.MonkeyPatch, role: str, outcome: str
) -> None:
    if role == "stubborn":
        monkeypatch.setattr(rehearsal, "_LAST_WORDS", 0.2)
    assert await rehearsals.begin(role, TARGETS, SECRET, 60)
    await says(rehearsals, "waits")
    await rehearsals.close()
    assert rehearsals.latest is not None
    assert rehearsals.latest.outcome == outcome


async def test_a_process_that_cannot_be_made_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    missing = Rehearsals((str(tmp_path / "missing"),))
    with pytest.raises(OSError, match="No such file"):
        await missing.begin("passes", TARGETS, SECRET, 60)
    assert missing.latest is None
    await missing.close()
