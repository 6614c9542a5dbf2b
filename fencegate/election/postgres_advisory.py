"""The election over a session's advisory lock in Postgres, beside the row of :mod:`fencegate.election.postgres`.

Whoever leads holds the role's lock in a session of its own, and has taken the row *under* it: the token is raised by
a statement of that very session and transaction. A number claimed some time after the lock was won would be no
fence: the session may have ended in between, another may lead, and the paused winner would then claim the
higher number. Here the statement that raises cannot run in a session that has ended, and it compares the row besides.

The lock alone is no lease: the server may end a session at any moment (a restart, an administrator, a lost
link), long before the leader's store has closed. A term that was not given back is therefore followed only after its
row has been seen unchanged for the holder's whole lease, lock or no lock. The other way round the server
ends a session that shows no sign of life for a lease (``idle_session_timeout``): a frozen leader, or one
behind a link that swallows everything, cannot keep the lock.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import asyncpg

from fencegate.election.postgres import POOLER, PostgresElection, translated
from fencegate.election.postgres_records import RELEASE, RENEW, TAKE, predecessor, released, seal_of
from fencegate.lease import Candidate, ElectionUnavailable, Held, LeaseLost, SealRecord, Won

_LOCK: Final = "SELECT pg_try_advisory_lock($1)"
_UNLOCK: Final = "SELECT pg_advisory_unlock($1)"

_HOLDS: Final = """
SELECT EXISTS (
    SELECT FROM pg_locks
     WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted AND mode = 'ExclusiveLock'
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND ((classid::bigint << 32) | objid::bigint) = $1 AND objsubid = 1
)
"""

T = TypeVar("T")


@dataclass(slots=True)
class _Session:
    """The connection of one role, and whether the lock was taken in it."""

    guard: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: asyncpg.Connection | None = None
    locked: bool = False

    def drop(self) -> None:
        """Closes the connection, upon which the server frees the lock."""
        if self.connection is not None:
            self.connection.terminate()
        self.connection, self.locked = None, False


class PostgresAdvisoryElection(PostgresElection):
    """Campaigns with a session lock in the database at ``address`` (Postgres 14 or newer), one connection per role.

    The connections must be direct ones: a pooler in between is found out and refused.
    """

    name = "postgres-advisory"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sessions: dict[str, _Session] = {}

    # -- campaigning --------------------------------------------------------------------------------

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        ends = asyncio.get_running_loop().time() + deadline
        campaign = self._campaign(role)
        row = await self._look(role, deadline)
        mine = row is not None and row["campaign"] == campaign and not released(row)
        if row is not None and not mine and not released(row) and not self._lapsed(role):
            await self._stand(role, candidate, ends)
            return Held(self._term(role, row))
        if row is not None and released(row) and self._seen.is_anothers(role, seal_of(row), candidate.region):
            await self._stand(role, candidate, ends)
            return Held(None)
        key = lock_key(role)

        async def win(session: _Session, connection: asyncpg.Connection) -> int | None:
            if not await _locked(session, connection, key):
                return None
            if mine and row is not None:
                return int(row["token"])
            taken = await connection.fetchval(
                TAKE,
                role,
                campaign,
                candidate.node,
                candidate.region,
                candidate.url,
                self._timings.lease_duration,
                row["token"] if row is not None else None,
                row["renewals"] if row is not None else None,
            )
            return None if taken is None else int(taken)

        token = await self._in_session(role, ends - asyncio.get_running_loop().time(), win)
        if token is None:
            self._end_session(role)  # a lock without the row would only be in its holder's way
            return Held(self._term(role, row) if row is not None and not released(row) else None)
        if mine and row is not None:
            return Won(token, predecessor(row))
        return Won(token, seal_of(row) if row is not None and released(row) else None)

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        ends = asyncio.get_running_loop().time() + deadline
        campaign, key = self._campaigns.get(role), lock_key(role)
        if campaign is None:
            raise LeaseLost(f"term {token} of {role!r} was not won by this process, or was given up")

        async def extend(session: _Session, connection: asyncpg.Connection) -> bool:
            # After a lost link the lock is taken anew; the row says whether the term is still ours.
            if not await _locked(session, connection, key):
                return False
            lease, successor = self._timings.lease_duration, candidate.draining_to
            return bool(await connection.fetch(RENEW, role, token, campaign, active, candidate.url, lease, successor))

        if await self._in_session(role, deadline, extend):
            return
        self._end_session(role)
        row = await self._look(role, ends - asyncio.get_running_loop().time())
        if row is not None and (row["token"], row["campaign"]) == (token, campaign) and not released(row):
            raise ElectionUnavailable(f"another session, perhaps our last, still holds the lock of {role!r}", "refused")
        raise LeaseLost(f"the row of {role!r} no longer carries term {token} of this process")

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        ends = asyncio.get_running_loop().time() + deadline
        ended = bool(await self._fetch(deadline, RELEASE, role, token, sealed.region, sealed.successor))
        session = self._sessions.get(role)
        if session is not None and session.locked:

            async def unlock(session: _Session, connection: asyncpg.Connection) -> None:
                await connection.fetchval(_UNLOCK, lock_key(role))
                session.locked = False

            try:
                await self._in_session(role, ends - asyncio.get_running_loop().time(), unlock)
            except ElectionUnavailable:
                self._end_session(role)
        if ended:
            return True
        row = await self._look(role, ends - asyncio.get_running_loop().time())
        return row is not None and bool(row["sealed_token"] == token)

    async def withdraw(self, role: str, deadline: float) -> None:
        """Frees the lock; a term that was won still lapses only with its row."""
        self._end_session(role)
        self._sessions.pop(role, None)
        await super().withdraw(role, deadline)

    async def close(self) -> None:
        await super().close()
        for session in self._sessions.values():
            session.drop()
        self._sessions.clear()

    # -- the sessions -------------------------------------------------------------------------------

    async def _in_session(
        self, role: str, deadline: float, work: Callable[[_Session, asyncpg.Connection], Awaitable[T]]
    ) -> T:
        """``work`` in one transaction of the role's session. A session that fails in any way is ended."""
        session = self._sessions.setdefault(role, _Session())
        with translated(deadline):
            async with asyncio.timeout(max(0.0, deadline)), session.guard:
                if session.connection is None or session.connection.is_closed():
                    session.drop()
                    session.connection = await self._connect(deadline)
                connection = session.connection
                try:
                    async with connection.transaction():
                        return await work(session, connection)
                except BaseException:
                    # Whether the lock was taken, or the row, is not known now: a new session finds out.
                    session.drop()
                    raise

    def _end_session(self, role: str) -> None:
        session = self._sessions.get(role)
        if session is not None:
            session.drop()

    def _session_settings(self) -> dict[str, str]:
        lease = self._timings.lease_duration
        whole, milliseconds = str(max(1, int(lease / 3))), str(int(lease * 1000))
        return super()._session_settings() | {
            "idle_session_timeout": milliseconds,
            "idle_in_transaction_session_timeout": milliseconds,
            "tcp_user_timeout": milliseconds,
            "tcp_keepalives_idle": whole,
            "tcp_keepalives_interval": whole,
            "tcp_keepalives_count": "2",
        }

    async def _connect(self, limit: float) -> asyncpg.Connection:
        try:
            connection = await super()._connect(limit)
        except asyncpg.UndefinedObjectError as error:
            raise ElectionUnavailable(
                f"the election's Postgres is too old for election.source = {self.name!r}, which needs 14: {error}",
                "refused",
            ) from error
        try:
            await self._check_direct(connection)
            if self._closed:
                raise ElectionUnavailable("the election was closed", "refused")
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _check_direct(self, connection: asyncpg.Connection) -> None:
        """One backend over several statements; its lock seen; our settings in force."""
        probe = secrets.randbits(63)
        pids = {await connection.fetchval("SELECT pg_backend_pid()")}
        await connection.fetchval(_LOCK, probe)
        pids.add(await connection.fetchval("SELECT pg_backend_pid()"))
        seen = await connection.fetchval(_HOLDS, probe)
        await connection.fetchval(_UNLOCK, probe)
        timeout = await connection.fetchval("SELECT setting FROM pg_settings WHERE name = 'idle_session_timeout'")
        if len(pids) != 1 or not seen or timeout != self._session_settings()["idle_session_timeout"]:
            raise ElectionUnavailable(POOLER, "refused")


async def _locked(session: _Session, connection: asyncpg.Connection, key: int) -> bool:
    """Whether this session holds the lock, by the server's word; taken now if it was not."""
    if session.locked:
        return bool(await connection.fetchval(_HOLDS, key))
    session.locked = bool(await connection.fetchval(_LOCK, key))
    return session.locked


def lock_key(role: str) -> int:
    """The number of the role's lock: 63 bits of a hash, so that two roles do not share one."""
    digest = hashlib.blake2b(b"fencegate election\0" + role.encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
