"""The terms of ``fencegate elect``: campaigns, has the command run under a warden while it leads, and what follows.

The command is held to the lease by three who need not trust each other: this process, which renews; the warden, which
ends the command by its own clock when nothing is heard (``elect_warden``); and this process once more, which ends
warden and command where the warden has not said in time that nothing is left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencegate.cli import elect_warden
from fencegate.cli.elect_grant import VARIABLE, GrantFile
from fencegate.cli.elect_life import Why
from fencegate.client.grants import Grants
from fencegate.client.leader import lead, own_clock
from fencegate.client.term import LeaderTerm
from fencegate.errors import FencegateError
from fencegate.lease import Candidate, ElectionBackend, LeaseTimings
from fencegate.observations import Observer

EXIT_LOST: Final = 75
"""``EX_TEMPFAIL`` of sysexits.h: try again."""

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON: Final = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_LAST_LOOK: Final = 5.0
_KILLED: Final = 128 + signal.SIGKILL

_log = logging.getLogger("fencegate.elect")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of the command ended. ``code`` is its exit code in the shell's way; ``clean``: nothing is left."""

    code: int
    why: Why
    clean: bool = True


class Guarded:
    """The command under its warden, as elect sees it."""

    def __init__(self, command: list[str], environment: dict[str, str], term: LeaderTerm, kill_by: float, grace: float):
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            times = (str(grace), repr(term.believed_until), repr(kill_by))
            # -P: a folder that happens to be the current one must not be able to replace a module.
            program = [sys.executable, "-P", "-m", "fencegate.cli.elect_warden", str(theirs.fileno()), *times]
            self._process = subprocess.Popen(
                [*program, *command], env=environment, pass_fds=(theirs.fileno(),), start_new_session=True
            )

    def tell(self, line: str) -> None:
        """Say something to the warden. One that cannot hear has lost the term by its own clock all the same."""
        try:
            self._socket.send(line.encode() + b"\n")
        except OSError as problem:
            _log.warning("cannot tell the command's guard: %s", problem)

    async def outcome(self) -> Outcome:
        """Returns when the warden says that nothing of the command is left, or has itself ended."""
        loop, heard = asyncio.get_running_loop(), b""
        while data := await _received(loop, self._socket):
            heard += data
        for line in heard.decode().splitlines():
            match line.split():
                case ["failed", number]:
                    return Outcome(126 if int(number) in (errno.EACCES, errno.ENOEXEC) else 127, Why.ENDED)
                case ["ended", status, why]:
                    return Outcome(_exit_code(int(status)), Why(why))
        _log.error("the command's guard has ended before the command: ending what is left")
        return Outcome(_KILLED, Why.ENDED, clean=False)

    async def finish(self) -> bool:
        """End whatever may be left, the warden included; whether nothing is."""
        ends = own_clock() + _LAST_LOOK
        while left := elect_warden.kill_below(os.getpid()):
            if own_clock() >= ends:
                _log.error("cannot end the processes %s: end them yourself", " ".join(map(str, left)))
                break
            await asyncio.sleep(elect_warden.AGAIN)
        self._socket.close()
        self._process.poll()
        elect_warden.reap()
        self._process.returncode = self._process.returncode or 0  # reaped just now, or past ending
        return not left


