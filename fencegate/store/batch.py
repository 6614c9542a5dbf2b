"""Group commit: many callers' items travel in one transaction.

Flush at once when idle; gather while a flush is under way; bounded by count and by bytes; no timer.
One flush at a time: the fence row's lock would serialise a second one anyway.

A batch is at most half of what is under way: whoever was answered just now will mostly come again, and is read and
answered while the others are being flushed. Left to itself the split is uneven, and stays so: when the small batch
comes back, the large one is still being read, and the store waits; then we wait for the store.

Where somebody else flushes into the same place, the store has theirs to do meanwhile, and ours would wait behind it: a
batch is all of what is under way then, and those that were answered just now are waited for, for a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.telling import Tell, give, tell_safely

Item = TypeVar("Item")
Result = TypeVar("Result")

Flush = Callable[[list[Item]], Awaitable[Sequence[Result | FencegateError]]]
"""Sends a batch and gives one result or one error per item, in order. It bounds its own time."""


LONGEST_GATHERING: Final = 0.002
"""Seconds for which those that were answered are waited for, at most; else half as long as a flush took."""
SHORTEST_GATHERING: Final = 0.001
"""Seconds: of less the event loop's timers know nothing. After a flush that took less nobody is waited for."""
QUIET_TURNS: Final = 2
"""Turns of the event loop in a row that bring nothing, after which no more is waited for. One may be all others'."""
WORTH_HALVING: Final = 16
"""Items; fewer go together: what a flush costs by itself is as much as that many of them."""


class TooBusy(Unavailable):
    """The time of an item that was not sent is over."""


class NoAnswer(OutcomeUnknown):
    """The time of an item that was sent is over."""


def alone() -> bool:
    return False


def _never() -> bool:
    return False


def ignore(item: object, result: object) -> None:
    pass


def _busy() -> TooBusy:
    return TooBusy("the store was too busy to take the write in time")


