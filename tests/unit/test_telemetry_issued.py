"""How far tokens have been issued, where the issuer goes back."""

from __future__ import annotations

from fencegate.telemetry.issued import Issued


def test_an_issuer_that_went_back_stands_where_it_is_until_it_has_caught_up() -> None:
    issued = Issued()
    assert issued.leads("ledger", 42) == 42
    assert issued.leads("ledger", 0) == 0
    assert issued.went_back("ledger", 7, 42) == 7
    assert issued.leads("ledger", 0) == 7
    assert issued.leads("other", 0) == 0
    assert issued.leads("ledger", 8) == 8
    assert issued.leads("ledger", 0) == 8
    assert issued.leads("ledger", 42) == 42
    assert issued.leads("ledger", 0) == 0
