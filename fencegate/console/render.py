"""Pictures as HTML. Pure; every text from outside goes through one escaping function on its way.

The page is whole without JavaScript. With it, the parts named here are exchanged as they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final
from urllib.parse import quote

from fencegate.console import charts
from fencegate.console.picture import Believer, Box, Health, Link, Picture

_LINK: Final = {Link.HOLDS: "✓ holds", Link.FAILS: "✗ fails here", Link.MOOT: "– says nothing now"}
_HEALTH: Final = {
    Health.ONE: "✓ one leader",
    Health.NOBODY: "✗ no leader",
    Health.TWO: "✗ two leaders",
    Health.BLIND: "? not known",
}
_GRAVITY: Final = {Health.TWO: 0, Health.NOBODY: 1, Health.BLIND: 2, Health.ONE: 3}

FEW: Final = 3
"""With so many roles each is shown in full; with more there is an overview, and those in trouble below it."""
MOST_ROWS: Final = 200

Parts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asked to see: one role, or those whose name holds ``filter``. ``still``: no reloading."""

    role: str = ""
    filter: str = ""
    still: bool = False

    @property
    def query(self) -> str:
        pairs = (("role", self.role), ("filter", self.filter), ("still", "1" if self.still else ""))
        return "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs if value)


@dataclass(frozen=True, slots=True)
class Shown:
    """A page's parts by the id of their element, its title, and the sentence that is read out when it changes."""

    parts: Parts
    title: str
    spoken: str


def document(title: str, body: str, *, live: bool, reload: bool = False, again: int = 0) -> str:
    """A whole document around ``body``. ``again``: seconds after which a browser asks for it anew; 0: never."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title>"
        '<link rel="stylesheet" href="/-/console/console.css"><link rel="icon" href="data:,">'
        + ('<script src="/-/console/console.js" defer></script>' if live else "")
        + ('<noscript><meta http-equiv="refresh" content="5"></noscript>' if reload else "")
        + (f'<meta http-equiv="refresh" content="{again}">' if again else "")
        + f"</head><body>{body}</body></html>"
    )


def page(shown: Shown, wanted: Wanted) -> str:
    """The picture's page around its parts."""
    numbers = sorted({int(name.rpartition("-")[2]) for name in shown.parts if name[-1].isdigit()})
    roles = "".join(
        f'<section class="role" aria-labelledby="is-{number}">'
        + "".join(_part(name, html) for name, html in shown.parts.items() if name.endswith(f"-{number}"))
        + "</section>"
        for number in numbers
    )
    others = {name: _part(name, html) for name, html in shown.parts.items() if not name[-1].isdigit()}
    still = Wanted(wanted.role, wanted.filter, True).query
    body = (
        f'<a class="skip" href="#now">To the verdict</a><header>{others["head"]}'
        '<div id="old" class="notice alarming" hidden><span role="alert"></span> <span></span></div>'
        + (
            '<noscript><p class="quiet">Without JavaScript this page '
            + (
                f'stands still. <a href="?{escape(Wanted(wanted.role, wanted.filter).query)}">Let it reload</a>'
                if wanted.still
                else f'reloads every 5 seconds. <a href="?{escape(still)}">Hold it still</a>'
            )
            + "</p></noscript>"
        )
        + f'<p id="spoken" class="unseen" role="status"></p></header><main id="now" tabindex="-1">'
        f"{others.get('overview', '')}{roles}{others.get('roles', '')}"
        f'<section aria-labelledby="senders-is">{others["senders"]}</section>'
        f'<section aria-labelledby="events-is">{others["events"]}</section></main>'
    )
    return document(shown.title, body, live=True, reload=not wanted.still)


def shown_of(
    pictures: Sequence[Picture],
    node: str,
    at: str,
    events: Sequence[Mapping[str, Any]],
    senders: Sequence[Mapping[str, Any]] = (),
    wanted: Wanted = Wanted(),
) -> Shown:
    """The parts of the page, in the order of their importance, as ``node`` saw things ``at`` a time of day."""
    details = _details(pictures, wanted)
    parts: Parts = {
        "head": f'<h1><a href="/-/console">fencegate</a></h1><p>As seen from {_text(node)} at {_text(at)}.</p>'
    }
    if len(pictures) > 1:
        parts["overview"] = _overview(pictures, wanted)
    for number, picture in enumerate(details):
        parts |= {
            f"verdict-{number}": _verdict(picture, number),
            f"notices-{number}": _notices(picture),
            f"age-{number}": f'<p class="quiet">The oldest word here is {picture.age:.1f} s old.</p>',
            f"chain-{number}": _chain(picture),
            f"figures-{number}": _figures(picture),
            f"believers-{number}": _believers(picture, number),
            f"actions-{number}": _actions(picture),
        }
    if len(pictures) > 1:
        parts["roles"] = _roles(pictures, wanted)
    parts["senders"] = _senders(senders)
    parts["events"] = _events(events)
    return Shown(parts, _title(pictures, details), _spoken(pictures))


