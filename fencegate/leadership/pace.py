"""When: every instant that an elector keeps in mind, and what follows from its timings. No clock: ``now`` is given.

All instants are seconds on one steady clock of the process, all durations are seconds.
"""

from __future__ import annotations

from fencegate.lease import JITTER_FACTOR, LeaseTimings


class Pace:
    """The machine sets the instants; the arithmetic between them is here."""

    def __init__(self, timings: LeaseTimings, *, strict_wait: bool = False) -> None:
        self.timings = timings
        self.attempt = max(timings.retry_period, timings.renew_deadline / 2)
        """How long one request may take."""
        self.handled_at = float("-inf")
        """The last event."""
        self.next_at = float("-inf")
        """When something is to be asked again."""
        self.asked_at = 0.0
        """When the request under way began."""
        self.acquire_after = float("-inf")
        """Not before that is the role tried for."""
        self.renewed_at = 0.0
        """The *start* of the last renewal that succeeded (rule R3)."""
        self.renew_due = 0.0
        self.settled_at = 0.0
        """When the term before is over by our own clock (``strict_wait``)."""
        self.undrain_until = float("-inf")
        """Up to then a "stop writes" of a handoff that was undone may still come late."""
        self.give_up_at = 0.0
        """When the lease has lapsed anyway, and nothing more is tried to end it."""
        self._strict_wait = strict_wait
        self._longest_lease_seen = timings.lease_duration

    @property
    def deadline(self) -> float:
        """When a holder stops believing in its term unless it has renewed."""
        return self.renewed_at + self.timings.renew_deadline

    def overrun(self, limit: float) -> float:
        """When to stop waiting: a little after the limit, since an answer that comes at the limit knows the cause."""
        return self.asked_at + limit + self.timings.retry_period / 4

    def again(self, now: float, jitter: float) -> float:
        """One retry period, stretched by ``jitter`` (in [0, 1]), after the request that was answered now."""
        return max(now, self.asked_at + self.timings.retry_period * (1 + (JITTER_FACTOR - 1) * jitter))

    def soon(self, now: float) -> float:
        """The next try where nobody is served until it succeeds."""
        return now + self.timings.retry_period / 4

    def held(self, now: float) -> float:
        """How long a request of a holder may take: it must not outlast the term."""
        return min(self.attempt, self.deadline - now)

    def too_little(self, held: float) -> bool:
        """Whether no renewal could succeed in so short a time."""
        return held < self.timings.retry_period / 10

    # -- winning ------------------------------------------------------------------------------------

    def saw_lease(self, lease_duration: float) -> None:
        """Somebody else's: a strict wait is for the longest one."""
        self._longest_lease_seen = max(self._longest_lease_seen, lease_duration)

    def won_too_long_ago(self, now: float) -> bool:
        """A win that is as old as a lost term proves nothing."""
        return now >= self.asked_at + self.timings.renew_deadline

    def won(self, now: float, *, after_a_seal: bool) -> bool:
        """The term counts from the start of the try that won it. Whether the one before must be waited out."""
        self.renewed_at, self.next_at = self.asked_at, now
        waits = self._strict_wait and not after_a_seal
        if waits:
            # Counted from the answer: the term before cannot have been renewed after our win.
            self.settled_at = now + self._longest_lease_seen + self.timings.margin
        self._longest_lease_seen = self.timings.lease_duration
        return waits

    # -- leaving ------------------------------------------------------------------------------------

    def sealing_begins(self, now: float) -> None:
        """A seal is tried until the lease has lapsed anyway, and at least once."""
        self.give_up_at = max(self.renewed_at + self.timings.lease_duration, now + self.attempt)

    def stay_out(self, now: float, seconds: float) -> None:
        self.acquire_after = now + seconds
