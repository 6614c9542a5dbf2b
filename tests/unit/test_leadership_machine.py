"""The elector's rules as stories, and as invariants over any history."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fencegate.fence import ClaimRefused
from fencegate.leadership.machine import Leadership
from fencegate.leadership.words import (
    HOLDING,
    LED,
    Acquire,
    Acquired,
    Claim,
    Done,
    Drain,
    Effect,
    Ended,
    Event,
    Failed,
    Handoff,
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
    Tick,
    Undrained,
    Withdraw,
)
from fencegate.lease import Cause, Held, LeaseTimings, SealRecord, Term, Won
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

TIMINGS = LeaseTimings()
HOLD_OFF = 19.0
"""A lease and two retry periods."""


class Story:
    """A machine, a clock, and what came out. ``jitter`` is 0 unless told."""

    def __init__(self, *, strict_wait: bool = False, jitter: float = 0.0) -> None:
        self.machine = Leadership("ledger", TIMINGS, strict_wait=strict_wait)
        self.now = 100.0
        self.jitter = jitter
        self.told: list[Observation] = []
        self.asked: list[Request] = []
        self.put(Tick())

    def put(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event, self.now, self.jitter)
        self.told += [effect.observation for effect in effects if isinstance(effect, Tell)]
        self.asked += [effect for effect in effects if isinstance(effect, Request)]
        return effects

    @property
    def last(self) -> Request:
        return self.asked[-1]

    def done(self) -> None:
        self.put(Done(self.last.id))

    def won(self, token: int = 7, sealed: SealRecord | None = None) -> None:
        assert isinstance(self.last, Acquire), self.last
        self.put(Acquired(self.last.id, Won(token, sealed)))

    def fail(self, cause: Cause = "connection") -> None:
        self.put(Failed(self.last.id, cause))

    def refuse(self, reason: ClaimRefused, seen: int = 0, *, regressed: bool = False) -> None:
        self.put(Refused(self.last.id, reason, seen, regressed))

    def wait(self, seconds: float) -> None:
        """Time passes with a tick at each wakeup."""
        ends = self.now + seconds
        while (wakeup := self.machine.wakeup(self.now)) < ends:
            self.now = wakeup
            self.put(Tick())
        self.now = ends
        self.put(Tick())

    def up_to_campaigning(self) -> Story:
        assert isinstance(self.last, Reclaim)
        self.done()
        assert self.machine.state is State.CANDIDATE
        return self

    def up_to_claiming(self) -> Story:
        self.up_to_campaigning().won()
        assert isinstance(self.last, Claim)
        return self

    def up_to_leading(self) -> Story:
        self.up_to_claiming().done()
        assert self.machine.state is State.LEADING
        self.done()
        return self


def test_a_renewal_that_fell_due_after_the_last_event_is_due_at_once_however_late_one_asks() -> None:
    story = Story().up_to_leading()
    due = story.machine.wakeup(story.now)
    story.now = due - 1e-6  # a timer that fires early
    assert story.put(Tick()) == []

    assert story.machine.wakeup(due + 1e-6) == due


# -- winning --------------------------------------------------------------------------------------


def test_it_first_looks_for_a_term_left_by_an_earlier_life() -> None:
    story = Story()

    assert isinstance(story.last, Reclaim)
    story.fail()
    assert isinstance(story.last, Acquire)


def test_a_won_token_is_claimed_before_it_is_led_or_announced() -> None:
    story = Story().up_to_campaigning()

    story.won(7)

    assert story.machine.state is State.CLAIMING
    assert story.last == Claim(story.last.id, 5.0, 7)
    assert story.told == []
    assert not story.machine.leads(story.now)


def test_a_successful_claim_is_led_and_announced_at_once() -> None:
    story = Story().up_to_claiming()

    story.done()

    assert story.machine.state is State.LEADING
    assert story.machine.leads(story.now)
    assert isinstance(story.last, Renew)
    assert story.told == [LeadershipGained("ledger", 7)]


def test_a_win_that_was_answered_after_a_freeze_is_asked_for_again() -> None:
    story = Story().up_to_campaigning()
    first = story.last
    story.now += 30

    story.won(7)

    assert story.machine.state is State.CANDIDATE
    assert isinstance(story.last, Acquire)
    assert story.last.id != first.id


def test_a_failed_claim_is_tried_again_briskly_and_then_serves_without_a_new_election() -> None:
    story = Story().up_to_claiming()
    for _ in range(9):
        story.fail("store")
        story.wait(0.5)
        assert isinstance(story.last, Claim)

    story.done()

    assert story.machine.state is State.LEADING
    assert story.machine.token == 7


def test_a_candidate_that_waits_in_line_looks_again_after_the_retry_period() -> None:
    story = Story().up_to_campaigning()
    story.put(Acquired(story.last.id, Held(None)))
    count = len(story.asked)

    story.wait(1.9)
    assert len(story.asked) == count
    story.wait(0.2)
    assert isinstance(story.last, Acquire)
    assert len(story.asked) == count + 1


@pytest.mark.parametrize(("jitter", "period"), [(0.0, 2.0), (0.5, 2.2), (1.0, 2.4)])
def test_jitter_stretches_the_retry_period_by_up_to_a_fifth(jitter: float, period: float) -> None:
    story = Story(jitter=jitter).up_to_campaigning()
    story.put(Acquired(story.last.id, Held(None)))

    assert story.machine.wakeup(story.now) == pytest.approx(story.now + period)


def test_a_hint_makes_a_candidate_look_at_once_but_a_storm_of_hints_does_not() -> None:
    story = Story().up_to_campaigning()
    story.put(Acquired(story.last.id, Held(None)))
    story.now += 1
    before = len(story.asked)
    story.put(Hint())
    assert isinstance(story.last, Acquire)

    for _ in range(50):
        story.put(Acquired(story.last.id, Held(None)))
        story.put(Hint())

    assert len(story.asked) == before + 1


def test_a_candidate_whose_store_is_down_leaves_the_line_and_comes_back_when_it_is_up() -> None:
    story = Story().up_to_campaigning()

    story.fail("store")
    assert isinstance(story.last, Withdraw)
    story.done()
    assert not isinstance(story.last, Acquire)
    story.wait(2.1)

    story.won()
    assert story.machine.state is State.CLAIMING


def test_a_candidate_that_cannot_reach_the_quorum_keeps_its_place() -> None:
    story = Story().up_to_campaigning()

    story.fail("quorum")
    story.wait(2.1)

    assert isinstance(story.last, Acquire)
    assert not any(isinstance(request, Withdraw) for request in story.asked)


# -- strict wait ----------------------------------------------------------------------------------


def test_strict_wait_waits_out_the_term_before_and_keeps_the_election_lease_meanwhile() -> None:
    story = Story(strict_wait=True).up_to_campaigning()
    story.won(7)
    assert story.machine.state is State.SETTLING

    waited = 0.0
    while story.machine.state is State.SETTLING:
        assert isinstance(story.last, Keep)
        story.done()
        step = story.machine.wakeup(story.now) - story.now
        story.wait(step)
        waited += step

    assert waited == pytest.approx(16.0)
    assert isinstance(story.last, Claim)


def test_strict_wait_waits_for_the_longer_lease_of_the_holder_before() -> None:
    story = Story(strict_wait=True).up_to_campaigning()
    long = Term("ledger", 6, "b", "dr", "https://b.example", True, 60.0)
    story.put(Acquired(story.last.id, Held(long)))
    story.wait(2.0)
    story.won(7)

    for _ in range(30):
        story.done()
        story.wait(2.0)

    assert story.machine.state is State.SETTLING
    story.done()
    story.wait(1.0)
    assert isinstance(story.last, Claim)


def test_strict_wait_claims_at_once_after_a_seal_record() -> None:
    story = Story(strict_wait=True).up_to_campaigning()

    story.won(7, SealRecord(6, "dr"))

    assert isinstance(story.last, Claim)


def test_losing_the_election_lease_while_settling_ends_without_a_seal_or_a_release() -> None:
    story = Story(strict_wait=True).up_to_campaigning()
    story.won(7)

    story.put(Lost(story.last.id))

    assert story.machine.state is State.CANDIDATE
    assert isinstance(story.last, Withdraw)
    assert not any(isinstance(request, Seal | Release) for request in story.asked)


# -- renewing -------------------------------------------------------------------------------------


def test_it_renews_every_retry_period() -> None:
    story = Story().up_to_leading()

    for _ in range(1000):
        story.wait(2.0)
        assert isinstance(story.last, Renew)
        story.done()

    assert story.machine.state is State.LEADING
    assert story.told == [LeadershipGained("ledger", 7)]


# Field case 70: patroni/patroni#3550, patroni/patroni#3572, patroni/patroni#3403, patroni/patroni#3096,
#   patroni/patroni#2803.
def test_one_failed_renewal_inside_the_deadline_changes_nothing() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.fail()
    assert story.machine.leads(story.now)

    story.wait(2.0)
    story.done()
    story.wait(9.0)

    assert story.machine.state is State.LEADING


def test_without_a_renewal_it_steps_down_at_the_deadline_and_seals() -> None:
    story = Story().up_to_leading()
    renewed_at = story.now

    while story.machine.state is State.LEADING:
        story.wait(story.machine.wakeup(story.now) - story.now)
        if isinstance(story.last, Renew):
            story.fail()

    assert story.now == renewed_at + 10.0
    assert story.told[-1] == LeadershipLost("ledger", 7, "renew_deadline")
    assert isinstance(story.last, Seal)


def test_the_deadline_counts_from_the_start_of_the_renewal_not_from_its_answer() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    asked_at = story.now
    story.now += 4.5
    story.done()

    assert story.machine.deadline == asked_at + 10.0


def test_a_renewal_that_hangs_ends_the_term_at_the_deadline_not_when_it_returns() -> None:
    story = Story().up_to_leading()
    hung = story.machine.deadline

    story.wait(9.99)
    assert story.machine.leads(story.now)
    story.wait(0.01)

    assert story.now == hung
    assert story.machine.state is State.SEALING


def test_a_failure_told_at_the_limit_keeps_its_cause() -> None:
    """Both limits end at one instant: the machine must not take the store's failure for one of nobody in particular."""
    story = Story().up_to_leading()
    story.wait(2.0)
    story.now += story.last.limit

    story.put(Tick())
    story.fail("store")
    story.wait(4.0)

    assert story.told[-1] == LeadershipLost("ledger", 7, "store")


