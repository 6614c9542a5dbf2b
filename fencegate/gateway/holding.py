"""Bounded holding: which refused write is worth keeping for a moment, until when, and how many may be kept. All pure.

A held write is a refused one: it stands in no store, holds no mark and no key. When it is let go the store is asked
anew, under the token that the write came with, and that answer counts like any first one.

What a hold buys depends on the token. That of the running term is admitted if the handoff is taken back or the store's
lease is renewed; that of a term which is about to open is admitted when it has. Where neither happens the caller
is told of the new leader the moment there is one, instead of being told to come back in a second.
Instants are seconds on one monotonic clock, durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencegate.errors import Refusal
from fencegate.lease import Observed

MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the bodies of all held writes together."""
PACE: Final = 1000.0
"""Writes let go in a second: they are all meant for one leader, which has only just opened."""
LAST_SHARE: Final = 0.25
LONGEST_RESERVE: Final = 1.0
_LEAST_HOLD: Final = 0.005


@dataclass(frozen=True, slots=True)
class Case:
    """One refused write. ``observed`` is what this gateway, of ``region``, believes of the leadership.

    ``hold`` is the route's; ``deadline`` the request's; ``began`` when it was first held, ``None`` for not yet.
    """

    refusal: Refusal
    observed: Observed
    region: str
    hold: float
    deadline: float
    began: float | None = None


def hold_until(case: Case, now: float) -> float | None:
    """The instant until which to keep the write, or ``None``: refuse it now.

    Never longer than the route's ``hold`` in all, and never into the time that the write itself may need.
    """
    if not is_worth_it(case):
        return None
    began = now if case.began is None else case.began
    until = min(began + case.hold, case.deadline - reserve(case.deadline - began))
    return until if until - now >= _LEAST_HOLD else None


def reserve(left: float) -> float:
    """What is kept of the seconds left for the write and its answer: a caller that has given up cannot be told no."""
    return min(LONGEST_RESERVE, max(0.0, left) * LAST_SHARE)


def is_worth_it(case: Case) -> bool:
    """Whether an end of the handoff or the election can change this refusal.

    Never for a token below the fence: it is stale whoever wins. A token that was never issued, a malformed one
    and a store that does not answer have refusals of their own, and wait for nothing.
    """
    refusal, term = case.refusal, case.observed.term
    token, seen = refusal.presented_token, refusal.max_token_seen
    if token is None or (seen is not None and token < seen):
        return False
    match refusal.problem.code:
        case "draining":
            return token == seen
        case "no_leader":
            return True
        case "not_leader":
            return term is not None and term.draining_to == case.region
    return False


def is_news(observed: Observed) -> bool:
    """Whether this changed observation can have changed the fate of a held write: somebody leads, and goes on to."""
    return observed.term is not None and observed.term.draining_to is None


def places(in_flight: int) -> int:
    """How many writes may be held where ``in_flight`` requests are taken: the rest stays for all others."""
    return in_flight * 3 // 4


def fits(of_role: int, of_all: int, more: int, capacity: int) -> bool:
    """Whether ``more`` of a role are taken: a role may hold twice what then stays free.

    So no role takes the last place, however long it has been the only one.
    """
    free = capacity - of_all - more
    return free > 0 and of_role + more <= 2 * free


def turn(position: int, jitter: float) -> float:
    """Seconds after which the write at ``position`` of those let go together has its turn; ``jitter`` in [0, 1)."""
    return (position + jitter) / PACE
