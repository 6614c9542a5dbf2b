"""``fencegate doctor``: looks for what would go wrong, and says what to do. It changes nothing of what it looks at."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from rich.text import Text

from fencegate.cli.doctor_checks import examine
from fencegate.cli.doctor_findings import Finding, Severity
from fencegate.cli.doctor_measures import measure
from fencegate.cli.loading import flags_of, load, settings_options
from fencegate.cli.look import console, counted
from fencegate.config import Settings

EXIT_FAULTS: Final = 69
"""``EX_UNAVAILABLE``: something does not work, or a promise does not hold."""
EXIT_WARNINGS: Final = 75
"""``EX_TEMPFAIL``: it works for now."""

_STYLES: Final = {
    Severity.FINE: "good",
    Severity.UNKNOWN: "quiet",
    Severity.NOTE: "plain",
    Severity.WARNING: "act",
    Severity.FAULT: "bad",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option(
    "--limit",
    type=click.FloatRange(0.5, 60),
    default=5.0,
    show_default=True,
    help="Seconds for each measurement; all run at once.",
)
@click.option("--quiet", is_flag=True, help="Only what is not fine.")
@settings_options()
def doctor(as_json: bool, limit: float, quiet: bool, config: str | None, assign: tuple[str, ...]) -> None:
    """Look at store, election, clocks, timings and the ways in and out, and say what would go wrong.

    Run it where the gateway runs, as its user and with its settings. Nothing is changed anywhere; a ZooKeeper that has
    no election yet gets its empty parent nodes, as each of its proofs names one.

    \b
    Exit code: 0   nothing to do
               69  at least one fault: something does not work, or a promise does not hold
               75  at least one warning: it works, until what the warning names happens
               78  bad configuration
    """
    settings = load(config, flags_of(assign, {}))
    path = config or os.environ.get("FENCEGATE_CONFIG")
    # Not asyncio.run: that would wait for a name server that hangs.
    loop = asyncio.new_event_loop()
    try:
        found = examine(settings, loop.run_until_complete(measure(settings, limit, path)))
    finally:
        loop.close()
    if as_json:
        click.echo(json.dumps(document(settings, found, quiet=quiet)))
    else:
        screen = console()
        for line in lines(settings, found, quiet=quiet):
            screen.print(line, soft_wrap=True)
    sys.exit(exit_code(found))


def exit_code(found: Sequence[Finding]) -> int:
    """By the gravest finding."""
    severities = {finding.severity for finding in found}
    if Severity.FAULT in severities:
        return EXIT_FAULTS
    return EXIT_WARNINGS if Severity.WARNING in severities else 0


def document(settings: Settings, found: Sequence[Finding], *, quiet: bool = False) -> dict[str, Any]:
    """The examination as plain values; ``counts`` are of all checks, also where ``quiet`` leaves out the fine ones."""
    counts = Counter(finding.severity for finding in found)
    return {
        "node": settings.node,
        "region": settings.region,
        "counts": {severity.value: counts[severity] for severity in Severity},
        "checks": [
            {
                "check": finding.check,
                "severity": finding.severity.value,
                "measured": finding.measured,
                "expected": finding.expected,
                "advice": finding.advice,
            }
            for finding in found
            if not (quiet and finding.severity is Severity.FINE)
        ],
    }


def lines(settings: Settings, found: Sequence[Finding], *, quiet: bool = False) -> Iterator[Text]:
    """The same for a person: a line per check, and what to do under each that is not fine."""
    yield Text.assemble(("node ", "quiet"), settings.node, ("  region ", "quiet"), settings.region)
    width = max(len(finding.check) for finding in found)
    for finding in found:
        if quiet and finding.severity is Severity.FINE:
            continue
        yield Text.assemble(
            (f"{finding.severity:<8}", _STYLES[finding.severity]), f"{finding.check:<{width}}  {finding.measured}"
        )
        if finding.severity in (Severity.WARNING, Severity.FAULT):
            yield Text(f"{'':8}expected  {finding.expected}", style="quiet")
        if finding.advice:
            yield Text(f"{'':8}{finding.advice}")
    yield _summary(found)


def _summary(found: Sequence[Finding]) -> Text:
    counts = Counter(finding.severity for finding in found)
    faults, warnings = counts[Severity.FAULT], counts[Severity.WARNING]
    if not faults and not warnings:
        return Text(f"Nothing to do; {counted(len(found), 'check')}.", style="good")
    said = " and ".join(counted(n, word) for n, word in ((faults, "fault"), (warnings, "warning")) if n)
    return Text(f"{said} in {counted(len(found), 'check')}.", style="bad" if faults else "act")
