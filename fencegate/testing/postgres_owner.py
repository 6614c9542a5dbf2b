"""What the owner of a database does to it by hand: one connection, some statements, one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from fencegate.embedded.process import EmbeddedServerError

Hand = Callable[[str], Awaitable[Any]]
"""Runs one statement in a transaction of its own; its first value."""


@asynccontextmanager
async def hand(dsn: str, limit: float = 5.0) -> AsyncIterator[Hand]:
    """A session of the owner's, held for the length of the block.

    Raises :class:`EmbeddedServerError` where the server does not do what it is told within ``limit`` seconds each.
    """
    try:
        connection = await asyncpg.connect(dsn, timeout=limit)
        try:
            yield lambda statement: connection.fetchval(statement, timeout=limit)
        finally:
            connection.terminate()
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise EmbeddedServerError(f"the Postgres at {dsn.rpartition('@')[2]} does not do it: {error!r}") from error


async def by_hand(dsn: str, *statements: str, limit: float = 5.0) -> Any:
    """Run the statements in a session of their own; the first value of the last one. Raises as :func:`hand` does."""
    async with hand(dsn, limit) as do:
        for statement in statements[:-1]:
            await do(statement)
        return await do(statements[-1])


class Crowd:
    """Sessions that others hold open, until none is left for anybody."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._sessions: list[Any] = []

    @property
    def size(self) -> int:
        return len(self._sessions)

    async def gather(self, most: int, limit: float = 2.0) -> None:
        """Open sessions, ``most`` at the most, until the server refuses one or takes ``limit`` seconds for it."""
        try:
            while len(self._sessions) < most:
                self._sessions.append(await asyncpg.connect(self._dsn, timeout=limit))
        except (OSError, TimeoutError, asyncpg.PostgresError):
            return

    def leave(self) -> None:
        for session in self._sessions:
            session.terminate()
        self._sessions.clear()
