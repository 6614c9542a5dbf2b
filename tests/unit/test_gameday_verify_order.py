"""What was sent too late for its term is found, whether its answer came or not."""

from __future__ import annotations

from fencegate.gameday.history import Answered, Attempt
from fencegate.gameday.verify_order import Seal, after_seal, interleaved


def sent(key: str, token: int, began: float, answered: Answered = "accepted", lasts: float = 1.0) -> Attempt:
    return Attempt("client", key, "primary" if token % 2 else "dr", token, began, began + lasts, answered)


NEWER = sent("newer", 4, 10.0)


def test_a_write_that_is_there_though_its_answer_was_lost_was_taken_too():
    late = sent("late", 1, 30.0, "unknown")
    (told,) = interleaved([NEWER, late], {"newer": 4, "late": 1})
    assert told == "primary accepted late under token 1, sent 19.00 s after dr had acknowledged newer under token 4"
    assert not list(interleaved([NEWER, late], {"newer": 4}))


def test_a_later_replay_does_not_hide_it():
    late, replayed = sent("late", 1, 30.0, "unknown"), sent("late", 5, 40.0)
    replayed.replayed = True
    assert len(list(interleaved([NEWER, late, replayed], {"newer": 4, "late": 1}))) == 1


def test_it_counts_from_the_first_try_that_may_have_done_it():
    tries = [sent("late", 1, 30.0, "unknown"), sent("late", 1, 8.0, "unknown", lasts=4.0)]
    assert not list(interleaved([NEWER, *tries], {"newer": 4, "late": 1}))
    tries[1].answered = "refused"
    assert len(list(interleaved([NEWER, *tries], {"newer": 4, "late": 1}))) == 1


def test_that_nobody_heard_of_a_newer_write_ends_no_term():
    unheard = sent("newer", 4, 10.0, "unknown")
    assert not list(interleaved([unheard, sent("older", 1, 30.0)], {"newer": 4, "older": 1}))


def test_its_token_is_the_one_that_it_was_taken_under():
    retried = [sent("late", 4, 30.0, "unknown"), sent("late", 1, 31.0, "unknown")]
    assert not list(interleaved([NEWER, *retried], {"newer": 4, "late": 4}))


def test_a_write_sent_after_its_terms_seal_must_not_be_taken_whether_or_not_a_newer_term_has_begun():
    seal = Seal("dr", 4, 20.0)
    (told,) = after_seal([sent("late", 4, 20.5)], [seal])
    assert told == "dr accepted late under token 4, sent 0.50 s after its store had sealed token 4"
    newer, elsewhere, under_way = sent("newer", 6, 21.0), sent("elsewhere", 3, 21.0), sent("under way", 4, 19.9)
    replayed = sent("replayed", 4, 21.0)
    replayed.replayed = True
    assert not list(after_seal([newer, elsewhere, under_way, replayed, sent("refused", 4, 21.0, "refused")], [seal]))
