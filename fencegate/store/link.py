"""One connection to the store: opened when needed, used by one caller at a time, dropped when in doubt.

Every use has a time limit of its own (``asyncio.timeout``: a driver's own timeout was seen to take
twice its length against a frozen server). After a time-out or a lost connection the session is
thrown away, never asked again: an answer that comes late must not be taken for another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final, TypeVar

import asyncpg

from fencegate.access.database import Database
from fencegate.errors import OutcomeUnknown, Unavailable

CONNECTION_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    ConnectionError,
    OSError,
    EOFError,
)
"""What says that the link is gone: whether a statement under way was committed is not known."""

NOT_MIGRATED: Final = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
)
"""What a statement of ours meets in a database that lacks migrations."""

UNSAFE_SESSION: Final = "ZF501"

_Answer = TypeVar("_Answer")

_POOLER: Final = (
    "a pooler stands in between, whose sessions are lent to many: a statement that one of them prepared may be run as "
    "another's. Give the store's own address"
)

# Where in the server a warning comes from: its text is translated, and the part that matters is in its detail.
_REPLICATION_WAIT: Final = "SyncRepWaitForLSN"


async def connect(
    address: str | Database, limit: float, *, application_name: str, settings: Mapping[str, str], writable: bool = True
) -> asyncpg.Connection:
    """A new connection, or :class:`fencegate.errors.Unavailable` within ``limit`` seconds.

    Not ``writable``: a standby will do.
    """
    database = Database.at(address)
    try:
        async with asyncio.timeout(limit):
            connection: asyncpg.Connection = await asyncpg.connect(
                database.dsn,
                timeout=limit,
                server_settings={"application_name": application_name, **settings},
                **database.options(writable=writable),
            )
            return connection
    except TimeoutError as error:
        raise Unavailable(f"the store did not take a connection within {limit:g} s") from error
    except (asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched, *CONNECTION_LOST) as error:
        told = database.tls_advice(error) or describe(error)
        raise Unavailable(
            f"the store takes no connection: {_POOLER if 'unsupported startup parameter' in told else told}"
        ) from error


async def refuse_pooler(connection: asyncpg.Connection) -> None:
    """Raises :class:`Unavailable` where the backend that greeted ``connection`` is not the one that answers it."""
    _refuse_other_backend(connection, await connection.fetchval("SELECT pg_backend_pid()"))


def _refuse_other_backend(connection: asyncpg.Connection, backend: int) -> None:
    # A pooler greets with a number of its own, whatever it does with the sessions behind it.
    if backend != connection.get_server_pid():
        raise Unavailable(_POOLER)


def describe(error: BaseException) -> str:
    """The error in one line, without the parameters of a statement."""
    text = str(error).splitlines()
    return text[0] if text else type(error).__name__


class Server:
    """The server that the links of one store are with.

    Once any of them meets one that takes no writes any more, or another one than it was, all leave it: those that only
    read would never notice, nor would those whose old primary is up.
    """

    def __init__(self) -> None:
        self.left = 0
        """How often the links have left one."""
        self._met: object = None

    def is_now(self, identity: object) -> None:
        """``identity`` tells it from any other. All links leave where it is another than it was."""
        if self._met is not None and identity != self._met:
            self.left += 1
        self._met = identity


class Link:
    """One session. ``limit`` bounds a connection attempt in seconds; each use brings its own."""

    settings: ClassVar[Mapping[str, str]] = {"default_transaction_isolation": "read committed", "jit": "off"}
    """Of each session, beside its time limits."""
    checked: ClassVar[str] = "SELECT current_setting('synchronous_commit') AS commit, current_setting('fsync') AS fsync"
    """Asked of each session as it begins: it is refused where one of the two is off."""

    def __init__(
        self,
        address: str | Database,
        name: str,
        *,
        limit: float,
        statement_timeout: float,
        server: Server | None = None,
    ) -> None:
        self._address = address
        self._name = name
        self._limit = limit
        self._statement_timeout = statement_timeout
        self._server = server or Server()
        self._left = 0
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection | None = None
        self._unreplicated = False

    async def fetch(self, limit: float, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """The rows of one statement, committed when this returns.

        Raises :class:`Unavailable` if the statement was certainly not applied for want of a session,
        ``asyncpg.PostgresError`` if the server refused it (not applied), and
        :class:`OutcomeUnknown` if it was sent and no answer came within ``limit`` seconds.
        """
        sent = False
        try:
            async with asyncio.timeout(limit), self._lock:
                connection = await self._session()
                sent, self._unreplicated = True, False
                rows: list[asyncpg.Record] = await self._ask(connection, connection.fetch(query, *arguments))
        except TimeoutError as error:
            if sent:
                raise OutcomeUnknown(f"the store did not answer within {limit:.3g} s", "timeout") from error
            raise Unavailable(f"no session with the store within {limit:g} s") from error
        if self._unreplicated:
            raise OutcomeUnknown("committed on the primary alone: the wait for the standby was cancelled")
        return rows

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """The session for several statements in a row, nobody else's in between. The caller bounds its time.

        Raises :class:`Unavailable` where there is none. What is cancelled with a statement under way loses the session.
        """
        async with self._lock:
            connection = await self._session()
            self._unreplicated = False
            yield Session(self, connection)

    async def read(self, limit: float, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """As :meth:`fetch`, for statements where a lost answer and no answer come to the same: ``Unavailable``."""
        try:
            return await self.fetch(limit, query, *arguments)
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error
        except NOT_MIGRATED as error:
            raise Unavailable(f"the store lacks migrations, run fencegate migrate: {describe(error)}") from error
        except asyncpg.PostgresError as error:
            raise Unavailable(f"the store refused: {describe(error)}") from error

    def leave(self) -> None:
        """The store is another server by now: its links all leave the one that this one has asked last."""
        if self._left == self._server.left:
            self._server.left += 1

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                async with asyncio.timeout(1.0):
                    await connection.close(timeout=1.0)
            except (TimeoutError, asyncpg.PostgresError, *CONNECTION_LOST):
                connection.terminate()

    async def _session(self) -> asyncpg.Connection:
        connection = self._connection
        if connection is not None and self._left != self._server.left:
            self._drop(connection)
        if self._connection is None or self._connection.is_closed():
            self._left = self._server.left
            self._connection = await self._open()
        return self._connection

    async def _open(self) -> asyncpg.Connection:
        milliseconds = f"{max(1, int(self._statement_timeout * 1000))}"
        connection = await connect(
            self._address,
            self._limit,
            application_name=f"fencegate {self._name}",
            settings={
                # The server gives up first, and then its word is that nothing was applied.
                "statement_timeout": milliseconds,
                "idle_in_transaction_session_timeout": milliseconds,
                **self.settings,
            },
        )
        try:
            await self._refuse_unsafe(connection)
        except (asyncpg.PostgresError, *CONNECTION_LOST) as error:
            connection.terminate()
            raise Unavailable(f"the store took a connection and lost it: {describe(error)}") from error
        except BaseException:
            connection.terminate()
            raise
        connection.add_log_listener(self._listen)
        return connection

    async def _refuse_unsafe(self, connection: asyncpg.Connection) -> None:
        async with asyncio.timeout(self._limit):
            row = await connection.fetchrow(f"{self.checked}, pg_backend_pid() AS backend")
        assert row is not None  # a SELECT without FROM gives one row
        _refuse_other_backend(connection, row["backend"])
        for name, setting in (("synchronous_commit", row["commit"]), ("fsync", row["fsync"])):
            if setting == "off":
                raise Unavailable(
                    f"the store has {name} = off: an acknowledged write could be lost. Turn it on for this role"
                )

    def _listen(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        if getattr(message, "server_source_function", None) == _REPLICATION_WAIT:
            self._unreplicated = True

    async def _ask(self, connection: asyncpg.Connection, answer: Awaitable[_Answer]) -> _Answer:
        try:
            return await answer
        except CONNECTION_LOST as error:
            self._drop(connection)
            raise OutcomeUnknown(f"the link to the store was lost: {describe(error)}") from error
        except asyncio.CancelledError:  # the answer will be lost
            self._drop(connection)
            raise
        except asyncpg.ReadOnlySQLTransactionError:  # a demoted primary: this session will never write again
            self._drop(connection)
            self.leave()
            raise
        except asyncpg.StatementCompletionUnknownError as error:  # Postgres never says so; others do
            self._drop(connection)
            raise OutcomeUnknown(f"the store does not know whether it has committed: {describe(error)}") from error
        except asyncpg.PostgresError as error:
            if error.sqlstate == UNSAFE_SESSION:  # somebody changed the session's settings: a new one has its own
                self._drop(connection)
            raise

    def _drop(self, connection: asyncpg.Connection) -> None:
        connection.terminate()
        if self._connection is connection:
            self._connection = None


class Session:
    """Statements that belong together, on one server. Each raises as those of :meth:`Link.fetch`, but for the time."""

    def __init__(self, link: Link, connection: asyncpg.Connection) -> None:
        self._link = link
        self._connection = connection

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._link._ask(self._connection, self._connection.fetch(query, *arguments))
        return rows

    async def execute(self, statement: str) -> None:
        """A statement without parameters, which is not worth being prepared."""
        await self._link._ask(self._connection, self._connection.execute(statement))

    @property
    def unreplicated(self) -> bool:
        """Whether the wait for a standby was cancelled since the session was taken."""
        return self._link._unreplicated
