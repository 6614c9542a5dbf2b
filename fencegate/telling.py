"""Answers that are told instead of waited for: a callback in place of a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")

_log = logging.getLogger("fencegate")

Tell = Callable[[T | Exception], None]
"""Hears what came of a question, once: its answer, or the error. It raises nothing."""


def give(answer: asyncio.Future[T], found: T | Exception) -> None:
    """To who waits for it after all; nobody does where ``answer`` is done."""
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def tell_safely(tell: Tell[T], found: T | Exception) -> None:
    """For who has others to tell: one that raises even so keeps nobody else from hearing."""
    try:
        tell(found)
    except Exception:
        _log.exception("unexpected failure of who was told an answer")


def heard(ask: Callable[[Tell[T]], None]) -> asyncio.Future[T]:
    """What ``ask`` has told, to be waited for."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(partial(give, answer))
    return answer


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
