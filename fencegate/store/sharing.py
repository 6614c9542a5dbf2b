"""Whether other gateways write to the role that this one writes to, as its own entries' numbers tell."""

from __future__ import annotations

from typing import Final

_BELIEVED_FOR: Final = 8
"""Batches without a gap, after which nobody else is believed to write."""


class Sharing:
    """Of one role at a time, the one that was written to last: its entries are numbered without a gap."""

    def __init__(self) -> None:
        self._role = ""
        self._last = 0
        self._believed = 0

    def note(self, role: str, first: int, last: int) -> None:
        """A batch has made the entries ``first`` to ``last`` of ``role``."""
        if role == self._role:
            self._believed = max(0, self._believed - 1) if first == self._last + 1 else _BELIEVED_FOR
        self._role, self._last = role, last

    def believed(self) -> bool:
        """Whether others wrote between the batches of late."""
        return self._believed > 0
