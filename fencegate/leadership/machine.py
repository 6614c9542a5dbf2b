"""The state machine of an elector: events in, effects out. No I/O, no clock, no randomness.

Rules about the rules:

* :data:`~fencegate.leadership.words.TRANSITIONS` is the whole of it; the state changes in one place,
  :meth:`Leadership._move`.
* Whatever comes in, the own clock is looked at first: a process that was frozen for twice the
  lease is *not leader* before it does anything else.
* The deadline counts from the *start* of the last renewal that succeeded (rule R3).
* One request is under way at a time. An answer carries the id of its request; any other is ignored.
* A term is led only after its claim in the region's own store (rule R5), and announced by the
  renewal after that.
* The lease is given back only after a seal that is known to stand (rule R8); else it lapses.

All instants are seconds on one steady clock of the process, all durations are seconds.
"""

from __future__ import annotations

from fencegate.fence import ClaimRefused
from fencegate.leadership.words import (
    HOLDING,
    TRANSITIONS,
    Acquire,
    Acquired,
    Answer,
    Claim,
    Cue,
    Done,
    Drain,
    Effect,
    Ended,
    Event,
    Failed,
    Hint,
    Keep,
    Lost,
    Reclaim,
    Refused,
    Release,
    Released,
    Renew,
    Request,
    Resign,
    Seal,
    Sealed,
    State,
    Tell,
    Withdraw,
)
from fencegate.lease import JITTER_FACTOR, Cause, Held, LeaseTimings
from fencegate.observations import (
    ClaimWasRefused,
    LeadershipGained,
    LeadershipLost,
    Observation,
    TermSealed,
    TokenRegressed,
)


