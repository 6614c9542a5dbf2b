"""A store's failover, planted right and wrong."""

from __future__ import annotations

from fencegate.fence import Entry
from fencegate.gameday.history import Attempt
from fencegate.gameday.verify import Kind, verify_apart
from fencegate.gameday.verify_promotions import Promotion, left_behind, revived


def told(key: str, seq: int, token: int, at: float, region: str = "dr") -> Attempt:
    return Attempt("client", key, region, token, at, at + 0.1, "accepted", "", seq, "")


def held(seq: int, token: int) -> Entry:
    return Entry("ledger", seq, token, "2026-01-01T00:00:00.000000Z", b"{}", "", f"k{seq}")


LAGGED = Promotion("dr", 10.0, 2, exact=False)
EXACT = Promotion("dr", 10.0, 2, exact=True)
ATTEMPTS = [told("a", 2, 5, 1.0), told("b", 3, 5, 2.0), told("c", 3, 7, 11.0), told("d", 9, 5, 2.0, "primary")]
LEDGERS = {"dr": [held(1, 5), held(2, 5), held(3, 7)], "primary": []}


def test_only_what_the_lagging_standby_of_that_region_lacked_is_excused() -> None:
    assert left_behind(ATTEMPTS, LEDGERS, [LAGGED]) == {"b"}


def test_a_synchronous_standby_excuses_nothing() -> None:
    assert left_behind(ATTEMPTS, LEDGERS, [EXACT]) == set()


def test_a_write_that_waited_for_the_promoted_standby_is_not_excused() -> None:
    waited = Attempt("client", "w", "dr", 7, 9.5, 12.0, "accepted", "", 4, "")
    assert left_behind([*ATTEMPTS, waited], LEDGERS, [LAGGED]) == {"b"}
    assert verify_apart([waited], LEDGERS, role="ledger", promotions=[LAGGED]).count(Kind.LOST) == 1


def test_an_old_term_that_goes_on_behind_the_promotion_is_named() -> None:
    assert list(revived(ATTEMPTS, {"dr": [held(1, 5), held(2, 5), held(3, 7)]}, [LAGGED])) == []
    [text] = revived(ATTEMPTS, {"dr": [held(1, 5), held(2, 5), held(3, 5)]}, [LAGGED])
    assert "entry 3 under token 5" in text


def test_the_judge_of_a_run_excuses_and_names_the_same() -> None:
    ledgers = {"dr": [held(1, 5), held(2, 5)], "primary": []}
    lost = [told("b", 3, 5, 2.0)]
    assert verify_apart(lost, ledgers, role="ledger").count(Kind.LOST) == 1
    assert verify_apart(lost, ledgers, role="ledger", promotions=[EXACT]).count(Kind.LOST) == 1
    assert verify_apart(lost, ledgers, role="ledger", promotions=[LAGGED]).count(Kind.LOST) == 0
    went_on = {"dr": [*ledgers["dr"], held(3, 5)], "primary": []}
    assert verify_apart(lost, went_on, role="ledger", promotions=[LAGGED]).count(Kind.REVIVED) == 1