def half(under_way: int) -> int:
    """How many to send at most, with so many waiting or answered just now."""
    return max(WORTH_HALVING, (under_way + 1) // 2)


def _set(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)


class _Waiting(Generic[Item, Result]):
    __slots__ = ("done", "due", "gone", "item", "sent", "size", "tell")

    def __init__(self, item: Item, size: int, due: float, tell: Tell[Result], gone: Callable[[], bool]) -> None:
        self.item = item
        self.size = size
        self.due = due
        self.tell = tell
        self.gone = gone
        self.sent = self.done = False


class GroupCommit(Generic[Item, Result]):
    """Gathers items for ``flush``. ``max_waiting`` bounds the queue: over it, ``submit`` refuses at once.

    ``turns``: so many turns of the event loop, at most, a flush lets more come, until :data:`QUIET_TURNS` have brought
    nothing; for work that costs the process more beside the flush than in it. What is on its own does not wait.

    ``shared``: whether somebody else flushes into the same place just now.

    ``late`` hears what became of an item after all, of which was told that its time was over.
    """

    def __init__(
        self,
        flush: Flush[Item, Result],
        *,
        max_items: int = 512,
        max_bytes: int = 4 * 1024 * 1024,
        max_waiting: int = 20_000,
        turns: int = 0,
        shared: Callable[[], bool] = alone,
        late: Callable[[Item, Result | FencegateError], None] = ignore,
    ) -> None:
        self._flush = flush
        self._late = late
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._turns = turns
        self._shared = shared
        self._came = 0
        """Since the last flush."""
        self._last = 0
        self._took = 0.0
        self._wanted = 0
        self._enough: asyncio.Future[None] | None = None
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._sent: Sequence[_Waiting[Item, Result]] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def submit(self, item: Item, size: int, time_limit: float) -> Result:
        """What :meth:`put` tells, awaited. A caller that is cancelled leaves a sent item to its fate."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.put(item, size, time_limit, partial(give, answer), answer.done)
        return await answer

    def put(
        self, item: Item, size: int, time_limit: float, tell: Tell[Result], gone: Callable[[], bool] = _never
    ) -> None:
        """``tell`` hears the item's result, or the error that ``flush`` gave for it; never before this returns.

        After ``time_limit`` seconds: :class:`TooBusy` if the item was never sent (and never will
        be), :class:`NoAnswer` if it was. Raises :class:`Unavailable` where it is not taken at all. An item whose
        caller is ``gone`` is not sent any more.
        """
        if self._closed:
            raise Unavailable("the store is being closed")
        if len(self._waiting) >= self._max_waiting:
            raise Unavailable("too many writes wait for the store")
        # Asked once: up to Python 3.11 each question is a system call.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        due = loop.time() + time_limit
        if self._timer is None or due < self._timer_at:
            self._look_at(loop, due)
        self._waiting.append(_Waiting(item, size, due, tell, gone))
        self._came += 1
        if self._running is None:
            self._running = loop.create_task(self._run())
        elif self._enough is not None and len(self._waiting) >= self._wanted:
            _set(self._enough)

    def joined(self) -> None:
        """An item that waits stands for one more by now."""
        self._came += 1

    async def close(self) -> None:
        """Take no more items and wait for those that were taken."""
        self._closed = True
        if self._running is not None:
            await asyncio.wait([self._running])

    # One timer for all: most items are answered long before their time is up, and a timer each costs more than they do.

    def _look_at(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        soonest = float("inf")
        for entry in (*self._sent, *self._waiting):
            if entry.done:
                continue
            if entry.due <= now:
                entry.done = True
                tell_safely(
                    entry.tell, NoAnswer("the store did not answer in time", "timeout") if entry.sent else _busy()
                )
            else:
                soonest = min(soonest, entry.due)
        if soonest < float("inf"):
            self._look_at(loop, soonest)

    async def _run(self) -> None:
        answered = 0
        try:
            while True:
                await self._let_come(answered)
                under_way = len(self._waiting) + answered
                if not (batch := self._take(under_way if self._shared() else half(under_way))):
                    break
                answered = len(batch)
                await self._send(batch)
        finally:
            # After a cancellation (the loop ends) nobody sends what still waits; the timer answers it.
            self._running = None

    async def _let_come(self, answered: int) -> None:
        if self._last > 1 or self._came > 1 or len(self._waiting) > 1:
            if self._shared():
                await self._gather(len(self._waiting) + answered)
            elif self._turns:
                await self._take_turns()
        self._last, self._came = self._came, 0

    async def _take_turns(self) -> None:
        quiet = 0
        for _ in range(self._turns):
            before = self._came
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._came == before else 0
            if quiet == QUIET_TURNS:
                return

    async def _gather(self, wanted: int) -> None:
        """Wait for those that were answered just now, or as many others: but not long, and not for few."""
        assert self._loop is not None
        if len(self._waiting) >= wanted or wanted < WORTH_HALVING or self._took < SHORTEST_GATHERING:
            return
        longest = min(max(self._took / 2, SHORTEST_GATHERING), LONGEST_GATHERING)
        self._wanted, enough = wanted, self._loop.create_future()
        self._enough = enough
        timer = self._loop.call_later(longest, _set, enough)
        try:
            await enough
        finally:
            timer.cancel()
            self._enough = None

    def _take(self, most: int) -> list[_Waiting[Item, Result]]:
        batch: list[_Waiting[Item, Result]] = []
        size = 0
        most = min(most, self._max_items)
        while self._waiting and len(batch) < most:
            entry = self._waiting[0]
            if batch and size + entry.size > self._max_bytes:
                break
            self._waiting.popleft()
            if entry.done:
                self._late(entry.item, _busy())
                continue
            if entry.gone():
                continue
            entry.sent = True
            size += entry.size
            batch.append(entry)
        return batch

    async def _send(self, batch: list[_Waiting[Item, Result]]) -> None:
        results: Sequence[Result | FencegateError]
        self._sent = batch
        assert self._loop is not None
        began = self._loop.time()
        try:
            results = await self._flush([entry.item for entry in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} answers for {len(batch)} items")
        except BaseException as error:
            unknown = OutcomeUnknown(f"the flush ended without a word on this write: {error!r}")
            results = [unknown] * len(batch)
            if not isinstance(error, Exception):
                raise
        finally:
            # Whatever happened, nobody is left waiting for ever. They hear of it once the next batch is on its way.
            self._sent = ()
            self._took = self._loop.time() - began
            self._loop.call_soon(self._tell, batch, results)

    def _tell(self, batch: list[_Waiting[Item, Result]], results: Sequence[Result | FencegateError]) -> None:
        for entry, result in zip(batch, results, strict=True):
            if entry.done:
                self._late(entry.item, result)
                continue
            entry.done = True
            tell_safely(entry.tell, result)
