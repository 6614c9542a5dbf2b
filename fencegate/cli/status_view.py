"""What one gateway says of its roles, in the look of ``look.py``: for a terminal, and in plain lines for a pipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fencegate.cli.asking import Document
from fencegate.cli.look import badge, bar, counted, duration, minutes, printable, tally, title

NOTHING: Final = "-"
_LONGEST: Final = 1000
_BAR: Final = 10
_WIDE: Final = 100
_AROUND: Final = 8
"""Lines of the picture around its rows."""


class View(NamedTuple):
    """One way to show a document: in plain lines, and for a terminal."""

    lines: Callable[[Document], Iterable[str]]
    picture: Callable[[Document, Console], RenderableType]


# -- roles --------------------------------------------------------------------------------------------


def lines(document: Document) -> Iterator[str]:
    """One plain line per role, ``name=value`` after ``name=value``."""
    if not document["store"]["up"]:
        yield f"store=down reason={json.dumps(document['store']['reason'])}"
    for role in document["roles"]:
        row = _row(role) | ({"store": str(role["store"])} if "store" in role else {})
        # One line a role, whatever an election's record calls its region.
        told = {name: printable(value, _LONGEST).replace(" ", "_") for name, value in row.items()}
        yield f"role={role['role']} " + " ".join(f"{name}={value}" for name, value in told.items())


def picture(document: Document, console: Console) -> RenderableType:
    """Every role in a row, those in trouble first, as many as the terminal has lines for."""
    roles = sorted(document["roles"], key=lambda role: not _trouble(role))
    room = max(3, console.height - _AROUND) if console.is_terminal else len(roles)
    wide = console.width >= _WIDE
    table = Table(box=None, pad_edge=True, header_style="quiet", expand=False)
    for name in ("role", "fence", "leader", "token", "lease left", "max seen", "this node", "refused"):
        right = name in ("token", "max seen")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "refused", overflow="ellipsis")
    for role in roles[:room]:
        table.add_row(*_cells(role, lease=document["timings"]["lease_duration"] if wide else None))
    parts: list[RenderableType] = [_head(document), Text(), table]
    if len(roles) > room:
        # Those in trouble come first: where one of them is left out, only such are shown.
        troubled = sum(1 for role in roles[room:] if _trouble(role))
        how = f"{troubled} of them without a leader or draining" if troubled else "each with a leader"
        parts.append(Text(f" and {counted(len(roles) - room, 'role')} more, {how}", "bad" if troubled else "quiet"))
    if observed := [str(role["role"]) for role in roles if role["observed"]]:
        told = f" OBSERVE MODE: nothing stale is refused on {printable(', '.join(observed))}"
        parts += [Text(), Text(told, "bad")]
    return Group(*parts)


def _head(document: Document) -> RenderableType:
    store, roles = document["store"], document["roles"]
    led = sum(1 for role in roles if role["leader"])
    here = Text.assemble(
        (" fencegate  ", "bold"), (printable(document["node"]), "act"), " in ", printable(document["region"])
    )
    here.append("   store up" if store["up"] else f"   STORE DOWN: {printable(store['reason'])}", _good(store["up"]))
    return title(here, Text(f"{led} of {counted(len(roles), 'role')} led ", _good(led == len(roles))))


def _good(is_so: bool) -> str:
    return "good" if is_so else "bad"


def _cells(role: Document, *, lease: float | None) -> list[Text]:
    """The cells of a role's row; with a bar for what is left of ``lease`` seconds, if given."""
    row, left = _row(role), _seconds_left(role)
    shown = Text(NOTHING if left is None else duration(left))
    if lease is not None and left is not None:
        tenths = round(_BAR * min(left, lease) / lease)
        shown = Text.assemble(bar(tenths, _BAR, _BAR, "good"), "  ", duration(left))
    rejections = role["rejections"] or {}
    refused = tally(rejections) if lease is not None else str(sum(rejections.values()) or "none")
    return [
        Text(printable(role["role"], 40), "bold"),
        badge(row["fence"]),
        Text(printable(row["leader"], 24), "bad" if row["leader"] in ("nobody", "unknown") else ""),
        Text(row["token"]),
        shown,
        Text(row["max_token_seen"]),
        Text(row["this_node"]),
        Text(refused, "quiet" if refused == "none" else "yellow"),
    ]


