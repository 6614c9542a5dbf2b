"""The end of the demo in words: what the drill came to, and what that means."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fencegate.cli.look import counted, duration, tally
from fencegate.gameday.judge import Report
from fencegate.gameday.regions import DR, PRIMARY
from fencegate.gameday.verify import Kind

_SLOW: Final = (
    "A machine that is busy with something else may be too slow for a drill in seconds: give it more --seconds."
)


def figures(report: Report) -> list[tuple[str, str, str]]:
    """The rows of the verdict: what, how much, and a style."""
    verdict = report.verdict
    rows = [(f"entries in {name}'s ledger", str(count), "") for name, count in verdict.entries.items()]
    for what, count in (
        ("divergent entries", verdict.divergent),
        ("acknowledged writes lost", verdict.count(Kind.LOST)),
        ("writes applied twice", verdict.count(Kind.TWICE)),
        ("refused writes applied", verdict.count(Kind.REFUSED_APPLIED)),
        ("stale writes accepted", report.stale_accepted),
    ):
        rows.append((what, str(count), "bad" if count else "good"))
    refused = sum(report.stale_refused.values())
    by_reason = f"  ({tally(report.stale_refused)})" if refused else ""
    rows.append(("stale writes refused", f"{refused}{by_reason}", ""))
    rows.append(("most leaders at one moment", str(report.most_leaders), "good" if report.most_leaders <= 1 else "bad"))
    for turn in report.turns:
        text = f"{duration(turn.leaderless)}  (no write accepted for {duration(turn.pause)})"
        rows.append((f"without a leader at {turn.name}", text, ""))
    if report.unfinished:
        rows.append(("decisions never answered", str(report.unfinished), "bad"))
    return rows


def show(report: Report, console: Console, *, fenced: bool) -> None:
    """Prints the verdict: the figures, every violation with its evidence, and one sentence that sums it up."""
    show_figures(report, console)
    show_violations(report, console)
    if report.sound and fenced:
        show_failed_checks(report, console)
    console.print()
    for sentence in closing(report, fenced=fenced):
        console.print(sentence, soft_wrap=not console.is_terminal)


def show_figures(report: Report, console: Console) -> None:
    console.print()
    console.print(Text("The verdict", "bold"))
    for what, value, style in figures(report):
        console.print(Text.assemble(f"  {what:<32}", (value, style)), soft_wrap=True)


def show_failed_checks(report: Report, console: Console) -> None:
    for check in report.checks:
        if not check.ok:
            console.print(Text(f"  {check.name}: {check.detail}", "bad"), soft_wrap=True)


def show_violations(report: Report, console: Console) -> None:
    for violation in report.verdict.violations:
        console.print()
        console.print(Text(f"  {violation.kind}: {counted(violation.count, 'case')}", "bad"))
        for evidence in violation.evidence:
            _print_indented(console, evidence)
        if violation.count > len(violation.evidence):
            console.print(Text(f"    and {violation.count - len(violation.evidence)} more", "quiet"))


def _print_indented(console: Console, sentence: str) -> None:
    if console.is_terminal:
        console.print(Padding(Text(sentence), (0, 0, 0, 4)))
    else:
        console.print(Text(f"    {sentence}"), soft_wrap=True)


def closing(report: Report, *, fenced: bool) -> list[Text]:
    """What the figures mean, in sentences."""
    if report.ok and fenced:
        refused = sum(report.stale_refused.values())
        return [
            Text("PASSED: one ledger, whole and the same in both regions.", "good"),
            Text(
                f"{DR} refused {counted(refused, 'stale write')}. When their clients' DNS records ran out, the same "
                f"decisions went to {PRIMARY} under the same Idempotency-Key, and each landed once."
            ),
        ]
    if report.sound and not fenced:
        return [Text("The fence was off and nothing diverged: no stale write came. Give the drill more --seconds.")]
    if report.sound:
        failed = [check.name for check in report.checks if not check.ok]
        return [
            Text(f"FAILED: it does not hold that {'; that '.join(failed)}.", "bad"),
            Text(f"The ledgers and the answers do hold together, and never two led at once. {_SLOW}"),
        ]
    if fenced:
        return [
            Text("FAILED: the ledgers or the answers do not hold together.", "bad"),
            Text("This must never happen. Please report it with the lines above; --keep leaves the servers up."),
        ]
    return [
        Text(f"DIVERGED: {counted(report.stale_accepted, 'stale write')} landed in {DR} after {PRIMARY} led.", "bad"),
        *_explained(report),
        Text("This is what the fence is for. The same drill with it: fencegate demo", "bold"),
    ]


def _explained(report: Report) -> list[Text]:
    told = [Text("Not one client saw an error: each got a 201 from a healthy region.")]
    for fork in report.verdict.forks:
        told.append(
            Text(
                f"The ledgers part at sequence {fork.seq}: {fork.leader_entries} entries "
                f"that only {fork.leader} has, {fork.other_entries} that only {fork.other} has. Both look whole."
            )
        )
    return told
