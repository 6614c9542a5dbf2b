"""The migrations: numbered SQL files, each applied once, in order, in one transaction of its own.

Several gateways may start at once: an advisory lock lets one of them migrate while the others wait. A store in
portability mode (``docs/portability.md``) has migrations of its own and no such lock: there a migration begins with its
own record, and of two that make the same one the later fails, and looks again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from time import monotonic
from typing import Final

import asyncpg

from fencegate.access.database import Database
from fencegate.errors import FencegateError, Unavailable
from fencegate.store import portable_schema
from fencegate.store.link import CONNECTION_LOST, connect, describe, refuse_pooler

# Any number will do as long as every version of fencegate uses the same one.
_ADVISORY_LOCK = 0x66656E6365

_MADE_BY_ANOTHER: Final = (
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateSchemaError,
    asyncpg.DuplicateTableError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
)
"""What a migrator may meet that makes something at the same time as another: nothing of it stands, it looks again."""
_LOOK_AGAIN: Final = 0.1
_LOCK_WAIT: Final = 0.5
_LOCK_PAUSE: Final = 1.0
"""Seconds for which a migration waits for a table, and after which it tries again. Gateways may be serving: what they
write comes behind a migration that waits, and so does the renewal of their term."""

_NO_LIMITS: Final = {"statement_timeout": "0", "lock_timeout": "0"}
"""Instead of those that a user or a database may have; ours are above."""


class SchemaMismatch(FencegateError):
    """The database holds a migration that differs from ours, or that we do not know."""


class MigrationFailed(FencegateError):
    """The database refused a statement; nothing of that migration stands."""


@dataclass(frozen=True, slots=True)
class Migration:
    name: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def _folder() -> Traversable:
    packaged = resources.files("fencegate") / "_migrations"
    # A source tree keeps them at its top; the wheel carries them inside the package.
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "migrations"


def migrations(*, portable: bool = False) -> list[Migration]:
    """Every migration that this version ships, in order; ``portable``: for a store in portability mode."""
    plain = _read(_folder())
    if not portable:
        return plain
    taken = [(m.name, portable_schema.portable(m.name, m.text)) for m in plain]
    first, *more = [Migration(name, text) for name, text in taken if text is not None]
    return [first, *_read(_folder() / "portable", "portable/"), *more]


def _read(folder: Traversable, prefix: str = "") -> list[Migration]:
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [Migration(prefix + f.name.removesuffix(".sql"), f.read_text(encoding="utf-8")) for f in files]


def sql(*, portable: bool = False) -> str:
    """All migrations as one script, for those who apply them with their own tool."""
    parts = [f"-- {m.name}\nBEGIN;\n{m.text}{_record(m)}COMMIT;\n" for m in migrations(portable=portable)]
    return "\n".join([_CREATE_TABLE, *parts])


async def pending(address: str | Database, limit: float = 10.0) -> list[str]:
    """The names of the migrations that the database lacks.

    Raises :class:`fencegate.errors.Unavailable`, :class:`SchemaMismatch` where one was changed after it
    was applied, comes from a newer version or belongs to a store in the other mode, or :class:`MigrationFailed` where
    the database refuses.
    """
    async with _session(address, limit) as connection:
        try:
            return [m.name for m in await missing(connection, portable=Database.at(address).portable)]
        except asyncpg.InsufficientPrivilegeError as error:
            raise MigrationFailed(
                f"the store does not tell which migrations it has: {describe(error)}. Use the user that migrated it, "
                "or grant this one USAGE on the schema fencegate and SELECT, INSERT, UPDATE and DELETE on its tables"
            ) from error


async def apply(address: str | Database, limit: float = 60.0) -> list[str]:
    """Apply what is missing and return the names. Raises as :func:`pending` does."""
    async with _session(address, limit) as connection:
        if Database.at(address).portable:
            async with asyncio.timeout(limit):
                return await _apply_beside_others(connection)
        await connection.execute("SELECT pg_advisory_lock($1)", _ADVISORY_LOCK, timeout=limit)
        await connection.execute(_CREATE_TABLE)
        lacking = await missing(connection)
        ends = monotonic() + limit
        for migration in lacking:
            await _apply_one(connection, migration, ends)
        return [m.name for m in lacking]


async def _apply_one(connection: asyncpg.Connection, migration: Migration, ends: float) -> None:
    while True:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {round(_LOCK_WAIT * 1000)}")
                await connection.execute(migration.text + _record(migration))
            return
        except asyncpg.LockNotAvailableError as error:
            if monotonic() + _LOCK_PAUSE >= ends:
                raise Unavailable(
                    f"a table that {migration.name} changes is held by a long transaction of somebody else, perhaps a "
                    "dump or fencegate diff (pg_stat_activity shows it): try again when it has ended"
                ) from error
        await asyncio.sleep(_LOCK_PAUSE)


async def _apply_beside_others(connection: asyncpg.Connection) -> list[str]:
    names: list[str] = []
    while True:
        try:
            await connection.execute(_CREATE_TABLE)
            for migration in await missing(connection, portable=True):
                async with connection.transaction():
                    await connection.execute(_record(migration) + migration.text)
                names.append(migration.name)
        except _MADE_BY_ANOTHER:
            await asyncio.sleep(_LOOK_AGAIN)
        else:
            return names


_CREATE_TABLE = """\
CREATE SCHEMA IF NOT EXISTS fencegate;
CREATE TABLE IF NOT EXISTS fencegate.migration (
    name        text PRIMARY KEY,
    digest      text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
"""


def _record(migration: Migration) -> str:
    # Names and digests are our own file names and hex: nothing in them needs quoting.
    return f"\nINSERT INTO fencegate.migration (name, digest) VALUES ('{migration.name}', '{migration.digest}');\n"


@asynccontextmanager
async def _session(address: str | Database, limit: float) -> AsyncIterator[asyncpg.Connection]:
    settings = {} if Database.at(address).portable else _NO_LIMITS
    connection = await connect(address, limit, application_name="fencegate migrate", settings=settings)
    try:
        await refuse_pooler(connection)  # it would keep our lock, in a session that it lends to others
        yield connection
    except TimeoutError as error:
        raise Unavailable(f"somebody else has been migrating the store for {limit:g} s: try again") from error
    except CONNECTION_LOST as error:
        raise Unavailable(f"the store went away while it was migrated: {describe(error)}") from error
    except asyncpg.PostgresError as error:
        raise MigrationFailed(
            f"the store refused the migration: {describe(error)} (SQLSTATE {error.sqlstate}). It was rolled back; "
            "the user needs the rights to create a schema, or somebody runs the output of `fencegate sql`"
        ) from error
    finally:
        try:
            await connection.close(timeout=1.0)
        except (TimeoutError, asyncpg.PostgresError, *CONNECTION_LOST):
            connection.terminate()


async def missing(connection: asyncpg.Connection, *, portable: bool = False) -> list[Migration]:
    """What a database lacks, asked over ``connection``. Raises :class:`SchemaMismatch`."""
    ours = migrations(portable=portable)
    if await connection.fetchval("SELECT to_regclass('fencegate.migration')") is None:
        return ours
    applied = {row["name"]: row["digest"] for row in await connection.fetch("SELECT * FROM fencegate.migration")}
    changed = [m.name for m in ours if m.name in applied and applied[m.name] != m.digest]
    if changed and any(applied.get(m.name) == m.digest for m in migrations(portable=not portable) if m.name in changed):
        made, here = ("without", "true") if portable else ("with", "false")
        raise SchemaMismatch(
            f"the store was made {made} portability = true, and here store.portability is {here}: a store keeps the "
            "mode that it was made in"
        )
    if unknown := sorted(applied.keys() - {m.name for m in ours}):
        raise SchemaMismatch(
            f"the database was migrated by a newer fencegate (it has {', '.join(unknown)}): upgrade this one"
        )
    if changed:
        raise SchemaMismatch(
            f"migration {', '.join(changed)} differs from the one that was applied: run the version that applied it"
        )
    return [m for m in ours if m.name not in applied]
