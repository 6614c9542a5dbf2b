"""The judge of an upstream, with every violation planted once."""

from __future__ import annotations

from fencegate.gameday.history import Answered, Attempt
from fencegate.gameday.verify import Kind
from fencegate.gameday.verify_effects import Effect, late, verify_effects


def told(key: str, answered: Answered, token: int = 5) -> Attempt:
    return Attempt("client", key, "dr", token, 0.0, 1.0, answered, "" if answered == "accepted" else "why")


def kinds(attempts: list[Attempt], effects: list[Effect]) -> list[Kind]:
    return [violation.kind for violation in verify_effects(attempts, effects, limit=2.0).violations]


def test_what_was_told_and_what_was_done_agree() -> None:
    attempts = [told("a", "accepted"), told("b", "refused"), told("c", "unknown"), told("d", "unknown")]
    assert kinds(attempts, [Effect("a", 5, 0.5), Effect("c", 5, 0.6)]) == []


def test_each_violation_is_named() -> None:
    assert kinds([told("a", "accepted")], []) == [Kind.LOST]
    assert kinds([told("a", "accepted")], [Effect("a", 5, 0.5), Effect("a", 5, 0.6)]) == [Kind.TWICE]
    assert kinds([told("a", "refused")], [Effect("a", 5, 0.5)]) == [Kind.REFUSED_APPLIED]
    assert kinds([], [Effect("a", 5, 0.5)]) == [Kind.UNASKED]
    assert kinds([told("a", "accepted")], [Effect("a", 6, 0.5)]) == [Kind.STAMPED]
    assert kinds([told("a", "unknown")], [Effect("a", 6, 0.5)]) == [Kind.STAMPED]


def test_an_old_terms_write_behind_a_newer_ones_is_measured_and_over_the_limit_a_violation() -> None:
    attempts = [told(key, "accepted", token) for key, token in zip("abcd", (5, 7, 5, 7), strict=True)]
    effects = [Effect("a", 5, 0.0), Effect("b", 7, 1.0), Effect("c", 5, 2.5), Effect("d", 7, 2.6)]
    assert late(effects) == [1.5]
    assert kinds(attempts, effects) == []
    assert kinds(attempts, [*effects[:2], Effect("c", 5, 3.5), Effect("d", 7, 3.6)]) == [Kind.TOKEN_FELL]


def test_a_write_that_was_sent_after_a_newer_terms_was_acknowledged_is_none_that_was_under_way() -> None:
    newer = Attempt("client", "newer", "primary", 7, 1.0, 1.1, "accepted")
    for answered in ("accepted", "unknown"):
        stale = Attempt("stale", "old", "dr", 5, 1.5, 1.6, answered)
        assert kinds([newer, stale], [Effect("newer", 7, 1.05), Effect("old", 5, 1.55)]) == [Kind.INTERLEAVED]
    under_way = Attempt("stale", "old", "dr", 5, 1.05, 1.6, "accepted")
    assert kinds([newer, under_way], [Effect("newer", 7, 1.05), Effect("old", 5, 1.55)]) == []