class Elect:
    """Campaigns for ``role`` and runs ``command`` while leading. ``backend`` makes the way to the election, per term.

    ``again``: campaign anew after a term that ended; with ``once`` only until the command has run to its end.
    ``grants``: what the command's grant file is made by.
    """

    def __init__(
        self,
        role: str,
        command: list[str],
        *,
        backend: Callable[[], ElectionBackend],
        candidate: Candidate,
        timings: LeaseTimings,
        observe: Observer,
        grace: float,
        shared_store: bool,
        again: bool,
        once: bool,
        grants: Grants | None = None,
    ) -> None:
        self._role = role
        self._command = command
        self._backend = backend
        self._candidate = candidate
        self._timings = timings
        self._observe = observe
        self._grace = grace
        self._shared_store = shared_store
        self._again = again
        self._once = once
        self._grants = grants
        self._guarded: Guarded | None = None
        self._campaign: asyncio.Task[Outcome] | None = None
        self._stopped_by: int | None = None

    async def run(self) -> int:
        """Returns the exit code."""
        elect_warden.become_subreaper()
        self._listen_to_signals()
        while self._stopped_by is None:
            self._campaign = asyncio.create_task(self._one_term())
            await asyncio.wait({self._campaign})
            if self._campaign.cancelled():
                break
            outcome = self._campaign.result()
            lost = outcome.why in (Why.LOST, Why.ORPHANED)
            if self._stopped_by is not None or not self._again or (self._once and not lost):
                return EXIT_LOST if lost else outcome.code
            _log.warning("the command has ended (%s, exit code %d): campaigning again", outcome.why, outcome.code)
            # Not at once: a command that can't start must not be all that this node does.
            self._campaign = asyncio.create_task(self._pause())
            await asyncio.wait({self._campaign})
        return 128 + (self._stopped_by or signal.SIGTERM)

    async def _pause(self) -> Outcome:
        await asyncio.sleep(self._timings.retry_period)
        return Outcome(0, Why.ENDED)

    async def _one_term(self) -> Outcome:
        # A backend of its own for each term: a lease that was left to lapse must lapse for us as well.
        backend = self._backend()
        try:
            async with lead(
                self._role,
                backend=backend,
                candidate=self._candidate,
                timings=self._timings,
                grants=self._grants,
                shared_store=self._shared_store,
                observer=self._observe,
            ) as term:
                if self._stopped_by is not None:
                    raise asyncio.CancelledError
                with GrantFile(term) as grant:
                    outcome = await self._guarded_run(term, grant)
                if not outcome.clean:
                    term.end("command_survives")
                return outcome
        finally:
            await backend.close()

    async def _guarded_run(self, term: LeaderTerm, grant: GrantFile) -> Outcome:
        environment, kill_by = self._environment(term.token, grant.path), self._kill_by(term)
        try:
            guarded = Guarded(self._command, environment, term, kill_by, self._grace)
        except OSError as problem:
            raise FencegateError(f"cannot start the process that guards the command: {problem}") from problem
        self._guarded = guarded

        def renewed() -> None:
            guarded.tell(f"extend {term.believed_until!r} {self._kill_by(term)!r}")
            grant.refresh()

        term.on_renewal(renewed)
        ending, losing = asyncio.create_task(guarded.outcome()), asyncio.create_task(term.lost.wait())
        try:
            await asyncio.wait({ending, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                guarded.tell("lost" if term.reason == "lost" else "expired")
                # The warden's own time comes first, then ours: there is half a margin left for that.
                limit = 0.0 if term.reason == "lost" else term.lease_ends - self._timings.margin / 2 - own_clock()
                await asyncio.wait({ending}, timeout=max(elect_warden.AGAIN * 10, limit))
        finally:
            clean = await guarded.finish()
            self._guarded = None
            for task in (ending, losing):
                task.cancel()
            await asyncio.wait({ending, losing})
        outcome = Outcome(_KILLED, Why.ENDED) if ending.cancelled() else ending.result()
        guard_told = not ending.cancelled() and outcome.clean
        return Outcome(outcome.code, outcome.why if guard_told or not term.lost.is_set() else Why.LOST, clean)

    def _kill_by(self, term: LeaderTerm) -> float:
        return term.lease_ends - self._timings.margin

    def _environment(self, token: int, grant: Path | None) -> dict[str, str]:
        given = {"FENCEGATE_TOKEN": str(token), "FENCEGATE_ROLE": self._role, "FENCEGATE_URL": self._candidate.url}
        given[VARIABLE] = "" if grant is None else str(grant)
        ours = {name: value for name, value in os.environ.items() if name not in given}
        return ours | {name: value for name, value in given.items() if value}

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (*_STOPS, *_PASSED_ON):
            # What is ignored stays so, for the command as well: nohup.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._guarded is not None:
            if number in _STOPS:
                self._stopped_by = number
            self._guarded.tell(f"{'stop' if number in _STOPS else 'signal'} {int(number)}")
        elif number in (*_STOPS, signal.SIGHUP, signal.SIGQUIT):
            self._stopped_by = number
            if self._campaign is not None:
                self._campaign.cancel()


async def _received(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytes:
    try:
        return await loop.sock_recv(sock, 4096)
    except ConnectionError:
        return b""


def _exit_code(status: int) -> int:
    """A process' status as the shell gives it: 128+n where signal n ended it."""
    return 128 - status if status < 0 else status
