"""Something that runs for as long as a test's block does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

_BEGINS_WITHIN: Final = 30.0


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """``work`` as a task, which is cancelled and waited for in the end; what it raised by itself is raised then."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def watch_under_way(hints: AsyncIterator[object], cause: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
    """A task that reads ``hints`` to their end, and has read one: ``cause`` was repeated until it gave one.

    Nothing else says when a watch has begun. Raises ``TimeoutError`` where it does not.
    """
    first = asyncio.ensure_future(anext(hints))
    try:
        async with asyncio.timeout(_BEGINS_WITHIN):
            while not first.done():
                await cause()
                await asyncio.wait([first], timeout=0.2)
            await first
    finally:
        first.cancel()

    async def until_it_ends() -> None:
        async for _ in hints:
            pass

    return asyncio.create_task(until_it_ends())
