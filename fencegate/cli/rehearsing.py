"""What every command that rehearses needs: a picture that is kept up, an end that tidies up, a directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Console
from rich.live import Live

from fencegate.cli.demo_view import PlainLines, picture
from fencegate.gameday.scene import Scene

_FRAMES: Final = 8

Result = TypeVar("Result")


@asynccontextmanager
async def shown(scene: Scene, console: Console) -> AsyncIterator[None]:
    """Keeps the scene on the screen while the body runs; the last state stays there."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            task = asyncio.create_task(_redraw(lambda: live.update(picture(scene, console), refresh=True)))
            try:
                yield
            finally:
                await _ended(task)
                live.update(picture(scene, console), refresh=True)
        return
    lines = PlainLines(console)
    task = asyncio.create_task(_redraw(lambda: lines.show(scene)))
    try:
        yield
    finally:
        await _ended(task)
        lines.show(scene)


async def _redraw(draw: Callable[[], None]) -> None:
    while True:
        draw()
        await asyncio.sleep(1 / _FRAMES)


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancels the drawing; what it failed with, if it did, is raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def terminable(work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result, or ``None`` where SIGTERM or a closed terminal ended us: then too everything is stopped first."""
    loop, task, told = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal told
        if not told:  # a closing terminal says it twice: what is being undone is not cut short
            told = True
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    try:
        return await work
    except asyncio.CancelledError:
        if told:
            return None
        raise


@contextmanager
def directory_of_our_own(purpose: str) -> Iterator[Path]:
    """A directory of our own, removed at the end however that comes. ``purpose`` is in its name."""
    made = Path(tempfile.mkdtemp(prefix=f"fencegate-{purpose}-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
