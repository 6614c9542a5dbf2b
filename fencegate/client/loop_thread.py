"""The one thread on which the synchronous faces of the SDK run their async originals.

Why a loop on a thread, and not a second driver with blocking sockets: what makes the client safe is in how the
async one *sends* (never twice, whole deadlines, answers cut off, discovery raced over all gateways and shared by all
callers), and a second implementation of that would be a second set of its faults. A lease moreover has to be renewed
while the caller's own thread is busy, so a thread there must be.

All synchronous clients and terms of a process share the thread. It starts with the first and is a daemon: an
interpreter that ends never waits for it; an exit handler closes what is still open and stops it in order.

After ``os.fork()`` the child has no such thread, and must not touch the parent's connections: it gets a thread of its
own with its first call, and what the parent had open is left alone (never closed, which would say goodbye on the
parent's behalf).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

T = TypeVar("T")

_LAST_WORDS: Final = 5.0
"""Seconds that a call has to end in after its caller was interrupted, and the thread after the interpreter's end."""


class LoopThread:
    """A running event loop on a daemon thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ending = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fencegate-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._end_tasks()
        finally:
            self._loop.close()

    def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_WORDS / 2))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine on the thread and wait for its result.

        An exception in the waiting thread (Ctrl-C) cancels the work, and comes out once that has ended. Raises
        ``RuntimeError`` when called on the thread itself, which would wait for itself for ever.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a synchronous call of the SDK was made on the SDK's own thread (from an observer or a backend); "
                "make it from a thread of yours"
            )
        if not self._thread.is_alive():
            raise RuntimeError("the interpreter is ending: the SDK's thread has been stopped")
        begun: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def begin() -> None:
            begun.append(self._loop.create_task(_awaited(work)))
            begun[0].add_done_callback(lambda _: ended.set())

        self._loop.call_soon_threadsafe(begin)
        try:
            ended.wait()
        except BaseException:
            self.tell(lambda: [task.cancel() for task in begun])
            ended.wait(_LAST_WORDS)
            raise
        if self.ending and threading.current_thread() is not threading.main_thread():
            # A daemon thread, since all others have been waited for: it ends in silence, as daemon threads do.
            threading.Event().wait()
        if begun[0].cancelled():
            raise RuntimeError("the call was ended together with the SDK's thread")
        return begun[0].result()

    def tell(self, what: Callable[[], object]) -> None:
        """Have ``what`` called on the thread, soon. Nothing happens once the thread has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.tell(self._loop.stop)
            self._thread.join(_LAST_WORDS)


async def _awaited(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await work()


class _Shared:
    """The process' thread, and who is to be closed before it stops."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None
        self.open: dict[int, Callable[[], None]] = {}
        self.left_behind: list[object] = []


_shared = _Shared()


def loop_thread() -> LoopThread:
    """The process' thread, started where there is none."""
    with _shared.lock:
        if _shared.thread is None:
            _shared.thread = LoopThread()
        return _shared.thread


def close_at_exit(owner: object, close: Callable[[], None]) -> None:
    """Call ``close`` at the interpreter's end, unless :func:`closed` came before."""
    with _shared.lock:
        _shared.open[id(owner)] = close


def closed(owner: object) -> None:
    with _shared.lock:
        _shared.open.pop(id(owner), None)


def leave_behind(*parents: object) -> None:
    """Keep what the parent of this fork had open from ever being collected here: its end would close it."""
    _shared.left_behind += parents


def _at_exit() -> None:
    if _shared.thread is not None:
        _shared.thread.ending = True
    for close in list(_shared.open.values()):
        with suppress(Exception):
            close()
    if _shared.thread is not None:
        _shared.thread.stop()


def _after_fork() -> None:
    global _shared
    parents = _shared
    _shared = _Shared()
    _shared.left_behind.append(parents)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
