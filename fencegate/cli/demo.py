"""``fencegate demo``: Drill 26 in one command, with nothing to set up."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from fencegate.cli import demo_verdict
from fencegate.cli.look import console as make_console
from fencegate.cli.rehearsing import directory_of_our_own, shown, terminable
from fencegate.embedded import etcd, postgres
from fencegate.gameday import scenario_file
from fencegate.gameday.breakable import BreakableRegions
from fencegate.gameday.drill import Drill, Plan
from fencegate.gameday.embedded_stage import EmbeddedStage
from fencegate.gameday.judge import Report
from fencegate.gameday.scenario import Scenario
from fencegate.gameday.scene import RegionScene, Scene

SHORTEST: Final = 30.0
_FIXED: Final = 16.0
"""Seconds of a drill that no setting shortens: starting servers, waiting for a lease to end, judging."""
_TAIL: Final = 0.48
"""The share of the rest in which stale DNS records run out."""
_STALE_FOR: Final = 1200.0
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
    def scenario(self) -> Scenario:
        """Drill 26, as long as was asked for."""
        found = scenario_file.load("drill-26").with_clients(self.clients)
        played = sum(step.seconds for step in found.steps if step.do in ("play", "tail"))
        return found.paced((self.seconds - _FIXED) * (1 - _TAIL) / played)

    @property
    def plan(self) -> Plan:
        return Plan(_STALE_FOR, _STALE_FOR / ((self.seconds - _FIXED) * _TAIL))


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
    with directory_of_our_own("demo") as directory:
        report = asyncio.run(terminable(_play(wanted, directory, console)))
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
    stage = EmbeddedStage(directory, "enforce" if wanted.fenced else "observe")
    scene = Scene(time.monotonic, {name: RegionScene(name) for name in stage.called}, wanted.fenced)
    drill = Drill(stage, scene, wanted.scenario, wanted.plan)
    try:
        async with shown(scene, console):
            report = await drill.run()
        demo_verdict.show(report, console, fenced=wanted.fenced)
        if wanted.keep:
            _say_addresses(stage.servers, console)
            await asyncio.Event().wait()
        return report
    finally:
        await stage.stop()
        # In here, where a second SIGHUP or SIGTERM (a closing terminal sends two) cannot cut it short.
        shutil.rmtree(directory, ignore_errors=True)


def _say_addresses(stage: BreakableRegions, console: Console) -> None:
    lines = ["", "Everything is still running; Ctrl-C stops it and removes it."]
    for region in stage.regions.values():
        lines += [
            f"  {region.name}: gateway {region.url}, admin {region.admin_url} (token in {region.token_file})",
            f"    console: {region.admin_url}/-/console",
            f"    store {region.postgres.dsn}",
            f"    status: fencegate status --admin {region.admin_url} --token-file {region.token_file}",
        ]
    lines.append(f"  etcd: {', '.join(stage.etcd.endpoints)}")
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()
