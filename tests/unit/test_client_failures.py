"""The exceptions: which failure becomes which, and what each of them tells."""

from __future__ import annotations

import pickle

import pytest

from fencegate.client.failures import (
    DeadlineExceeded,
    FencedError,
    LeadershipLost,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Refused,
    RetriesExhausted,
    StaleToken,
    error_of,
)
from fencegate.client.machine import Fail, Failure, Operation
from fencegate.errors import ConfigurationError
from fencegate.errors import OutcomeUnknown as AnyOutcomeUnknown


def test_each_comes_out_of_another_process_as_it_went_in() -> None:
    for error in (
        LeadershipLost("over", role="ledger", token=7, reason="lost"),
        StaleToken("old", code="stale_token", role="ledger", leader="https://b.example", tries=2, idempotency_key="k"),
        OutcomeUnknown("who knows", idempotency_key="k", cause="timeout"),
        ConfigurationError(["one fault", "and another"]),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# Field case 74: temporalio/temporal#734.
@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure.STALE, StaleToken),
        (Failure.NOT_LEADER, NotLeader),
        (Failure.NO_LEADER, NoLeader),
        (Failure.REFUSED, Refused),
        (Failure.OUTCOME_UNKNOWN, OutcomeUnknown),
        (Failure.DEADLINE, DeadlineExceeded),
        (Failure.EXHAUSTED, RetriesExhausted),
    ],
)
def test_each_failure_has_its_exception_that_carries_the_facts(failure: Failure, kind: type[FencedError]) -> None:
    operation = Operation(9.0, key="k", tries=3, code="not_leader", hint="https://b.example")
    error = error_of(Fail(failure, operation), "ledger", "")
    assert type(error) is kind
    assert (error.code, error.role, error.leader, error.tries) == ("not_leader", "ledger", "https://b.example", 3)
    assert error.applied == ("unknown" if kind is OutcomeUnknown else "no")
    assert "tried 3 times" in str(error)
    assert "https://b.example" in str(error)


def test_an_unknown_outcome_says_with_which_key_to_ask_again() -> None:
    error = error_of(Fail(Failure.OUTCOME_UNKNOWN, Operation(9.0, key="k-1")), "ledger", "", timed_out=True)
    assert isinstance(error, AnyOutcomeUnknown)
    assert (error.idempotency_key, error.cause) == ("k-1", "timeout")
    assert "'k-1'" in str(error)
