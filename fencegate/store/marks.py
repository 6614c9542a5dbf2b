"""The marks of this gateway's writes under way outside the store (rule R12): counted here, one row a term there.

A mark is kept while this gateway has writes of the term under way, lingers a moment, and is removed once the last
outcome is known. Each life of a mark has a name of its own: the removal of one that the server carries out late,
after we gave up waiting for it, cannot take away the mark of a write that was admitted since.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from fencegate.errors import Unavailable
from fencegate.store.link import Link

_UNMARK: Final = """
    DELETE FROM fencegate.mark m USING fencegate.fence f
     WHERE m.role_id = f.role_id AND f.role = $1 AND m.token = $2 AND m.gateway = $3"""
_LINGER: Final = 0.1
"""Seconds that a mark stays behind the last write: those that come and go one by one would each make a new one."""

Term = tuple[str, int]


class Marks:
    """``exclusive`` is held while admissions are sent: no mark is made and removed at the same time."""

    def __init__(self, link: Link, exclusive: asyncio.Lock, gateway: str, limit: float) -> None:
        self._link = link
        self._exclusive = exclusive
        self._gateway = gateway
        self._limit = limit
        self._lives = 0
        self._under_way: dict[Term, int] = {}
        self._names: dict[Term, str] = {}
        self._lingers: dict[Term, float] = {}
        """Until when, on the loop's clock. One timer a term, which is not moved with each write but looks again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def name(self, term: Term) -> str:
        """The name under which the term's mark stands or is about to. Call it with ``exclusive`` held."""
        if term not in self._names:
            self._lives += 1
            self._names[term] = f"{self._gateway}.{self._lives}"
        return self._names[term]

    def stands(self, term: Term) -> bool:
        return term in self._names

    def was_not_made(self, term: Term) -> None:
        """The store refused the only admission that would have made it: nothing to remove."""
        self._names.pop(term, None)

    def enter(self, term: Term) -> None:
        self._under_way[term] = self._under_way.get(term, 0) + 1

    def leave(self, term: Term) -> None:
        self._under_way[term] -= 1
        if self._under_way[term] == 0:
            if term in self._names:
                self._linger(term)
            else:
                del self._under_way[term]

    def leave_later(self, term: Term, seconds: float) -> None:
        self._call_later(seconds, lambda: self.leave(term))

    async def close(self) -> None:
        """Remove the marks of terms of which every write has ended; they need not block the next until they expire."""
        for timer in self._timers:
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for term in [t for t in self._names if self._under_way.get(t, 0) == 0]:
            if not await self._unmark(term):
                return  # the store is down; the others will expire as well

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            callback()

        timer = asyncio.get_running_loop().call_later(seconds, run)
        self._timers.add(timer)

    def _linger(self, term: Term) -> None:
        loop = self._loop = self._loop or asyncio.get_running_loop()
        watched = term in self._lingers
        self._lingers[term] = loop.time() + _LINGER
        if not watched:
            self._call_later(_LINGER, lambda: self._look_at(loop, term))

    def _look_at(self, loop: asyncio.AbstractEventLoop, term: Term) -> None:
        left = self._lingers[term] - loop.time()
        if left > 0 and not self._under_way.get(term):
            self._call_later(left, lambda: self._look_at(loop, term))
        else:
            del self._lingers[term]
            self._start_unmark(term)

    def _start_unmark(self, term: Term) -> None:
        if self._under_way.get(term) == 0:
            task = asyncio.get_running_loop().create_task(self._unmark_quietly(term))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _unmark_quietly(self, term: Term) -> None:
        await self._unmark(term)

    async def _unmark(self, term: Term) -> bool:
        # No admission is under way while the lane is held, so a count of 0 stays 0 until the row is gone.
        async with self._exclusive:
            if self._under_way.get(term, 0) != 0:
                return True
            self._under_way.pop(term, None)
            name = self._names.pop(term, None)
            if name is None:
                return True
            # Where this fails the mark expires by itself; until then it blocks the next term, which is safe.
            with contextlib.suppress(Unavailable):
                await self._link.read(self._limit, _UNMARK, *term, name)
                return True
            return False
