"""Before a gateway can lead: the store's tables are there, and each role has its row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from fencegate.access.database import Database
from fencegate.config import Settings
from fencegate.errors import ConfigurationError, FencegateError, Unavailable
from fencegate.fence import FenceStore
from fencegate.store import migrate as migrations
from fencegate.store.several import RegionStores

RETRY: Final = 1.0
FIRST_LOOK: Final = 10.0
"""Seconds for a store to answer before anything listens."""
_MOST_FAULTS: Final = 10


class SchemaMissing(ConfigurationError):
    """The database lacks migrations."""


async def check(databases: Sequence[Database], *, apply: bool) -> None:
    """The migrations are there in each, or are applied.

    Raises :class:`SchemaMissing`, ``ConfigurationError`` for those of another version or mode, or ``Unavailable``.
    """
    for database in databases:
        try:
            names = await (migrations.apply(database) if apply else migrations.pending(database))
        except migrations.SchemaMismatch as error:
            raise ConfigurationError([f"{database.key('dsn')}: {error}"]) from error
        if apply:
            continue
        if names:
            raise SchemaMissing(
                [
                    f"{database.key('dsn')}: the database lacks the migrations {', '.join(names)}: "
                    "run fencegate migrate, or serve with --migrate"
                ]
            )


async def first_look(databases: Iterable[Sequence[Database]], *, apply: bool) -> None:
    """What is wrong with any of the tables is said before anything listens; a store that is down is waited for.

    ``databases``: those of each store. Raises :class:`SchemaMissing` with all of it.
    """

    async def look(each: Sequence[Database]) -> list[str]:
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(FIRST_LOOK):
                try:
                    await check(each, apply=apply)
                except ConfigurationError as error:
                    return error.faults
        return []

    faults = await asyncio.gather(*map(look, databases))
    if found := dict.fromkeys(fault for each in faults for fault in each):
        raise SchemaMissing(list(found))


async def prepare(
    settings: Settings, databases: Sequence[Database], name: str, stores: RegionStores, *, apply: bool
) -> None:
    """Migrations in ``databases``, then rows in the store of that ``name``; ``settings`` are for its roles alone.

    Raises :class:`FencegateError`, or ``Unavailable`` where it is worth another try.
    """
    store = stores.by_name[name]
    await check(databases, apply=apply)
    if settings.pending:
        await store.check_pending_allowed()
    await check_not_moved(settings.roles, name, store, stores.others(name))
    try:
        await store.ensure_roles(dict.fromkeys(settings.roles, settings.election.store_mode))
    except Unavailable:
        raise
    except FencegateError as error:
        raise ConfigurationError([f'election.mode = "{settings.election.mode}": {error}']) from None


async def check_not_moved(
    roles: Sequence[str], name: str, store: FenceStore, others: Sequence[tuple[str, FenceStore]]
) -> None:
    """No other store has taken a newer term of one of ``roles``: this one lacks what was written there.

    It would begin the ledger anew, and take a repetition for a new write. A role without a row here may be such a one,
    so that every other store has to say; rows are made after that. Of the rest those stores are asked that answer.
    Raises :class:`ConfigurationError`, or ``Unavailable``.
    """
    if not others:
        return
    own = {row.role: row.max_token_seen for row in await store.read_some(roles)}
    new = [role for role in roles if role not in own]
    for other, asked in others:
        try:
            rows = await asked.read_some(roles)
        except Unavailable as error:
            if not new:
                continue
            raise Unavailable(
                f"{new[0]} is new here, and whether store {other} has held it is not known: {error}"
            ) from error
        if ahead := [row for row in rows if row.max_token_seen > own.get(row.role, 0)]:
            raise ConfigurationError(
                [
                    f"[[store]] {name} roles: {row.role} is placed there, where token {own.get(row.role, 0)} was "
                    f"seen, and [[store]] {other} has taken token {row.max_token_seen} of it: place it there, or move "
                    "what it wrote first (fence row, ledger and keys)"
                    for row in ahead[:_MOST_FAULTS]
                ]
            )


async def prepared(
    settings: Settings,
    databases: Sequence[Database],
    name: str,
    stores: RegionStores,
    *,
    apply: bool,
    waiting: Callable[[str], None],
) -> None:
    """Try :func:`prepare` until it succeeds, telling ``waiting`` why it has not. Raises what waiting cannot mend."""
    while True:
        try:
            return await prepare(settings, databases, name, stores, apply=apply)
        except SchemaMissing as error:
            waiting(error.faults[0])
        except Unavailable as error:
            waiting(str(error))
        await asyncio.sleep(RETRY)
