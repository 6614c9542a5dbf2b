"""Which of the gate's proofs were used already: known to one process, or to all that share a folder of one machine."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from fencegate.errors import ConfigurationError, Unavailable

_SWEPT: Final = "swept-"
_AT_ONCE: Final = 8
"""How many used proofs that have expired are cleared away at each use: more than one, so that none pile up."""


class ProofMemory(Protocol):
    """Where it is kept which proofs were used. Of all who ask for one mark, one is told that it is the first."""

    def first_use(self, mark: str, until: float) -> bool:
        """Whether nobody has asked for ``mark`` before; it is remembered until ``until``, seconds since the epoch.

        ``mark`` is 32 hexadecimal digits. Raises :class:`fencegate.errors.Unavailable` where it cannot be told, or
        not kept: the write is refused.
        """
        ...


class AsyncProofMemory(Protocol):
    """The same for an ASGI application, where the answer has to be waited for."""

    async def first_use(self, mark: str, until: float) -> bool: ...


class ProcessMemory:
    """A :class:`ProofMemory` in this process: another worker, or this one after a restart, knows nothing of it."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._until: dict[str, float] = {}
        self._forgotten = 0.0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._until)

    def first_use(self, mark: str, until: float) -> bool:
        with self._lock:
            now = self._wall()
            for each in list(islice(self._until, _AT_ONCE)):
                if self._until[each] < now:
                    self._forgotten = max(self._forgotten, self._until.pop(each))
            if mark in self._until:
                return False
            if until <= self._forgotten:
                raise Unavailable("what was used at that time is forgotten: this clock has gone back")
            self._until[mark] = until
            return True


class FolderMemory:
    """A :class:`ProofMemory` that all processes of a machine share which are given the same folder.

    A use is a file that is made only where there is none (``O_EXCL``): the kernel is the referee, there is no lock to
    be left behind, and a process may be forked, frozen or killed at any moment. The files of a second are in a folder
    of their own. It is renamed (``swept-…``) when its second is over, and cleared little by little; the latest stays,
    so that nothing is taken anew for which there once was a mark, whatever the clock does. Not on Windows.

    - ``path``: made if it is not there, for nobody else to write in. Best in memory: ``/run``, ``/dev/shm``.
    - ``most``: the uses that one process keeps there at a time. Beyond it, writes are refused until some are forgotten.

    Raises :class:`ConfigurationError` for a folder that cannot be used. One that is taken away under a running process
    closes it: each use raises :class:`fencegate.errors.Unavailable` until a restart.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, most: int = 100_000, wall: Callable[[], float] = time.time
    ) -> None:
        self._path = os.fspath(path)
        self._most = most
        self._wall = wall
        self._kept: dict[str, int] = {}
        self._litter: deque[str] = deque()
        self._lock = threading.Lock()
        if most < 1:
            raise ConfigurationError([f"used_proofs: most = {most!r}: expected 1 or more"])
        try:
            os.makedirs(self._path, 0o700, exist_ok=True)
            self._folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            probe = f"probe-{os.getpid()}-{threading.get_ident()}"
            os.mkdir(probe, 0o700, dir_fd=self._folder)
            os.rmdir(probe, dir_fd=self._folder)
            left_behind = [name for name in os.listdir(self._folder) if name.startswith(_SWEPT)]
        except OSError as error:
            raise ConfigurationError([f"used_proofs: cannot write in {self._path}: {error.strerror}"]) from None
        if os.fstat(self._folder).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(
                [f"used_proofs: others may write in {self._path}; expected a folder of mode 700, or one to be made"]
            )
        for name in left_behind:
            self._find_litter(name)

    def __del__(self) -> None:
        folder = getattr(self, "_folder", None)
        if folder is not None:
            os.close(folder)

    def first_use(self, mark: str, until: float) -> bool:
        second = f"{int(until) + 1:012d}"
        with self._lock:
            try:
                if second not in self._kept:
                    self._begin(second)
                if sum(self._kept.values()) >= self._most:
                    raise Unavailable(f"this process keeps {self._most} of them already")
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                os.close(os.open(f"{second}/{mark}", flags, 0o600, dir_fd=self._folder))
            except FileExistsError:
                return False
            except OSError as error:
                raise Unavailable(f"cannot write in {self._path}: {error.strerror}") from None
            if self._now() >= second:
                # Whoever was frozen on the way here may have made the file anew, after the second's folder was swept.
                raise Unavailable("it took too long")
            self._kept[second] += 1
            self._clear()
            return True

    def _now(self) -> str:
        return f"{int(self._wall()):012d}"

    def _begin(self, second: str) -> None:
        """This process' first use of a second: its folder is made, and what is over is put out of the way."""
        # Before it is made, too: to whoever knew the one that was swept, the new one would be the same.
        _swept_before(os.listdir(self._folder), second)
        made = True
        try:
            os.mkdir(second, 0o700, dir_fd=self._folder)
        except FileExistsError:
            made = False
        names, now = os.listdir(self._folder), self._now()
        try:
            swept = _swept_before(names, second)
        except Unavailable:
            if made:
                os.rmdir(second, dir_fd=self._folder)
            raise
        for name in sorted(name for name in names if name.isdigit() and name < now):
            with suppress(OSError):  # Another process may have been quicker.
                os.rename(name, _SWEPT + name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                swept.append(_SWEPT + name)
                self._find_litter(_SWEPT + name)
        for name in sorted(swept)[:-1]:
            with suppress(OSError):  # Perhaps it is not cleared yet.
                os.rmdir(name, dir_fd=self._folder)
        self._kept = {name: count for name, count in self._kept.items() if name >= now} | {second: 0}

    def _find_litter(self, name: str) -> None:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder)
        try:
            self._litter += [f"{name}/{mark}" for mark in os.listdir(folder)]
        finally:
            os.close(folder)

    def _clear(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._litter))):
            with suppress(OSError):  # It is out of the way already; the next start finds what is left of it.
                os.unlink(self._litter.popleft(), dir_fd=self._folder)


def _swept_before(names: list[str], second: str) -> list[str]:
    """Those of ``names`` that were swept. Raises ``Unavailable`` where ``second`` is not later than they are."""
    swept = sorted(name for name in names if name.startswith(_SWEPT))
    if swept and second <= swept[-1].removeprefix(_SWEPT):
        raise Unavailable("what was used at that time is forgotten: this clock has gone back")
    return swept
