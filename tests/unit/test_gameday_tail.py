from __future__ import annotations

import math
from typing import Any

from fencegate.gameday.history import Attempt
from fencegate.gameday.tail import stale_refusals, tail_of


def attempt(client: str, began: float, answered: Any = "refused", reason: str = "not_leader") -> Attempt:
    return Attempt(client, "k", "dr", 2, began, began + 0.5, answered, reason)


HISTORY = [
    attempt("dns-1", 5.0),
    attempt("dns-1", 11.0),
    attempt("dns-2", 12.0, reason="stale_token"),
    attempt("dns-2", 12.5, "accepted", ""),
    attempt("dns-3", 13.0, reason="unreachable"),
    attempt("sdk-1", 14.0),
    attempt("zombie-1", 19.8),
    attempt("zombie-1", 21.0),
]


def test_the_tail_is_what_the_fence_refused_to_those_who_were_left_behind() -> None:
    found = tail_of(HISTORY, 10.0, 20.0, watched=True)
    assert found.refused == {"not_leader": 3, "stale_token": 1}
    assert len(stale_refusals(HISTORY, 10.0)) == 4
    assert found.last == 21.5


def test_a_write_that_was_sent_before_the_last_record_ran_out_may_still_be_refused_later() -> None:
    late = tail_of(HISTORY, 10.0, 20.0, watched=True)
    assert (late.after, late.senders, late.cleared) == (1, ("zombie-1",), False)
    assert tail_of(HISTORY[:-1], 10.0, 20.0, watched=True).cleared


def test_an_end_that_nobody_watched_is_not_one() -> None:
    assert not tail_of([], 10.0, math.inf, watched=False).cleared
    assert tail_of([], 10.0, math.inf, watched=False).last == 10.0
