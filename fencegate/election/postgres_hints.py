"""Hints of the elections over Postgres: notifications, over a connection that does nothing else.

It has a lock of its own too: a server that lets nobody in any more must not keep renewals from the connection that they
have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import asyncpg

from fencegate.lease import ElectionUnavailable

_CHANNEL: Final = "fencegate_election"
_LOST: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)
_PATIENT: Final = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
"""Whoever listens says nothing for hours, and holds no lock in anybody's way."""


class PostgresHints:
    """``connect`` makes a connection within the seconds that it is given. All who listen share one."""

    def __init__(self, connect: Callable[[float], Awaitable[asyncpg.Connection]], limit: float) -> None:
        self._connect = connect
        self._limit = limit
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection | None = None
        self._listening: set[_Told] = set()
        self._closed = False

    async def roles(self) -> AsyncIterator[str]:
        """Each role that is named, once however often it was before it is taken. Ends when the link is lost."""
        told = _Told()
        self._listening.add(told)
        try:
            await self._listen()
            while (role := await told.next()) is not None:
                yield role
        except (ElectionUnavailable, *_LOST):
            return
        finally:
            self._listening.discard(told)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _listen(self) -> None:
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                async with asyncio.timeout(self._limit):
                    self._connection = await self._begin()

    async def _begin(self) -> asyncpg.Connection:
        connection = await self._connect(self._limit)
        try:
            await connection.execute(_PATIENT)
            await connection.add_listener(_CHANNEL, self._notified)
            if self._closed:
                raise ElectionUnavailable("the election was closed", "refused")
        except BaseException:
            connection.terminate()
            raise
        connection.add_termination_listener(self._ended)
        return connection

    def _notified(self, _connection: object, _pid: int, _channel: str, role: object) -> None:
        for told in self._listening:
            told.add(str(role))

    def _ended(self, _connection: object) -> None:
        for told in self._listening:
            told.end()


class _Told:
    """Roles that notifications named, until they are taken."""

    def __init__(self) -> None:
        self._roles: dict[str, None] = {}
        self._ended = False
        self._wake = asyncio.Event()

    def add(self, role: str) -> None:
        self._roles[role] = None
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def next(self) -> str | None:
        """The next one; ``None`` once the link is lost."""
        while not self._roles and not self._ended:
            self._wake.clear()
            await self._wake.wait()
        return None if self._ended else self._roles.popitem()[0]
