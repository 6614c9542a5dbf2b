"""Runs one model through spin: generate the checker, compile it, search every state, and read what it says.

Nothing is approximated: a run that met a limit of depth, memory or time is no answer (``complete`` is False).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent

_OBSERVER = """
bool reached;
active proctype observer() {{ ({condition}) -> reached = true; assert(!reached) }}
"""
_VIOLATED = re.compile(r"assertion violated\s+!\((\w+)\)|(acceptance cycle) \(")
_UNREACHED = re.compile(r"^\t(\S+\.(?:pml|inc):\d+), state \d+, \"(.*)\"$", re.MULTILINE)


@dataclass(frozen=True)
class Search:
    """What a search found. ``violated`` names the ghost variable, or is "acceptance cycle"; ``None``: nothing."""

    violated: str | None
    complete: bool
    states: int
    unreached: tuple[str, ...]
    """Steps that no run takes: what hangs on them is not checked at all."""
    story: tuple[str, ...]
    """What the model told on the way to the violation."""
    output: str


def need_spin() -> None:
    for command, package in (("spin", "spin"), ("gcc", "gcc")):
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed (apt-get install {package})")


def search(
    model: str,
    switches: tuple[str, ...],
    directory: Path,
    *,
    shortest: bool = False,
    reach: str = "",
    memory: int = 2000,
    seconds: float = 100,
) -> Search:
    """Every state of ``model`` under ``switches``, in ``directory``; ``memory`` in MB.

    ``shortest``: where there is a violation, the shortest way to it. ``reach`` is a condition over the model's
    variables: the search then looks for a state in which it is true, and finds "reached".
    """
    text = (HERE / f"{model}.pml").read_text()
    lasting = re.search(r"^ltl ", text, re.MULTILINE) is not None and not reach
    if reach:
        text = re.sub(r"^ltl .*$", "", text, flags=re.MULTILINE) + _OBSERVER.format(condition=reach)
    (directory / f"{model}.pml").write_text(text)
    shutil.copy(HERE / "order.inc", directory)
    defines = [f"-D{switch}" for switch in switches]
    _run(directory, "spin", *defines, "-a", f"{model}.pml")
    kind = ["-DNFAIR=3"] if lasting else ["-DSAFETY"]
    kind.append("-DBFS" if shortest and not lasting else "-DCOLLAPSE")  # breadth first cannot look for cycles
    _run(directory, "gcc", "-O1", "-w", *kind, f"-DMEMLIM={memory}", "-o", "pan", "pan.c")
    # -E: that every process has come to rest is no fault.
    options = ["-E", "-m2000000", "-w22", *(["-a", "-f"] if lasting else [])]
    output = _run(directory, "./pan", *options, seconds=seconds)
    found = _VIOLATED.search(output)
    stored = re.search(r"^\s*(\d\S*) states, stored", output, re.MULTILINE)
    incomplete = ("Search not completed", "max search depth too small", "out of memory", "memory limit")
    assert found or re.search(r"errors: 0$", output, re.MULTILINE), output
    return Search(
        violated=(found[1] or found[2]) if found else None,
        complete=not any(words in output for words in incomplete),
        states=int(float(stored[1])) if stored else 0,
        unreached=tuple(f"{place} {what}" for place, what in _UNREACHED.findall(output) if what != "-end-"),
        story=_story(directory, model, defines) if found and not lasting else (),
        output=output,
    )


def _story(directory: Path, model: str, defines: list[str]) -> tuple[str, ...]:
    lines = _run(directory, "spin", *defines, "-T", "-t", f"{model}.pml").splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("spin: "))
    return tuple(lines[:end])


def _run(directory: Path, *command: str, seconds: float = 100) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
