"""The token of an entry is the one of a try that may have made it, and one answer says that it is new."""

from __future__ import annotations

from fencegate.fence import Entry
from fencegate.gameday.history import Answered, Attempt
from fencegate.gameday.verify_words import stamped, stamped_unheard, without_effect

ENTRY = Entry("ledger", 1, 7, "2026-11-29T14:17:17.000000Z", b"{}", "aa", "k")
HELD = {"dr": [ENTRY]}


def told(token: int, answered: Answered = "unknown", *, replayed: bool = False, tries: int = 1) -> Attempt:
    return Attempt("client", "k", "dr", token, 0.0, 1.0, answered, "", 1, "aa", replayed, tries)


def test_what_was_acknowledged_carries_the_token_that_it_was_acknowledged_under() -> None:
    assert list(stamped([told(7, "accepted")], HELD)) == []
    (found,) = stamped([told(6, "accepted")], HELD)
    assert found == "dr took k under token 6, and its entry 1 carries token 7"


def test_what_nobody_heard_of_carries_the_token_of_one_of_its_tries() -> None:
    assert list(stamped_unheard([told(6), told(7)], HELD)) == []
    (found,) = stamped_unheard([told(5), told(6), told(7, "refused"), told(7, "accepted", replayed=True)], HELD)
    assert found == "dr's entry 1 carries token 7; k was sent under 5 and 6"


def test_of_an_operation_of_several_tries_the_first_ones_tokens_are_not_known() -> None:
    assert list(stamped_unheard([told(8, "accepted", replayed=True, tries=2)], HELD)) == []
    assert list(stamped_unheard([told(0)], HELD)) == []


def test_one_answer_says_that_a_write_is_new_and_all_others_that_they_repeat_it() -> None:
    new, replayed = told(7, "accepted"), told(7, "accepted", replayed=True)
    assert list(without_effect([told(7), new, replayed, replayed])) == []
    (found,) = without_effect([new, new])
    assert found == "client was told by dr that k is new, entry 1; client had been told so by dr already"
