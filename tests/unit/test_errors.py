"""The registry of problems against the wire contract's table, row by row."""

from __future__ import annotations

import dataclasses

import pytest

from fencegate.errors import (
    OUTCOME_TIMEOUT_STATUS,
    PROBLEMS,
    ConfigurationError,
    FencegateError,
    Leader,
    OutcomeUnknown,
    Refusal,
    Retry,
    Unavailable,
    problem,
)

CONTRACT = {
    "token_required": (428, "never", "no"),
    "token_malformed": (400, "never", "no"),
    "stale_token": (409, "rediscover", "no"),
    "not_leader": (409, "rediscover", "no"),
    "no_leader": (503, "after-delay", "no"),
    "token_not_issued": (403, "never", "no"),
    "fence_unavailable": (503, "after-delay", "no"),
    "draining": (503, "after-delay", "no"),
    "idempotency_key_required": (400, "never", "no"),
    "idempotency_key_malformed": (400, "never", "no"),
    "idempotency_in_progress": (409, "after-delay", "unknown"),
    "idempotency_key_reused": (422, "never", "no"),
    "too_early": (425, "after-delay", "no"),
    "body_too_large": (413, "never", "no"),
    "overloaded": (503, "after-delay", "no"),
    "outcome_unknown": (502, "if-idempotent", "unknown"),
}


@pytest.mark.parametrize(("code", "row"), CONTRACT.items())
def test_every_row_of_the_contract_is_in_the_registry(code: str, row: tuple[int, str, str]) -> None:
    found = problem(code)
    assert (found.status, found.retry.value, found.applied) == row
    assert found.type == f"urn:fencegate:problem:{code}"


def test_an_outcome_that_timed_out_is_a_504() -> None:
    assert OUTCOME_TIMEOUT_STATUS == 504


def test_codes_are_their_own_keys_and_no_two_titles_are_the_same() -> None:
    assert all(code == row.code for code, row in PROBLEMS.items())
    assert len({row.title for row in PROBLEMS.values()}) == len(PROBLEMS)


def test_every_problem_is_an_error_status_and_never_a_redirect() -> None:
    assert all(400 <= row.status < 600 for row in PROBLEMS.values())


def test_only_what_may_be_tried_again_says_so() -> None:
    for row in PROBLEMS.values():
        assert row.retryable is (row.retry is not Retry.NEVER)


def test_a_write_that_may_have_been_applied_is_never_to_be_repeated_without_a_key() -> None:
    unknown = {row.code for row in PROBLEMS.values() if row.applied == "unknown"}
    assert unknown == {"outcome_unknown", "idempotency_in_progress"}
    assert problem("outcome_unknown").retry is Retry.IF_IDEMPOTENT


def test_an_unknown_code_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        problem("no_such_problem")


def test_the_facts_of_a_refusal_cannot_be_changed() -> None:
    refusal = Refusal(problem("stale_token"), "old", leader=Leader("https://a.example", "eu", 42))
    for fact, name in ((refusal, "detail"), (refusal.problem, "status"), (refusal.leader, "url")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(fact, name, "other")


def test_all_faults_of_a_configuration_are_kept_and_printed() -> None:
    error = ConfigurationError(["one", "two"])
    assert error.faults == ["one", "two"]
    assert str(error) == "one\ntwo"


def test_one_base_class_catches_everything_raised_on_purpose() -> None:
    for kind in (ConfigurationError, Unavailable, OutcomeUnknown):
        assert issubclass(kind, FencegateError)
    assert OutcomeUnknown("lost").cause == "connection"
    assert OutcomeUnknown("late", "timeout").cause == "timeout"
