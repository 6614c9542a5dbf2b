"""The end of a game day in words: the figures, each check that failed, and one sentence that sums it up."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fencegate.cli.demo_verdict import show_failed_checks, show_figures, show_violations
from fencegate.cli.look import counted
from fencegate.gameday.judge import Report


def show(report: Report, console: Console) -> None:
    """Prints the verdict."""
    show_figures(report, console)
    show_violations(report, console)
    show_failed_checks(report, console)
    console.print()
    for sentence in closing(report):
        console.print(sentence, soft_wrap=not console.is_terminal)


def closing(report: Report) -> list[Text]:
    """What the checks mean, in sentences."""
    meant = report.scenario.expect.verdict == "fail"
    if report.ok:
        words = f"PASSED: {counted(len(report.checks), 'check')}, and all of them hold."
        said = [Text(words, "good")]
        if meant:
            said.append(Text("This scenario is meant to fail, and did not: something was not tried.", "bad"))
        return said
    failed = [check.name for check in report.checks if not check.ok]
    said = [Text(f"FAILED: it does not hold that {'; that '.join(failed)}.", "bad")]
    if meant and report.sound:
        said.append(Text("This scenario is meant to fail so: the verdict is the one to be expected."))
    elif not report.sound:
        said.append(Text("Ledgers or leaders are not what they must be. Please report it with the lines above."))
    return said
