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
* A handoff can be taken back until the sealing begins, and is when its time is up; the term is renewed meanwhile.
* The lease is given back only after a seal that is known to stand (rule R8); else it lapses.

When something is due is in :mod:`~fencegate.leadership.pace`, what is asked for then in
:mod:`~fencegate.leadership.asking`; here is what becomes of the answers.
"""

from __future__ import annotations

from fencegate.fence import ClaimRefused
from fencegate.leadership import words
from fencegate.leadership.asking import request_of
from fencegate.leadership.handing import CLOSE, Handing, HandingEnded, Outcome
from fencegate.leadership.pace import Pace
from fencegate.leadership.words import HOLDING, LED, TRANSITIONS, UNDOABLE, Answer, Cue, Effect, Event, Request, State
from fencegate.lease import Cause, Held, LeaseTimings
from fencegate.observations import (
    ClaimWasRefused,
    HandoffBegan,
    HandoffEnded,
    LeadershipGained,
    LeadershipLost,
    Observation,
    TermSealed,
    TokenRegressed,
)


class Leadership:
    """One elector's belief about one role. ``state``, ``token``, ``handing`` and ``last_*`` are for reading only."""

    def __init__(self, role: str, timings: LeaseTimings, *, strict_wait: bool = False) -> None:
        self.role = role
        self.state = State.STARTING
        self.token = 0
        self.last_end: words.Ended | None = None
        self.handing: Handing | None = None
        self.last_handing: HandingEnded | None = None
        self._timings = timings
        self._pace = Pace(timings, strict_wait=strict_wait)
        self._ids = 0
        self._pending: Request | None = None
        self._hinted = False
        self._must_withdraw = self._stopping = self._resigned = False
        self._releasable = True
        self._reason = ""
        self._last_failure: Cause | None = None
        self._effects: list[Effect] = []

    def __repr__(self) -> str:
        return f"<Leadership of {self.role!r}: {self.state}, token {self.token}, waiting for {self._pending!r}>"

    # -- asking it ----------------------------------------------------------------------------------

    @property
    def pending_id(self) -> int:
        """The id of the request under way, 0 for none. The work for any other may be cancelled."""
        return self._pending.id if self._pending else 0

    @property
    def deadline(self) -> float:
        """When a holder stops believing in its term unless it has renewed."""
        return self._pace.deadline

    def leads(self, now: float) -> bool:
        """True while this elector may say that it leads, by its own clock."""
        return self.state in LED and now < self.deadline

    def wakeup(self, now: float) -> float:
        """The instant of the next ``Tick`` if nothing else happens, at most one lease ahead.

        It lies before ``now`` where it has come since the last event was handled: then it is due at once.
        """
        due = [self._pace.overrun(self._pending.limit) if self._pending else self._pace.next_at]
        if self.state in HOLDING:
            due.append(self.deadline)
        if self.state in UNDOABLE and self.handing:
            due.append(self.handing.ends - CLOSE)
        return min([*(at for at in due if at > self._pace.handled_at), now + self._timings.lease_duration])

    # -- the one entry ------------------------------------------------------------------------------

    def handle(self, event: Event, now: float, jitter: float) -> list[Effect]:
        """Take one event at the instant ``now``; what is to be done now. ``jitter`` is a fraction in [0, 1]."""
        self._effects, self._pace.handled_at = [], now
        if self.state in HOLDING and now >= self.deadline:
            self._leave("store" if self._last_failure == "store" else "renew_deadline", now)
        pending = self._pending
        if pending and isinstance(event, Answer) and event.id == pending.id:
            self._pending = None
            self._answered(pending, event, now, jitter)
        elif pending and now >= self._pace.overrun(pending.limit):
            self._pending = None
            self._answered(pending, words.Failed(pending.id, "timeout"), now, jitter)
        if self.state in UNDOABLE and self.handing and self.handing.out_of_time(now):
            self._pending, self._pace.next_at = None, now
            self._move(Cue.UNDO)
        if isinstance(event, words.Resign):
            self._resign(event, now)
        elif isinstance(event, words.Handoff):
            self._hand_over(event, now)
        elif isinstance(event, words.Hint) and self.state is State.CANDIDATE:
            # The try under way may have looked before what the hint tells of: another one follows it.
            self._hinted = isinstance(self._pending, words.Acquire)
            self._pace.next_at = min(self._pace.next_at, max(now, self._pace.acquire_after))
        self._act(now)
        return self._effects

    # -- what is due --------------------------------------------------------------------------------

    def _act(self, now: float) -> None:
        if self._pending or now < self._pace.next_at:
            return
        if self.state is State.SETTLING and now >= self._pace.settled_at:
            self._move(Cue.SETTLED)
        if self.state in (State.SEALING, State.RELEASING) and now >= self._pace.give_up_at:
            self._end(now, sealed=self.state is State.RELEASING)
        request = self._due(now)
        if request:
            self._pending, self._pace.asked_at = request, now
            self._effects.append(request)

    def _due(self, now: float) -> Request | None:
        pace = self._pace
        if self.state in HOLDING and pace.too_little(pace.held(now)):
            pace.next_at = pace.deadline  # no renewal could succeed before it
            return None
        request = request_of(
            self.state, self._ids + 1, self.token, self.handing, pace, now, withdraw=self._must_withdraw
        )
        if isinstance(request, words.Acquire):
            pace.stay_out(now, self._timings.retry_period / 10)
        elif request is None and self.state is State.CANDIDATE:
            pace.next_at = pace.acquire_after
        self._ids = request.id if request else self._ids
        return request

    # -- answers ------------------------------------------------------------------------------------

    def _answered(self, request: Request, answer: Answer, now: float, jitter: float) -> None:
        again = self._pace.again(now, jitter)
        self._pace.next_at = now
        match request:
            case words.Reclaim():
                self._move(Cue.LOOKED)
            case words.Withdraw():
                self._must_withdraw = False
            case words.Acquire():
                self._acquired(answer, now, again)
            case words.Keep() | words.Claim() | words.Renew():
                self._renewed(request, answer, now, again)
            case words.Drain() if self.state is State.YIELDING:
                self._yielded(answer, now)
            case words.Drain():
                self._move(Cue.DRAINED)
                self._pace.sealing_begins(now)
            case words.Seal():
                self._sealed(answer, now, again)
            case words.Release() if isinstance(answer, words.Released):
                self._end(now, sealed=True, released=answer.released)
            case words.Release():
                self._pace.next_at = min(again, self._pace.give_up_at)

    def _acquired(self, answer: Answer, now: float, again: float) -> None:
        self._pace.next_at = max(now, self._pace.acquire_after) if self._hinted else again
        self._hinted = False
        if isinstance(answer, words.Failed) and answer.cause == "store":
            # A candidate whose store is down must not stand in line: its turn would be a gap (rule R14).
            self._must_withdraw, self._pace.acquire_after, self._pace.next_at = True, again, now
            return
        if not isinstance(answer, words.Acquired):
            return
        if isinstance(answer.outcome, Held):
            if answer.outcome.term:
                self._pace.saw_lease(answer.outcome.term.lease_duration)
            return
        if self._pace.won_too_long_ago(now):
            self._pace.next_at = now  # ask again
            return
        self.token, self._releasable, self._last_failure = answer.outcome.token, True, None
        waits = self._pace.won(now, after_a_seal=answer.outcome.predecessor_sealed is not None)
        self._move(Cue.WON_UNSEALED if waits else Cue.WON)

    def _renewed(self, request: Request, answer: Answer, now: float, again: float) -> None:
        match answer:
            case words.Done():
                self._pace.renewed_at, self._last_failure = self._pace.asked_at, None
                if isinstance(request, words.Claim):
                    self._move(Cue.CLAIMED)
                    self._tell(LeadershipGained(self.role, self.token))
                else:
                    self._pace.next_at = self._pace.renew_due = again
                    self._renewed_while_handing(now)
            case words.Failed(cause=cause):
                self._pace.renew_due = again
                if cause != "timeout" or self._last_failure != "store":
                    # The last try before the deadline is a short one: that it got nowhere does not clear the store.
                    self._last_failure = cause
                # Nobody is served until it succeeds, or a handoff waits for it.
                brisk = isinstance(request, words.Claim) or self.state in (State.ANNOUNCING, State.UNDOING)
                self._pace.next_at = self._pace.soon(now) if brisk else again
            case words.Lost():
                self._releasable = False
                self._leave("lost", now)
            case words.Refused():
                self._refused(answer, now, again)
        if self.state is State.SETTLING:
            self._pace.next_at = max(now, min(self._pace.next_at, self._pace.settled_at))

    def _refused(self, answer: words.Refused, now: float, again: float) -> None:
        self._tell(ClaimWasRefused(self.role, self.token, str(answer.reason)))
        match answer.reason:
            case ClaimRefused.EXPIRED:
                self._last_failure, self._pace.next_at = "store", again
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
        if not (isinstance(answer, words.Sealed) and answer.known):
            self._pace.next_at = min(again, self._pace.give_up_at)
        elif self._releasable:
            self._move(Cue.SEAL_KNOWN)
        else:
            self._end(now, sealed=True)

    # -- leaving ------------------------------------------------------------------------------------

    def _resign(self, event: words.Resign, now: float) -> None:
        self._stopping = self._stopping or event.stop
        if self.state in LED:
            self._handing_ends("abandoned")
            self._lost(event.reason)
            self._pending, self._pace.next_at = None, now
            self._move(Cue.RESIGNED)
        elif self.state in HOLDING:
            self._leave(event.reason, now)
        elif self.state in (State.STARTING, State.CANDIDATE):
            self._pending = None
            self._must_withdraw, self._pace.next_at = True, now
            self._pace.stay_out(now, self._timings.hold_off)
            if self._stopping:
                self._move(Cue.STOPPED)
            elif self.state is State.STARTING:
                self._move(Cue.LOOKED)
        else:
            self._resigned = True  # the term is just ending, for a reason of its own

    def _leave(self, reason: str, now: float) -> None:
        """Step down: seal what may have been opened."""
        if self.state is State.SETTLING:
            self._abandon(reason, now)
            return
        self._handing_ends("abandoned")
        self._lost(reason)
        self._pending, self._pace.next_at = None, now
        self._pace.sealing_begins(now)
        self._move(Cue.LEFT)

    def _abandon(self, reason: str, now: float) -> None:
        """Step down without a seal; the lease lapses."""
        self._handing_ends("abandoned")
        self._lost(reason)
        self._end(now, sealed=False)

    def _lost(self, reason: str) -> None:
        self._reason = reason
        if self.state in LED:
            self._tell(LeadershipLost(self.role, self.token, reason))

    def _end(self, now: float, *, sealed: bool, released: bool = False) -> None:
        if self.state is not State.SETTLING:
            self._tell(TermSealed(self.role, self.token, sealed))
        self.last_end = words.Ended(self.token, self._reason, sealed, released)
        self.token, self._pending = 0, None
        self._must_withdraw, self._pace.next_at = True, now
        ours_to_retry = self._reason in ("lost", "renew_deadline", "incarnation") and not self._resigned
        self._resigned = False
        self._pace.stay_out(now, 0.0 if ours_to_retry else self._timings.hold_off)
        if self.handing:
            # Less than a lease: a successor that fails at its first step leaves the role without a leader no longer.
            self._pace.stay_out(now, self._timings.hold_back)
            self._handing_ends("released" if released else "lapsing")
        self._move(Cue.STOPPED if self._stopping else Cue.ENDED)

    # -- handing over -------------------------------------------------------------------------------

    def _hand_over(self, event: words.Handoff, now: float) -> None:
        """Begin, where we lead and no other handoff is under way: asking twice is one handoff."""
        if self.state is State.LEADING:
            self.handing = Handing(self.token, event.to, now + event.limit)
            self._tell(HandoffBegan(self.role, self.token, event.to))
            self._pending, self._pace.next_at = None, now
            self._move(Cue.HANDING_OVER)

    def _yielded(self, answer: Answer, now: float) -> None:
        if isinstance(answer, words.Done):
            self._lost("handoff")
            self._pace.sealing_begins(now)
            self._move(Cue.DRAINED)
        elif not isinstance(answer, words.Undrained):
            left = self._pace.renew_due - now
            self._pace.next_at = now if left < 2 * CLOSE else min(self._pace.soon(now), self._pace.renew_due)

    def _renewed_while_handing(self, now: float) -> None:
        if self.state in UNDOABLE:
            self._pace.next_at = now
        if self.state is State.ANNOUNCING:
            self._move(Cue.ANNOUNCED)
        elif self.state is State.UNDOING:
            self._pace.undrain_until = now + self._timings.lease_duration
            self._handing_ends("undone")
            self._move(Cue.UNDONE)

    def _handing_ends(self, outcome: Outcome) -> None:
        handing, self.handing = self.handing, None
        if handing:
            self.last_handing = HandingEnded(handing.token, handing.to, outcome)
            self._tell(HandoffEnded(self.role, handing.token, handing.to, outcome))

    # -- the one exit -------------------------------------------------------------------------------

    def _tell(self, observation: Observation) -> None:
        self._effects.append(words.Tell(observation))

    def _move(self, cue: Cue) -> None:
        self.state = TRANSITIONS[self.state][cue]
