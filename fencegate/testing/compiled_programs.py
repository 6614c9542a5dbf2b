"""Programs in Go and Java for tests, compiled with warnings as errors; a test is skipped where there is no compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

Command = tuple[str, ...]


def go_program(source: Path, folder: Path) -> Command:
    """The command that runs ``source``, a package of one file, built below ``folder``."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed (Debian: golang-go)")
    built = folder / source.stem
    keep = {
        "HOME": str(folder),
        "GOCACHE": str(folder / "cache"),
        "GOPROXY": "off",
        "PATH": "/usr/bin:/bin:/usr/local/bin",
    }
    for command in (["go", "vet", str(source)], ["go", "build", "-o", str(built), str(source)]):
        _run(command, keep)
    return (str(built),)


def java_program(source: Path, folder: Path) -> Command:
    """The command that runs the class of ``source``, compiled into ``folder``."""
    if shutil.which("javac") is None:
        pytest.skip("javac is not installed (Debian: default-jdk-headless)")
    _run(["javac", "-Xlint:all", "-Werror", "-d", str(folder), str(source)])
    # A small heap and no second compiler: these live for a second.
    return ("java", "-Xmx64m", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", str(folder), source.stem)


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
