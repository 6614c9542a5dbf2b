"""A directory in which little fits: a small file system in memory, that a ballast fills to the last byte.

What Postgres then meets is the real thing: ENOSPC from a full file system, in its data, its log and its commits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

_PAGE: Final = 4096
_SIZE: Final = 640 << 20


class SmallDisk:
    """``directory`` on a file system of 640 MiB."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ballast = directory / "ballast"

    def make(self) -> str:
        """Mount it. Why that was not possible, or ``""``."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = shutil.which("mount", path="/usr/bin:/bin:/usr/sbin:/sbin")
        if program is None or os.geteuid() != 0:
            return "only root may mount the small file system that it needs"
        command = [program, "-t", "tmpfs", "-o", f"size={_SIZE},mode=0700", "tmpfs", str(self._directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else f"no small file system can be mounted here: {done.stderr.strip()}"

    def fill(self) -> None:
        """Until not one byte more fits."""
        with open(self._ballast, "ab", buffering=0) as file:
            free = os.statvfs(self._directory)
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
            with suppress(OSError):  # what is free is told a little short
                while True:
                    file.write(bytes(_PAGE))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount it, busy or not. Idempotent."""
        if self._directory.is_mount():
            subprocess.run(["umount", "-l", str(self._directory)], capture_output=True, check=False)