def test_a_short_last_try_does_not_clear_the_store_of_its_failure() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.fail("store")
    story.wait(7.5)
    story.fail("timeout")
    story.wait(1.0)

    assert story.told[-1] == LeadershipLost("ledger", 7, "store")


def test_no_renewal_begins_that_has_no_time_to_succeed() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.now = story.machine.deadline - 0.01
    asked = len(story.asked)

    story.fail("connection")

    assert len(story.asked) == asked
    assert story.machine.wakeup(story.now) == story.machine.deadline
    story.wait(0.02)
    assert isinstance(story.last, Seal)


def test_a_request_that_is_never_answered_is_given_up_soon_after_its_limit() -> None:
    story = Story().up_to_campaigning()

    story.wait(story.last.limit + 0.4)
    assert len(story.asked) == 2
    story.wait(0.2)

    assert len(story.asked) == 3


# Field case 17: leapmux/leapmux#403.
def test_frozen_for_twice_the_lease_it_is_no_leader_before_it_does_anything_else() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    renewal = story.last
    assert isinstance(renewal, Renew)

    story.now += 30.0
    assert not story.machine.leads(story.now)
    effects = story.put(Done(renewal.id))

    assert effects[0] == Tell(LeadershipLost("ledger", 7, "renew_deadline"))
    assert not any(isinstance(effect, Renew | Claim) for effect in effects)
    assert story.machine.state is State.SEALING


