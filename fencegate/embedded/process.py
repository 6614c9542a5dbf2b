"""Child processes that do not outlive us, and the few things that both embedded servers need around them.

Starting and stopping are written once, as generators that yield the seconds to wait before they look again;
:func:`finish` drives one with ``time.sleep`` and :func:`afinish` with ``asyncio.sleep``. Nothing here uses a
thread: on Linux the kernel's parent-death signal is sent when the *thread* that started the child ends, so a
child started from a worker thread would die with that thread. :func:`spawn` therefore insists on the main one.

Outside Linux there is no parent-death signal: there a parent killed with -9 leaves its servers running, and the next
start on the directory says so. An ordinary exit of the interpreter stops them everywhere.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from fencegate.errors import FencegateError

T = TypeVar("T")
Steps = Generator[float, None, T]
"""Work that yields the seconds to wait before its next look, and returns a ``T``."""

POLL: Final = 0.01
_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))
_PYTHON: Final = [sys.executable, "-I", "-S", "-B"]
_HAS_PROC: Final = Path("/proc/self/stat").exists()
_LOG_LIMIT: Final = 16 * 1024 * 1024
_PORTS: Final = range(20_000, 32_768)
_PORT_TRIES: Final = 100
_STOP_LIMIT: Final = 5.0
_STILL: Final = frozenset("TtZX")
"""States of a process that is stopped, traced or no more: the first field that ``_stat`` gives."""
_given: Final[deque[int]] = deque(maxlen=1000)


class EmbeddedServerError(FencegateError):
    """An embedded server could not be found, started or controlled. The message says what to do."""


def finish(steps: Steps[T]) -> T:
    """Runs the steps to their end, sleeping in between."""
    with contextlib.closing(steps):
        while True:
            try:
                time.sleep(next(steps))
            except StopIteration as end:
                result: T = end.value
                return result


async def afinish(steps: Steps[T]) -> T:
    """Runs the steps to their end without blocking the event loop. A cancellation lets them clean up."""
    with contextlib.closing(steps):
        while True:
            try:
                delay = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await asyncio.sleep(delay)


def until_exit(process: subprocess.Popen[bytes], limit: float) -> Steps[bool]:
    """Waits up to ``limit`` seconds for the process to end; whether it did."""
    deadline = time.monotonic() + limit
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return False
        yield POLL
    return True


def spawn(
    program: Sequence[str | os.PathLike[str]],
    *,
    log: Path,
    death_signal: signal.Signals,
    environment: Mapping[str, str],
    identity: str = "same",
    keep_open: Iterable[int] = (),
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts ``program`` as our direct child, in a session of its own so that a Ctrl-C at the terminal is ours alone.

    ``identity`` as in ``launch.py``; ``keep_open`` are descriptors it inherits; its output is added to ``log``.
    Raises :class:`EmbeddedServerError` when called from another thread than the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise EmbeddedServerError(
            "an embedded server must be started from the main thread: the kernel ends it together with the thread"
            " that started it. Await start() in the main thread's event loop instead of a worker thread."
        )
    command = dying_with_us([os.fspath(part) for part in program], death_signal, identity)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=dict(environment),
            pass_fds=tuple(keep_open),
            start_new_session=True,
        )
    _RUNNING[process] = death_signal
    return process


def dying_with_us(program: Sequence[str], death_signal: signal.Signals, identity: str = "same") -> list[str]:
    """The command that becomes ``program``, and gets ``death_signal`` when the thread that starts it ends (Linux)."""
    return [*_PYTHON, _LAUNCH, "run", str(os.getpid()), str(int(death_signal)), identity, *program]


_RUNNING: weakref.WeakKeyDictionary[subprocess.Popen[bytes], signal.Signals] = weakref.WeakKeyDictionary()
_OWNER: Final = os.getpid()


@atexit.register
def _stop_all() -> None:
    if os.getpid() != _OWNER:  # a fork of us: not its servers
        return
    for process, number in list(_RUNNING.items()):
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)


class Freezer:
    """Stops processes (SIGSTOP) and lets them go on, at the latest when we die: else they would never hear of it."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self._guard = subprocess.Popen([*_PYTHON, _LAUNCH, "guard"], stdin=subprocess.PIPE, start_new_session=True)

    def freeze(self, pid: int) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % pid)
        self._guard.stdin.flush()
        self.pids.append(pid)
        send(pid, signal.SIGSTOP)
        until_still(pid)

    def freeze_family(self, parent: int) -> None:
        """Stops a process and its children; the parent first, so that no more of them appear."""
        self.freeze(parent)
        for child in children_of(parent):
            self.freeze(child)

    def thaw(self) -> None:
        for pid in reversed(self.pids):
            send(pid, signal.SIGCONT)
        self._guard.communicate()


