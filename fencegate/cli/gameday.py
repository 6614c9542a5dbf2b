"""``fencegate gameday``: rehearses a scenario with stale clients, and gives a verdict and a report."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from fencegate.cli.demo import EXIT_DIVERGED, EXIT_TERMINATED
from fencegate.cli.gameday_verdict import show
from fencegate.cli.loading import read_secret
from fencegate.cli.look import console as make_console
from fencegate.cli.rehearsing import directory_of_our_own, shown, terminable
from fencegate.errors import ConfigurationError, FencegateError
from fencegate.gameday import scenario_file
from fencegate.gameday.drill import Drill, Plan
from fencegate.gameday.embedded_stage import EmbeddedStage
from fencegate.gameday.judge import Report
from fencegate.gameday.report import document as document_of
from fencegate.gameday.report_html import page
from fencegate.gameday.report_junit import junit
from fencegate.gameday.scenario import ExtraFault, Scenario, inconsistencies
from fencegate.gameday.scene import RegionScene, Scene
from fencegate.gameday.stage import Stage
from fencegate.gameday.target_stage import TargetStage

_FORMS: Final = {".html": "report.html", ".json": "report.json", ".xml": "junit.xml"}
_MOST_SEEDS: Final = 2**32

Document = dict[str, Any]
T = TypeVar("T")


class _Parsed(click.ParamType[T]):
    """A value that ``parse`` reads; its ``ValueError`` is the fault that is told."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line. ``files`` are written in the end, by their form."""

    scenario: Scenario
    plan: Plan
    targets: tuple[str, ...]
    role: str | None
    token: str | None
    files: tuple[tuple[str, Path], ...]
    as_json: bool
    replay: str


@click.command()
@click.option("--scenario", metavar="NAME|FILE", help="A shipped scenario (see --list) or a TOML file of your own.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="URL",
    help="The admin listener of a gateway of a running deployment, one or more of each region; without it an embedded "
    "set of two regions is started.",
)
@click.option("--role", help="The canary role there, marked rehearsal = true (else the only one that is).")
@click.option("--token-file", metavar="FILE", help="The operators' bearer token for the targets.")
@click.option("--clients", type=click.IntRange(2, 200), help="How many write (else what the scenario says).")
@click.option(
    "--stale-for",
    type=_Parsed("DURATION", scenario_file.parse_duration),
    default="20m",
    show_default=True,
    help="How long cached DNS records live on.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.1, 10_000),
    default=60.0,
    show_default=True,
    help="How many times as fast stale DNS passes. Leases and handoffs take the time that they take.",
)
@click.option(
    "--fault",
    "faults",
    type=_Parsed("FAULT", scenario_file.parse_fault),
    multiple=True,
    metavar="STRIKE:PART[,at=S][,for=S]",
    help="A further fault, such as freeze:dr-store,at=5,for=2 (embedded set only).",
)
@click.option("--seed", type=click.IntRange(0, _MOST_SEEDS), help="Plays the same again (else drawn, and printed).")
@click.option(
    "--report",
    metavar="DIR|FILE",
    type=click.Path(path_type=Path),
    help="Write the report: one .html, .json or .xml file, or all three into a directory.",
)
@click.option("--junit", "junit_file", metavar="FILE", type=click.Path(path_type=Path), help="Write JUnit XML.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON; the progress goes to stderr.")
@click.option("--list", "listing", is_flag=True, help="List the shipped scenarios, with --json as JSON.")
def gameday(
    scenario: str | None,
    targets: tuple[str, ...],
    role: str | None,
    token_file: str | None,
    clients: int | None,
    stale_for: float,
    speed: float,
    faults: tuple[ExtraFault, ...],
    seed: int | None,
    report: Path | None,
    junit_file: Path | None,
    as_json: bool,
    listing: bool,
) -> int:
    """Rehearse a failover and a failback with stale clients, watch the tail of rejections, and judge it.

    \b
    Exit code: 0    the verdict is a pass
               1    it is a failure, or the rehearsal could not begin
               78   the scenario, a fault or a token file is not as expected
               130, 143  aborted; a running deployment is as it was
    """
    if listing:
        return _list(as_json=as_json)
    named = scenario or ("failback" if targets else "drill-26")
    found = scenario_file.load(named)
    found = replace(found.with_clients(clients) if clients else found, faults=faults)
    if wrong := list(inconsistencies(found)):
        raise ConfigurationError(wrong)
    if not targets and (role or token_file):
        raise click.UsageError("--role and --token-file go with --target")
    if targets and (impossible := found.only_embedded()):
        possible = [name for name in scenario_file.shipped() if not scenario_file.load(name).only_embedded()]
        raise click.UsageError(
            f"a running deployment is not broken on purpose, and {named} asks for {', '.join(impossible)}. "
            f"For --target there are: {', '.join(sorted(possible))}"
        )
    chosen = random.SystemRandom().randrange(_MOST_SEEDS) if seed is None else seed
    wanted = Wanted(
        scenario=found,
        plan=Plan(stale_for, speed, chosen),
        targets=targets,
        role=role,
        token=read_secret(token_file, "the token file") if token_file else None,
        files=_files(report, junit_file),
        as_json=as_json,
        replay=replay(named, targets, role, token_file, clients, stale_for, speed, faults, chosen),
    )
    return _rehearse(wanted)


