"""One copy of a role's ledger, read as it stood at one moment: for comparing it with another copy.

Reads only, in one REPEATABLE READ transaction, so that a ledger that is being written does not move under the reader;
a standby will do. Long tails are streamed, never held.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from fencegate.errors import Unavailable
from fencegate.fence import Entry
from fencegate.store.chain import BrokenLink, genesis, verify_chain
from fencegate.store.ledger import entry, timestamp
from fencegate.store.link import CONNECTION_LOST, connect, describe

_CONNECT_LIMIT: Final = 10.0
_CHUNK: Final = 5000

_ROLE: Final = "SELECT role_id FROM fencegate.fence WHERE role = $1"
_END: Final = "SELECT coalesce(max(seq), 0) FROM fencegate.entry WHERE role_id = $1"
_HASH: Final = "SELECT hash FROM fencegate.entry WHERE role_id = $1 AND seq = $2"
_ENTRY: Final = (
    "SELECT $3::text AS role, seq, token, recorded_at, hash, key, caller, body::text AS body FROM fencegate.entry"
)
_ONE: Final = _ENTRY + " WHERE role_id = $1 AND seq = $2"
_BY_SEQUENCE: Final = _ENTRY + " WHERE role_id = $1 AND seq > $2 ORDER BY seq"
_BY_KEY: Final = f"""{_ENTRY}
     WHERE role_id = $1 AND seq > $2 AND key <> '' ORDER BY key COLLATE "C", coalesce(caller, '') COLLATE "C", seq"""
_WITHOUT_KEY: Final = _ENTRY + " WHERE role_id = $1 AND seq > $2 AND coalesce(key, '') = '' ORDER BY seq"
_TERMS: Final = """
    SELECT token, count(*) AS entries, count(*) FILTER (WHERE coalesce(key, '') = '') AS without_key,
           min(seq) AS first_seq, max(seq) AS last_seq, min(recorded_at) AS since, max(recorded_at) AS until
      FROM fencegate.entry WHERE role_id = $1 AND seq > $2 GROUP BY token ORDER BY token"""


@dataclass(frozen=True, slots=True)
class TermShare:
    """What one term wrote of a stretch of a ledger. ``since`` and ``until`` are RFC 3339 in UTC."""

    token: int
    entries: int
    without_key: int
    first_seq: int
    last_seq: int
    since: str
    until: str


class LedgerCopy:
    """The ledger of ``role`` as it stood when :func:`open_copy` began.

    Every method raises :class:`~fencegate.errors.Unavailable` where the database stops answering.
    """

    def __init__(self, connection: asyncpg.Connection, role: str, role_id: int, last_seq: int) -> None:
        self.role = role
        self.last_seq = last_seq
        self._connection = connection
        self._id = role_id

    async def hash_at(self, seq: int) -> bytes | None:
        """32 bytes; ``None`` where there is no such entry. Entry 0 is the chain's beginning."""
        if seq == 0:
            return genesis(self.role)
        found: bytes | None = await self._connection.fetchval(_HASH, self._id, seq)
        return found

    async def entry_at(self, seq: int) -> Entry | None:
        rows = await self._connection.fetch(_ONE, self._id, seq, self.role)
        return entry(rows[0]) if rows else None

    async def terms(self, after: int) -> list[TermShare]:
        """Who wrote the entries behind ``after``, by term."""
        return [
            TermShare(**{**dict(row), "since": timestamp(row["since"]), "until": timestamp(row["until"])})
            for row in await self._connection.fetch(_TERMS, self._id, after)
        ]

    async def by_key(self, after: int) -> AsyncIterator[Entry]:
        """Entries behind ``after`` that have an idempotency key: by its code points, by caller, then by sequence."""
        async for row in self._connection.cursor(_BY_KEY, self._id, after, self.role, prefetch=_CHUNK):
            yield entry(row)

    async def without_key(self, after: int) -> AsyncIterator[Entry]:
        """Entries behind ``after`` that have no idempotency key, in order."""
        async for row in self._connection.cursor(_WITHOUT_KEY, self._id, after, self.role, prefetch=_CHUNK):
            yield entry(row)

    async def verify(self) -> BrokenLink | None:
        """Computes every hash of the whole ledger anew; the first that does not fit, or ``None``. Reads every body."""
        trusted: tuple[int, bytes] | None = None
        chunk: list[Entry] = []
        async for row in self._connection.cursor(_BY_SEQUENCE, self._id, 0, self.role, prefetch=_CHUNK):
            chunk.append(entry(row))
            if len(chunk) == _CHUNK:
                if broken := verify_chain(self.role, chunk, after=trusted):
                    return broken
                trusted, chunk = (chunk[-1].seq, bytes.fromhex(chunk[-1].hash)), []
        return verify_chain(self.role, chunk, after=trusted)


@asynccontextmanager
async def open_copy(dsn: str, role: str, *, limit: float = _CONNECT_LIMIT) -> AsyncIterator[LedgerCopy]:
    """The ledger of ``role`` in the database at ``dsn``; ``limit`` seconds bound the connection attempt.

    Raises :class:`~fencegate.errors.Unavailable`, also where there is no such role or no fencegate there.
    """
    settings = {"default_transaction_read_only": "on", "jit": "off"}
    connection = await connect(dsn, limit, application_name="fencegate diff", settings=settings, writable=False)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            role_id: Any = await connection.fetchval(_ROLE, role)
            if role_id is None:
                raise Unavailable(f"this store has no role {role!r}")
            yield LedgerCopy(connection, role, role_id, await connection.fetchval(_END, role_id))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
        raise Unavailable("this database has no fencegate tables") from error
    except asyncpg.UndefinedColumnError as error:
        raise Unavailable("this database lacks migrations: run fencegate migrate") from error
    except (asyncpg.PostgresError, *CONNECTION_LOST) as error:
        raise Unavailable(f"the store stopped answering: {describe(error)}") from error
    finally:
        connection.terminate()


async def agree(copies: tuple[LedgerCopy, LedgerCopy], seq: int) -> bool:
    """Whether both copies carry the same hash at ``seq``, and so the same entries up to it."""
    first, second = await asyncio.gather(*(copy.hash_at(seq) for copy in copies))
    return first is not None and first == second
