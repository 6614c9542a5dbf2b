"""From a verdict and what is believed of the leadership to the contract's refusal."""

from __future__ import annotations

import pytest

from fencegate.fence import Verdict
from fencegate.gateway.admission import Places, Presented, judge_above, refusal_for
from fencegate.lease import Observed, Term
from fencegate.testing.scripted_view import ScriptedView

PLACES = Places("eu", {"us": "https://us.example"})
WRITE = Presented("r", 41)


def _observed(region: str | None, token: int = 42, *, active: bool = True, expires_in: float | None = 9.0) -> Observed:
    term = None
    if region is not None:
        term = Term("r", token, "n", region, f"https://{region}.example", active, 15.0, expires_in, None)
    return Observed(True, term, 1_796_000_000.0, 1.0)


UNKNOWN = Observed(False, None, 0.0, 99.0)


@pytest.mark.parametrize(
    ("verdict", "observed", "code", "hint", "after"),
    [
        (Verdict.STALE, _observed("us"), "stale_token", "https://us.example", None),
        (Verdict.STALE, _observed("us", 40), "stale_token", None, 1000),
        (Verdict.STALE, UNKNOWN, "stale_token", None, 1000),
        (Verdict.NOT_LEADING, _observed("us"), "not_leader", "https://us.example", None),
        (Verdict.NOT_LEADING, _observed("eu"), "no_leader", None, 1000),
        (Verdict.NOT_LEADING, _observed(None), "no_leader", None, 1000),
        (Verdict.NOT_LEADING, _observed("us", active=False), "no_leader", None, 8000),
        (Verdict.NOT_LEADING, _observed("us", active=False, expires_in=99.0), "no_leader", None, 15000),
        (Verdict.NOT_LEADING, _observed("us", active=False, expires_in=0.5), "no_leader", None, 1000),
        (Verdict.NOT_LEADING, UNKNOWN, "fence_unavailable", None, 1000),
        (Verdict.ABOVE, _observed("us"), "not_leader", "https://us.example", None),
        (Verdict.NO_FENCE, _observed("us"), "fence_unavailable", None, 1000),
        (Verdict.OTHER_INCARNATION, _observed("us"), "fence_unavailable", None, 1000),
        (Verdict.DRAINING, _observed("eu"), "draining", None, 1000),
        (Verdict.UNDRAINED, _observed("eu"), "draining", None, 1000),
    ],
)
def test_each_verdict_has_its_refusal(
    verdict: Verdict, observed: Observed, code: str, hint: str | None, after: int | None
) -> None:
    refusal = refusal_for(verdict, WRITE, 42, observed, PLACES)
    assert refusal.problem.code == code
    assert (None if refusal.leader is None else refusal.leader.url) == hint
    assert refusal.retry_after_ms == after
    assert refusal.problem.applied == "no"


@pytest.mark.parametrize(
    ("token", "issued", "code"), [(43, 43, None), (43, 0, "token_not_issued"), (41, 0, "not_leader")]
)
async def test_only_the_exact_token_of_the_current_term_is_proof(token: int, issued: int, code: str | None) -> None:
    view = ScriptedView()
    view.lead("r", 43 if issued else 42, "us", "https://us.example")
    judged = await judge_above(view, Presented("r", token), 40, PLACES, 1.0)
    assert judged.issued == issued
    assert (None if judged.refusal is None else judged.refusal.problem.code) == code


async def test_an_election_store_that_cannot_answer_fails_closed() -> None:
    view = ScriptedView()
    view.unavailable = True
    judged = await judge_above(view, Presented("r", 43), 40, PLACES, 1.0)
    assert judged.refusal is not None
    assert judged.refusal.problem.code == "fence_unavailable"
    view.unavailable = False
    view.nobody("r")
    judged = await judge_above(view, Presented("r", 43), 40, PLACES, 1.0)
    assert judged.refusal is not None
    assert judged.refusal.problem.code == "no_leader"