def _list(*, as_json: bool) -> int:
    shipped = {name: scenario_file.load(name) for name in sorted(scenario_file.shipped())}
    if as_json:
        keys = ("name", "title", "target", "verdict")
        rows = ((name, it.title, not it.only_embedded(), it.expect.verdict) for name, it in shipped.items())
        click.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return 0
    for name, found in shipped.items():
        where = "" if found.only_embedded() else "  (also with --target)"
        meant = "  (meant to fail)" if found.expect.verdict == "fail" else ""
        click.echo(f"{name:<20} {found.title}{where}{meant}")
    return 0


def _rehearse(wanted: Wanted) -> int:
    console = make_console(sys.stderr if wanted.as_json else sys.stdout)
    _introduce(console, wanted)
    with directory_of_our_own("gameday") as directory:
        played = asyncio.run(terminable(_play(wanted, directory, console)))
    if played is None:
        return EXIT_TERMINATED
    made = document_of(played, replay=wanted.replay)
    show(played, console)
    for form, path in wanted.files:
        try:
            path.write_text(rendered(made, form), "utf-8")
        except OSError as error:
            raise FencegateError(f"the report cannot be written to {path}: {error.strerror}") from None
        console.print(f"report: {path}", soft_wrap=True)
    console.print(f"again:  {wanted.replay}", soft_wrap=True)
    if wanted.as_json:
        click.echo(json.dumps(made))
    return 0 if played.ok else EXIT_DIVERGED


def _introduce(console: Console, wanted: Wanted) -> None:
    plan = wanted.plan
    console.print(f"{wanted.scenario.title}", style="bold", soft_wrap=True)
    console.print(wanted.scenario.about, soft_wrap=not console.is_terminal)
    console.print(
        f"Seed {plan.seed}. Stale DNS of {plan.stale_for:g} s is played in {plan.tail:g} s; leases are not shortened.",
        soft_wrap=True,
    )
    console.print()


async def _play(wanted: Wanted, directory: Path, console: Console) -> Report:
    if wanted.targets:
        return await _play_on(TargetStage(wanted.targets, wanted.role, wanted.token), wanted, console)
    stage = EmbeddedStage(directory)
    try:
        return await _play_on(stage, wanted, console)
    finally:
        await stage.stop()
        # In here, where a second signal cannot cut it short.
        shutil.rmtree(directory, ignore_errors=True)


async def _play_on(stage: Stage, wanted: Wanted, console: Console) -> Report:
    regions = {name: RegionScene(name) for name in stage.called.values()}
    scene = Scene(time.monotonic, regions, True, title=wanted.scenario.title)
    async with shown(scene, console):
        return await Drill(stage, scene, wanted.scenario, wanted.plan).run()


# -- the report ---------------------------------------------------------------------------------------


def rendered(made: Document, form: str) -> str:
    """The report in the form of a file's ending."""
    if form == ".html":
        return page(made)
    return junit(made) if form == ".xml" else json.dumps(made, indent=1) + "\n"


def _files(report: Path | None, junit_file: Path | None) -> tuple[tuple[str, Path], ...]:
    """What to write where; that it can be written is seen before anything starts."""
    found: list[tuple[str, Path]] = []
    if report is not None and (report.is_dir() or not report.suffix):
        found += ((form, report / name) for form, name in _FORMS.items())
    elif report is not None:
        if (form := report.suffix.lower()) not in _FORMS:
            raise ConfigurationError(
                [
                    f"--report {report}: expected a file that ends in {', '.join(_FORMS)}, or a directory; one with a "
                    "dot in its name has to be there already"
                ]
            )
        found.append((form, report))
    if junit_file is not None:
        found.append((".xml", junit_file))
    for _, path in found:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            made = not path.exists()
            path.touch()
            if made:  # an empty one would be all that an aborted rehearsal leaves
                path.unlink()
        except OSError as error:
            raise ConfigurationError([f"the report cannot be written to {path}: {error.strerror}"]) from None
    return tuple(found)


def replay(
    scenario: str,
    targets: tuple[str, ...],
    role: str | None,
    token_file: str | None,
    clients: int | None,
    stale_for: float,
    speed: float,
    faults: tuple[ExtraFault, ...],
    seed: int,
) -> str:
    """The command that plays the same again."""
    words = ["fencegate", "gameday", "--scenario", scenario, "--seed", str(seed)]
    for target in targets:
        words += ["--target", target]
    for name, value in (("--role", role), ("--token-file", token_file), ("--clients", clients)):
        words += [name, str(value)] if value is not None else []
    words += ["--stale-for", f"{stale_for:g}s", "--speed", f"{speed:g}"]
    for fault in faults:
        words += ["--fault", f"{fault.strike}:{fault.part},at={fault.at:g},for={fault.lasts:g}"]
    return shlex.join(words)