def test_the_answer_to_another_request_is_ignored() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    deadline = story.machine.deadline

    story.put(Done(story.last.id - 1))
    story.put(Lost(story.last.id + 1))

    assert story.machine.deadline == deadline
    assert story.machine.state is State.LEADING


# Field case 8: fabric8io/kubernetes-client#7343.
def test_an_answer_that_comes_twice_counts_once() -> None:
    story = Story().up_to_claiming()
    claim = story.last

    story.put(Done(claim.id))
    story.put(Done(claim.id))

    assert story.told == [LeadershipGained("ledger", 7)]


# Field case 31: PostHog/posthog#74478.
def test_a_request_is_never_given_more_time_than_the_term_has_left() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.now += 4
    story.fail()
    story.wait(0.0)

    assert isinstance(story.last, Renew)
    assert story.now + story.last.limit <= story.machine.deadline


# -- losing ---------------------------------------------------------------------------------------


def test_a_lost_lease_is_sealed_and_not_released() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.put(Lost(story.last.id))
    assert story.told[-1] == LeadershipLost("ledger", 7, "lost")

    assert isinstance(story.last, Seal)
    story.put(Sealed(story.last.id, known=True))

    assert story.machine.state is State.CANDIDATE
    assert not any(isinstance(request, Release) for request in story.asked)
    assert story.machine.last_end == Ended(7, "lost", sealed=True, released=False)


