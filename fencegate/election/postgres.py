"""The election over one row per role in Postgres: client-go's rule of take-over, with a token that is a counter.

A candidate takes the row only after it has seen the same (token, renewals) for the whole of the *holder's* lease
on its own monotonic clock, or at once where the holder gave it back. The statement that takes it compares
both numbers and raises the token: whoever renews in between is not overtaken.

One Postgres is no quorum. What that costs after an asynchronous failover stands in DESIGN.md beside this file.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import asyncpg

from fencegate.access.database import Database
from fencegate.election.postgres_hints import PostgresHints
from fencegate.election.postgres_records import (
    CANDIDATES,
    LEAVE,
    READ,
    REBASE,
    RELEASE,
    RENEW,
    STAND,
    TAKE,
    issued_up_to,
    predecessor,
    released,
    seal_of,
)
from fencegate.election.sightings import Sightings
from fencegate.lease import (
    HIGHEST_BASE,
    Candidate,
    ElectionBackend,
    ElectionUnavailable,
    Held,
    LeaseLost,
    LeaseTimings,
    Reading,
    Rebased,
    SealRecord,
    Term,
    Won,
)

_LINK_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TargetServerAttributeNotMatched,
    OSError,
    EOFError,
)


POOLER: Final = "a pooler stands between us and the election's Postgres: set election.dsn to the server itself"


class PostgresElection(ElectionBackend):
    """Campaigns in the table ``fencegate.election`` of the database at ``address``, over a connection of its own.

    The connection must be a direct one: a pooler is refused, as sessions behind it are lent to many.
    """

    name = "postgres"
    proves_terms = True
    roles_a_read = 500
    roles_a_watch = 1_000_000

    def __init__(
        self, address: str | Database, timings: LeaseTimings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = Database.at(address)
        self._timings = timings
        self._lock = asyncio.Lock()
        self._closed = False
        self._connection: asyncpg.Connection | None = None
        self._campaigns: dict[str, uuid.UUID] = {}
        self._standing: dict[str, Candidate] = {}
        self._seen = Sightings(clock, timings.hold_back)
        self._hints = PostgresHints(lambda limit: self._connect(limit), timings.renew_deadline)

    # -- campaigning --------------------------------------------------------------------------------

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        ends = asyncio.get_running_loop().time() + deadline
        campaign = self._campaign(role)
        row = await self._look(role, deadline)
        if row is not None:
            if row["campaign"] == campaign and not released(row):
                return Won(row["token"], predecessor(row))
            if not released(row) and not self._lapsed(role):
                await self._stand(role, candidate, ends)
                return Held(self._term(role, row))
            if released(row) and self._seen.is_anothers(role, seal_of(row), candidate.region):
                await self._stand(role, candidate, ends)
                return Held(None)
        taken = await self._fetch(
            ends - asyncio.get_running_loop().time(),
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
        if not taken:
            return Held(None)  # another candidate was quicker, or the holder came back
        before = seal_of(row) if row is not None and released(row) else None
        return Won(taken[0]["token"], before)

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        campaign = self._campaigns.get(role)
        lease = self._timings.lease_duration
        if campaign is None or not await self._fetch(
            deadline, RENEW, role, token, campaign, active, candidate.url, lease, candidate.draining_to
        ):
            raise LeaseLost(f"the row of {role!r} no longer carries term {token} of this process")

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        ends = asyncio.get_running_loop().time() + deadline
        if await self._fetch(deadline, RELEASE, role, token, sealed.region, sealed.successor):
            return True
        row = await self._look(role, ends - asyncio.get_running_loop().time())
        return row is not None and row["sealed_token"] == token

    async def withdraw(self, role: str, deadline: float) -> None:
        """Stand for the role no more. A term that was won lapses."""
        self._campaigns.pop(role, None)
        standing = self._standing.pop(role, None)
        if standing is not None:
            await self._fetch(deadline, LEAVE, role, standing.region, standing.node)

    async def candidates(self, role: str, deadline: float) -> list[Candidate]:
        """See :class:`ElectionBackend`: all whose last turn, by this server's clock, is no older than their lease."""
        return [
            Candidate(row["node"], row["region"], row["url"]) for row in await self._fetch(deadline, CANDIDATES, role)
        ]

    async def _stand(self, role: str, candidate: Candidate, ends: float) -> None:
        left = ends - asyncio.get_running_loop().time()
        lease = self._timings.lease_duration
        self._standing[role] = candidate
        await self._fetch(left, STAND, role, candidate.region, candidate.node, candidate.url, lease)

    # -- looking ------------------------------------------------------------------------------------

    async def read(self, role: str, deadline: float) -> Term | None:
        """See :class:`ElectionBackend`. A term that shows no sign of life for its whole lease leads no more."""
        row = await self._look(role, deadline)
        if row is None or released(row) or self._lapsed(role):
            return None
        return self._term(role, row)

    async def read_many(self, roles: Sequence[str], deadline: float) -> Mapping[str, Reading]:
        """As :meth:`read`, in one statement."""
        found: dict[str, Reading] = dict.fromkeys(roles)
        for row in await self._rows(roles, deadline):
            role = row["role"]
            if role is not None and not released(row) and not self._lapsed(role):
                found[role] = self._term(role, row)
        return found

    async def changes(self, role: str) -> AsyncIterator[None]:
        async for named in self.changes_among((role,)):
            if named == role:
                yield

    async def changes_among(self, roles: Sequence[str]) -> AsyncIterator[str | None]:
        async for role in self._hints.roles():
            yield role

    async def issued_up_to(self, role: str, deadline: float) -> int:
        return issued_up_to(await self._look(role, deadline))

    async def rebase(self, role: str, above: int, by: str, deadline: float) -> Rebased:
        """See :class:`ElectionBackend`. Who and when stay in ``fencegate.election_rebase``.

        A term that was given back counts as held from here on, so that its successor waits for one lease.
        """
        if above > HIGHEST_BASE:
            raise ValueError(f"the numbers move up to at most {HIGHEST_BASE}; not to {above}")
        ends = asyncio.get_running_loop().time() + deadline
        while True:
            left = ends - asyncio.get_running_loop().time()
            before = issued_up_to(await self._look(role, left))
            if before >= above:
                return Rebased(before, before)
            left = ends - asyncio.get_running_loop().time()
            if await self._fetch(left, REBASE, role, above, self._timings.lease_duration, before, by):
                return Rebased(before, above)

    async def probe(self, deadline: float) -> None:
        """Raises :class:`~fencegate.errors.Unavailable` saying why where the table cannot be used."""
        await self._look("", deadline)

    async def close(self) -> None:
        self._closed = True
        self._campaigns.clear()
        self._hints.close()
        self._drop()

    def _campaign(self, role: str) -> uuid.UUID:
        return self._campaigns.setdefault(role, uuid.uuid4())

    # -- what the row says --------------------------------------------------------------------------

    async def _look(self, role: str, deadline: float) -> asyncpg.Record | None:
        row = (await self._rows((role,), deadline))[0]
        return row if row["role"] is not None else None

    async def _rows(self, roles: Sequence[str], deadline: float) -> list[asyncpg.Record]:
        """The rows as they are on a primary, noting when the latest sign of life in each was first seen.

        One at least, and for a role without a row one that says nothing.
        """
        rows = await self._fetch(deadline, READ, list(roles))
        if rows[0]["standby"]:
            self._drop()
            raise ElectionUnavailable("the election's Postgres takes no writes: its word may be old", "refused")
        for row in rows:
            if row["role"] is not None:
                sign = (row["campaign"], row["token"], row["renewals"])
                self._seen.note(row["role"], sign, row["lease_duration"])
        return rows

    def _lapsed(self, role: str) -> bool:
        return self._seen.left(role) <= 0

    def _term(self, role: str, row: asyncpg.Record) -> Term:
        lease = row["lease_duration"]
        return Term(
            role,
            row["token"],
            row["node"],
            row["region"],
            row["url"],
            row["active"],
            lease,
            expires_in=max(0.0, self._seen.left(role)),
            draining_to=row["draining_to"],
        )

    # -- the link -----------------------------------------------------------------------------------

    async def _fetch(self, deadline: float, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """The rows of one statement, committed. A lost answer and no answer are the same: look again."""
        with translated(deadline):
            async with asyncio.timeout(max(0.0, deadline)), self._lock:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._connect(deadline)
                try:
                    rows: list[asyncpg.Record] = await self._connection.fetch(query, *arguments)
                except (asyncio.CancelledError, *_LINK_LOST):
                    # The answer to this statement must never be taken for the next one's.
                    self._drop()
                    raise
                return rows

    def _session_settings(self) -> dict[str, str]:
        """What every connection asks the server for."""
        return {
            "application_name": "fencegate election",
            "default_transaction_isolation": "read committed",
            # A statement left behind by a lost link must not linger in a lock's queue.
            "statement_timeout": str(int(self._timings.lease_duration * 1000)),
        }

    async def _connect(self, limit: float) -> asyncpg.Connection:
        if self._closed:
            raise ElectionUnavailable("the election was closed", "refused")
        try:
            connection: asyncpg.Connection = await asyncpg.connect(
                self._database.dsn,
                timeout=limit,
                server_settings=self._session_settings(),
                **self._database.options(writable=True),
            )
        except OSError as error:
            if told := self._database.tls_advice(error):
                raise ElectionUnavailable(
                    f"the election's Postgres takes no connection: {told}", "connection"
                ) from error
            raise
        try:
            row = await connection.fetchrow(
                "SELECT current_setting('synchronous_commit') AS commit, pg_backend_pid() AS backend"
            )
            assert row is not None  # a SELECT without FROM gives one row
            if row["backend"] != connection.get_server_pid():  # a pooler greets with a number of its own
                raise ElectionUnavailable(POOLER, "refused")
            if row["commit"] in ("off", "local"):
                # A token that a crash forgets would be issued twice.
                await connection.execute("SET synchronous_commit = on")
            if self._closed:
                raise ElectionUnavailable("the election was closed", "refused")
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


@contextmanager
def translated(deadline: float) -> Iterator[None]:
    """Turns what asyncpg raises within into :class:`~fencegate.lease.ElectionUnavailable`, saying why."""
    try:
        yield
    except TimeoutError:
        raise ElectionUnavailable(f"the election's Postgres did not answer in {deadline:.3g} s", "timeout") from None
    except _LINK_LOST as error:
        if "unsupported startup parameter" in str(error):
            raise ElectionUnavailable(POOLER, "refused") from error
        raise ElectionUnavailable(f"the election's Postgres: {_describe(error)}", "connection") from error
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise ElectionUnavailable("no table fencegate.election: run `fencegate migrate`", "refused") from error
    except asyncpg.PostgresError as error:
        raise ElectionUnavailable(f"the election's Postgres refused: {_describe(error)}", "refused") from error


def _describe(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
