"""``fencegate migrate``: applies the migrations that the store (and the election's database) lacks."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from fencegate.cli.loading import flags_of, load, settings_options
from fencegate.config import Settings
from fencegate.config.parsing import shown
from fencegate.errors import FencegateError
from fencegate.store import migrate as migrations

# What serving needs and migrating does not; whatever is given is still checked.
_NOT_NEEDED: Final[dict[str, Any]] = {
    "node": "migrate",
    "region": "migrate",
    "advertise": "https://localhost",
    "route": [{"path": "/", "role": "migrate", "target": "http://localhost"}],
}


def databases(settings: Settings, store_dsn: str) -> list[str]:
    """The DSNs that hold fencegate's tables: the store or stores, and the election's own where it has one."""
    own = settings.election.dsn if settings.election.over_postgres else None
    stores = [store.dsn or "" for store in settings.stores] or [store_dsn]
    return list(dict.fromkeys((*stores, own or stores[0])))


@click.command()
@settings_options("store.dsn")
@click.option("--check", is_flag=True, help="Apply nothing; exit 1 if anything is missing.")
def migrate(config: str | None, assign: tuple[str, ...], check: bool, **named: str | None) -> None:
    """Apply the migrations that the store lacks, each in a transaction of its own."""
    settings = load(config, flags_of(assign, named), defaults=_NOT_NEEDED)
    missing = False
    for dsn in databases(settings, settings.store.dsn or ""):
        where = shown("dsn", dsn).strip('"')
        if check:
            names = asyncio.run(migrations.pending(dsn))
            missing = missing or bool(names)
            click.echo(f"{where}: " + (f"lacks {', '.join(names)}" if names else "up to date"))
        else:
            names = asyncio.run(migrations.apply(dsn))
            click.echo(f"{where}: " + (f"applied {', '.join(names)}" if names else "up to date"))
    if missing:
        raise FencegateError("run: fencegate migrate")