def test_after_a_loss_it_stands_anew_at_once() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.put(Lost(story.last.id))
    story.put(Sealed(story.last.id, known=True))

    assert isinstance(story.last, Withdraw)
    story.done()
    story.won(9)

    assert story.machine.token == 9


def test_an_unknown_seal_is_tried_until_the_lease_has_lapsed_and_nothing_is_released() -> None:
    story = Story().up_to_leading()
    renewed_at = story.now
    story.put(Resign("operator"))
    story.done()  # drained
    assert isinstance(story.last, Seal)

    while story.machine.state is State.SEALING:
        if isinstance(story.last, Seal):
            story.put(Sealed(story.last.id, known=False))
        story.wait(story.machine.wakeup(story.now) - story.now)

    assert story.now >= renewed_at + TIMINGS.lease_duration
    assert sum(isinstance(request, Seal) for request in story.asked) > 3
    assert not any(isinstance(request, Release) for request in story.asked)
    assert TermSealed("ledger", 7, False) in story.told


def test_a_store_that_is_down_gives_the_leadership_up_and_lets_another_region_win() -> None:
    story = Story().up_to_leading()
    while story.machine.state is State.LEADING:
        story.wait(story.machine.wakeup(story.now) - story.now)
        if isinstance(story.last, Renew):
            story.fail("store")
    assert story.told[-1] == LeadershipLost("ledger", 7, "store")

    while story.machine.state is State.SEALING:
        story.fail("store")
        story.wait(1.0)
    ended_at = story.now
    story.done()  # withdrawn
    story.wait(HOLD_OFF - 1.5)
    assert not isinstance(story.last, Acquire)
    story.wait(1.5)

    assert isinstance(story.last, Acquire)
    assert story.now >= ended_at + TIMINGS.lease_duration


def test_sealed_by_somebody_else_it_steps_down_and_gives_the_lease_back() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.refuse(ClaimRefused.SEALED)
    assert story.told[-2:] == [ClaimWasRefused("ledger", 7, "sealed"), LeadershipLost("ledger", 7, "sealed")]

    story.put(Sealed(story.last.id, known=True))

    assert isinstance(story.last, Release)


def test_a_store_that_failed_over_ends_the_term() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)

    story.refuse(ClaimRefused.INCARNATION)

    assert story.told[-1] == LeadershipLost("ledger", 7, "incarnation")
    assert isinstance(story.last, Seal)


def test_superseded_while_leading_it_touches_neither_the_newer_terms_row_nor_its_key() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)

    story.refuse(ClaimRefused.SUPERSEDED, 8)

    assert story.told[1:3] == [ClaimWasRefused("ledger", 7, "superseded"), LeadershipLost("ledger", 7, "superseded")]
    assert not any(isinstance(request, Seal | Release) for request in story.asked)
    assert story.machine.state is State.CANDIDATE


def test_a_token_gone_back_is_alarmed_never_led_and_tried_again_at_the_leases_pace() -> None:
    story = Story().up_to_claiming()

    story.refuse(ClaimRefused.SUPERSEDED, 1200, regressed=True)

    assert TokenRegressed("ledger", 7, 1200) in story.told
    assert not any(isinstance(fact, LeadershipGained) for fact in story.told)
    story.done()  # withdrawn
    story.wait(HOLD_OFF - 0.1)
    assert not isinstance(story.last, Acquire)
    story.wait(0.2)
    assert isinstance(story.last, Acquire)


def test_a_claim_whose_time_ran_out_is_a_failure_like_any_other() -> None:
    story = Story().up_to_claiming()

    story.refuse(ClaimRefused.EXPIRED)
    story.wait(2.0)
    story.done()

    assert story.machine.state is State.LEADING


def test_without_a_fence_it_gives_up_and_holds_off() -> None:
    story = Story().up_to_claiming()

    story.refuse(ClaimRefused.NO_FENCE)

    assert story.machine.state is State.CANDIDATE
    assert not any(isinstance(request, Seal) for request in story.asked)


# -- resigning ------------------------------------------------------------------------------------


