"""Answers that are told instead of waited for: a callback in place of a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

Tell = Callable[[T | Exception], None]
"""Hears what came of a question, once: its answer, or the error. It raises nothing."""


def tell_of(answer: Awaitable[T], tell: Tell[T]) -> None:
    """``tell`` hears of ``answer`` once it is there, never before this returns. Given up, it is a ``TimeoutError``."""

    def told(done: asyncio.Future[T]) -> None:
        if done.cancelled():
            tell(TimeoutError("it was given up"))
        elif isinstance(error := done.exception(), Exception):
            tell(error)
        else:
            tell(done.result())

    asyncio.ensure_future(answer).add_done_callback(told)
