"""The grants of a process that leads: signed by itself, since nobody else knows that it does (token mode)."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from fencegate.access.key_file import KeyFile
from fencegate.errors import ConfigurationError
from fencegate.grant import LIFETIME, LONGEST_LIFETIME, grant_for, sign

_ANEW: Final = 0.5
"""The share of its lifetime after which a grant is made anew."""


class Grants:
    """Signs with the first key of ``key_file``, the gateways' ``grant_key_file``, which is looked at again each second.

    ``subject``: the name by which the gateways know this process, such as ``CN=node-1,O=Example``: the grant holds for
    nobody else. ``lifetime``: seconds; a term gets a new one in time.

    Whoever has the file can grant anything: give it to the processes that lead, and keep it from their clients. Raises
    :class:`fencegate.errors.ConfigurationError` for a file that cannot be used, or a subject that cannot be anybody's.
    """

    def __init__(self, key_file: str | os.PathLike[str], subject: str, *, lifetime: float = LIFETIME) -> None:
        if not 1 <= lifetime <= LONGEST_LIFETIME:
            raise ConfigurationError([f"lifetime = {lifetime:g}: expected seconds, 1 to {LONGEST_LIFETIME:g}"])
        self._keys = KeyFile(key_file, time.monotonic, "grant_key_file")
        self._subject = subject
        self._lifetime = lifetime
        self._made: dict[tuple[str, int], tuple[str, str, float]] = {}
        self._lock = threading.Lock()
        try:
            self.of("probe", 1)
        except ValueError:
            raise ConfigurationError(
                [f"subject = {subject!r}: expected the caller's name, 1 to 512 printable ASCII characters"]
            ) from None

    def of(self, role: str, token: int) -> str:
        """The value of ``X-Fencing-Grant`` for a write of this term now."""
        with self._lock:
            key, now = self._keys.keys()[0], time.time()
            text, key_id, anew = self._made.get((role, token), ("", "", 0.0))
            # A clock that was set back is no reason to keep a grant that is of a time to come.
            if key_id != key.id or not anew - self._lifetime * _ANEW <= now < anew:
                text = sign(key, grant_for(role, token, self._subject, now, self._lifetime))
                self._made = {(role, token): (text, key.id, now + self._lifetime * _ANEW)}
            return text