# Field case 10: vmware/pinniped#800.
def test_resigning_stops_admitting_then_seals_then_releases_then_holds_off() -> None:
    story = Story().up_to_leading()
    before = len(story.asked)

    story.put(Resign("operator"))
    assert not story.machine.leads(story.now)
    story.done()
    story.put(Sealed(story.last.id, known=True))
    story.put(Released(story.last.id, True))
    story.done()

    assert [type(request) for request in story.asked[before:]] == [Drain, Seal, Release, Withdraw]
    assert story.told[1:] == [LeadershipLost("ledger", 7, "operator"), TermSealed("ledger", 7, True)]
    assert story.machine.last_end == Ended(7, "operator", sealed=True, released=True)
    story.wait(HOLD_OFF - 0.1)
    assert not isinstance(story.last, Acquire)
    story.wait(0.2)
    assert isinstance(story.last, Acquire)


def test_no_renewal_follows_a_resignation() -> None:
    story = Story().up_to_leading()
    story.wait(2.0)
    story.put(Resign("operator"))
    after = len(story.asked)

    for _ in range(200):
        story.wait(0.5)

    assert not any(isinstance(request, Renew | Claim | Keep) for request in story.asked[after:][:5])


def test_draining_that_fails_or_hangs_does_not_keep_the_seal_waiting() -> None:
    story = Story().up_to_leading()
    story.put(Resign("operator"))
    assert isinstance(story.last, Drain)

    story.wait(5.6)

    assert isinstance(story.last, Seal)


def test_a_release_that_fails_is_tried_again_and_then_left_to_lapse() -> None:
    story = Story().up_to_leading()
    story.put(Resign("operator"))
    story.done()
    story.put(Sealed(story.last.id, known=True))

    while story.machine.state is State.RELEASING:
        if isinstance(story.last, Release):
            story.fail("quorum")
        story.wait(story.machine.wakeup(story.now) - story.now)

    assert sum(isinstance(request, Release) for request in story.asked) > 3
    assert story.machine.last_end == Ended(7, "operator", sealed=True, released=False)


def test_resigning_a_term_that_is_just_ending_by_itself_holds_off_as_well() -> None:
    story = Story().up_to_leading()
    while story.machine.state is State.LEADING:
        story.fail()
        story.wait(1)
    assert story.machine.state is State.SEALING
    story.put(Resign("operator"))
    story.put(Sealed(story.last.id, True))
    story.put(Released(story.last.id, True))
    ended = story.now
    assert isinstance(story.last, Withdraw)
    story.done()
    while not isinstance(story.last, Acquire):
        story.wait(0.5)
    assert story.machine._pace.asked_at - ended == HOLD_OFF, "another region can win meanwhile"


def test_stopping_goes_the_same_way_and_never_campaigns_again() -> None:
    story = Story().up_to_leading()
    story.put(Resign("shutdown", stop=True))
    story.done()
    story.put(Sealed(story.last.id, known=True))
    story.put(Released(story.last.id, True))

    assert story.machine.state is State.STOPPED
    assert story.put(Tick()) == []
    assert story.put(Resign("again")) == []


@pytest.mark.parametrize("win", [False, True])
def test_stopping_a_candidate_stops_at_once_even_if_its_win_is_under_way(win: bool) -> None:
    story = Story().up_to_campaigning()
    acquire = story.last

    story.put(Resign("shutdown", stop=True))
    if win:
        story.put(Acquired(acquire.id, Won(7)))

    assert story.machine.state is State.STOPPED
    assert story.machine.token == 0


def test_stopping_while_claiming_seals_first() -> None:
    story = Story().up_to_claiming()

    story.put(Resign("shutdown", stop=True))
    assert isinstance(story.last, Seal)
    story.put(Sealed(story.last.id, known=True))
    story.put(Released(story.last.id, True))

    assert story.machine.state is State.STOPPED


def test_a_stop_during_a_resignation_is_kept_in_mind() -> None:
    story = Story().up_to_leading()
    story.put(Resign("operator"))
    story.put(Resign("shutdown", stop=True))
    story.done()
    story.put(Sealed(story.last.id, known=True))
    story.put(Released(story.last.id, True))

    assert story.machine.state is State.STOPPED


# -- handing over ---------------------------------------------------------------------------------


def handing(limit: float = 10.0) -> Story:
    story = Story().up_to_leading()
    story.put(Handoff("dr", limit))
    return story