def mark_of(picture: Picture) -> str:
    """The verdict in a few words and a sign."""
    partly = picture.health is Health.ONE and any(not one.node and one.url for one in picture.believers)
    return _HEALTH[picture.health] + (" seen" if partly else "")


def _details(pictures: Sequence[Picture], wanted: Wanted) -> list[Picture]:
    if wanted.role:
        return [picture for picture in pictures if picture.role == wanted.role]
    if len(pictures) <= FEW:
        return list(pictures)
    troubled = [picture for picture in pictures if picture.health is not Health.ONE]
    return sorted(troubled, key=lambda picture: _GRAVITY[picture.health])[:FEW]


def _title(pictures: Sequence[Picture], details: Sequence[Picture]) -> str:
    if len(pictures) == 1 or (len(details) == 1 and details[0].health is not Health.ONE):
        return f"{mark_of(details[0])[0]} {details[0].spoken}" if details else "fencegate"
    return f"fencegate: {_counts(pictures)}"


def _spoken(pictures: Sequence[Picture]) -> str:
    wrong = [picture.spoken for picture in pictures if picture.health is not Health.ONE]
    if len(pictures) == 1:
        return ". ".join([pictures[0].spoken, *(notice.text for notice in pictures[0].notices)])
    return ". ".join([_counts(pictures), *wrong[:FEW]])


def _counts(pictures: Sequence[Picture]) -> str:
    led = sum(1 for picture in pictures if picture.health is Health.ONE)
    return f"{led} of {len(pictures)} roles have one leader"


def _text(value: object) -> str:
    return escape(str(value), quote=True)


def _part(name: str, html: str) -> str:
    return f'<div class="part" id="{name}">{html}</div>'


# -- all roles ----------------------------------------------------------------------------------------


def _overview(pictures: Sequence[Picture], wanted: Wanted) -> str:
    return (
        f'<h2>{_counts(pictures)}</h2><form class="filter" role="search" action="/-/console"><label>Only roles with '
        f'<input type="search" name="filter" value="{_text(wanted.filter)}"></label> <button>Show</button></form>'
    )


def _roles(pictures: Sequence[Picture], wanted: Wanted) -> str:
    found = [picture for picture in pictures if wanted.filter.casefold() in picture.role.casefold()]
    found.sort(key=lambda picture: (_GRAVITY[picture.health], not picture.notices))
    rows = [
        (
            _role_link(one.role, wanted),
            _Html(f'<span class="word {one.health}">{mark_of(one)}</span>'),
            one.region,
            one.token,
            "" if one.left is None else f"{one.left:.1f} s",
            sum(count for _, _, count in one.rejections) or "",
            "; ".join(notice.text.split(":")[0] for notice in one.notices),
        )
        for one in found[:MOST_ROWS]
    ]
    heads = ("role", "", "led in", "token", "lease left", "refused", "")
    table = _table("roles", "All roles", heads, rows, f"No role has {wanted.filter!r} in its name.", level=2)
    more = len(found) - len(rows)
    return f"{table}<p>And {more} more: filter for them.</p>" if more else table


def _role_link(role: str, wanted: Wanted) -> _Html:
    current = ' aria-current="true"' if role == wanted.role else ""
    return _Html(f'<a href="?role={quote(role, safe="")}"{current}>{_text(role)}</a>')


# -- one role -----------------------------------------------------------------------------------------


def _verdict(picture: Picture, number: int) -> str:
    # The seconds go on all the time: what is read out is the sentence without them (Shown.spoken).
    return (
        f'<h2 id="is-{number}" class="verdict {picture.health}"><span class="mark">{mark_of(picture)}</span> '
        f"{_text(picture.verdict)}</h2>"
    )


def _notices(picture: Picture) -> str:
    return "".join(
        f'<p class="notice {"alarming" if notice.alarming else ""}">{"⚠" if notice.alarming else "ℹ"} '
        f"{_text(notice.text)}</p>"
        for notice in picture.notices
    )


