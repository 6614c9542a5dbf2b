"""Which databases ``fencegate migrate`` looks after; that it does so is tested with a real one in tests/system/."""

from __future__ import annotations

from click.testing import CliRunner

from fencegate.access.database import Database
from fencegate.cli import connections
from fencegate.cli.migrate import _NOT_NEEDED, databases, migrate
from fencegate.config import Flag, parse
from fencegate.errors import ConfigurationError, FencegateError


def chosen(*flags: tuple[str, str]) -> list[str]:
    settings = parse(defaults=_NOT_NEEDED, flags=[Flag("--set", key, text) for key, text in flags])
    store = Database(settings.store.dsn or "")
    return [each.dsn for each in databases(settings, [store], connections.election(settings, store))]


def test_the_store_is_migrated_and_an_election_of_its_own_too() -> None:
    store = ("store.dsn", "postgresql://h/store")
    assert chosen(store) == ["postgresql://h/store"]
    assert chosen(store, ("election.dsn", "postgresql://h/store")) == ["postgresql://h/store"]
    assert chosen(store, ("election.dsn", "postgresql://h/other")) == ["postgresql://h/store", "postgresql://h/other"]


def test_only_the_store_is_asked_for_and_whatever_else_is_given_is_checked() -> None:
    result = CliRunner().invoke(migrate, [])
    assert isinstance(result.exception, ConfigurationError)
    assert [fault.split(":")[0] for fault in result.exception.faults] == [
        "store.dsn",
        "no configuration file was given",
    ]
    result = CliRunner().invoke(migrate, ["--store-dsn", "postgresql://h/d", "--set", "log.level=loud"])
    assert isinstance(result.exception, ConfigurationError)
    assert len(result.exception.faults) == 1


def test_which_database_could_not_be_migrated_is_told_without_its_password(unused_tcp_port: int) -> None:
    dsn = f"postgresql://fencegate:s3cret@127.0.0.1:{unused_tcp_port}/ledger"
    error = CliRunner().invoke(migrate, ["--store-dsn", dsn]).exception
    assert type(error) is FencegateError
    assert str(error).startswith(f"postgresql://fencegate:***@127.0.0.1:{unused_tcp_port}/ledger: the store takes no")
