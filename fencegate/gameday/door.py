"""Keeps a store from opening a term: one session that holds the fence row's lock from transaction to transaction."""

from __future__ import annotations

from typing import Any

from fencegate.errors import Unavailable
from fencegate.store.link import CONNECTION_LOST, connect, describe

_LIMIT = 3.0


class Door:
    """The door of one store. While it is held a claim there waits, and so does a write that is about to be refused.

    Every method raises :class:`fencegate.errors.Unavailable`; then the door is no longer held.
    """

    def __init__(self, dsn: str, role: str) -> None:
        self._dsn = dsn
        quoted = role.replace("'", "''")
        self._lock = f"SELECT 1 FROM fencegate.fence WHERE role = '{quoted}' FOR NO KEY UPDATE"
        self._connection: Any = None
        self.held = False

    async def hold(self) -> None:
        """Waits for whoever is inside, then holds the door. Idempotent."""
        if not self.held:
            await self._run(f"BEGIN; {self._lock}")
            self.held = True

    async def pass_on(self) -> None:
        """Commits what was written and lets those in who wait; the door is held again behind them."""
        await self._run(f"COMMIT AND CHAIN; {self._lock}")

    async def release(self) -> None:
        """Commits what was written and leaves the door open. Idempotent."""
        if self.held:
            self.held = False
            await self._run("COMMIT")

    async def ask(self, query: str, *arguments: Any) -> Any:
        """The rows of a statement inside the transaction of the one who holds the door."""
        return await self._guarded(lambda connection: connection.fetch(query, *arguments, timeout=_LIMIT))

    async def close(self) -> None:
        """Ends the session. What was not passed on or released is rolled back."""
        connection, self._connection, self.held = self._connection, None, False
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def _run(self, script: str) -> None:
        await self._guarded(lambda connection: connection.execute(script, timeout=_LIMIT))

    async def _guarded(self, work: Any) -> Any:
        try:
            if self._connection is None:
                self._connection = await connect(self._dsn, _LIMIT, application_name="fencegate replica", settings={})
            return await work(self._connection)
        except (TimeoutError, *CONNECTION_LOST) as error:
            await self.close()
            raise Unavailable(f"the replica's session was lost: {describe(error)}") from error
        except BaseException:
            await self.close()
            raise
