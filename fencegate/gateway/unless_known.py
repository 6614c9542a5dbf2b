"""A stale write with an idempotency key: refused from memory only once the store does not know the key.

A stored result is given again even after a failover, so the store has the last word on a key that it knows. The usual
one it does not know, and a storm of them takes no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fencegate.gateway.exchange import Exchange, Pending
from fencegate.gateway.request import Reply


class UnlessKnown(Pending):
    """The store was asked for the key. ``station`` takes the write where it knows it; ``refuse`` makes the refusal."""

    __slots__ = ("_found", "_refuse", "_station")

    def __init__(
        self, exchange: Exchange, station: Callable[[Exchange], Awaitable[Reply]], refuse: Callable[[Exchange], Reply]
    ) -> None:
        super().__init__(exchange)
        self._station = station
        self._refuse = refuse
        self._found: bool | BaseException | None = None

    def ask(self) -> None:
        """Raises as :meth:`WritePath.knows`, and ``deadline_exceeded``."""
        exchange = self.exchange
        exchange.around.store.knows(exchange.role, exchange.key_digest(), exchange.time_left(), self._told)

    def _told(self, found: bool | BaseException) -> None:
        if self._found is None:
            self._found = found
            self._call()

    def give_up(self) -> None:
        if self._found is None:
            self._found = asyncio.CancelledError()
            asyncio.get_running_loop().call_soon(self._call)

    def go_on(self) -> Reply | None:
        if isinstance(self._found, Exception):
            raise self._found
        return self._refuse(self.exchange) if self._found is False else None

    async def station(self, exchange: Exchange) -> Reply:
        if isinstance(self._found, BaseException):
            raise self._found
        return await self._station(exchange)
