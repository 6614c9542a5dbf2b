"""A file with shared keys, looked at again while a process runs that is no gateway; by the standard library alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fencegate.errors import ConfigurationError
from fencegate.key_ring import SharedKey, parse_keys

_log = logging.getLogger("fencegate.keys")

LOOK_PERIOD: Final = 1.0
"""Seconds between two looks whether the file has changed."""


class KeyFile:
    """The keys in ``path``, the newest a second old. ``clock`` is monotonic, in seconds; ``key``: what names the file.

    A file that has gone, or is faulty, leaves the keys as they were: to take a key away, take its line out. Raises
    :class:`ConfigurationError` at the start for a file that cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float], key: str = "proof_key_file") -> None:
        self._key = key
        self._path = Path(path)
        self._clock = clock
        self._looked = clock()
        self._mark = self._marked()
        self._keys = self._read()

    def keys(self) -> tuple[SharedKey, ...]:
        now = self._clock()
        if now - self._looked >= LOOK_PERIOD:
            self._looked = now
            self._look()
        return self._keys

    def _look(self) -> None:
        mark = self._marked()
        if mark == self._mark:
            return
        try:
            self._keys = self._read()
        except ConfigurationError as error:
            _log.error("the keys in use are kept: %s", error)
        self._mark = mark

    def _marked(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[SharedKey, ...]:
        try:
            return parse_keys(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError([f"{self._key}: cannot read {self._path}: {error.strerror}"]) from None
        except ValueError as error:
            reason = "expected a text file in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            raise ConfigurationError([f"{self._key}: {reason} (file {self._path})"]) from None
