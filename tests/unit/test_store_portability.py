"""Portability mode's pure parts: which errors are clear, and how a statement comes to write the fence first."""

from __future__ import annotations

import pytest

from fencegate.access.database import Database
from fencegate.store import admissions, control, forward, function, ledger
from fencegate.store.link import Link
from fencegate.store.portability import PortableLink, is_clear, link_to, writing_first


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03", "23505", "42883", "25006", "P0001", "ZF001", "ZF501"])
def test_these_say_that_nothing_of_the_transaction_stands(sqlstate: str) -> None:
    assert is_clear(sqlstate)


@pytest.mark.parametrize("sqlstate", ["40003", "57014", "57P01", "53200", "58030", "08006", "XX000", "99999", "", None])
def test_these_do_not(sqlstate: str | None) -> None:
    assert not is_clear(sqlstate)


def test_each_statement_that_decides_on_a_term_writes_its_roles_first() -> None:
    roles = "fencegate.written(string_to_array($1, chr(30))::text[])"
    assert f"fencegate.append(\n      fencegate.unless_gone_back({roles}, $11," in writing_first(ledger._APPEND)
    assert "fencegate.call($1, fencegate.unless_gone_back(fencegate.written($2::text[]), $12," in writing_first(
        function._CALL
    )
    assert f"string_to_array($2, chr(30)), fencegate.unless_gone_back({roles}, $11," in writing_first(admissions._ADMIT)
    assert "fencegate.seal((fencegate.unless_gone_back(ARRAY[fencegate.written($1::text)" in writing_first(
        control._SEAL
    )
    for statement in (control._CLAIM, control._EXTEND, control._DRAINING):
        assert "(fencegate.written($1::text), $2," in writing_first(statement)


def test_what_only_reads_or_ends_something_is_left_as_it_is() -> None:
    for statement in (
        control._CLOCK,
        control._SURVEY,
        control.FENCES,
        forward._SETTLE,
        forward._TAKE_BACK,
        ledger.PART,
    ):
        assert writing_first(statement) == statement


def test_the_address_says_which_kind_of_session_a_store_needs() -> None:
    plain = link_to("postgresql://h/d", "x", limit=1.0, statement_timeout=1.0)
    portable = link_to(Database("postgresql://h/d", portable=True), "x", limit=1.0, statement_timeout=1.0)
    assert (type(plain), type(portable)) == (Link, PortableLink)
    assert "jit" in plain.settings
    assert portable.settings == {"default_transaction_isolation": "repeatable read"}
