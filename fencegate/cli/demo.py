"""``fencegate demo``: Drill 26 in one command, with nothing to set up."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live

from fencegate.cli import demo_verdict
from fencegate.cli.demo_view import PlainLines, picture
from fencegate.cli.look import console as make_console
from fencegate.embedded import etcd, postgres
from fencegate.gameday.drill import SHORTEST, Drill, Pace, Report
from fencegate.gameday.regions import TwoRegions
from fencegate.gameday.scene import RegionScene, Scene

_STALE_SHARE: Final = 0.4
_FRAMES: Final = 8
EXIT_DIVERGED: Final = 1
EXIT_TERMINATED: Final = 143


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    fenced: bool
    keep: bool
    seconds: float
    clients: int

    @property
    def stale_clients(self) -> int:
        return max(1, round(self.clients * _STALE_SHARE))


@click.command(help="Watch two regions fail over and back without diverging, on real servers that it starts itself.")
@click.option("--naive", is_flag=True, help="The same drill with the fence off: see the ledgers diverge (exits 1).")
@click.option("--keep", is_flag=True, help="Leave everything running at the end and print the addresses.")
@click.option(
    "--seconds", type=click.FloatRange(SHORTEST, 600), default=60.0, show_default=True, help="About how long it plays."
)
@click.option(
    "--clients",
    type=click.IntRange(2, 200),
    default=20,
    show_default=True,
    help="How many, two in five with stale DNS.",
)
def demo(naive: bool, keep: bool, seconds: float, clients: int) -> int:
    """Exits 0 when the two ledgers are one and nothing was lost or doubled, else 1."""
    wanted = Wanted(not naive, keep, seconds, clients)
    console = make_console()
    _introduce(console, wanted)
    with _directory() as directory:
        report = asyncio.run(_terminable(_play(wanted, directory, console)))
    if report is None:
        return EXIT_TERMINATED
    return 0 if report.ok else EXIT_DIVERGED


def _introduce(console: Console, wanted: Wanted) -> None:
    console.print(f"{postgres.describe()} {etcd.describe()}", soft_wrap=True)
    console.print(
        "Two regions, primary and dr, own one ledger in turn. Twenty minutes of stale DNS are played in seconds, and "
        "the databases' own replication is played by a small stand-in that copies entries in order.",
        soft_wrap=not console.is_terminal,
    )
    if not wanted.fenced:
        console.print(
            "The fence is off (--naive): the gateways let every write through, whatever it would say.", soft_wrap=True
        )
    console.print()


async def _play(wanted: Wanted, directory: Path, console: Console) -> Report:
    stage = TwoRegions(directory, "enforce" if wanted.fenced else "observe")
    scene = Scene(time.monotonic, {name: RegionScene(name) for name in stage.regions}, wanted.fenced)
    sdk_clients = max(1, wanted.clients - wanted.stale_clients)
    drill = Drill(stage, scene, Pace.of(wanted.seconds), sdk_clients=sdk_clients, stale_clients=wanted.stale_clients)
    try:
        async with _shown(scene, console):
            report = await drill.run()
        demo_verdict.show(report, console, fenced=wanted.fenced)
        if wanted.keep:
            _say_addresses(stage, console)
            await asyncio.Event().wait()
        return report
    finally:
        await stage.stop()
        # In here, where a second SIGHUP or SIGTERM (a closing terminal sends two) cannot cut it short.
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def _shown(scene: Scene, console: Console) -> AsyncIterator[None]:
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


def _say_addresses(stage: TwoRegions, console: Console) -> None:
    lines = ["", "Everything is still running; Ctrl-C stops it and removes it."]
    for region in stage.regions.values():
        lines += [
            f"  {region.name}: gateway {region.url}, admin {region.admin_url} (token in {region.token_file})",
            f"    store {region.postgres.dsn}",
            f"    status: fencegate status --admin {region.admin_url} --token-file {region.token_file}",
        ]
    lines.append(f"  etcd: {', '.join(stage.etcd.endpoints)}")
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()


async def _terminable(work: Coroutine[Any, Any, Report]) -> Report | None:
    """The report, or ``None`` where SIGTERM or a closed terminal ended us: then too everything is stopped first."""
    loop, task, told = asyncio.get_running_loop(), asyncio.current_task(), False
    assert task is not None

    def end() -> None:
        nonlocal told
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
def _directory() -> Iterator[Path]:
    """A directory of our own, removed at the end however that comes."""
    made = Path(tempfile.mkdtemp(prefix="fencegate-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
