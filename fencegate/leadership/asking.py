"""What an elector asks for in each state, once it is time to ask. Nothing is decided here: answers decide."""

from __future__ import annotations

from fencegate.leadership import words
from fencegate.leadership.handing import CLOSE, Handing
from fencegate.leadership.pace import Pace
from fencegate.leadership.words import Request, State


def request_of(
    state: State, request_id: int, token: int, handing: Handing | None, pace: Pace, now: float, *, withdraw: bool
) -> Request | None:
    """The request of ``state``; ``None`` where nothing is to be asked now. ``withdraw``: leave the line first."""
    held, ending = pace.held(now), min(pace.attempt, pace.give_up_at - now)
    successor = handing.to if handing else None
    match state:
        case State.STARTING:
            return words.Reclaim(request_id, pace.attempt)
        case State.CANDIDATE if withdraw:
            return words.Withdraw(request_id, pace.timings.retry_period)
        case State.CANDIDATE if now >= pace.acquire_after:
            return words.Acquire(request_id, pace.attempt)
        case State.SETTLING:
            return words.Keep(request_id, held, token)
        case State.CLAIMING:
            return words.Claim(request_id, held, token)
        case State.LEADING:
            # For a lease after an undo: a "stop writes" of the handoff may be carried out late by the store.
            return words.Renew(request_id, held, token, undrain=now < pace.undrain_until)
        case State.ANNOUNCING:
            return words.Renew(request_id, held, token, draining_to=successor)
        case State.YIELDING if pace.renew_due - now < 2 * CLOSE:
            return words.Renew(request_id, held, token, draining_to=successor)
        case State.YIELDING:
            # Wait for the writes under way, and renew in between whenever it is due.
            assert handing
            left = min(pace.renew_due, handing.ends, pace.deadline) - now
            return words.Drain(request_id, min(pace.attempt, left), token)
        case State.UNDOING:
            return words.Renew(request_id, held, token, undrain=True)
        case State.DRAINING:
            return words.Drain(request_id, pace.attempt, token)
        case State.SEALING:
            return words.Seal(request_id, ending, token)
        case State.RELEASING:
            return words.Release(request_id, ending, token, successor)
    return None
