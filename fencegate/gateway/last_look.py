"""The last look at the clock before a write's first byte goes to an upstream (rule R12).

A process can be stopped anywhere between the store's yes and that byte, for any time: a frozen container, a suspended
machine. What the yes stood on may be over when it goes on, and a write that is then sent would be under way beside the
next term's, with no mark left to hold that one back.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TOLD_GOOD_FOR: Final = 0.25
"""Seconds for which the time that an upstream is told it has may lie here: its mark outlives it by a second."""
LEAST_TIME: Final = 0.005
"""Seconds below which a write is not begun: it could not finish."""


class NotSent(NamedTuple):
    """The refusal of a write of which not one byte was sent: the code of its problem, and why."""

    code: str
    detail: str


def too_late(now: float, *, good_until: float, deadline: float, told_at: float) -> NotSent | None:
    """Why no byte of an admitted write may be sent any more; ``None`` where it may. All times are of one steady clock.

    ``good_until``: the end of the lease that it was admitted under. ``deadline``: the end of the caller's time; the
    write's mark in the store stands at least so long. ``told_at``: when the time that the upstream is told it has was
    worked out. The upstream counts from when it hears of it, so that what lay here is added to it.
    """
    if now >= good_until:
        return NotSent("fence_unavailable", "The lease that the write was admitted under ended before it was sent.")
    if deadline - now < LEAST_TIME:
        return NotSent("deadline_exceeded", "The caller's time ran out before the write was sent.")
    if now - told_at > TOLD_GOOD_FOR:
        return NotSent("fence_unavailable", "The write lay here for too long between its admission and its first byte.")
    return None
