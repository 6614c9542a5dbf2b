"""A game day that was started from the console: the command itself, in a process of its own, one at a time.

Not in the gateway's process: no write is to wait for what a rehearsal's clients compute, and the gateway goes on
whatever becomes of them. The operators' token is handed over by standard input: it is in no file and no command line.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

PROGRAM: Final = (sys.executable, "-P", "-m", "fencegate", "gameday")
SHORTEST: Final = 60
"""Seconds below which a game day could not come to its end."""
_MOST_LINES: Final = 400
_LONGEST_LINE: Final = 4096
"""Bytes of a line that are kept."""
_COLUMNS: Final = 110
_TO_HAND_BACK: Final = 90.0
"""Seconds in which one that was broken off leaves the role as it was found; then it is killed."""
_LAST_WORDS: Final = 3.0
"""Seconds for the same where the gateway itself ends."""

Outcome = Literal["under way", "passed", "failed", "broken off", "could not begin"]
_OUTCOMES: Final[dict[int, Outcome]] = {0: "passed", 1: "failed", 130: "broken off", 143: "broken off"}


@dataclass(slots=True)
class Rehearsal:
    """One game day. ``began`` and ``ended`` are instants of the clock, ``limit`` is in seconds.

    ``lines`` are the last ones that it said; ``report`` is its page, ``""`` where it wrote none.
    """

    role: str
    began: float
    limit: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))
    ended: float | None = None
    code: int | None = None
    report: str = ""

    @property
    def outcome(self) -> Outcome:
        """A process that was killed has handed nothing back for certain: it has failed."""
        if self.ended is None:
            return "under way"
        code = -1 if self.code is None else self.code
        return _OUTCOMES.get(code, "failed" if code < 0 else "could not begin")


class Rehearsals:
    """The game days of one console. ``program`` is what is started, with the options of ``fencegate gameday``."""

    def __init__(self, program: Sequence[str] = PROGRAM, clock: Callable[[], float] = time.monotonic) -> None:
        self._program = program
        self._clock = clock
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self.latest: Rehearsal | None = None

    async def begin(self, role: str, targets: Sequence[str], token: str, limit: float) -> bool:
        """Start one on ``role``; ``False`` where one is under way. Raises ``OSError`` where no process can be made.

        ``targets`` are the admin listeners of every region, ``token`` the one for actions there. After ``limit``
        seconds it is broken off, and hands the role back.
        """
        async with self._lock:
            if self._watching is not None and not self._watching.done():
                return False
            directory = Path(tempfile.mkdtemp(prefix="fencegate-console-"))
            options = [part for target in targets for part in ("--target", target)]
            options += ["--role", role, "--token-file", "/dev/stdin", "--report", str(directory / "report.html")]
            secret = _pipe_with(token)
            try:
                process = self._process = await asyncio.create_subprocess_exec(
                    *(*self._program, *options),
                    stdin=secret,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, "COLUMNS": str(_COLUMNS), "PYTHONUNBUFFERED": "1"},
                    start_new_session=True,  # a signal for the gateway's group is not one for it: see close()
                )
            except OSError:
                shutil.rmtree(directory, ignore_errors=True)
                raise
            finally:
                os.close(secret)
            self.latest = Rehearsal(role, self._clock(), limit)
            self._watching = asyncio.create_task(self._watch(self.latest, process, directory))
            return True

    def break_off(self) -> bool:
        """Have the one under way hand the role back and end; ``False`` where none is."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        return True

    async def close(self) -> None:
        """Break off what is under way. It has a moment, and is killed then: its gateway is going down too."""
        if self._watching is None:
            return
        if self.break_off():
            await asyncio.wait({self._watching}, timeout=_LAST_WORDS)
        self._watching.cancel()
        await asyncio.wait({self._watching})

    async def _watch(self, told: Rehearsal, process: asyncio.subprocess.Process, directory: Path) -> None:
        hearing = asyncio.create_task(_hear(told, process))
        try:
            await asyncio.wait({hearing}, timeout=told.limit)
            if not hearing.done():
                told.lines.append(f"The time limit of {told.limit:.0f} s is over: it is broken off.")
                self.break_off()
                await asyncio.wait({hearing}, timeout=_TO_HAND_BACK)
        finally:
            hearing.cancel()
            with suppress(ProcessLookupError):
                process.kill()  # nothing where it has ended
            told.code = await process.wait()
            with suppress(OSError):
                told.report = (directory / "report.html").read_text("utf-8")
            shutil.rmtree(directory, ignore_errors=True)
            told.ended = self._clock()


def _pipe_with(token: str) -> int:
    """The reading end of a pipe in which the token is. A socket, which asyncio would make, cannot be opened by name."""
    reading, writing = os.pipe()
    try:
        os.write(writing, token.encode() + b"\n")  # at most PIPE_BUF, so that it never waits
    finally:
        os.close(writing)
    return reading


async def _hear(told: Rehearsal, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readuntil()
        except asyncio.IncompleteReadError as last:
            line = last.partial
        except asyncio.LimitOverrunError as longer:  # it comes in pieces: nothing that is said may end the game day
            line = await process.stdout.read(longer.consumed)
        if not line:
            break
        told.lines.append(line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip())
    await process.wait()