def children_of(pid: int) -> list[int]:
    """The direct children of a process, as process ids."""
    if _HAS_PROC:
        listing = (_parent_of(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal())
        return [child for child, parent in listing if parent == pid]
    rows = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in (row.split() for row in rows.splitlines()) if int(parent) == pid]


def _parent_of(name: str) -> tuple[int, int]:
    fields = _stat(int(name))
    return int(name), int(fields[1]) if fields else -1


def _stat(pid: int) -> list[str]:
    """State, parent, … of a process out of /proc (after the command's name, which may hold anything); [] if none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def runs_in(pid: int, directory: Path) -> bool:
    """Whether that process lives and, as far as one may look, works in ``directory``. A zombie does not live."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not _HAS_PROC:
        return True
    fields = _stat(pid)
    if not fields or fields[0] == "Z":
        return False
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", directory)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's: better a false alarm than two servers on one directory


def until_still(pid: int) -> None:
    """Returns when a process that was sent SIGSTOP has stopped, or ended.

    A signal takes a moment, and on a busy machine a long one: of several threads one takes it, and until it is its turn
    the others go on. Of who is no child of ours it is not known where there is no /proc.
    """
    try:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        ends = time.monotonic() + _STOP_LIMIT
        while (fields := _stat(pid)) and fields[0] not in _STILL and time.monotonic() < ends:
            time.sleep(POLL)


def send(pid: int, number: signal.Signals) -> None:
    """Sends the signal; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago. Somebody else may take it: be ready to ask again.

    It is none of those that this process was given lately: their servers may be starting, or be down for a while. And
    it lies below those that kernels give to outgoing connections (from 32768 on Linux, from 49152 elsewhere): such a
    one would go to any client on the machine before our server binds it, or while the server is down.
    """
    for _ in range(_PORT_TRIES):
        # Not of the random module: a test's fixed seed would draw the same ports in each of its processes.
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        if port in _given:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            _given.append(port)
            return port
    raise EmbeddedServerError(
        f"{_PORT_TRIES} ports of 127.0.0.1 between {_PORTS.start} and {_PORTS.stop} were asked for and none was free:"
        " stop what listens there"
    )


def clean_environment(*prefixes: str) -> dict[str, str]:
    """Our environment without the variables of these prefixes, which would change what the server does."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    return kept | {"LC_ALL": "C"}


def prepare_directory(directory: Path) -> None:
    """Makes the directory, closed to others. Raises :class:`EmbeddedServerError` where that is impossible."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(_open_lock(directory))  # trying is the only sure test of whether we may write there
    except OSError as problem:
        raise EmbeddedServerError(
            f"cannot keep a server's files in {directory}: {problem.strerror}. Give a directory that uid"
            f" {os.geteuid()} can write to."
        ) from problem


def lock_directory(directory: Path, what: str, limit: float = 5.0) -> Steps[int]:
    """The descriptor of the directory's lock. Every process of the server inherits it, so while any lives it is held.

    Waits up to ``limit`` seconds, since a server whose parent was killed takes a moment to end; then raises
    :class:`EmbeddedServerError` naming the directory.
    """
    descriptor = _open_lock(directory)
    deadline = time.monotonic() + limit
    try:
        while not _try_lock(descriptor, directory):
            if time.monotonic() >= deadline:
                raise EmbeddedServerError(
                    f"cannot start {what}: the directory {directory} is in use by another one that is still running."
                    " Stop that one, or give this one a directory of its own."
                )
            yield POLL
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_lock(directory: Path) -> int:
    return os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int, directory: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        raise EmbeddedServerError(
            f"cannot lock the directory {directory}: {problem.strerror}. Give a directory on a local file system."
        ) from problem
    return True


def open_log(log: Path) -> int:
    """Puts a log that has grown large aside and returns the size at which new lines will begin."""
    with contextlib.suppress(FileNotFoundError):
        size = log.stat().st_size
        if size <= _LOG_LIMIT:
            return size
        log.replace(log.with_name(log.name + ".1"))
    return 0


def last_lines(log: Path, start: int = 0, count: int = 12) -> str:
    """The last lines that were written to ``log`` after its first ``start`` bytes."""
    try:
        with open(log, "rb") as file:
            file.seek(start)
            text = file.read().decode("utf-8", "replace")
    except OSError as problem:
        return f"(no log: {problem})"
    return "\n".join(text.splitlines()[-count:]) or "(the log is empty)"
