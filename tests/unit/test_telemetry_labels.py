"""The closed set of role labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.config.routes import check_role
from fencegate.telemetry.labels import UNROUTED, RoleLabels

FAMILIES = ["ledger", "ledger/{shard}", "a.b/{x}/c"]


def test_a_configured_role_is_its_own_label_and_a_member_has_its_familys() -> None:
    labels = RoleLabels(FAMILIES)
    assert labels.of("ledger") == "ledger"
    assert labels.of("ledger/{shard}") == "ledger/{shard}"
    assert labels.of("ledger/eu-7") == "ledger/{shard}"
    assert labels.of("a.b/7/c") == "a.b/{x}/c"


def test_everything_else_is_unrouted() -> None:
    labels = RoleLabels(FAMILIES)
    for role in ("", "ledgers", "ledger/", "ledger/a/b", "aXb/7/c", "a.b/7"):
        assert labels.of(role) == UNROUTED


@given(st.text())
def test_no_text_makes_a_new_label(text: str) -> None:
    assert RoleLabels(FAMILIES).of(text) in {*FAMILIES, UNROUTED}


def test_no_role_can_be_configured_whose_label_stands_for_what_has_no_role() -> None:
    with pytest.raises(ValueError, match="expected another role than -"):
        check_role(UNROUTED)