def _trouble(role: Document) -> bool:
    return not role["leader"] or (role["fence"] or {}).get("draining", False)


def _row(role: Document) -> dict[str, str]:
    fence, leader = role["fence"], role["leader"]
    rejections = role["rejections"] or {}
    left = _seconds_left(role)
    return {
        "leader": leader["region"] if leader else ("nobody" if role["leadership_known"] else "unknown"),
        "token": str(leader["token"]) if leader else NOTHING,
        "lease_left": NOTHING if left is None else f"{left:.1f}s",
        "max_token_seen": str(fence["max_token_seen"]) if fence else NOTHING,
        "fence": _fence(fence),
        "this_node": role["candidacy"] or NOTHING,
        "rejections": ",".join(f"{reason}:{count}" for reason, count in sorted(rejections.items())) or NOTHING,
    }


def _seconds_left(role: Document) -> float | None:
    """What the leader has left by the election's word; else what this region's store gives it."""
    milliseconds = (role["leader"] or {}).get("lease_expires_in_ms")
    if milliseconds is not None:
        return float(milliseconds) / 1000
    return (role["fence"] or {}).get("valid_for_s") or None


def _fence(fence: Document | None) -> str:
    if fence is None:
        return "none"
    if fence["draining"]:
        return "draining"
    return "open" if fence["open"] else "closed"


# -- who still thinks that it leads -------------------------------------------------------------------


def zombie_lines(document: Document) -> Iterator[str]:
    """One plain line per sender of stale writes."""
    for one in document["stale_senders"]:
        texts = {name: one.get(name, "") for name in ("caller", "agent", "forwarded_for")}
        values = {name: NOTHING if one[name] is None else one[name] for name in one if name not in texts}
        told = [f"{name}={value}" for name, value in values.items()]
        yield " ".join([*told, *(f"{name}={json.dumps(text)}" for name, text in texts.items() if text)])


def zombie_picture(document: Document, console: Console) -> RenderableType:
    """The same as a table."""
    senders = document["stale_senders"]
    head = Text.assemble(
        (" fencegate  ", "bold"), (printable(document["node"]), "act"), " in ", printable(document["region"])
    )
    told = title(head, Text("stale writes of the last hour, minutes ago ", "quiet"))
    if not senders:
        return Group(told, Text(f" Nobody: no stale write reached {document['node']} in the last hour.", style="good"))
    table = Table(box=None, pad_edge=True, header_style="quiet")
    heads = ["role", "sender", "agent", "refused", "token", "since", "last"]
    if wide := console.width >= _WIDE:
        heads.insert(4, "reason")
    for name in heads:
        # What tells senders apart is folded where it is too long, never cut.
        fold = name in ("role", "sender", "agent", "reason")
        table.add_column(name, justify="left" if fold else "right", no_wrap=not fold, overflow="fold")
    for one in senders:
        sender = str(one["client"]) + (f" (for {one['forwarded_for']})" if one["forwarded_for"] else "")
        if caller := one.get("caller"):  # A gateway of an older version tells of none.
            sender = f"{caller} at {sender}"
        through = f", {one['let_through']} LET THROUGH" if one["let_through"] else ""
        table.add_row(
            Text(printable(one["role"]), "bold"),
            Text(printable(sender)),
            Text(printable(one["agent"]), "quiet"),
            Text(f"{one['refused']}{through}", "bad" if through else "yellow"),
            *([Text(one["reason"])] if wide else []),
            Text(NOTHING if one["token"] is None else str(one["token"])),
            *(Text(minutes(one[name]), "quiet") for name in ("first_age_s", "last_age_s")),
        )
    return Group(told, Text(), table)


ROLES: Final = View(lines, picture)
ZOMBIES: Final = View(zombie_lines, zombie_picture)
