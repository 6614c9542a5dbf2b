"""The demo as a stranger runs it: the real command, real servers, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(150)]

LONGEST = 90.0


@pytest.fixture
def play(tmp_path):
    """Starts the demo with a temporary directory of its own, by which everything of it can be found."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fencegate", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def left_in(directory: Path) -> list[str]:
    """Command lines of processes that work on something in ``directory``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if str(directory) in command or where.startswith(str(directory)):
                found.append(command)
    return found


def assert_nothing_left(directory: Path) -> None:
    assert left_in(directory) == []
    assert [p.name for p in directory.iterdir() if p.name.startswith("fencegate")] == []


def figure(text: str, what: str) -> int:
    found = re.search(rf"^  {re.escape(what)} +(\d+)", text, re.MULTILINE)
    assert found is not None, f"no {what!r} in:\n{text}"
    return int(found.group(1))


def read_until(process: subprocess.Popen[str], sentence: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if sentence in line:
            return text
    raise AssertionError(f"{sentence!r} never came in:\n{text}")


def test_the_demo_fails_over_and_back_without_diverging(play, tmp_path):
    began = time.monotonic()
    process = play()
    text, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, text
    assert time.monotonic() - began < LONGEST
    assert "Embedded Postgres is version" in text
    assert "Embedded etcd is version" in text
    assert "kill -9" in text
    assert "dr leads under token" in text
    assert "dr's seal named the term before" in text
    assert "PASSED" in text
    for what in (
        "divergent entries",
        "acknowledged writes lost",
        "writes applied twice",
        "refused writes applied",
        "stale writes accepted",
    ):
        assert figure(text, what) == 0
    assert figure(text, "entries in primary's ledger") == figure(text, "entries in dr's ledger") > 200
    assert figure(text, "stale writes refused") > 20
    assert figure(text, "most leaders at one moment") == 1
    assert "\x1b" not in text
    assert_nothing_left(tmp_path)


def test_without_the_fence_the_same_drill_diverges_and_says_where(play, tmp_path):
    process = play("--naive", "--seconds", "30")
    text, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == 1, text
    assert "The fence is off" in text
    assert "replication stopped: primary and dr hold different entries" in text
    assert figure(text, "divergent entries") > 20
    assert figure(text, "stale writes accepted") > 20
    assert figure(text, "acknowledged writes lost") > 20
    assert figure(text, "stale writes refused") == 0
    assert re.search(r"The ledgers part at sequence \d+: \d+ entries that only primary has, \d+ that only dr", text)
    assert "This is what the fence is for" in text
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        (signal.SIGINT, 130, "starting one `fencegate serve` per region"),
        (signal.SIGTERM, 143, "begin to write"),
        (signal.SIGINT, 130, "kill -9"),
    ],
)
def test_interrupted_at_any_moment_it_leaves_nothing(play, tmp_path, number, code, moment):
    process = play("--seconds", "30")
    said = read_until(process, moment)
    process.send_signal(number)
    text, _ = process.communicate(timeout=90)
    assert process.returncode == code, said + text
    assert "Traceback" not in said + text
    assert_nothing_left(tmp_path)


def test_killed_with_9_it_leaves_no_process(play, tmp_path):
    process = play("--seconds", "30")
    read_until(process, "begin to write")
    assert left_in(tmp_path) != []
    process.kill()
    process.communicate(timeout=90)
    until = time.monotonic() + 60
    while left_in(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert left_in(tmp_path) == []


def test_kept_it_stays_up_with_its_addresses_until_interrupted(play, tmp_path):
    process = play("--keep", "--seconds", "30")
    text = read_until(process, "  etcd: http://")
    assert "PASSED" in text
    admin = re.search(r"fencegate status --admin (\S+) --token-file (\S+)", text)
    assert admin is not None
    status = subprocess.run(
        [sys.executable, "-P", "-m", "fencegate", "status", "--admin", admin[1], "--token-file", admin[2]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ledger" in status.stdout, status.stderr
    consoles = re.findall(r"console: (http://\S+)", text)
    assert len(consoles) == 2
    for console in consoles:
        with urllib.request.urlopen(console, timeout=60) as page:
            assert b"ledger" in page.read()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode == 130
    assert_nothing_left(tmp_path)
