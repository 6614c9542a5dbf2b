"""The retry machine: the rows of its transition table, then its promises as properties."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.client import machine
from fencegate.client.answers import Answer, Lost, read_answer
from fencegate.client.machine import (
    Done,
    Fail,
    Failure,
    Found,
    Nobody,
    Operation,
    Policy,
    Rediscover,
    Send,
)
from fencegate.client.policy import RetryBudget
from fencegate.errors import PROBLEMS

A, B, PLAIN = "https://a.example", "https://b.example", "http://c.example"
POLICY = Policy((A, B, PLAIN))
WRITE = Operation(deadline=100.0, origin=A, token=42, key="k")
NEW = Operation(deadline=100.0, key="k")
ACCEPTED = Answer(201, "accepted", applied="yes")


def refusal(code: str, **facts: object) -> Answer:
    problem = PROBLEMS[code]
    return replace(Answer(problem.status, code, problem.retry, problem.applied), **facts)


def observe(operation: Operation, answer: Answer | Lost, *, now: float = 0.0, jitter: float = 0.5, budget: float = 5.0):
    return machine.observe(POLICY, operation, answer, now=now, jitter=jitter, budget=budget)


def found(operation: Operation, result: Found | Nobody, *, now: float = 0.0, budget: float = 5.0):
    return machine.found(POLICY, operation, result, now=now, jitter=0.5, budget=budget)


# -- one row each ---------------------------------------------------------------------------------


def test_an_accepted_write_is_done() -> None:
    assert observe(WRITE, ACCEPTED) == Done(replayed=False)
    assert observe(WRITE, replace(ACCEPTED, replayed=True)) == Done(replayed=True)


def test_an_accepted_write_whose_body_was_cut_off_is_asked_for_again_with_its_key() -> None:
    cut = replace(ACCEPTED, complete=False)
    again = observe(WRITE, cut)
    assert isinstance(again, Send)
    assert (again.operation.origin, again.operation.key, again.cost) == (A, "k", 1)
    failed = observe(replace(WRITE, key=None), cut)
    assert isinstance(failed, Fail)
    assert failed.failure is Failure.OUTCOME_UNKNOWN


@pytest.mark.parametrize("code", [code for code, problem in PROBLEMS.items() if not problem.retryable])
def test_a_refusal_for_good_fails_at_once(code: str) -> None:
    failed = observe(WRITE, refusal(code, retry_after=1.0))
    assert isinstance(failed, Fail)
    assert failed.failure is Failure.REFUSED
    assert failed.operation.code == code


def test_a_stale_token_follows_the_hint_under_the_newer_token_with_the_same_key() -> None:
    hop = observe(WRITE, refusal("stale_token", max_seen=43, leader=B))
    assert isinstance(hop, Send)
    assert (hop.operation.origin, hop.operation.token, hop.operation.key, hop.cost) == (B, 43, "k", 0)


def test_a_wrong_region_is_left_for_the_hint_under_the_same_token() -> None:
    hop = observe(WRITE, refusal("not_leader", max_seen=40, leader=B))
    assert isinstance(hop, Send)
    assert (hop.operation.origin, hop.operation.token) == (B, 42)


@pytest.mark.parametrize(
    ("leader", "why"),
    [
        (None, "no hint"),
        ("https://evil.example", "outside the client's own list"),
        (PLAIN, "from https down to http"),
        (A, "the origin that has just refused, under no newer token"),
    ],
)
def test_a_hint_that_may_not_be_followed_leads_to_discovery(leader: str | None, why: str) -> None:
    decision = observe(WRITE, refusal("not_leader", leader=leader))
    assert isinstance(decision, Rediscover), why
    assert decision.not_before >= POLICY.backoff_base


def test_a_hint_of_a_lower_token_than_the_known_one_is_not_followed() -> None:
    assert isinstance(observe(WRITE, refusal("not_leader", leader=B, leader_token=41)), Rediscover)
    heard = replace(WRITE, floor=50)
    assert isinstance(observe(heard, refusal("not_leader", leader=B, leader_token=49)), Rediscover)
    overtaken = refusal("stale_token", max_seen=44, leader=B, leader_token=43)
    assert isinstance(observe(WRITE, overtaken), Rediscover), "the answer itself knows of a newer term"


def test_a_stale_token_answer_that_names_no_newer_token_is_not_followed() -> None:
    assert isinstance(observe(WRITE, refusal("stale_token", max_seen=42, leader=B)), Rediscover)


def test_a_third_hint_is_not_followed() -> None:
    assert isinstance(observe(replace(WRITE, hops=2), refusal("not_leader", leader=B)), Rediscover)


@pytest.mark.parametrize("code", ["no_leader", "draining"])
def test_without_a_leader_the_client_asks_again_who_leads_instead_of_sending(code: str) -> None:
    decision = observe(WRITE, refusal(code, retry_after=3.0))
    assert isinstance(decision, Rediscover)
    assert decision.not_before >= 3.0


@pytest.mark.parametrize("code", ["fence_unavailable", "overloaded", "too_early", "request_timeout"])
def test_after_delay_is_sent_again_to_the_same_origin_after_the_delay(code: str) -> None:
    decision = observe(WRITE, refusal(code, retry_after=2.0))
    assert isinstance(decision, Send)
    assert decision.operation.origin == A
    assert 2.0 <= decision.not_before <= 2.0 + POLICY.backoff_cap
    assert decision.cost == 1


@pytest.mark.parametrize(
    "answer",
    [
        refusal("outcome_unknown"),
        refusal("idempotency_in_progress", retry_after=1.0),
        Lost(sent=True),
        Answer(502),
        Answer(200),
        Answer(301),
    ],
)
def test_an_unknown_outcome_is_asked_for_again_only_with_a_key(answer: Answer | Lost) -> None:
    again = observe(WRITE, answer)
    assert isinstance(again, Send)
    assert again.operation.unknown
    assert (again.operation.origin, again.operation.key) == (A, "k")
    failed = observe(replace(WRITE, key=None), answer)
    assert isinstance(failed, Fail)
    assert failed.failure is Failure.OUTCOME_UNKNOWN


def test_a_write_that_was_never_sent_looks_for_the_leader_elsewhere_even_without_a_key() -> None:
    decision = observe(replace(WRITE, key=None), Lost(sent=False))
    assert isinstance(decision, Rediscover)
    assert not decision.operation.unknown


def test_one_unknown_try_makes_every_later_failure_an_unknown_outcome() -> None:
    doubtful = replace(WRITE, unknown=True)
    for code in ("body_too_large", "token_not_issued", "idempotency_key_reused"):
        failed = observe(doubtful, refusal(code))
        assert isinstance(failed, Fail)
        assert failed.failure is Failure.OUTCOME_UNKNOWN
    late = machine.expired(doubtful, 100.0)
    assert late is not None
    assert late.failure is Failure.OUTCOME_UNKNOWN
    assert machine.given_up(doubtful, "client_closed").failure is Failure.OUTCOME_UNKNOWN


GRANTED = replace(WRITE, grant="grant of 42")


@pytest.mark.parametrize("code", ["grant_required", "grant_expired"])
def test_a_grant_that_is_wanting_is_asked_for_at_once_for_the_same_operation(code: str) -> None:
    asked = observe(GRANTED, refusal(code), budget=0.0)
    assert isinstance(asked, Rediscover)
    assert asked.not_before <= POLICY.backoff_base
    assert (asked.operation.key, asked.operation.token, asked.operation.grant) == ("k", 42, None)
    again = found(asked.operation, Found(A, A, 42, "another"), budget=0.0)
    assert isinstance(again, Send)
    assert (again.operation.token, again.operation.grant, again.cost) == (42, "another", 0)


def test_the_second_new_grant_waits_and_there_is_no_third() -> None:
    second = observe(replace(GRANTED, renewed=1), refusal("grant_expired"))
    assert isinstance(second, Rediscover)
    assert second.not_before >= POLICY.backoff_base
    third = observe(replace(GRANTED, renewed=2), refusal("grant_expired"))
    assert isinstance(third, Fail)
    assert (third.failure, third.operation.code) == (Failure.REFUSED, "grant_expired")


def test_a_pinned_token_is_sent_again_for_its_grant_is_its_owners_and_its_term_is_not_over() -> None:
    pinned = replace(GRANTED, pinned=True)
    again = observe(pinned, refusal("grant_expired"), budget=0.0)
    assert isinstance(again, Send)
    assert (again.operation.origin, again.operation.token) == (A, 42)
    ended = observe(replace(pinned, renewed=2), refusal("grant_expired"))
    assert isinstance(ended, Fail)
    assert (ended.failure, ended.superseded) == (Failure.REFUSED, False)


def test_a_hint_is_followed_with_a_grant_only_under_the_grants_own_token() -> None:
    same = observe(GRANTED, refusal("not_leader", leader=B, leader_token=42))
    assert isinstance(same, Send)
    assert (same.operation.origin, same.operation.grant) == (B, "grant of 42")
    newer = observe(GRANTED, refusal("stale_token", max_seen=43, leader=B, leader_token=44))
    assert isinstance(newer, Rediscover)
    assert (newer.operation.grant, newer.operation.floor, newer.operation.hops) == (None, 44, 1)
    assert newer.not_before <= POLICY.backoff_base
    assert isinstance(found(newer.operation, Found(A, A, 43, "too old")), Rediscover)


def test_no_grant_shows_where_an_operation_is_printed() -> None:
    assert "grant of" not in repr(GRANTED) + repr(Found(A, A, 42, "grant of 42"))


# Field case A14: will-ockmore/httpx-retries#57, urllib3/urllib3#3743.
def test_a_retry_after_of_a_year_is_capped_and_ends_at_the_deadline() -> None:
    year = refusal("overloaded", retry_after=31_536_000.0)
    capped = observe(WRITE, year)
    assert isinstance(capped, Send)
    assert capped.not_before <= POLICY.retry_after_cap + POLICY.backoff_cap
    ended = observe(replace(WRITE, deadline=5.0), year)
    assert isinstance(ended, Fail)
    assert (ended.failure, ended.out_of_time) == (Failure.DEADLINE, True)


def test_an_empty_budget_ends_repeats_but_not_moves_to_a_newer_term() -> None:
    failed = observe(WRITE, refusal("overloaded"), budget=0.5)
    assert isinstance(failed, Fail)
    assert failed.failure is Failure.EXHAUSTED
    assert isinstance(observe(WRITE, refusal("stale_token", max_seen=43, leader=B), budget=0.0), Send)
    tried = replace(WRITE, tries=1)
    assert isinstance(found(tried, Found(B, B, 43), budget=0.0), Send)
    assert isinstance(found(tried, Found(B, B, 42), budget=0.0), Fail)


def test_the_budget_earns_a_tenth_per_operation_up_to_its_burst() -> None:
    budget = RetryBudget(ratio=0.1, burst=2.0, left=0.0)
    for _ in range(10):
        budget = budget.earned()
    assert budget.left == pytest.approx(1.0)
    assert budget.spent(1).left == pytest.approx(0.0)
    for _ in range(100):
        budget = budget.earned()
    assert budget.left == 2.0


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (refusal("no_leader"), Failure.NO_LEADER),
        (refusal("not_leader"), Failure.NOT_LEADER),
        (refusal("stale_token", max_seen=43), Failure.STALE),
        (refusal("overloaded"), Failure.DEADLINE),
    ],
)
def test_when_time_is_up_the_reason_is_kept(answer: Answer, failure: Failure) -> None:
    ended = observe(replace(WRITE, deadline=10.01), answer, now=10.0, jitter=0.9)
    assert isinstance(ended, Fail)
    assert (ended.failure, ended.out_of_time) == (failure, True)


def test_the_last_try_of_the_policy_is_the_last() -> None:
    before = replace(WRITE, tries=POLICY.max_tries - 2)
    assert isinstance(observe(before, refusal("overloaded")), Send)
    last = replace(WRITE, tries=POLICY.max_tries - 1)
    for answer in (refusal("overloaded"), refusal("no_leader"), refusal("stale_token", max_seen=43, leader=B)):
        ended = observe(last, answer)
        assert isinstance(ended, Fail), answer
        assert not ended.out_of_time


def test_asking_who_leads_is_never_a_busy_loop_whatever_the_jitter() -> None:
    for decision in (
        observe(WRITE, refusal("no_leader", retry_after=0.0), jitter=0.0),
        machine.found(POLICY, NEW, Nobody("no_leader"), now=0.0, jitter=0.0, budget=0.0),
    ):
        assert isinstance(decision, Rediscover)
        assert decision.not_before == POLICY.backoff_base


# -- discovery ------------------------------------------------------------------------------------


def test_a_discovered_leader_of_the_list_is_sent_to_at_once() -> None:
    decision = found(NEW, Found(A, B, 7))
    assert isinstance(decision, Send)
    assert (decision.operation.origin, decision.operation.token, decision.not_before, decision.cost) == (B, 7, 0.0, 0)


@pytest.mark.parametrize("leader", [None, "https://elsewhere.example", PLAIN])
def test_a_leader_outside_the_list_or_below_https_is_reached_through_who_told_of_it(leader: str | None) -> None:
    decision = found(NEW, Found(A, leader, 7))
    assert isinstance(decision, Send)
    assert (decision.operation.origin, decision.operation.token) == (A, 7)


def test_a_discovered_leader_that_is_older_than_what_is_known_is_asked_for_again() -> None:
    assert isinstance(found(replace(WRITE, floor=43), Found(B, B, 42)), Rediscover)


def test_nobody_leading_is_asked_for_again_after_the_delay_and_keeps_its_reason() -> None:
    decision = found(NEW, Nobody("no_leader", 2.0))
    assert isinstance(decision, Rediscover)
    assert decision.not_before >= 2.0
    ended = found(replace(NEW, deadline=1.0), Nobody("no_leader", 2.0))
    assert isinstance(ended, Fail)
    assert ended.failure is Failure.NO_LEADER
    unreachable = found(replace(NEW, deadline=0.05), Nobody(machine.UNREACHABLE))
    assert isinstance(unreachable, Fail)
    assert unreachable.failure is Failure.DEADLINE


def test_a_discovery_that_was_cut_short_keeps_the_reason_from_before() -> None:
    ended = found(replace(NEW, deadline=0.05, code="no_leader"), Nobody(""))
    assert isinstance(ended, Fail)
    assert (ended.failure, ended.operation.code) == (Failure.NO_LEADER, "no_leader")
    first = found(replace(NEW, deadline=0.05), Nobody(""))
    assert isinstance(first, Fail)
    assert first.operation.code == machine.UNREACHABLE


def test_a_discovery_that_is_refused_for_good_fails_at_once() -> None:
    ended = found(NEW, Nobody("unknown_role", final=True))
    assert isinstance(ended, Fail)
    assert ended.failure is Failure.REFUSED


# -- reads and pinned tokens ----------------------------------------------------------------------

READ = Operation(deadline=100.0, origin=A, read=True)
PINNED = Operation(deadline=100.0, origin=A, token=42, key="k", pinned=True)


def test_a_read_takes_any_whole_answer_and_moves_on_when_it_is_lost() -> None:
    assert observe(READ, Answer(200)) == Done(replayed=False)
    for lost in (Lost(sent=True), Lost(sent=False), Answer(200, complete=False)):
        moved = observe(READ, lost)
        assert isinstance(moved, Send)
        assert moved.operation.origin == B
        assert not moved.operation.unknown


def test_a_read_is_sent_although_nobody_leads() -> None:
    decision = found(replace(READ, origin=None), Nobody("no_leader"))
    assert isinstance(decision, Send)
    assert (decision.operation.origin, decision.not_before) == (A, 0.0)


def test_a_pinned_token_follows_a_hint_of_its_own_token_only() -> None:
    same = observe(PINNED, refusal("not_leader", leader=B, leader_token=42))
    assert isinstance(same, Send)
    assert (same.operation.origin, same.operation.token) == (B, 42)
    for answer in (
        refusal("not_leader", leader=B, leader_token=43),
        refusal("not_leader", leader=B, max_seen=43),
        refusal("not_leader"),
        refusal("stale_token", leader=B, max_seen=43),
        refusal("stale_token"),
    ):
        ended = observe(PINNED, answer)
        assert isinstance(ended, Fail), answer
        assert ended.superseded


def test_a_pinned_token_that_merely_ran_out_of_time_is_not_superseded() -> None:
    ended = observe(
        replace(PINNED, deadline=10.0001), refusal("not_leader", leader=B, leader_token=42), now=10.0, jitter=0.9
    )
    assert isinstance(ended, Fail)
    assert ended.out_of_time
    assert not ended.superseded


def test_a_pinned_token_waits_where_nobody_leads_and_tries_the_next_gateway_where_it_cannot_connect() -> None:
    waiting = observe(PINNED, refusal("no_leader", retry_after=1.0))
    assert isinstance(waiting, Send)
    assert waiting.operation.origin == A
    moved = observe(PINNED, Lost(sent=False))
    assert isinstance(moved, Send)
    assert (moved.operation.origin, moved.operation.token) == (B, 42)


def test_a_pinned_operation_begins_without_discovery() -> None:
    first = machine.begin(POLICY, replace(PINNED, origin=None), 0.0)
    assert isinstance(first, Send)
    assert first.operation.origin == A


def test_an_operation_without_time_never_begins() -> None:
    ended = machine.begin(POLICY, WRITE, 100.0)
    assert isinstance(ended, Fail)
    assert ended.failure is Failure.DEADLINE


# -- the promises, on any sequence of answers -----------------------------------------------------

LISTS = st.lists(
    st.sampled_from([A, B, PLAIN, "http://d.example", "https://e.example:8443"]), min_size=1, max_size=5, unique=True
)
TOKENS = st.one_of(st.none(), st.integers(1, 60), st.just(2**63 - 1))
ORIGINS = st.sampled_from([None, A, B, PLAIN, "https://evil.example", "http://d.example"])
WAITS = st.sampled_from([None, 0.0, 0.3, 5.0, 31_536_000.0])
REFUSALS = st.builds(
    lambda code, seen, leader, leader_token, wait: refusal(
        code, max_seen=seen, leader=leader, leader_token=leader_token, retry_after=wait
    ),
    st.sampled_from(sorted(PROBLEMS)),
    TOKENS,
    ORIGINS,
    TOKENS,
    WAITS,
)
HEADER_TEXT = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=12)
FORGED = st.builds(
    read_answer,
    st.integers(100, 599),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["X-Fencing-Outcome", "X-Fencing-Retry", "X-Fencing-Applied", "X-Fencing-Max-Seen", "Retry-After"]
            ),
            st.one_of(HEADER_TEXT, st.sampled_from(["accepted", "stale_token", "no", "never", "rediscover", "newer"])),
        ),
        max_size=6,
    ),
    st.binary(max_size=20),
)
ANSWERS = st.one_of(
    REFUSALS,
    FORGED,
    st.sampled_from([Lost(sent=True), Lost(sent=False), Answer(502), ACCEPTED, replace(ACCEPTED, complete=False)]),
)
RESULTS = st.one_of(
    st.tuples(st.integers(0, 4), ORIGINS, st.integers(1, 60), st.booleans()),
    st.builds(Nobody, st.sampled_from(["no_leader", machine.UNREACHABLE]), WAITS),
)


@dataclass
class Play:
    """One operation driven to its end; what was sent when."""

    sends: list[tuple[float, Operation]]
    answers: list[Answer | Lost]
    end: Done | Fail
    cost: int


def drive(policy: Policy, operation: Operation, data: st.DataObject, budget: float, lateness: float) -> Play:
    now, spent = 0.0, 0
    play = Play([], [], Done(False), 0)
    decision = machine.begin(policy, operation, now)
    for _ in range(3000):
        if isinstance(decision, (Done, Fail)):
            play.end, play.cost = decision, spent
            return play
        now = max(now, decision.not_before) + lateness
        jitter = data.draw(st.floats(0, 1, exclude_max=True))
        if isinstance(decision, Send):
            spent += decision.cost
            late = machine.expired(decision.operation, now)
            if late is not None:
                decision = late
                continue
            play.sends.append((now, decision.operation))
            answer = data.draw(ANSWERS)
            play.answers.append(answer)
            decision = machine.observe(
                policy, decision.operation, answer, now=now, jitter=jitter, budget=budget - spent
            )
        else:
            result = data.draw(RESULTS)
            if isinstance(result, tuple):
                via, leader, token, granted = result
                grant = f"grant of {token}" if granted else None
                result = Found(policy.origins[via % len(policy.origins)], leader, token, grant)
            decision = machine.found(policy, decision.operation, result, now=now, jitter=jitter, budget=budget - spent)
    pytest.fail("the operation does not end")


@given(
    data=st.data(),
    origins=LISTS,
    kind=st.sampled_from(["write", "keyless", "read", "pinned"]),
    deadline=st.floats(0.0, 40.0),
    budget=st.floats(0.0, 60.0),
    lateness=st.sampled_from([0.0, 0.0, 0.7]),
    known=st.booleans(),
)
def test_the_promises_hold_on_any_sequence_of_answers(
    data: st.DataObject,
    origins: list[str],
    kind: str,
    deadline: float,
    budget: float,
    lateness: float,
    known: bool,
) -> None:
    policy = Policy(tuple(origins), max_tries=12)
    operation = Operation(
        deadline,
        origins[0] if known else None,
        42 if known or kind == "pinned" else None,
        grant="grant of 42" if known else None,
        key=None if kind in ("keyless", "read") else "the-key",
        read=kind == "read",
        pinned=kind == "pinned",
    )
    play = drive(policy, operation, data, budget, lateness)

    assert all(at < deadline for at, _ in play.sends), "sent after the deadline"
    assert all(sent.origin in origins for _, sent in play.sends), "sent outside the list"
    schemes = [str(sent.origin).split(":")[0] for _, sent in play.sends]
    assert schemes == sorted(schemes), "sent from https down to http"
    assert {sent.key for _, sent in play.sends} <= {operation.key}, "the key changed"
    assert len(play.sends) <= policy.max_tries, "too many tries"
    assert play.cost <= budget, "the budget was overdrawn"
    assert max((sent.hops for _, sent in play.sends), default=0) <= policy.max_hops
    tokens = [sent.token or 0 for _, sent in play.sends]
    assert tokens == sorted(tokens) or kind == "read", "an older token was presented after a newer one"
    if kind != "read":
        assert all(tokens), "a write was sent without a token"
    granted = [(sent.grant, f"grant of {sent.token}") for _, sent in play.sends if sent.grant is not None]
    assert all(grant == own for grant, own in granted), "a grant went with another token than its own"
    assert max((sent.renewed for _, sent in play.sends), default=0) <= machine.MAX_RENEWED
    if kind == "pinned":
        assert set(tokens) <= {42}, "a pinned token was replaced"
    doubtful = [may_have_been_applied(answer) for answer in play.answers]
    if kind == "keyless":
        assert not any(doubtful[:-1]), "an unknown outcome was followed by another try without a key"
    if isinstance(play.end, Fail):
        assert (play.end.failure is Failure.OUTCOME_UNKNOWN) == (any(doubtful) and kind != "read")


def may_have_been_applied(answer: Answer | Lost) -> bool:
    """Written anew from the wire contract, not from the machine."""
    if isinstance(answer, Lost):
        return answer.sent
    return answer.outcome is None or answer.applied != "no"
