"""What the elector and the admin pages ask of a store (:class:`fencegate.fence.FenceStore`).

Its sessions are its own: no flood of writes can take them away, and a renewal that waits for one
role's lock does not hold up another role's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from sys import intern
from time import monotonic
from time import time as wall_clock
from typing import Any, Final

import asyncpg

from fencegate.access.database import Database
from fencegate.errors import Unavailable
from fencegate.fence import ClaimRefused, Fence, Mode, StoreClock
from fencegate.observations import FenceSeen
from fencegate.store.link import Link, Server
from fencegate.store.portability import link_to
from fencegate.store.witness import WHY, Known, Sight, Witness, guarded

_STARTED: Final = "coalesce(extract(epoch FROM fencegate.started())::text, '')"
_CLOCK: Final = f"""
    SELECT clock_timestamp() AS now, fencegate.incarnation() AS incarnation, {_STARTED} AS started,
           fencegate.has_gone_back() AS gone_back"""
_SURVEY: Final = """
    SELECT *, (SELECT sum(hashtextextended(concat_ws(' ', role, max_token_seen, draining), 0))::text
                 FROM fencegate.fence) AS digest
      FROM fencegate.standing"""
_SEEN: Final = "SELECT role, max_token_seen, draining FROM fencegate.fence"
_CLOSE_GONE_BACK: Final = "SELECT fencegate.close_gone_back($1, $2, $3, $4, $5)"
# Rule R3, step c: on the server whose clock was read. The incarnation alone does not tell, nor does the session.
_SAME_SERVER: Final = f"WHERE $7 IN ('', {_STARTED})"
_CLAIM: Final = f"SELECT fencegate.claim($1, $2, $3, $4, $5, $6) {_SAME_SERVER}"
_EXTEND: Final = f"SELECT fencegate.extend($1, $2, $3, $4, $5, $6) {_SAME_SERVER}"
_SEAL: Final = f"""
    SELECT fencegate.seal(({guarded("ARRAY[$1::text]", first=4)})[1], $2, $3) AND NOT fencegate.has_gone_back()"""
_DRAINING: Final = "SELECT fencegate.set_draining($1, $2, $3)"
_BEGIN_HISTORY: Final = "SELECT fencegate.begin_history($1)"
# One clock for both halves: a mark that expires meanwhile must not slip between them.
_IN_FLIGHT: Final = """
    WITH orphan AS (
        DELETE FROM fencegate.mark m USING fencegate.fence f
         WHERE m.role_id = f.role_id AND f.role = $1 AND m.token <= $2 AND m.expires_at <= statement_timestamp()
        RETURNING 1)
    SELECT (SELECT count(*) FROM orphan) AS orphans,
           (SELECT count(*) FROM fencegate.mark m JOIN fencegate.fence f USING (role_id)
             WHERE f.role = $1 AND m.token <= $2 AND m.expires_at > statement_timestamp()) AS under_way"""
FENCES: Final = """
    SELECT role, mode, max_token_seen, sealed, incarnation, holder, last_seq, draining,
           CASE valid_until WHEN 'infinity' THEN 'Infinity'::float8 WHEN '-infinity' THEN '-Infinity'::float8
                            ELSE extract(epoch FROM valid_until)::float8 END AS valid_until
      FROM fencegate.fence"""
_ENSURE: Final = """
    INSERT INTO fencegate.fence (role, mode) SELECT role, mode FROM unnest($1::text[], $2::text[]) u(role, mode)
     WHERE NOT EXISTS (SELECT FROM fencegate.fence f WHERE f.role = u.role)  -- burns no role_id at every start
    ON CONFLICT (role) DO NOTHING"""
_OTHER_MODE: Final = """
    SELECT f.role FROM fencegate.fence f JOIN unnest($1::text[], $2::text[]) u(role, mode) USING (role)
     WHERE f.mode <> u.mode ORDER BY f.role"""
# The statement's timestamp and not the clock: an index is only searched for what does not change under way. By the
# clock the last chunk of each round read every key that stays. And by our own clock as well: where one of the two has
# stepped ahead, no key has grown older.
EXPIRE: Final = """
    WITH gone AS (
        DELETE FROM fencegate.idempotency_key WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM fencegate.idempotency_key
             WHERE created_at < least(statement_timestamp(), $3) - make_interval(secs => $1)
               AND (running_until IS NULL OR running_until < statement_timestamp())
             ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED))
        RETURNING 1)
    SELECT count(*) FROM gone"""
# For engines without a row's place and without SKIP LOCKED.
EXPIRE_BY_KEY: Final = """
    WITH gone AS (
        DELETE FROM fencegate.idempotency_key WHERE (role_id, key) IN (
            SELECT role_id, key FROM fencegate.idempotency_key
             WHERE created_at < least(statement_timestamp(), $3) - make_interval(secs => $1)
               AND (running_until IS NULL OR running_until < statement_timestamp())
             ORDER BY created_at LIMIT $2)
        RETURNING 1)
    SELECT count(*) FROM gone"""

_EXPIRY_CHUNK: Final = 2000


class Control:
    """Claims, renewals, seals and reads. ``limit`` seconds bound each of them."""

    def __init__(
        self, address: str | Database, server: Server, *, sessions: int, limit: float, connect_limit: float
    ) -> None:
        self._limit = limit
        self._expire = EXPIRE_BY_KEY if Database.at(address).portable else EXPIRE
        self._links = [
            link_to(address, f"control {n}", limit=connect_limit, statement_timeout=limit * 0.8, server=server)
            for n in range(sessions)
        ]
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for link in reversed(self._links):
            self._free.put_nowait(link)

    async def clock(self) -> StoreClock:
        row = (await self._read(_CLOCK))[0]
        if row["gone_back"]:
            raise Unavailable(WHY)
        return StoreClock(row["now"].timestamp(), row["incarnation"], row["started"])

    async def survey(self) -> tuple[Sight, str | None]:
        """Where the store is, and a digest of all fences: the same while no token and no drain changes.

        ``last_seq`` is left out, since it changes with every batch.
        """
        *sight, digest = (await self._read(_SURVEY))[0]
        return Sight(*sight), digest

    async def seen(self) -> Iterator[FenceSeen]:
        """What :meth:`survey` is a digest of, by role."""
        return (FenceSeen(intern(row[0]), row[1], row[2]) for row in await self._read(_SEEN))

    async def close_gone_back(self, by: str, known: Known) -> None:
        """Close every fence of the store, which lacks what is ``known`` of it, until an operator reopens it."""
        await self._read(_CLOSE_GONE_BACK, by, known.incarnation, known.reopened, known.lsn, known.xact)

    async def claim(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        return await self._term(_CLAIM, role, token, holder, clock, valid_for)

    async def extend(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        return await self._term(_EXTEND, role, token, holder, clock, valid_for)

    async def seal(self, role: str, token: int, incarnation: str, witness: Witness) -> bool:
        """Unless the store lacks what ``witness`` knows of it: newer files, put back, would have no such seal."""
        return bool((await self._read(_SEAL, role, token, incarnation, *witness.arguments()))[0][0])

    async def set_draining(self, role: str, token: int, draining: bool) -> bool:
        return bool((await self._read(_DRAINING, role, token, draining))[0][0])

    async def in_flight(self, role: str, token: int) -> tuple[int, int]:
        """Marks that stand, and those that a gateway which is gone left to expire: these are removed by it."""
        row = (await self._read(_IN_FLIGHT, role, token))[0]
        return row["under_way"], row["orphans"]

    async def read(self, role: str) -> Fence | None:
        rows = await self.read_some([role])
        return rows[0] if rows else None

    async def read_some(self, roles: Sequence[str]) -> list[Fence]:
        return [fence_of(row) for row in await self._read(FENCES + " WHERE role = ANY($1)", list(roles))]

    async def read_all(self) -> list[Fence]:
        return [fence_of(row) for row in await self._read(FENCES + " ORDER BY role")]

    async def ensure_roles(self, roles: Mapping[str, Mode]) -> list[str]:
        """Make the missing rows, closed. Gives the roles whose row is in the other mode than asked for."""
        names = sorted(roles)
        modes = [roles[name] for name in names]
        await self._read(_ENSURE, names, modes)
        return [row["role"] for row in await self._read(_OTHER_MODE, names, modes)]

    async def expire_keys(self, keep: float) -> int:
        """Drop keys older than ``keep`` s by the store's clock and by ours, in short transactions; how many went."""
        dropped = 0
        while True:
            now = datetime.fromtimestamp(wall_clock(), UTC)
            chunk = int((await self._read(self._expire, keep, _EXPIRY_CHUNK, now))[0][0])
            dropped += chunk
            if chunk < _EXPIRY_CHUNK:
                return dropped
            await asyncio.sleep(0.02)  # let writes and vacuum have their turn between two chunks

    async def begin_history(self, by: str) -> str:
        """Of a store in portability mode: it is another history from now on (rule R9). Gives its incarnation."""
        return str((await self._read(_BEGIN_HISTORY, by))[0][0])

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links))

    async def _term(
        self, query: str, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        since = datetime.fromtimestamp(clock.now, UTC)
        rows = await self._read(query, role, token, holder, since, valid_for, clock.incarnation, clock.started)
        if not rows:
            raise Unavailable("the store's server was started, or another has its place, since its clock was read")
        reason = rows[0][0]
        return None if reason is None else ClaimRefused(reason)

    async def _read(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        ends = monotonic() + self._limit
        try:
            async with asyncio.timeout(self._limit):
                link = await self._free.get()
        except TimeoutError as error:
            raise Unavailable("every control session with the store is busy") from error
        try:
            return await link.read(max(0.0, ends - monotonic()), query, *arguments)
        finally:
            self._free.put_nowait(link)


def fence_of(row: asyncpg.Record) -> Fence:
    return Fence(**dict(row))
