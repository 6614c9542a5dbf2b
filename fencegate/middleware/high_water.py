"""The highest token seen, kept in this process."""

from __future__ import annotations

import threading


class HighWaterMark:
    """A :class:`fencegate.middleware.TokenFence` in memory. **For a service of one process, and no more than a net.**

    Another process has its own mark, a restart forgets it, and between the look and the write's commit a newer term may
    begin. What closes all three is the SQL guard, in the transaction of the write. Without the gate's proof in front of
    it anybody can raise it with a number made up, and so lock every leader out until the restart.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}
        self._lock = threading.Lock()

    def raise_to(self, role: str, token: int) -> int:
        with self._lock:
            highest = self._highest[role] = max(token, self._highest.get(role, 0))
            return highest
