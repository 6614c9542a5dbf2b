"""Every shipped scenario on real servers, by the real command; drill-26 is the demo's, and is played there.

``FENCEGATE_SCREENSHOTS=FOLDER`` keeps a picture of a report.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import sync_playwright

from system.serving import environment

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

BRISK = ("--stale-for", "20m", "--speed", "200", "--seed", "7")
"""Stale DNS of six seconds."""
PICTURES = os.environ.get("FENCEGATE_SCREENSHOTS")
SHIPPED = ["paused-leader-long", "split-from-quorum", "store-failover"]
if os.environ.get("FENCEGATE_LONG_TESTS"):
    SHIPPED += ["paused-leader-short", "election-down", "failback", "flapping"]
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a game day with a temporary directory of its own, by which everything of it can be found."""
    begun = []
    (tmp_path / "tmp").mkdir()

    def begin(*arguments: str) -> subprocess.Popen[str]:
        begun.append(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "fencegate", "gameday", *BRISK, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment(TMPDIR=str(tmp_path / "tmp"), PYTHONUNBUFFERED="1"),
            )
        )
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def play(start: Start, tmp_path: Path, name: str, *more: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and everything that was said."""
    process = start("--scenario", name, "--report", str(tmp_path / "report"), *more)
    text, _ = process.communicate(timeout=200)
    path = tmp_path / "report" / "report.json"
    assert path.is_file(), text
    assert "\x1b" not in text
    assert "Traceback" not in text
    assert list((tmp_path / "tmp").iterdir()) == [], "everything is taken away"
    return process.returncode, json.loads(path.read_text()), text


def unmet(report: dict[str, Any]) -> list[str]:
    return [f"{check['name']}: {check['detail']}" for check in report["checks"] if not check["ok"]]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_passes_on_real_servers(name: str, start: Start, tmp_path: Path) -> None:
    code, report, text = play(start, tmp_path, name)
    assert unmet(report) == [], text
    assert (code, report["verdict"], report["as_expected"]) == (0, "pass", True)
    assert report["most_leaders"] == 1
    assert report["violations"] == []
    assert min(count for _, _, _, count in report["series"]["accepted"]) > 0


def test_a_zombie_fails_the_rehearsal_by_name_and_lands_nothing_and_the_report_shows_it(
    start: Start, tmp_path: Path
) -> None:
    code, report, text = play(start, tmp_path, "zombie")
    assert code == 1, text
    assert [fault.partition(":")[0] for fault in unmet(report)] == ["the tail cleared"], text
    assert (report["verdict"], report["expected"], report["as_expected"]) == ("fail", "fail", True)
    assert all(sender.startswith("zombie-") for sender in report["tail"]["senders"])
    assert report["tail"]["accepted"] == 0
    assert report["violations"] == []
    assert "This scenario is meant to fail so" in text
    assert "--seed 7" in report["replay"]
    (failure,) = ElementTree.parse(tmp_path / "report" / "junit.xml").findall(".//failure")
    assert "tail not cleared" in failure.attrib["message"]
    look_at(tmp_path / "report" / "report.html")


def look_at(path: Path) -> None:
    """The page in a real Chromium: four pictures, no script, nothing asked for, no complaint, nothing cut off."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    complaints: list[str] = []
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET.split())
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme=scheme)
            page.on("console", lambda message: complaints.append(message.text))
            page.on("request", lambda request: asked.append(request.url))
            page.goto(path.as_uri())
            assert page.locator("svg").count() == 4
            assert page.locator("svg").first.bounding_box()["height"] > 100
            assert "✗ FAILED: tail not cleared" in page.locator(".verdict").inner_text()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if PICTURES:
                page.screenshot(path=Path(PICTURES) / f"gameday-{scheme}.png", full_page=True)
            page.close()
        browser.close()
    assert complaints == []
    assert set(asked) == {path.as_uri()}


def test_a_short_pause_is_survived_with_a_further_fault_beside_it_and_json_goes_to_stdout_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "fencegate", "gameday", *BRISK, "--scenario", "paused-leader-short"),
            *(
                "--fault",
                "freeze:dr-gateway,at=1,for=1",
                "--clients",
                "4",
                "--json",
                "--junit",
                str(tmp_path / "j.xml"),
            ),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment(),
    )
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert report["scenario"]["clients"] == 4
    assert len(report["terms"]) == 1, "the leader is still the one that it was"
    assert any("dr-gateway is struck: freeze" in line["text"] for line in report["timeline"])
    assert "dr-gateway is struck" in done.stderr
    assert ElementTree.parse(tmp_path / "j.xml").getroot().attrib["failures"] == "0"


@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        (signal.SIGINT, 130, "stand still, in the middle of their work"),
        (signal.SIGTERM, 143, "cached records still name primary"),
    ],
)
def test_aborted_with_a_part_frozen_it_leaves_nothing(
    start: Start, tmp_path: Path, number: int, code: int, moment: str
) -> None:
    process = start("--scenario", "paused-leader-long")
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if moment in line:
            break
    process.send_signal(number)
    text, _ = process.communicate(timeout=90)
    assert process.returncode == code, said + text
    assert "Traceback" not in said + text
    until = time.monotonic() + 60
    while any(str(tmp_path) in command for command in commands()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [command for command in commands() if str(tmp_path) in command]
    assert list((tmp_path / "tmp").iterdir()) == []


def commands() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found
