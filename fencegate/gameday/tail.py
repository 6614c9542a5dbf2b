"""The tail of a handoff: the writes that stale clients go on sending, and whether the refusals come to an end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fencegate.errors import PROBLEMS
from fencegate.gameday.history import Attempt
from fencegate.gameday.population import LEFT_BEHIND


@dataclass(frozen=True, slots=True)
class Tail:
    """``began`` and ``expired``: when records became stale and when the last of them ran out, infinite for never.

    ``last`` is the time of the last refusal, ``after`` counts those of writes that were sent when no record was stale
    any more, and ``senders`` sent them. ``watched``: the drill waited for the end.
    """

    began: float
    expired: float
    watched: bool
    refused: Counter[str]
    last: float = 0.0
    after: int = 0
    senders: tuple[str, ...] = ()

    @property
    def cleared(self) -> bool:
        return self.watched and not self.after


def stale_refusals(attempts: Sequence[Attempt], since: float) -> list[Attempt]:
    """What the fence refused to the clients that were left behind, answered after ``since``."""
    return [
        a
        for a in attempts
        if a.ended >= since and a.answered == "refused" and a.client.startswith(LEFT_BEHIND) and a.reason in PROBLEMS
    ]


def tail_of(attempts: Sequence[Attempt], began: float, expired: float, *, watched: bool) -> Tail:
    """The tail as the answers tell it."""
    found = stale_refusals(attempts, began)
    late = [a for a in found if a.began > expired]
    return Tail(
        began=began,
        expired=expired,
        watched=watched,
        refused=Counter(a.reason for a in found),
        last=max((a.ended for a in found), default=began),
        after=len(late),
        senders=tuple(sorted({a.client for a in late})),
    )
