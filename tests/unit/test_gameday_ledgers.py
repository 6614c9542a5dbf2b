"""What the rows of a store's standing come to."""

from __future__ import annotations

from fencegate.gameday.ledgers import Standing, standing_of
from fencegate.store.chain import genesis

ROW = {"open": True, "max_token_seen": 7, "sealed": 3, "last_seq": 9, "last_hash": b"h" * 32}


def test_a_store_without_the_role_is_closed_and_empty() -> None:
    assert standing_of("eu", []) == Standing("eu", False, 0, 0, 0, b"")


def test_a_row_is_taken_as_it_is() -> None:
    assert standing_of("eu", [ROW]) == Standing("eu", True, 7, 3, 9, b"h" * 32)


def test_the_next_entry_is_chained_to_the_last_or_to_the_roles_beginning() -> None:
    assert standing_of("eu", [ROW]).end("ledger") == b"h" * 32
    assert standing_of("eu", []).end("ledger") == genesis("ledger")