def test_a_handoff_announces_stops_writes_seals_and_releases_to_the_successor() -> None:
    story = Story().up_to_leading()
    before = len(story.asked)

    story.put(Handoff("dr", 10))
    assert story.last == Renew(story.last.id, 5.0, 7, draining_to="dr")
    story.done()
    assert story.machine.state is State.YIELDING
    assert story.machine.leads(story.now)
    story.done()
    assert not story.machine.leads(story.now)
    story.put(Sealed(story.last.id, known=True))
    assert story.last == Release(story.last.id, 5.0, 7, "dr")
    story.put(Released(story.last.id, True))
    story.done()

    assert [type(request) for request in story.asked[before:]] == [Renew, Drain, Seal, Release, Withdraw]
    assert story.told[1:] == [
        HandoffBegan("ledger", 7, "dr"),
        LeadershipLost("ledger", 7, "handoff"),
        TermSealed("ledger", 7, True),
        HandoffEnded("ledger", 7, "dr", "released"),
    ]
    story.wait(TIMINGS.hold_back - 0.1)
    assert not isinstance(story.last, Acquire)
    story.wait(0.2)
    assert isinstance(story.last, Acquire), "it stands again within a lease"


def test_the_term_is_renewed_while_its_writes_end_and_nothing_is_sealed_before_they_have() -> None:
    story = handing(60)
    story.done()
    for _ in range(40):
        story.put(Undrained(story.last.id, 1)) if isinstance(story.last, Drain) else story.done()
        story.wait(0.5)

    assert story.machine.state is State.YIELDING
    renewals = [request for request in story.asked if isinstance(request, Renew) and request.draining_to]
    assert len(renewals) >= 9
    assert not any(isinstance(request, Seal) for request in story.asked)


@pytest.mark.parametrize("announced", [False, True])
def test_a_handoff_whose_time_is_up_is_taken_back_and_it_leads_on(announced: bool) -> None:
    story = handing(3)
    if announced:
        story.done()
        story.put(Undrained(story.last.id, 1))
    while story.machine.state is not State.UNDOING:
        story.wait(0.1)
        if isinstance(story.last, Renew) and story.machine.state is State.YIELDING and story.machine.pending_id:
            story.done()
    assert story.now == pytest.approx(103, abs=0.11)

    assert story.last == Renew(story.last.id, pytest.approx(5.0), 7, undrain=True)
    assert story.machine.leads(story.now)
    story.done()

    assert story.machine.state is State.LEADING
    assert story.told[1:] == [HandoffBegan("ledger", 7, "dr"), HandoffEnded("ledger", 7, "dr", "undone")]
    story.wait(2.1)
    assert isinstance(story.last, Renew)
    assert story.last.undrain, "a late stop of the store is taken back for a lease"


def test_an_undo_that_fails_is_tried_until_the_term_ends_by_its_deadline() -> None:
    story = handing(1)
    for _ in range(200):
        if story.machine.state not in LED:
            break
        story.fail("store")
        story.wait(0.3)

    assert story.told[-1] == LeadershipLost("ledger", 7, "store")
    assert HandoffEnded("ledger", 7, "dr", "abandoned") in story.told


def test_asking_twice_is_one_handoff_and_asking_for_another_region_changes_nothing() -> None:
    story = handing()
    count = len(story.asked)

    story.put(Handoff("dr", 99))
    story.put(Handoff("us", 99))

    assert story.machine.handing is not None
    assert (story.machine.handing.to, story.machine.handing.ends) == ("dr", 110.0)
    assert len(story.asked) == count


def test_only_a_leader_hands_over() -> None:
    story = Story().up_to_campaigning()
    story.put(Handoff("dr", 10))

    assert story.machine.handing is None
    assert story.machine.state is State.CANDIDATE


def test_an_unknown_seal_in_a_handoff_leaves_the_lease_to_lapse() -> None:
    story = handing()
    story.done()
    story.done()
    while story.machine.state is State.SEALING:
        if story.machine.pending_id:
            story.fail("store")
        story.wait(story.machine.wakeup(story.now) - story.now)

    assert not any(isinstance(request, Release) for request in story.asked)
    assert story.told[-1] == HandoffEnded("ledger", 7, "dr", "lapsing")
    assert story.now < 100 + TIMINGS.lease_duration + 1


def test_stopping_during_a_handoff_seals_and_names_no_successor() -> None:
    story = handing()
    story.put(Resign("shutdown", stop=True))
    story.done()
    story.put(Sealed(story.last.id, known=True))

    assert story.last == Release(story.last.id, 5.0, 7, None)
    assert HandoffEnded("ledger", 7, "dr", "abandoned") in story.told


