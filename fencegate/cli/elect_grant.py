"""The grant of an elected command, in a file that only its user can read and that is fresh while the term lasts."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from fencegate.client.term import LeaderTerm
from fencegate.errors import FencegateError

VARIABLE = "FENCEGATE_GRANT_FILE"

_log = logging.getLogger("fencegate.elect")


class GrantFile:
    """As ``with``: the file is there from the beginning of the term and gone at its end.

    ``path`` is ``None`` where the term signs no grants. A grant runs out while a command may run for days, so it is no
    variable: the command reads the file for each write. Raises :class:`fencegate.errors.FencegateError` where it cannot
    be written at the beginning.
    """

    def __init__(self, term: LeaderTerm) -> None:
        self._term = term
        self._written: str | None = None
        self.path: Path | None = None

    def __enter__(self) -> Self:
        if self._term.grant() is None:
            return self
        try:
            self.path = Path(tempfile.mkdtemp(prefix="fencegate-grant-")) / "grant"
            self._write()
        except OSError as error:
            raise FencegateError(f"cannot write the grant of the command: {error}") from error
        return self

    def refresh(self) -> None:
        """Called with every renewal. A file that cannot be written is told of: the old grant holds for a while."""
        if self.path is None:
            return
        try:
            self._write()
        except OSError as error:
            _log.warning("the grant of the command cannot be kept fresh: %s", error)

    def _write(self) -> None:
        grant = self._term.grant()
        if self.path is None or grant is None or grant == self._written:
            return
        # Whoever reads it gets the old one or the new one, and no half.
        fresh = self.path.with_suffix(".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(grant + "\n")
        fresh.replace(self.path)
        self._written = grant

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.path.parent)
