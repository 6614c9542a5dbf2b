"""Where refused writes wait for the end of a handoff or an election. The rules are :mod:`fencegate.gateway.holding`'s.

They are let go by an event: the view's word that somebody leads. What changes in the fence alone (a lease that was late
and is renewed) is seen by one question a role now and then, however many wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from fencegate.errors import Unavailable
from fencegate.fence import Verdict
from fencegate.gateway.holding import MOST_BYTES, fits, is_news, turn
from fencegate.gateway.request import Departure
from fencegate.lease import LeadershipView
from fencegate.observations import HoldEnded, HoldRefused, Observer, WriteHeld

LOOK_PERIOD: Final = 0.25
"""Seconds between two looks at the fence of a role of which writes are held."""

_CLOSED: Final = (Verdict.NOT_LEADING, Verdict.DRAINING)
"""One of these after the other is a handoff that takes its course."""

Peek = Callable[[str, int, float], Awaitable[tuple[Verdict, int | None]]]


class LetGo(StrEnum):
    """Why a write waits no longer."""

    NEWS = "news"
    EXPIRED = "expired"
    STOPPING = "stopping"
    LEFT = "left"
    """Its client has gone: it must have no effect."""
    FULL = "full"
    """It never waited: there was no place."""


@dataclass(eq=False, slots=True)
class Held:
    """One write: ``family`` is the role's configured name, ``size`` what is in memory of its body, in bytes."""

    role: str
    family: str
    token: int
    verdict: Verdict
    size: int = 0
    ended: asyncio.Future[LetGo] = field(init=False)
    timer: asyncio.TimerHandle | None = field(init=False, default=None)

    def let_go(self, why: LetGo) -> None:
        if not self.ended.done():
            self.ended.set_result(why)


@dataclass(slots=True)
class _Queue:
    """The held writes of one role, in the order in which they came, and who looks at its fence meanwhile."""

    watch: asyncio.Task[None]
    writes: dict[Held, None] = field(default_factory=dict)
    size: int = 0


class WaitingRoom:
    """``capacity`` is the number of writes held at most, asked for each time; ``peek`` is the store's."""

    def __init__(
        self,
        view: LeadershipView,
        peek: Peek,
        capacity: Callable[[], int],
        observe: Observer,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._view = view
        self._peek = peek
        self._capacity = capacity
        self._observe = observe
        self._jitter = jitter
        self._queues: dict[str, _Queue] = {}
        self._count = self._size = 0
        self._closed = False
        view.listen(self._changed)

    def __len__(self) -> int:
        return self._count

    async def wait(self, write: Held, seconds: float, departure: Departure) -> LetGo:
        """Hold ``write`` for up to ``seconds``. Gives ``FULL`` at once where there is no place."""
        if departure.happened:
            return LetGo.LEFT
        if self._closed or not self._has_place(write):
            self._observe(HoldRefused(write.family))
            return LetGo.FULL
        loop = asyncio.get_running_loop()
        write.ended, began = loop.create_future(), loop.time()
        expiry = loop.call_later(seconds, write.let_go, LetGo.EXPIRED)
        self._enter(write)
        why = LetGo.LEFT  # A cancelled wait is a client's leaving as well.
        departure.tell = partial(write.let_go, LetGo.LEFT)
        try:
            ended = await write.ended
            why = LetGo.LEFT if departure.happened else ended
        finally:
            departure.tell = None
            expiry.cancel()
            self._leave(write)
            self._observe(HoldEnded(write.family, why, loop.time() - began))
        return why

    def close(self) -> None:
        """Let every write go, and hold none from now on. For the end of the process."""
        self._closed = True
        for queue in self._queues.values():
            for write in queue.writes:
                write.let_go(LetGo.STOPPING)

    # -- places ---------------------------------------------------------------------------------------

    def _has_place(self, write: Held) -> bool:
        queue = self._queues.get(write.role)
        count, size = (len(queue.writes), queue.size) if queue else (0, 0)
        return fits(count, self._count, 1, self._capacity()) and fits(size, self._size, write.size, MOST_BYTES)

    def _enter(self, write: Held) -> None:
        queue = self._queues.get(write.role)
        if queue is None:
            task = asyncio.get_running_loop().create_task(self._watch(write.role), name=f"held writes of {write.role}")
            queue = self._queues[write.role] = _Queue(task)
        queue.writes[write] = None
        queue.size += write.size
        self._count += 1
        self._size += write.size
        self._observe(WriteHeld(write.family))

    def _leave(self, write: Held) -> None:
        if write.timer is not None:
            write.timer.cancel()
        queue = self._queues[write.role]
        del queue.writes[write]
        queue.size -= write.size
        self._count -= 1
        self._size -= write.size
        if not queue.writes:
            del self._queues[write.role]
            queue.watch.cancel()

    # -- what they wait for -----------------------------------------------------------------------------

    def _changed(self, role: str) -> None:
        if role in self._queues and is_news(self._view.observed(role)):
            self._wake(role)

    def _wake(self, role: str) -> None:
        """Let the role's writes go in the order in which they came, one after another."""
        loop = asyncio.get_running_loop()
        waiting = [write for write in self._queues[role].writes if write.timer is None]
        for position, write in enumerate(waiting):
            write.timer = loop.call_later(turn(position, self._jitter()), write.let_go, LetGo.NEWS)

    async def _watch(self, role: str) -> None:
        """While writes of ``role`` are held: does the fence say another word than the one that closed it?"""
        while True:
            await asyncio.sleep(LOOK_PERIOD * (0.5 + self._jitter()))
            first = next((write for write in self._queues[role].writes if write.timer is None), None)
            if first is None:
                continue
            try:
                verdict, _ = await self._peek(role, first.token, LOOK_PERIOD)
            except Unavailable:
                continue
            if verdict is not first.verdict and verdict not in _CLOSED:
                self._wake(role)
