"""A directory on a file system of its own, that is full to the last byte when it is told to be.

What Postgres then meets is the real thing: ENOSPC from a full file system, in its data, its log and its commits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

_SIZE: Final = 1 << 30
_TRIES: Final = 50
_PATH: Final = "/usr/bin:/bin:/usr/sbin:/sbin"


class SmallDisk:
    """``directory`` on a file system in memory of up to 1 GiB. Being full is its size made what is in use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self) -> str:
        """Mount it. Why that was not possible, or ``""``."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.which("mount", path=_PATH) is None or os.geteuid() != 0:
            return "only root may mount the file system that it needs"
        said = self._mount("-t", "tmpfs", "-o", f"size={_SIZE},mode=0700", "tmpfs")
        return said and f"no file system in memory can be mounted here: {said}"

    def fill(self) -> None:
        """Not one page more fits. Raises ``OSError`` where the kernel does not agree to that."""
        said = ""
        for _ in range(_TRIES):
            now = os.statvfs(self._directory)
            used = max(now.f_blocks - now.f_bfree, 1) * now.f_frsize  # 0 would be no limit at all
            said = self._mount("-o", f"remount,size={used}")
            if not said:
                return  # else somebody wrote in between, and it would be too small for what is there
        raise OSError(f"{self._directory} cannot be made full: {said}")

    def free(self) -> None:
        """Room again. Raises ``OSError``."""
        if said := self._mount("-o", f"remount,size={_SIZE}"):
            raise OSError(f"{self._directory} cannot be made large again: {said}")

    def remove(self) -> None:
        """Unmount it, busy or not. Idempotent."""
        if self._directory.is_mount():
            subprocess.run(["umount", "-l", str(self._directory)], capture_output=True, check=False)

    def _mount(self, *arguments: str) -> str:
        """What mount complained of, or ``""``."""
        program = shutil.which("mount", path=_PATH) or "mount"
        done = subprocess.run([program, *arguments, str(self._directory)], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
