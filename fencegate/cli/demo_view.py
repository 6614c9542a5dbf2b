"""The drill on a terminal: a live picture that a room can follow, or one line per event where there is no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fencegate.cli.look import badge, bar, minutes, tally, title
from fencegate.gameday.scene import Happening, RegionScene, Scene

_FIXED_LINES: Final = 20
"""Lines of the picture without its timeline."""
_TIMELINE: Final = (3, 12)
_STATUS_EVERY: Final = 3.0


def picture(scene: Scene, console: Console) -> RenderableType:
    """The whole stage at this moment, as high as the terminal allows."""
    room = max(_TIMELINE[0], min(_TIMELINE[1], console.height - _FIXED_LINES))
    regions = Table.grid(expand=True, padding=(0, 1, 0, 0))
    for _ in scene.regions:
        regions.add_column(ratio=1)
    if scene.regions:
        regions.add_row(*(_region(region, fenced=scene.fenced) for region in scene.regions.values()))
    return Group(_title(scene), _progress(scene), regions, _counts(scene), Text(), *_timeline(scene, room))


def _title(scene: Scene) -> RenderableType:
    fence = "" if scene.fenced else "   THE FENCE IS OFF"
    return title(
        Text.assemble((f" {scene.title.partition(':')[0]}  ", "bold"), (scene.act, "act"), (fence, "bad")),
        Text(minutes(scene.elapsed) + " ", "bold"),
    )


def _progress(scene: Scene) -> Text:
    """How far the play is, and what it waits for now."""
    line = Text.assemble(" ", bar(scene.step, scene.steps, 12, "good") if scene.steps else "")
    if scene.step:
        line.append(f" step {scene.step} of {scene.steps}", "quiet")
    if scene.countdown:
        line.append(f"   {left_to_wait(scene)}", "quiet")
    return line


def left_to_wait(scene: Scene) -> str:
    """``waiting for dr to lead: 12 s left``, or ``""``."""
    if scene.countdown is None:
        return ""
    left = max(0.0, scene.countdown.until - scene.clock())
    return f"waiting for {scene.countdown.what}: {left:.0f} s left at most"


def _region(region: RegionScene, *, fenced: bool) -> RenderableType:
    state, words = _state(region, fenced)
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="quiet", no_wrap=True)
    rows.add_column()
    refused = sum(region.rejections.values())
    rows.add_row("max token seen", str(region.max_token or "-"))
    rows.add_row("entries in its ledger", f"{region.entries:,}")
    rows.add_row("writes accepted here", f"{region.accepted:,}")
    rows.add_row("writes refused here", Text(f"{refused:,}", "bold yellow" if refused else ""))
    # Always two lines, so that nothing jumps when the first refusal comes.
    reasons = [f"{name} {count:,}" for name, count in region.rejections.most_common(2)]
    for n in range(2):
        rows.add_row("  by reason" if n == 0 else "", Text(reasons[n] if n < len(reasons) else "", "yellow"))
    body = Group(Text.assemble(state, "  ", words), Text(), rows)
    return Panel(
        body, title=Text(region.name, "bold"), title_align="left", border_style="green" if region.open else "dim"
    )


def _state(region: RegionScene, fenced: bool) -> tuple[Text, Text]:
    if region.process == "killed":
        rest = "its store is still open" if region.open else "gateway and elector are gone"
        return badge("killed"), Text(rest)
    if region.open:
        return badge("open"), Text(f"leads under token {region.token}", "good")
    if region.process == "starting":
        return badge("closed"), Text("starting")
    if not fenced:
        return badge("closed"), Text("but lets every write in", "bad")
    return badge("closed"), Text("its store refuses every write")


def _counts(scene: Scene) -> RenderableType:
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column()
    count = scene.leaders
    rows.add_row(
        Text(" leader_count"),
        Text(str(count), "good" if count == 1 else "bad"),
        Text("by the stores' own word, asked directly", "quiet"),
    )
    if scene.stale_total:
        rows.add_row(Text(" stale DNS records"), bar(scene.stale_left, scene.stale_total, 24), _tail(scene))
    if scene.stale_total or scene.tail:
        rows.add_row(Text(" refused by second"), spark(scene.tail[-24:]), _now(scene))
    if scene.fork:
        rows.add_row(Text(" ledgers"), Text(scene.fork, "bad"), Text("the two regions no longer hold one history"))
    return rows


def spark(counts: Sequence[int]) -> Text:
    """The tail as a row of bars, a second each; a second without a refusal is a dot."""
    highest = max(counts, default=0)
    steps = "▁▂▃▄▅▆▇█"
    return Text("".join(steps[min(7, 8 * n // (highest + 1))] if n else "·" for n in counts) or "·", "act")


def _now(scene: Scene) -> Text:
    return Text("by the clients' own count; the tail has to end at zero", "quiet")


def _tail(scene: Scene) -> Text:
    left = f"{scene.stale_left} of {scene.stale_total}"
    if scene.wrongly:
        return Text.assemble(left, (f"   {scene.wrongly:,} stale writes ACCEPTED by {scene.elsewhere}", "bad"))
    if not scene.stale_refused:
        return Text(left)
    rate = f"{scene.refusals_per_second:.0f}/s" if scene.refusals_per_second else "none any more"
    return Text.assemble(left, f"   {scene.stale_refused:,} stale writes refused, ", (f"now {rate}", "bold"))


def _timeline(scene: Scene, room: int) -> list[Text]:
    lines = [happening_line(happening) for happening in scene.timeline[-room:]]
    return lines + [Text()] * (room - len(lines))


def happening_line(happening: Happening) -> Text:
    line = Text.assemble((f" {minutes(happening.at)}  ", "quiet"), (happening.text, happening.tone))
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


class PlainLines:
    """The drill as lines: every event once, and how things stand every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._next_status = _STATUS_EVERY

    def show(self, scene: Scene) -> None:
        for happening in scene.timeline[self._told :]:
            self._line(f"{minutes(happening.at)}  {happening.text}")
        self._told = len(scene.timeline)
        if scene.stale_total and scene.elapsed >= self._next_status:
            self._line(f"{minutes(scene.elapsed)}    {status_line(scene)}")
            self._next_status = scene.elapsed + _STATUS_EVERY

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
        self._console.file.flush()


def status_line(scene: Scene) -> str:
    """How things stand, in one line."""
    parts = [f"leader_count {scene.leaders}"]
    for region in scene.regions.values():
        state = f"open, token {region.token}" if region.open else "closed"
        killed = ", gateway killed" if region.process == "killed" else ""
        parts.append(
            f"{region.name} {state}{killed}: {region.entries} entries, {region.accepted} accepted, "
            f"refused {tally(region.rejections)}"
        )
    if scene.stale_left or scene.stale_refused or scene.wrongly:
        accepted = f", {scene.wrongly} stale writes accepted" if scene.wrongly else ""
        parts.append(
            f"stale records {scene.stale_left} of {scene.stale_total}, "
            f"{scene.stale_refused} stale writes refused{accepted}"
        )
    return " | ".join(parts)