def _chain(picture: Picture) -> str:
    boxes = "".join(_box(number, box) for number, box in enumerate(picture.chain, start=1))
    return f'<h3>What makes single ownership mechanical</h3><ol class="chain">{boxes}</ol>'


def _box(number: int, box: Box) -> str:
    return (
        f'<li class="{box.link}"><p><span class="step">{number}</span> {_text(box.title)}</p>'
        f'<p class="value">{_text(box.value)}</p><p class="quiet">{_text(box.remark)}</p>'
        f'<p class="mark">{_LINK[box.link]}</p></li>'
    )


def _figures(picture: Picture) -> str:
    timings = picture.timings
    limits = [
        (name, float(timings[key]))
        for name, key in (("retry", "retry_period"), ("deadline", "renew_deadline"), ("lease", "lease_duration"))
        if key in timings
    ]
    rejections = [(reason, region, f"{count:,}") for region, reason, count in picture.rejections]
    return (
        '<div class="figures">'
        f"<div><h3>leader_count</h3>{charts.leader_count(picture.line)}</div>"
        f"<div><h3>Renewal of the lease</h3>{charts.durations('Renewal of the lease', picture.renewals, limits)}</div>"
        f"<div><h3>Check of the fence</h3>{charts.durations('Check of the fence', picture.checks)}</div>"
        "<div>"
        + _table("", "Rejections by reason", ("reason", "region", "refused"), rejections, "None: the steady state.")
        + "</div></div>"
    )


def _believers(picture: Picture, number: int) -> str:
    heads = ("node", "region", "believes", "its store's fence", "highest token", "asked", "trouble")
    rows = [_believer(one) for one in picture.believers]
    return _table(f"believers-{number}", "What each gateway believes", heads, rows, "")


def _believer(one: Believer) -> tuple[object, ...]:
    seen = "" if one.max_token_seen is None else one.max_token_seen
    asked = f"{one.age:.1f} s ago" if one.node else ""
    name = _text(one.node or one.place)
    linked = _Html(f'<a href="{_text(one.url)}/-/console">{name}</a>' if one.url else name)
    return (linked, one.region, one.state, one.fence, seen, asked, one.problem)


def _actions(picture: Picture) -> str:
    href = f"/-/console/act?role={quote(picture.role, safe='')}"
    what = "Hand over, drain or seal" if picture.own.leads else "Seal, or see who can hand over"
    return f'<p class="act"><a href="{href}">{what} …<span class="unseen"> {_text(picture.role)}</span></a></p>'


# -- of all roles -------------------------------------------------------------------------------------


def _senders(senders: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            one["role"],
            one.get("caller", ""),
            one["client"],
            one["forwarded_for"],
            one["agent"],
            f"{one['refused']:,}" if one["refused"] else "",
            f"{one['let_through']:,}" if one["let_through"] else "",
            one["reason"],
            "" if one["token"] is None else one["token"],
            f"{one['last_age_s']:.0f} s ago",
            one["node"],
        )
        for one in senders
    ]
    counts = ("refused", "let through", "reason", "its token", "last", "by")
    heads = ("role", "caller", "sender", "for, it says", "agent", *counts)
    empty = "Nobody: no stale write in the last hour."
    return _table("senders", "Who still thinks it leads", heads, rows, empty, level=2)


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (f"{event['age']:.0f} s ago", "⚠ alarm" if event["alarming"] else "", event["node"], event["text"])
        for event in events
    ]
    return _table("events", "What happened", ("when", "", "node", "what"), rows, "Nothing yet.", level=2)


class _Html(str):
    """A cell that is HTML already."""

    __slots__ = ()


def _table(
    name: str, title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], empty: str, *, level: int = 3
) -> str:
    """A heading and a table, which scrolls by itself where it is too wide. ``name`` gives the heading an id."""
    known = f' id="{name}-is"' if name else ""
    heading = f"<h{level}{known}>{_text(title)}</h{level}>"
    if not rows:
        return f"{heading}<p>{_text(empty)}</p>"
    # A column without anything in it takes room, and says nothing.
    used = [n for n in range(len(heads)) if any(str(row[n]) for row in rows)]
    head = "".join(f'<th scope="col">{heads[n] or "<span class=unseen>note</span>"}</th>' for n in used)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row[n])}</td>" for n in used) + "</tr>" for row in rows)
    return (
        f'{heading}<div class="wide" role="region" aria-label="{_text(title)}, a table" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    return value if isinstance(value, _Html) else _text(value)
