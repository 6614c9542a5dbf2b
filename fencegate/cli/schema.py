"""Before a gateway can lead: the store's tables are there, and each role has its row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fencegate.access.database import Database
from fencegate.cli.migrate import databases
from fencegate.config import Settings
from fencegate.errors import ConfigurationError, FencegateError, Unavailable
from fencegate.store import migrate as migrations
from fencegate.store.postgres import PostgresStore

RETRY: Final = 1.0


class SchemaMissing(ConfigurationError):
    """The database lacks migrations."""


async def check(settings: Settings, store_at: Database, *, apply: bool) -> None:
    """The migrations are there, or are applied. Raises :class:`SchemaMissing`, or ``Unavailable``."""
    for database in databases(settings, store_at):
        if apply:
            await migrations.apply(database)
            continue
        names = await migrations.pending(database)
        if names:
            raise SchemaMissing(
                [
                    f"{database.name}.dsn: the database lacks the migrations {', '.join(names)}: "
                    "run fencegate migrate, or serve with --migrate"
                ]
            )


async def prepare(settings: Settings, store_at: Database, store: PostgresStore, *, apply: bool) -> None:
    """Migrations, then rows. Raises :class:`FencegateError`, or ``Unavailable`` where it is worth another try."""
    await check(settings, store_at, apply=apply)
    if settings.pending:
        await store.check_pending_allowed()
    try:
        await store.ensure_roles(dict.fromkeys(settings.roles, settings.election.store_mode))
    except Unavailable:
        raise
    except FencegateError as error:
        raise ConfigurationError([f'election.mode = "{settings.election.mode}": {error}']) from None


async def prepared(
    settings: Settings, store_at: Database, store: PostgresStore, *, apply: bool, waiting: Callable[[str], None]
) -> None:
    """Try :func:`prepare` until it succeeds, telling ``waiting`` why it has not. Raises what waiting cannot mend."""
    while True:
        try:
            return await prepare(settings, store_at, store, apply=apply)
        except SchemaMissing as error:
            waiting(error.faults[0])
        except Unavailable as error:
            waiting(str(error))
        await asyncio.sleep(RETRY)