def test_a_hint_during_a_try_makes_another_one_follow_it() -> None:
    story = Story().up_to_campaigning()
    first = story.last
    story.now += 1
    story.put(Hint())
    story.put(Acquired(first.id, Held(None)))

    assert isinstance(story.last, Acquire)
    assert story.last.id != first.id


def test_its_repr_says_where_it_stands() -> None:
    assert "campaigning" in repr(Story().up_to_campaigning().machine)


# -- any history ----------------------------------------------------------------------------------

SECONDS = st.one_of(st.floats(0, 3), st.floats(0, 40), st.just(30.0))
JITTER = st.floats(0, 1)
CAUSES = st.sampled_from(["timeout", "connection", "quorum", "refused", "store"])


class AnyHistory(RuleBasedStateMachine):
    """Answers right, wrong, late, twice and never; time that passes and time that jumps."""

    @initialize(strict=st.booleans())
    def begin(self, strict: bool) -> None:
        self.machine = Leadership("ledger", TIMINGS, strict_wait=strict)
        self.now = 50.0
        self.next_token = 1
        self.strict = strict
        self.requests: list[Request] = []
        self.asked_at: dict[int, float] = {}
        self.claimed: set[int] = set()
        self.known_sealed: set[int] = set()
        self.sealing_began: set[int] = set()
        self.drained: set[int] = set()
        self.handed_until = -math.inf
        self.proved_at = -math.inf
        self.put(Tick(), 0.0)

    def put(self, event: Event, jitter: float) -> None:
        frozen_too_long = self.machine.state in HOLDING and self.now >= self.machine.deadline
        effects = self.machine.handle(event, self.now, jitter)
        if frozen_too_long:
            assert self.machine.state not in HOLDING, "took an event before it looked at its clock"
        for effect in effects:
            if isinstance(effect, Request):
                self.asked(effect)
            elif isinstance(effect.observation, LeadershipGained):
                assert effect.observation.token in self.claimed, "led before its claim"

    def asked(self, request: Request) -> None:
        assert 0 < request.limit <= TIMINGS.lease_duration
        self.requests.append(request)
        self.asked_at[request.id] = self.now
        token = getattr(request, "token", 0)
        if isinstance(request, Renew):
            assert token in self.claimed, "announced before its claim"
        if isinstance(request, Keep | Claim | Renew):
            assert token not in self.sealing_began, "renewed after the sealing began"
            assert self.now + request.limit <= self.machine.deadline + 1e-9
        if isinstance(request, Renew) and request.undrain:
            assert token not in self.sealing_began, "taken back after the sealing began"
        if isinstance(request, Seal):
            self.sealing_began.add(token)
        if isinstance(request, Release):
            assert token in self.known_sealed, "released without a known seal"
            assert request.successor is None or token in self.drained, "handed over undrained"

    @rule(seconds=SECONDS, jitter=JITTER)
    def time_passes_with_ticks(self, seconds: float, jitter: float) -> None:
        ends = self.now + seconds
        for _ in range(10_000):
            wakeup = self.machine.wakeup(self.now)
            if wakeup >= ends:
                break
            self.now = max(self.now, wakeup)
            self.put(Tick(), jitter)
            assert self.machine.wakeup(self.now) > self.now, "the machine spins"
        else:
            raise AssertionError("the machine spins")
        self.now = ends
        self.put(Tick(), jitter)

    @rule(seconds=SECONDS)
    def the_process_is_frozen(self, seconds: float) -> None:
        self.now += seconds

    @rule(jitter=JITTER, event=st.sampled_from([Hint(), Tick()]))
    def something_stirs(self, jitter: float, event: Event) -> None:
        self.put(event, jitter)

    @rule(jitter=JITTER)
    def an_operator_resigns_it(self, jitter: float) -> None:
        self.put(Resign("operator"), jitter)

    @rule(jitter=JITTER, to=st.sampled_from(["dr", "us"]), limit=st.floats(0.1, 30))
    def an_operator_hands_it_over(self, jitter: float, to: str, limit: float) -> None:
        free = self.machine.handing is None
        self.put(Handoff(to, limit), jitter)
        if free and self.machine.handing is not None:
            self.handed_until = self.now + limit

    @precondition(lambda self: self.machine.pending_id)
    @rule(jitter=JITTER, left=st.integers(1, 3))
    def writes_are_still_under_way(self, jitter: float, left: int) -> None:
        if isinstance(self.requests[-1], Drain):
            self.put(Undrained(self.requests[-1].id, left), jitter)

    @precondition(lambda self: self.machine.pending_id)
    @rule(jitter=JITTER, good=st.booleans(), sealed=st.booleans(), cause=CAUSES)
    def the_request_is_answered(self, jitter: float, good: bool, sealed: bool, cause: Cause) -> None:
        request = self.requests[-1]
        id_, token = request.id, getattr(request, "token", 0)
        event: Event = Failed(id_, cause)
        if good and isinstance(request, Acquire):
            token, self.next_token = self.next_token, self.next_token + 1
            event = Acquired(id_, Won(token, SealRecord(token - 1, "dr") if sealed else None))
        elif good and isinstance(request, Seal):
            event = Sealed(id_, known=sealed)
            if sealed:
                self.known_sealed.add(token)
        elif good and isinstance(request, Release):
            event = Released(id_, True)
        elif good:
            event = Done(id_)
            if isinstance(request, Drain):
                self.drained.add(token)
        alive = self.machine.state not in HOLDING or self.now < self.machine.deadline
        if good and alive and isinstance(request, Claim):
            self.claimed.add(token)
        if good and alive and isinstance(request, Acquire | Keep | Claim | Renew):
            self.proved_at = self.asked_at[id_]
        self.put(event, jitter)

    @precondition(lambda self: self.machine.pending_id)
    @rule(jitter=JITTER, token=st.integers(-5, 5), reason=st.sampled_from(list(ClaimRefused)), regressed=st.booleans())
    def the_term_is_denied(self, jitter: float, token: int, reason: ClaimRefused, regressed: bool) -> None:
        request = self.requests[-1]
        if not isinstance(request, Keep | Claim | Renew):
            return
        if token > 0 or isinstance(request, Keep):
            self.put(Lost(request.id), jitter)
        else:
            self.put(Refused(request.id, reason, 10**6, regressed), jitter)

    @precondition(lambda self: len(self.requests) > 1)
    @rule(data=st.data(), jitter=JITTER)
    def an_old_request_is_answered(self, data: st.DataObject, jitter: float) -> None:
        old = data.draw(st.sampled_from(self.requests[:-1]))
        for event in (Done(old.id), Acquired(old.id, Won(10**9)), Sealed(old.id, True), Released(old.id, True)):
            before, token = self.machine.deadline, self.machine.token
            held = self.machine.state in HOLDING and self.now < self.machine.deadline
            self.put(event, jitter)
            if held and self.machine.state in HOLDING and self.machine.token == token:
                assert self.machine.deadline == before, "an answer to another request counted"

    @invariant()
    def it_leads_only_within_the_deadline_of_a_proof(self) -> None:
        if self.machine.leads(self.now):
            assert self.machine.token in self.claimed
            assert self.now < self.proved_at + TIMINGS.renew_deadline

    @invariant()
    def a_handoff_is_undone_or_sealing_once_its_time_is_up(self) -> None:
        if self.machine.state in (State.ANNOUNCING, State.YIELDING):
            assert self.machine.handing is not None
        if self.machine.state in (State.LEADING, State.CANDIDATE, State.STOPPED):
            assert self.machine.handing is None

    @invariant()
    def its_wakeup_is_finite(self) -> None:
        assert self.machine.wakeup(self.now) <= self.now + TIMINGS.lease_duration

    @invariant()
    def no_wakeup_is_missed_by_asking_for_it_late(self) -> None:
        ahead = self.machine.wakeup(self.now)
        if ahead < self.now + TIMINGS.lease_duration:
            assert self.machine.wakeup(ahead + 0.001) == ahead

    @invariant()
    def a_token_that_never_was_issued_is_never_held(self) -> None:
        assert self.machine.token < self.next_token

    def teardown(self) -> None:
        """Whatever has happened: with everything healthy again it leads within a bounded time."""
        if not hasattr(self, "machine"):
            return
        ends = self.now + 6 * TIMINGS.lease_duration
        while self.now < ends and not self.machine.leads(self.now):
            if self.machine.pending_id:
                self.the_request_is_answered(0.0, True, True, "timeout")
            else:
                self.now = max(self.now, self.machine.wakeup(self.now))
                self.put(Tick(), 0.0)
        assert self.machine.leads(self.now), self.machine


AnyHistory.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
