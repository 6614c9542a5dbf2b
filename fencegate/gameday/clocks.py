"""Clocks of single processes that can be set while they run: libfaketime, loaded before everything else.

Only wall clocks: the monotonic clock of a real machine does not step. etcd is out of reach, a Go program that asks the
kernel without the C library; its leases run on the monotonic clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LIBRARIES: Final = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1")


def library() -> Path | None:
    """Where libfaketime is (Debian: faketime); ``None`` where it is not."""
    found = (path for pattern in _LIBRARIES for path in sorted(Path("/").glob(pattern.lstrip("/"))))
    return next(found, None)


class Clocks:
    """A file in ``directory`` for each process that says by how many seconds its clock is ahead."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._library = library()
        self._leapt: dict[str, float] = {}

    @property
    def missing(self) -> str:
        """Why no clock can be set here, or ``""``."""
        return "" if self._library else "libfaketime is not installed (Debian: faketime)"

    def environment(self, name: str) -> dict[str, str]:
        """What the process ``name`` must be started with."""
        if self._library is None:
            return {}
        self.set(name, 0.0)
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file(name)),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def leap(self, name: str, forwards: float) -> None:
        """The clock of ``name`` jumps forwards by so many seconds, and stays there: its right time from now on."""
        self._leapt[name] = self._leapt.get(name, 0.0) + forwards
        self.set(name, 0.0)

    def set(self, name: str, ahead: float) -> None:
        """From now on ``name`` reads a clock that is ``ahead`` of its right time, or behind where it is negative."""
        ahead += self._leapt.get(name, 0.0)
        fresh = self._file(name).with_suffix(".new")
        fresh.write_text(f"{ahead:+.3f}\n", "ascii")
        fresh.chmod(0o644)
        fresh.replace(self._file(name))

    def _file(self, name: str) -> Path:
        return self._directory / f"clock-{name}"
