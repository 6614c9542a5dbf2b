"""A handoff under way, as a plain value: to whom, until when, and how the last one ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

CLOSE: Final = 0.001
"""Seconds before a limit that count as the limit: a request with less time than this is not begun."""

Outcome = Literal["released", "undone", "lapsing", "abandoned"]


@dataclass(frozen=True, slots=True)
class Handing:
    """Term ``token`` goes to region ``to``; taken back at the instant ``ends`` unless the sealing has begun."""

    token: int
    to: str
    ends: float

    def out_of_time(self, now: float) -> bool:
        return now >= self.ends - CLOSE


@dataclass(frozen=True, slots=True)
class HandingEnded:
    """How the last handoff ended. ``outcome`` is as in :class:`fencegate.observations.HandoffEnded`."""

    token: int
    to: str
    outcome: Outcome
