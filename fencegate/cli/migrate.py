"""``fencegate migrate``: applies the migrations that each store (and the election's database) lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import click

from fencegate.access.database import Database
from fencegate.cli import connections
from fencegate.cli.loading import flags_of, load, settings_options
from fencegate.config import Settings
from fencegate.config.parsing import shown
from fencegate.errors import ConfigurationError, FencegateError
from fencegate.store import migrate as migrations

# What serving needs and migrating does not; whatever is given is still checked.
_NOT_NEEDED: Final[dict[str, Any]] = {
    "node": "migrate",
    "region": "migrate",
    "advertise": "https://localhost",
    "route": [{"path": "/", "role": "migrate", "target": "http://localhost"}],
}


def databases(settings: Settings, stores: Iterable[Database], election: Database) -> list[Database]:
    """Those of ``stores`` and ``election`` that hold fencegate's tables, each once."""
    found = {store.dsn: store for store in stores}
    if settings.election.over_postgres:
        found.setdefault(election.dsn, election)
    return list(found.values())


@click.command()
@settings_options("store.dsn")
@click.option("--check", is_flag=True, help="Apply nothing; exit 1 if anything is missing.")
def migrate(config: str | None, assign: tuple[str, ...], check: bool, **named: str | None) -> None:
    """Apply the migrations that the store lacks, each in a transaction of its own."""
    settings = load(config, flags_of(assign, named), defaults=_NOT_NEEDED)
    missing = False
    stores = connections.stores(settings, settings.store.dsn or "")
    election = connections.election(settings, connections.home(settings, stores))
    for database in databases(settings, stores.values(), election):
        where = shown("dsn", database.dsn).strip('"')
        try:
            names = asyncio.run(migrations.pending(database) if check else migrations.apply(database))
        except ConfigurationError:
            raise
        except FencegateError as error:
            raise FencegateError(f"{where}: {error}") from error
        missing = missing or (check and bool(names))
        what = "lacks" if check else "applied"
        click.echo(f"{where}: " + (f"{what} {', '.join(names)}" if names else "up to date"))
    if missing:
        raise FencegateError("run: fencegate migrate")
