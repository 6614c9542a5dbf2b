"""What becomes of the leadership, as spans."""

from __future__ import annotations

import pytest

from fencegate import observations as seen
from fencegate.telemetry.leadership_spans import LeadershipSpans
from fencegate.testing.spans import Spans, failed, told


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def listens(spans: Spans) -> LeadershipSpans:
    return LeadershipSpans(spans.tracing)


def test_a_claim_a_seal_and_a_step_down_are_moments(spans: Spans, listens: LeadershipSpans) -> None:
    listens(seen.LeadershipGained("ledger", 42))
    listens(seen.TermSealed("ledger", 42, known=True))
    listens(seen.LeadershipLost("ledger", 42, "shutdown"))
    assert [(span.name, failed(span), span.parent) for span in spans.of("internal")] == [
        ("fencegate claim", False, None),
        ("fencegate seal", False, None),
        ("fencegate step down", False, None),
    ]
    assert all(told(span)["fencegate.role"] == "ledger" for span in spans.all())
    assert all(told(span)["fencegate.token"] == 42 for span in spans.all())


def test_what_should_not_happen_is_an_error(spans: Spans, listens: LeadershipSpans) -> None:
    listens(seen.ClaimWasRefused("ledger", 42, "stale"))
    listens(seen.TermSealed("ledger", 42, known=False))
    listens(seen.LeadershipLost("ledger", 42, "renew_deadline"))
    assert all(failed(span) for span in spans.all())
    assert [told(span)["error.type"] for span in spans.all()] == ["stale", "not_known", "renew_deadline"]


def test_a_handoff_takes_time_and_what_happens_in_it_is_a_part_of_it(spans: Spans, listens: LeadershipSpans) -> None:
    listens(seen.HandoffBegan("ledger", 42, "us"))
    listens(seen.TermSealed("ledger", 42, known=True))
    listens(seen.TermSealed("other", 7, known=True))
    listens(seen.LeadershipLost("ledger", 42, "handoff"))
    listens(seen.HandoffEnded("ledger", 42, "us", "released"))
    listens(seen.HandoffEnded("ledger", 42, "us", "released"))
    seal, other, lost, handoff = spans.all()
    assert spans.below(handoff) == [seal, lost]
    assert other.parent is None
    assert told(handoff)["fencegate.to"] == "us"
    assert told(handoff)["fencegate.outcome"] == "released"
    assert not failed(handoff)


def test_a_handoff_that_was_undone_and_one_that_the_process_did_not_outlive_are_errors(
    spans: Spans, listens: LeadershipSpans
) -> None:
    listens(seen.HandoffBegan("ledger", 42, "us"))
    listens(seen.HandoffEnded("ledger", 42, "us", "undone"))
    listens(seen.HandoffBegan("ledger", 43, "us"))
    listens.close()
    assert [(told(span)["error.type"], failed(span)) for span in spans.all()] == [("undone", True), ("abandoned", True)]


def test_a_drain_that_is_asked_for_again_is_one(spans: Spans, listens: LeadershipSpans) -> None:
    listens(seen.DrainBegan("ledger", 42, 30.0))
    listens(seen.DrainBegan("ledger", 42, 60.0))
    listens(seen.DrainEnded("ledger", 42, "resumed"))
    [drain] = spans.all()
    assert (drain.name, told(drain)["fencegate.outcome"], failed(drain)) == ("fencegate drain", "resumed", False)


def test_it_says_what_it_listens_to(spans: Spans, listens: LeadershipSpans) -> None:
    listens(seen.WriteAccepted("ledger", 42, False, 0.001))
    assert seen.WriteAccepted not in listens.hears
    assert spans.all() == []
