"""What gateways have found of a store that went back in time (rule R9), and an operator's word that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencegate.access.database import Database
from fencegate.errors import FencegateError, Unavailable
from fencegate.store.link import CONNECTION_LOST, NOT_MIGRATED, connect, describe

_FOUND: Final = """
    SELECT found_by AS by, to_char(found_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at,
           known_xact::text::bigint AS known, start_xact::text::bigint - 1 AS start
      FROM fencegate.rollback WHERE reopened_at IS NULL ORDER BY id"""
_REOPEN: Final = "SELECT fencegate.reopen($1)"


class NotMigrated(FencegateError):
    """The store is of a time before gateways looked for this, so nobody has found anything."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Gateway ``by`` knew the store to have acknowledged transaction ``known``; it set out again from ``start``."""

    by: str
    at: str
    known: int
    start: int

    def __str__(self) -> str:
        return (
            f"found by {self.by} at {self.at}: it had come to transaction {self.known}, and set out again from "
            f"{self.start}"
        )


async def findings(connection: asyncpg.Connection) -> list[Finding]:
    """Those that nobody has reopened the store after, oldest first. The database has the migrations."""
    return [Finding(**row) for row in await connection.fetch(_FOUND)]


async def find(database: Database, limit: float) -> list[Finding]:
    """As :func:`findings`, within about ``limit`` seconds. Raises :class:`Unavailable`, :class:`NotMigrated`."""
    async with _session(database, limit) as connection:
        return await findings(connection)


async def reopen(database: Database, by: str, limit: float) -> int:
    """Take the store as it is; how many findings that ended. Raises :class:`Unavailable` where it is not known."""
    async with _session(database, limit) as connection:
        return int(await connection.fetchval(_REOPEN, by))


@asynccontextmanager
async def _session(database: Database, limit: float) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(database, limit, application_name="fencegate reopen", settings={})
    try:
        async with asyncio.timeout(limit):
            yield connection
    except TimeoutError as error:
        raise Unavailable(f"the store did not answer within {limit:g} s") from error
    except NOT_MIGRATED as error:
        raise NotMigrated("the store lacks migrations: run fencegate migrate") from error
    except (asyncpg.PostgresError, *CONNECTION_LOST) as error:
        raise Unavailable(f"the store did not answer: {describe(error)}") from error
    finally:
        connection.terminate()


def told(found: Sequence[Finding]) -> str:
    """All of them in one line; empty for none."""
    return "; ".join(map(str, found))
