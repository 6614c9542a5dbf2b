"""Pictures as HTML. Pure; every text from outside goes through one escaping function on its way.

The page is whole without JavaScript. With it, the sections named here are exchanged as they change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final
from urllib.parse import quote

from fencegate.console.memory import WINDOW
from fencegate.console.picture import Believer, Box, Health, Link, Picture

_MARK: Final = {Link.HOLDS: "✓ holds", Link.FAILS: "✗ fails here", Link.MOOT: "– says nothing now"}
_HEALTH: Final = {
    Health.ONE: "✓ one leader",
    Health.NOBODY: "✗ no leader",
    Health.TWO: "✗ two leaders",
    Health.BLIND: "? not known",
}
_WIDTH, _HEIGHT = 900, 96
_ROWS: Final = {2: 16, 1: 48, 0: 80}

SENDER: Final = ("role", "client", "agent", "refused", "reason", "token")
"""What is shown of a sender of stale writes."""

Sections = dict[str, str]


def page(sections: Mapping[str, str], order: Sequence[str], title: str) -> str:
    """The whole page around its sections."""
    body = "".join(f'<section id="{name}">{sections[name]}</section>' for name in order)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title>"
        '<link rel="stylesheet" href="/-/console/console.css"><link rel="icon" href="data:,">'
        '<script src="/-/console/console.js" defer></script>'
        '<noscript><meta http-equiv="refresh" content="5"></noscript></head><body>'
        f'<main>{body}</main><p id="link" role="status"></p></body></html>'
    )


def sections_of(
    pictures: Sequence[Picture],
    node: str,
    events: Sequence[Mapping[str, Any]],
    senders: Sequence[Mapping[str, Any]] = (),
) -> Sections:
    """Every section by the id of its element; in a picture's order of importance, role after role."""
    found: Sections = {"head": f"<h1>fencegate</h1><p>as seen from {_text(node)}</p>"}
    for number, picture in enumerate(pictures):
        found |= {
            f"verdict-{number}": _verdict(picture),
            f"age-{number}": f'<p class="age">The oldest word here is {picture.age:.1f} s old.</p>',
            f"chain-{number}": _chain(picture),
            f"line-{number}": _line(picture),
            f"figures-{number}": _rejections(picture) + _durations(picture),
            f"believers-{number}": _believers(picture),
            f"actions-{number}": _actions(picture),
        }
    found["senders"] = _senders(senders)
    found["events"] = _events(events)
    return found


def _text(value: object) -> str:
    return escape(str(value), quote=True)


def _verdict(picture: Picture) -> str:
    # The seconds go on all the time: read out only when something else changes.
    return (
        f'<h2 class="verdict {picture.health}"><span class="mark">{_HEALTH[picture.health]}</span> '
        f"{_text(picture.verdict)}</h2>"
    )


def _chain(picture: Picture) -> str:
    boxes = "".join(_box(number, box) for number, box in enumerate(picture.chain, start=1))
    return f'<ol class="chain" aria-label="The chain that makes single ownership mechanical">{boxes}</ol>'


def _box(number: int, box: Box) -> str:
    return (
        f'<li class="{box.link}"><span class="step">{number}</span><h3>{_text(box.title)}</h3>'
        f'<p class="value">{_text(box.value)}</p><p>{_text(box.remark)}</p>'
        f'<p class="mark">{_MARK[box.link]}</p></li>'
    )


# -- leader_count over time -------------------------------------------------------------------------


def _line(picture: Picture) -> str:
    steps = [(age, count) for age, count in picture.line if age <= WINDOW]
    before = [count for age, count in picture.line if age > WINDOW]
    told = f"leader_count, the last {WINDOW / 60:.0f} minutes"
    if not steps and not before:
        return f"<h3>{told}</h3><p>No node has gained or lost this role since it was started.</p>"
    now = (steps or [(0.0, before[-1])])[-1][1]
    marks = "".join(f'<line class="turn" x1="{_x(age)}" x2="{_x(age)}" y1="4" y2="92"/>' for age, _ in steps)
    labels = "".join(f'<text x="4" y="{y + 4}">{count}</text>' for count, y in _ROWS.items())
    alt = f"{told}: now {now}, {len(steps)} changes."
    return (
        f"<h3>{told}</h3>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{alt}"><title>{alt}</title>'
        f'<rect class="bad" x="20" y="2" width="{_WIDTH - 20}" height="28"/>'
        f'<rect class="bad" x="20" y="66" width="{_WIDTH - 20}" height="28"/>'
        f'{labels}{marks}<polyline points="{" ".join(_points(steps, before))}"/></svg>'
        f'<p class="age">1 is right; the bands are 0 (nobody may write) and 2 (somebody is wrong).</p>'
    )


