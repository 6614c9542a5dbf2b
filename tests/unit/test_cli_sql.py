"""``fencegate sql`` prints every migration, as one script."""

from __future__ import annotations

from click.testing import CliRunner

from fencegate.cli.sql import sql
from fencegate.store.migrate import migrations


def test_the_script_holds_every_migration_in_order_in_transactions_of_their_own() -> None:
    result = CliRunner().invoke(sql)
    assert result.exit_code == 0
    places = [result.output.index(f"-- {migration.name}\n") for migration in migrations()]
    assert places == sorted(places)
    assert result.output.count("BEGIN;") == result.output.count("COMMIT;") == len(places)
    for migration in migrations():
        assert migration.text in result.output


def test_for_a_store_in_portability_mode_it_is_another_script() -> None:
    result = CliRunner().invoke(sql, ["--portability"])
    assert result.exit_code == 0
    for migration in migrations(portable=True):
        assert migration.text in result.output
    assert "pg_advisory" not in result.output
