"""The launcher: what it becomes, when it refuses to, and the guard of frozen processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fencegate.embedded import launch


def run(parent: int, identity: str, *program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-B", launch.__file__, "run", str(parent), "9", identity, *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_it_becomes_the_program_with_its_arguments() -> None:
    ended = run(os.getpid(), "same", "/bin/echo", "one", "two words")
    assert (ended.returncode, ended.stdout) == (0, "one two words\n")


def test_a_program_that_is_not_there_is_named() -> None:
    ended = run(os.getpid(), "same", "/no/such/program")
    assert ended.returncode == launch.CANNOT_LAUNCH
    assert ended.stderr.startswith("cannot start /no/such/program: ")


def test_nothing_starts_once_the_parent_has_ended() -> None:
    ended = run(os.getpid() + 1, "same", "/bin/echo", "started")
    assert (ended.returncode, ended.stdout) == (launch.CANNOT_LAUNCH, "")
    assert "has ended" in ended.stderr


@pytest.fixture
def stopped() -> Iterator[subprocess.Popen[bytes]]:
    """A child that stands still."""
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    yield child
    child.kill()
    child.communicate()


def test_the_guard_lets_processes_go_on_when_its_input_ends(stopped: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-B", launch.__file__, "guard"],
        input=f"{gone.pid}\n{stopped.pid}\n".encode(),  # one that is gone already stops nothing
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0
    assert os.waitid(os.P_PID, stopped.pid, os.WCONTINUED | os.WNOHANG) is not None