class Leadership:
    """One elector's belief about one role. ``state`` and ``token`` are for reading only."""

    def __init__(self, role: str, timings: LeaseTimings, *, strict_wait: bool = False) -> None:
        self.role = role
        self.state = State.STARTING
        self.token = 0
        self.last_end: Ended | None = None
        self._timings = timings
        self._strict_wait = strict_wait
        self._attempt = max(timings.retry_period, timings.renew_deadline / 2)
        self._ids = 0
        self._pending: Request | None = None
        self._pending_since = 0.0
        self._next_at = float("-inf")
        self._renewed_at = 0.0
        self._settled_at = 0.0
        self._give_up_at = 0.0
        self._acquire_after = float("-inf")
        self._must_withdraw = False
        self._stopping = False
        self._releasable = True
        self._reason = ""
        self._last_failure: Cause | None = None
        self._longest_lease_seen = timings.lease_duration
        self._effects: list[Effect] = []

    def __repr__(self) -> str:
        waiting = f", waiting for {self._pending!r}" if self._pending else ""
        return f"<Leadership of {self.role!r}: {self.state}, token {self.token}{waiting}>"

    # -- asking it ----------------------------------------------------------------------------------

    @property
    def pending_id(self) -> int:
        """The id of the request under way, 0 for none. The work for any other may be cancelled."""
        return self._pending.id if self._pending else 0

    @property
    def deadline(self) -> float:
        """When a holder stops believing in its term unless it has renewed."""
        return self._renewed_at + self._timings.renew_deadline

    def leads(self, now: float) -> bool:
        """True while this elector may say that it leads, by its own clock."""
        return self.state is State.LEADING and now < self.deadline

    def wakeup(self, now: float) -> float:
        """The instant of the next ``Tick`` if nothing else happens: after ``now``, at most one lease ahead."""
        due = [self._overrun(self._pending) if self._pending else self._next_at]
        if self.state in HOLDING:
            due.append(self.deadline)
        due = [instant for instant in due if instant > now]
        return min([*due, now + self._timings.lease_duration])

    # -- the one entry ------------------------------------------------------------------------------

    def handle(self, event: Event, now: float, jitter: float) -> list[Effect]:
        """Take one event at the instant ``now``; what is to be done now. ``jitter`` is a fraction in [0, 1]."""
        self._effects = []
        if self.state in HOLDING and now >= self.deadline:
            self._leave("store" if self._last_failure == "store" else "renew_deadline", now)
        pending = self._pending
        if pending and isinstance(event, Answer) and event.id == pending.id:
            self._pending = None
            self._answered(pending, event, now, jitter)
        elif pending and now >= self._overrun(pending):
            self._pending = None
            self._answered(pending, Failed(pending.id, "timeout"), now, jitter)
        if isinstance(event, Resign):
            self._resign(event, now)
        elif isinstance(event, Hint) and self.state is State.CANDIDATE and self._next_at > now:
            self._next_at = max(now, self._acquire_after)
        self._act(now)
        return self._effects

    def _overrun(self, pending: Request) -> float:
        """When to stop waiting: a little after the limit, since an answer that comes at the limit knows the cause."""
        return self._pending_since + pending.limit + self._timings.retry_period / 4

    # -- what is due --------------------------------------------------------------------------------

    def _act(self, now: float) -> None:
        if self._pending or now < self._next_at:
            return
        if self.state is State.SETTLING and now >= self._settled_at:
            self._move(Cue.SETTLED)
        if self.state in (State.SEALING, State.RELEASING) and now >= self._give_up_at:
            self._end(now, sealed=self.state is State.RELEASING)
        request = self._due(now)
        if request:
            self._pending, self._pending_since = request, now
            self._effects.append(request)

    def _due(self, now: float) -> Request | None:
        next_id = self._ids + 1
        attempt, token = self._attempt, self.token
        held = min(attempt, self.deadline - now)
        ending = min(attempt, self._give_up_at - now)
        if self.state in HOLDING and held < self._timings.retry_period / 10:
            self._next_at = self.deadline  # too little for a renewal to succeed in
            return None
        request: Request | None = None
        match self.state:
            case State.STARTING:
                request = Reclaim(next_id, attempt)
            case State.CANDIDATE if self._must_withdraw:
                request = Withdraw(next_id, self._timings.retry_period)
            case State.CANDIDATE if now >= self._acquire_after:
                request = Acquire(next_id, attempt)
                self._acquire_after = now + self._timings.retry_period / 10
            case State.CANDIDATE:
                self._next_at = self._acquire_after
            case State.SETTLING:
                request = Keep(next_id, held, token)
            case State.CLAIMING:
                request = Claim(next_id, held, token)
            case State.LEADING:
                request = Renew(next_id, held, token)
            case State.DRAINING:
                request = Drain(next_id, self._timings.retry_period, token)
            case State.SEALING:
                request = Seal(next_id, ending, token)
            case State.RELEASING:
                request = Release(next_id, ending, token)
        self._ids = next_id if request else self._ids
        return request

    # -- answers ------------------------------------------------------------------------------------

    def _answered(self, request: Request, answer: Answer, now: float, jitter: float) -> None:
        period = self._timings.retry_period * (1 + (JITTER_FACTOR - 1) * jitter)
        again = max(now, self._pending_since + period)
        self._next_at = now
        match request:
            case Reclaim():
                self._move(Cue.LOOKED)
            case Withdraw():
                self._must_withdraw = False
            case Acquire():
                self._acquired(answer, now, again)
            case Keep() | Claim() | Renew():
                self._renewed(request, answer, now, again)
            case Drain():
                self._move(Cue.DRAINED)
                self._give_up_at = self._sealing_ends(now)
            case Seal():
                self._sealed(answer, now, again)
            case Release() if isinstance(answer, Released):
                self._end(now, sealed=True, released=answer.released)
            case Release():
                self._next_at = min(again, self._give_up_at)

    def _acquired(self, answer: Answer, now: float, again: float) -> None:
        self._next_at = again
        if isinstance(answer, Failed) and answer.cause == "store":
            # A candidate whose store is down must not stand in line: its turn would be a gap (rule R14).
            self._must_withdraw, self._acquire_after, self._next_at = True, again, now
            return
        if not isinstance(answer, Acquired):
            return
        if isinstance(answer.outcome, Held):
            if answer.outcome.term:
                self._longest_lease_seen = max(self._longest_lease_seen, answer.outcome.term.lease_duration)
            return
        if now >= self._pending_since + self._timings.renew_deadline:
            self._next_at = now  # a win that is as old as a lost term proves nothing: ask again
            return
        self.token, self._releasable, self._last_failure = answer.outcome.token, True, None
        self._renewed_at, self._next_at = self._pending_since, now
        if self._strict_wait and answer.outcome.predecessor_sealed is None:
            # Counted from the answer: the term before cannot have been renewed after our win.
            self._settled_at = now + self._longest_lease_seen + self._timings.margin
            self._move(Cue.WON_UNSEALED)
        else:
            self._move(Cue.WON)
        self._longest_lease_seen = self._timings.lease_duration

    def _renewed(self, request: Request, answer: Answer, now: float, again: float) -> None:
        match answer:
            case Done():
                self._renewed_at, self._last_failure = self._pending_since, None
                if isinstance(request, Claim):
                    self._move(Cue.CLAIMED)
                    self._tell(LeadershipGained(self.role, self.token))
                else:
                    self._next_at = again
            case Failed(cause=cause):
                if cause != "timeout" or self._last_failure != "store":
                    # The last try before the deadline is a short one: that it got nowhere does not clear the store.
                    self._last_failure = cause
                brisk = isinstance(request, Claim)  # nobody is served until it succeeds
                self._next_at = now + self._timings.retry_period / 4 if brisk else again
            case Lost():
                self._releasable = False
                self._leave("lost", now)
            case Refused():
                self._refused(answer, now, again)
        if self.state is State.SETTLING:
            self._next_at = max(now, min(self._next_at, self._settled_at))

    def _refused(self, answer: Refused, now: float, again: float) -> None:
        self._tell(ClaimWasRefused(self.role, self.token, str(answer.reason)))
        match answer.reason:
            case ClaimRefused.EXPIRED:
                self._last_failure, self._next_at = "store", again
            case ClaimRefused.SUPERSEDED:
                # The row is a newer term's: sealing it is not ours to do.
                if answer.regressed:
                    self._tell(TokenRegressed(self.role, self.token, answer.max_token_seen))
                self._abandon("superseded", now)
            case ClaimRefused.NO_FENCE:
                self._abandon("store", now)
            case ClaimRefused.SEALED:
                self._leave("sealed", now)
            case ClaimRefused.INCARNATION:
                self._leave("incarnation", now)

    def _sealed(self, answer: Answer, now: float, again: float) -> None:
        if not (isinstance(answer, Sealed) and answer.known):
            self._next_at = min(again, self._give_up_at)
        elif self._releasable:
            self._move(Cue.SEAL_KNOWN)
        else:
            self._end(now, sealed=True)

    # -- leaving ------------------------------------------------------------------------------------

    def _resign(self, event: Resign, now: float) -> None:
        self._stopping = self._stopping or event.stop
        if self.state is State.LEADING:
            self._lost(event.reason)
            self._pending, self._next_at = None, now
            self._move(Cue.RESIGNED)
        elif self.state in HOLDING:
            self._leave(event.reason, now)
        elif self.state in (State.STARTING, State.CANDIDATE):
            self._pending = None
            self._must_withdraw, self._next_at = True, now
            self._acquire_after = now + self._hold_off
            if self._stopping:
                self._move(Cue.STOPPED)
            elif self.state is State.STARTING:
                self._move(Cue.LOOKED)

    def _leave(self, reason: str, now: float) -> None:
        """Step down: seal what may have been opened."""
        if self.state is State.SETTLING:
            self._abandon(reason, now)
            return
        self._lost(reason)
        self._pending, self._next_at = None, now
        self._give_up_at = self._sealing_ends(now)
        self._move(Cue.LEFT)

    def _abandon(self, reason: str, now: float) -> None:
        """Step down without a seal; the lease lapses."""
        self._lost(reason)
        self._end(now, sealed=False)

    def _lost(self, reason: str) -> None:
        self._reason = reason
        if self.state is State.LEADING:
            self._tell(LeadershipLost(self.role, self.token, reason))

    def _sealing_ends(self, now: float) -> float:
        """A seal is tried until the lease has lapsed anyway, and at least once."""
        return max(self._renewed_at + self._timings.lease_duration, now + self._attempt)

    @property
    def _hold_off(self) -> float:
        """Long enough for a lease that was not given back to lapse, and for another region to win."""
        return self._timings.lease_duration + 2 * self._timings.retry_period

    def _end(self, now: float, *, sealed: bool, released: bool = False) -> None:
        if self.state is not State.SETTLING:
            self._tell(TermSealed(self.role, self.token, sealed))
        self.last_end = Ended(self.token, self._reason, sealed, released)
        self.token, self._pending = 0, None
        self._must_withdraw, self._next_at = True, now
        ours_to_retry = self._reason in ("lost", "renew_deadline", "incarnation")
        self._acquire_after = now if ours_to_retry else now + self._hold_off
        self._move(Cue.STOPPED if self._stopping else Cue.ENDED)

    # -- the one exit -------------------------------------------------------------------------------

    def _tell(self, observation: Observation) -> None:
        self._effects.append(Tell(observation))

    def _move(self, cue: Cue) -> None:
        self.state = TRANSITIONS[self.state][cue]