def _points(steps: Sequence[tuple[float, int]], before: Sequence[int]) -> Iterator[str]:
    y = _ROWS[min(2, before[-1])] if before else None
    if y is not None:
        yield f"{_x(WINDOW)},{y}"
    for age, count in steps:
        if y is not None:
            yield f"{_x(age)},{y}"
        y = _ROWS[min(2, count)]
        yield f"{_x(age)},{y}"
    yield f"{_WIDTH},{y}"


def _x(age: float) -> int:
    return round(20 + (_WIDTH - 20) * (1 - min(age, WINDOW) / WINDOW))


# -- tables -----------------------------------------------------------------------------------------


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> str:
    if not rows:
        return f"<h3>{caption}</h3><p>{empty}</p>"
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _rejections(picture: Picture) -> str:
    rows = [(reason, region, count) for region, reason, count in picture.rejections]
    return _table("Rejections by reason", ("reason", "region", "refused"), rows, "None: that is the steady state.")


def _durations(picture: Picture) -> str:
    rows = []
    for name, found, bounds in (
        ("renewal of the lease", picture.renewals, "retry 2 s, deadline 10 s, lease 15 s by default"),
        ("check of the fence", picture.checks, ""),
    ):
        if found and found.get("last") is not None:
            times = [f"{1000 * found[key]:.1f} ms" for key in ("last", "p50", "p99")]
            rows.append((name, *times, bounds))
    return _table("How long it takes", ("what", "last", "p50", "p99", "bounds"), rows, "Nothing was measured yet.")


def _believers(picture: Picture) -> str:
    rows = [_believer(one) for one in picture.believers]
    heads = ("node", "region", "believes", "its store's fence", "highest token", "asked", "trouble")
    return _table("What each gateway believes", heads, rows, "")


def _believer(one: Believer) -> tuple[object, ...]:
    seen = "" if one.max_token_seen is None else one.max_token_seen
    asked = f"{one.age:.1f} s ago" if one.node else ""
    return (one.node or one.place, one.region, one.state, one.fence, seen, asked, one.problem)


def _senders(senders: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (*("" if one[name] is None else one[name] for name in SENDER), f"{one['last_age_s']:.0f} s ago", one["node"])
        for one in senders
    ]
    heads = (*SENDER[:-1], "its token", "last", "refused by")
    return _table("Who still thinks it leads", heads, rows, "Nobody: no stale write in the last hour.")


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (f"{event['age']:.0f} s ago", "alarm" if event["alarming"] else "", event["node"], event["text"])
        for event in events
    ]
    return _table("What happened", ("when", "", "node", "what"), rows, "Nothing yet.")


# -- actions ----------------------------------------------------------------------------------------


def _actions(picture: Picture) -> str:
    """A form where this very node leads: it works with the token that is typed in, and with nothing else."""
    if not picture.region:
        return "<h3>Hand over</h3><p>Nobody leads: there is nothing to hand over.</p>"
    here = picture.believers[0]
    others = sorted({one.region for one in picture.believers if one.region and one.region != picture.region})
    if here.region != picture.region or here.state != "leading":
        return f"<h3>Hand over</h3><p>Ask on the console of the node that leads, in {_text(picture.region)}.</p>"
    if not others:
        return "<h3>Hand over</h3><p>No other region is seen from here.</p>"
    options = "".join(f"<option>{_text(region)}</option>" for region in others)
    role = _text(picture.role)
    return (
        f'<h3>Hand over</h3><form class="handoff" data-role="{role}" '
        f'action="/-/roles/{quote(picture.role, safe="/")}/handoff">'
        f'<label>to region <select name="to">{options}</select></label> '
        '<label>within <input name="limit" type="number" value="10" min="1" max="600" required> s</label> '
        f'<label>the role\'s name, typed: <input name="typed" autocomplete="off" required></label> '
        '<label>action token <input name="token" type="password" autocomplete="off" required></label> '
        "<button>Hand over</button> <output></output></form>"
        f"<p>The same in a shell: <code>fencegate handoff {role} --to {_text(others[0])}</code></p>"
    )
