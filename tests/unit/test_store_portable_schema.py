"""The migrations of portability mode: the plain text less what only Postgres has, and nothing is left out unseen."""

from __future__ import annotations

import re

import pytest

from fencegate.store import migrate, portable_schema

ONLY_POSTGRES = (
    r"advisory|pg_notify|LISTEN|pg_control_system|pg_walfile|pg_current_wal|UNLOGGED|CONSTRAINT TRIGGER"
    r"|DEFERRABLE INITIALLY|PREPARE TRANSACTION|pg_prepared|pg_settings|\bctid\b"
)


def code(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def test_nothing_of_it_asks_for_what_only_postgres_has() -> None:
    found = migrate.migrations(portable=True)
    assert [m.name for m in found][:2] == ["0001_create_fence", "portable/0001_rely_on_row_conflicts"]
    for migration in found:
        assert re.findall(ONLY_POSTGRES, code(migration.text)) == [], migration.name
    assert re.findall(ONLY_POSTGRES, code("".join(m.text for m in migrate.migrations()))), "which the plain ones do"


def test_all_else_is_the_plain_text_word_for_word() -> None:
    plain = {m.name: m.text for m in migrate.migrations()}
    cut = portable_schema.portable("0001_create_fence", plain["0001_create_fence"])
    assert cut is not None
    lines = plain["0001_create_fence"].splitlines()
    left_out = len(lines) - len(cut.splitlines())
    assert 20 < left_out < 60
    walk = iter(lines)
    assert all(line in walk for line in cut.splitlines()), "in its order"
    for name in ("append", "call", "admit", "claim", "extend", "seal", "set_draining", "decide", "seconds_left"):
        assert f"CREATE FUNCTION fencegate.{name}(" in cut


def test_a_function_that_is_not_there_once_is_a_fault_and_never_a_shrug() -> None:
    with pytest.raises(RuntimeError, match="makes the function read_system_identifier 0 times"):
        portable_schema.portable("0001_create_fence", "SELECT 1;\n")


def test_a_later_migration_cannot_take_the_place_of_what_the_mode_has_of_its_own() -> None:
    for begin in ("CREATE OR REPLACE FUNCTION", "CREATE FUNCTION"):
        with pytest.raises(RuntimeError, match="makes the function incarnation"):
            portable_schema.portable("0999_later", f"{begin} fencegate.incarnation() RETURNS text AS $$")


def test_a_migration_that_this_does_not_know_is_taken_as_it_is() -> None:
    assert portable_schema.portable("0999_later", "SELECT 1;\n") == "SELECT 1;\n"
