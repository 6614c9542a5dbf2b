"""A system that elects one leader for itself: what Patroni, Redis Sentinel and Kafka have in common to us.

There is one leader, so every role that follows it has the same term: one read and one watch serve them all.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from fencegate.election.shared_read import READ_SPACING, SharedRead
from fencegate.election.strange_answers import asking
from fencegate.errors import Unavailable
from fencegate.lease import ElectionUnavailable, LeadershipSource, LeaseTimings, Reading, Term
from fencegate.tokens import MAX_TOKEN

_SHOWN_LIMIT: Final = 120


class FollowedCluster(LeadershipSource):
    """Subclasses say who leads now, and give hints. A read of theirs lasts half a ``renew_deadline`` at most."""

    roles_a_read = 1000
    roles_a_watch = 1_000_000

    def __init__(self, timings: LeaseTimings) -> None:
        self._limit = timings.renew_deadline / 2
        self._lease_duration = timings.lease_duration
        self._shared = SharedRead(self._bounded, READ_SPACING)
        self._listeners: set[asyncio.Queue[bool]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    @abstractmethod
    async def leader(self, limit: float) -> Term | None:
        """Who leads now, its ``role`` being ``""``. Should end by ``limit`` s, saying why; it is cut off soon after."""

    @abstractmethod
    def hints(self) -> AsyncIterator[None]:
        """As :meth:`LeadershipSource.changes`. Once closed it must end."""

    @abstractmethod
    async def hang_up(self) -> None:
        """Close every connection."""

    def term(self, token: int, node: str) -> Term:
        """The cluster knows neither regions nor an origin of ours, and no "claimed": its term is active.

        Raises :class:`~fencegate.lease.ElectionUnavailable` where the number can be no token.
        """
        if not 0 < token <= MAX_TOKEN:
            raise ElectionUnavailable(f"{self.name}: {token} cannot be a token", "refused")
        shown = "".join(c for c in node if c.isprintable())[:_SHOWN_LIMIT] or "unknown"
        return Term("", token, shown, "", "", True, self._lease_duration)

    async def read(self, role: str, deadline: float) -> Term | None:
        term = await self._read(deadline)
        return replace(term, role=role) if term is not None else None

    async def read_many(self, roles: Sequence[str], deadline: float) -> Mapping[str, Reading]:
        term = await self._read(deadline)
        return {role: replace(term, role=role) if term is not None else None for role in roles}

    async def _read(self, deadline: float) -> Term | None:
        if self._closed:
            raise self._is_closed()
        try:
            async with asyncio.timeout(deadline):
                return await self._shared.next()
        except asyncio.CancelledError:
            # Our own cancellation goes on; that of the shared read, at the close, is no answer.
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            raise self._is_closed() from None
        except TimeoutError:
            raise ElectionUnavailable(f"{self.name} did not answer within {deadline:.3g} s", "timeout") from None

    async def changes(self, role: str) -> AsyncIterator[None]:
        if self._closed:
            return
        queue: asyncio.Queue[bool] = asyncio.Queue(1)
        self._listeners.add(queue)
        if self._watch is None:
            self._watch = asyncio.create_task(self._pass_hints_on())
        try:
            while await queue.get():
                yield
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._watch is not None:
                self._watch.cancel()

    async def changes_among(self, roles: Sequence[str]) -> AsyncIterator[str | None]:
        async for _ in self.changes(""):
            yield None

    async def close(self) -> None:
        self._closed = True
        self._shared.cancel()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self.hang_up()

    async def _pass_hints_on(self) -> None:
        try:
            with suppress(Unavailable), asking(self.name):
                async for _ in self.hints():
                    self._tell(_hint)
        finally:
            self._watch = None
            self._tell(_end)

    def _tell(self, how: Callable[[asyncio.Queue[bool]], None]) -> None:
        for queue in self._listeners:
            how(queue)

    async def _bounded(self) -> Term | None:
        try:
            async with asyncio.timeout(self._limit):
                # A little less, so that it can still say what it waited for.
                return await self.leader(self._limit * 0.9)
        except TimeoutError:
            raise ElectionUnavailable(f"{self.name} did not answer within {self._limit:.3g} s", "timeout") from None

    def _is_closed(self) -> ElectionUnavailable:
        return ElectionUnavailable(f"{self.name}: the election was closed", "refused")


def _hint(queue: asyncio.Queue[bool]) -> None:
    if not queue.full():
        queue.put_nowait(True)


def _end(queue: asyncio.Queue[bool]) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(False)
