"""The guard of one command under ``fencegate elect``: starts it, and ends it whatever becomes of elect.

A process of its own, since a supervisor that is frozen or killed can end nothing. elect tells it over a socket how
long the term is good for; the warden holds the command to that by its own clock. When the socket ends, elect is gone,
and the command has to go too. On Linux the warden is also the *subreaper*: whatever the command left behind, even in a
session of its own, becomes the warden's child and is found; and should the warden itself be killed, the kernel kills
the command, and what that left behind falls to elect, a subreaper as well.

Not covered: both killed at one instant (the command dies, its daemonised offspring may not); a command that became
another user; everything frozen together, which on thawing dies first thing, though in no order. The token fences
what such a process still writes. Elsewhere than on Linux what leaves the command's process group is not found.

Lines to the warden: ``extend BELIEVED_UNTIL KILL_BY``, ``stop SIGNAL``, ``signal SIGNAL``, ``expired``, ``lost``. Lines
from it: ``started PID``, ``failed ERRNO``, ``ended STATUS WHY``. It imports little: a term is short.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from fencegate.cli.elect_life import Action, Kill, Life, Why
from fencegate.steady_clock import steady_clock

LINUX: Final = sys.platform == "linux"
AGAIN: Final = 0.01
"""Seconds between two looks for what is still alive."""

_LOOK_AT_CLOCK: Final = 0.25
"""Longest wait in seconds: a wait stands still while the machine is suspended, and the lease does not."""

_HAS_PROC: Final = os.path.exists("/proc/self/stat")

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if LINUX else None


def become_subreaper() -> None:
    """Descendants whose parent ends become children of this process, where the system can do that."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when ``parent``, which made it, ends; at once if it has ended already."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def descendants(ancestor: int) -> list[int]:
    """The ids of all living processes below ``ancestor``, parents before children. Zombies are no longer alive."""
    children: dict[int, list[int]] = {}
    for pid, parent in _living():
        children.setdefault(parent, []).append(pid)
    found, look = [], [ancestor]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return found


def _living() -> Iterator[tuple[int, int]]:
    """Process and parent of all that live."""
    if not _HAS_PROC:
        yield from _listed_by_ps()
        return
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    yield int(entry), int(fields[1])


def _listed_by_ps() -> Iterator[tuple[int, int]]:
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as listing:
        said = listing.communicate()[0]
    for row in said.splitlines():
        pid, parent, state = row.split(None, 2)
        if not state.startswith("Z") and int(pid) != listing.pid:
            yield int(pid), int(parent)


def kill_below(ancestor: int) -> list[int]:
    """SIGKILL to every process below ``ancestor``; who was still alive. Call it until that is nobody."""
    found = descendants(ancestor)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found


def reap() -> None:
    """Take leave of every child that has ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Warden:
    """One command and the socket to elect. :meth:`run` returns when nothing of the command is left."""

    def __init__(self, control: socket.socket, life: Life, command: list[str]) -> None:
        self._control = control
        self._life = life
        self._command = command
        self._child = 0
        self._status: int | None = None
        self._heard = b""
        self._elect_lives = True

    def run(self) -> None:
        wakeup = _wakeup_on_child()
        own = os.getpid()
        try:
            # Nothing else runs in this process, no thread either: the one place where preexec_fn is safe.
            made = subprocess.Popen(self._command, start_new_session=True, preexec_fn=lambda: die_with_parent(own))
        except OSError as problem:
            self._tell(f"failed {problem.errno or 0}")
            return
        self._child = made.pid
        self._tell(f"started {made.pid}")
        while self._status is None or descendants(own):
            self._wait(wakeup)
            self._do(self._life.tick(steady_clock()))
            self._look_at_child()
            if self._status is not None:
                kill_below(own)
            reap()
        made.returncode = self._status
        self._tell(f"ended {self._status} {self._life.why}")

    def _wait(self, wakeup: socket.socket) -> None:
        left = AGAIN if self._status is not None else max(0.0, self._life.wakeup() - steady_clock())
        watched = [wakeup, self._control] if self._elect_lives else [wakeup]
        ready = select.select(watched, [], [], min(left, _LOOK_AT_CLOCK))[0]
        if wakeup in ready:
            wakeup.recv(4096)
        if self._control in ready:
            # The time goes first: what is in the socket may be as old as the freeze that we come out of.
            self._do(self._life.tick(steady_clock()))
            self._hear()

    def _hear(self) -> None:
        try:
            data = self._control.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._elect_lives = False
            self._do(self._life.orphaned(steady_clock()))
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._do(self._told(line.decode().split()))

    def _told(self, words: list[str]) -> list[Action]:
        match words:
            case ["extend", believed_until, kill_by]:
                self._life.renewed(float(believed_until), float(kill_by))
            case ["stop", number]:
                return self._life.stop(int(number), steady_clock())
            case ["signal", number]:
                return self._life.forward(int(number), steady_clock())
            case ["expired"]:
                return self._life.expired(steady_clock())
            case ["lost"]:
                return self._life.lost()
        return []

    def _do(self, actions: list[Action]) -> None:
        if self._status is not None:
            return
        for action in actions:
            if isinstance(action, Kill):
                _signal_group(self._child, signal.SIGKILL)
                kill_below(os.getpid())
            else:
                _signal_group(self._child, action.number)
                if action.number != signal.SIGCONT:
                    _signal_group(self._child, signal.SIGCONT)  # a stopped process would never hear of it

    def _look_at_child(self) -> None:
        if self._status is not None:
            return
        # Looked at before it is reaped: until then nobody else can get its process group's number.
        if os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        self._life.ended()
        _signal_group(self._child, signal.SIGKILL)
        self._status = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])

    def _tell(self, line: str) -> None:
        with suppress(OSError):
            self._control.sendall(line.encode() + b"\n")


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _wakeup_on_child() -> socket.socket:
    """A socket that becomes readable when a child ends. Signals to stop are elect's to act on, so they do nothing here.

    Handlers that do nothing, not SIG_IGN, which the command would inherit; what was ignored before stays so.
    """
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
            signal.signal(number, lambda *_: None)
    return reading


def main(arguments: list[str]) -> None:
    descriptor, grace, believed_until, kill_by, *command = arguments
    become_subreaper()
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    with control:
        Warden(control, Life(float(grace), float(believed_until), float(kill_by)), command).run()


__all__ = ["Warden", "Why", "become_subreaper", "descendants", "kill_below", "main", "reap"]

if __name__ == "__main__":
    main(sys.argv[1:])
