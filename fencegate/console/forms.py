"""The console's page of actions, and the page that says what became of one. Pure; plain forms, no script.

Every form carries the term that its page was made for, so that nobody acts on a picture that is no longer so.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final
from urllib.parse import quote

from fencegate.console.picture import Picture
from fencegate.console.render import document, mark_of

PATH: Final = "/-/console/act"
GAMEDAY: Final = "/-/console/gameday"
REPORT: Final = f"{GAMEDAY}/report"
LONGEST: Final = 600


def confirmation(action: str, role: str, term: str) -> str:
    """What has to be typed to confirm: the role's name, and for a seal the term too, since it is final."""
    return f"{role} {term}" if action == "seal" else role


def page(picture: Picture, shown_at: str, here: str, *, rehearsing: bool = False) -> str:
    """Everything that can be done to one role from this node, whose admin listener is at the origin ``here``.

    ``rehearsing``: a game day that was started here is under way on it.
    """
    role = escape(picture.role)
    body = (
        f"<header><h1>Act on {role}</h1>"
        f'<p><a href="/-/console?role={quote(picture.role, safe="")}">← back to the picture</a></p></header><main>'
        f'<p class="verdict {picture.health}"><span class="mark">{mark_of(picture)}</span> {escape(picture.spoken)}</p>'
        f'<p class="quiet">As of {escape(shown_at)}. This page stands still: it acts on the term shown here, and on no '
        f'later one. <a href="{PATH}?role={quote(picture.role, safe="")}">Look again</a></p>'
        + "".join(_sections(picture, here, rehearsing))
        + "</main>"
    )
    return document(f"Act on {picture.role}", body, live=False)


def _sections(picture: Picture, here: str, rehearsing: bool) -> Iterator[str]:
    if picture.own.leads:
        yield _handoff(picture)
        yield _drain(picture)
    else:
        yield (
            "<section><h2>Hand over, or drain</h2><p>Only the node that leads can do either. "
            f"{_elsewhere(picture)}</p></section>"
        )
    yield _seal(picture)
    if rehearsing:
        yield _breaking_off(picture)
    elif picture.rehearsal:
        yield _rehearsal(picture, here)


def _elsewhere(picture: Picture) -> str:
    for one in picture.believers:
        if one.region == picture.region and one.state == "leading" and one.url:
            href = f"{one.url}{PATH}?role={quote(picture.role, safe='')}"
            return f'That is <a href="{escape(href)}">{escape(one.node)} in {escape(one.region)}</a>.'
    return f"It is led in {escape(picture.region)}." if picture.region else "Nobody leads now."


def _handoff(picture: Picture) -> str:
    others = sorted({one.region for one in picture.believers if one.region and one.region != picture.region})
    if not others:
        return "<section><h2>Hand over</h2><p>No other region is seen from here.</p></section>"
    options = "".join(f"<option>{escape(region)}</option>" for region in others)
    fields = f'<label>To region <select name="to">{options}</select></label>'
    fields += _limit("Undone unless sealed within", 10)
    told = (
        "Writes stop, those under way end, this store is sealed, the lease goes to the other region. What has not "
        "come to the seal in time is taken back, and this node leads on."
    )
    command = f"fencegate handoff {shlex.quote(picture.role)} --to {shlex.quote(others[0])} --limit 10"
    return _form("handoff", "Hand over", told, fields, command, picture)


def _drain(picture: Picture) -> str:
    told = (
        "No new write begins (503 draining), those under way end, and the term goes on. After the time limit writes "
        "are taken again by themselves."
    )
    role = shlex.quote(picture.role)
    found = _form("drain", "Drain", told, _limit("Writes are taken again after", 30),
                  f"fencegate drain {role} --limit 30", picture)  # fmt: skip
    if picture.own.draining:
        told = "Writes are stopped now. This takes them again at once."
        found += _form("resume", "End the drain", told, "", f"fencegate drain {role} --resume", picture)
    return found


def _seal(picture: Picture) -> str:
    own = picture.own
    if own.sealed or not own.term:
        return "<section><h2>Seal</h2><p>This region's store has no term that is not sealed.</p></section>"
    how = (
        "The term is drained, sealed and given back, and another region can open at once."
        if own.leads
        else "Only this region's store is sealed: whoever leads here steps down, and the next term waits for the lease "
        "to lapse."
    )
    told = f"<strong>A seal is final.</strong> Term {own.term} never writes to this store again. {how}"
    command = f"fencegate seal {shlex.quote(picture.role)} --token {own.term}"
    return _form("seal", f"Seal term {own.term}", told, _limit("It has to stand within", 10), command, picture)


def _rehearsal(picture: Picture, here: str) -> str:
    peers = [one.url for one in picture.believers if one.url]
    command = " ".join(["fencegate gameday", *(f"--target {shlex.quote(target)}" for target in (here, *peers))])
    command += f" --role {shlex.quote(picture.role)} --token-file FILE"
    told = (
        "This role is there to be rehearsed on. Clients write to it, some with stale DNS, while it is handed over "
        "and back; it takes minutes. What is started here runs on this node's machine, beside the gateway, and shows "
        "itself "
        f'<a href="{GAMEDAY}">on a page of its own</a>.'
    )
    if not peers:
        return (
            f"<section><h2>Rehearse</h2><p>{told} That needs the admin listeners of every region: name the others' in "
            f"<code>[console] peers</code>, or in a shell: <code>{escape(command)}</code></p></section>"
        )
    return _form("gameday", "Rehearse", told, _limit("Broken off, and handed back, after", LONGEST), command, picture)


def _breaking_off(picture: Picture) -> str:
    told = (
        f'A game day is <a href="{GAMEDAY}">under way</a> on this role. This ends it, and the role is handed back '
        "as it was found."
    )
    return _form("break-off", "Break off the game day", told, "", "kill -TERM PID", picture)


def _limit(told: str, seconds: int) -> str:
    return (
        f'<label>{told} <input name="limit" type="number" value="{seconds}" min="1" max="{LONGEST}" required> seconds'
        "</label>"
    )


def _form(action: str, title: str, told: str, fields: str, command: str, picture: Picture) -> str:
    role, term = picture.role, str(picture.own.term)
    typed = confirmation(action, role, term)
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{escape(value)}">'
        for name, value in (("action", action), ("role", role), ("term", term))
    )
    return (
        f'<section class="act"><h2 id="{action}">{escape(title)}</h2><p>{told}</p>'
        f'<form method="post" action="{PATH}" aria-labelledby="{action}">{hidden}{fields}'
        f"<label>To confirm, type <code>{escape(typed)}</code> "
        f'<input name="typed" autocomplete="off" autocapitalize="none" spellcheck="false" required></label>'
        '<label>Token for actions <input name="secret" type="password" autocomplete="off" required></label>'
        f"<button>{escape(title)}</button></form>"
        f"<p>The same in a shell: <code>{escape(command)}</code></p></section>"
    )


def result_page(role: str, action: str, status: int, found: Mapping[str, Any]) -> str:
    """What became of an action, or why it was not begun."""
    outcome = str(found.get("outcome") or ("done" if status == 200 else "refused")).replace("_", " ")
    mark = {200: "✓", 202: "…"}.get(status, "✗")
    facts = [
        f"{name}: {found[key]}"
        for name, key in (("token", "token"), ("writes paused, ms", "paused_ms"), ("writes again in, s", "left_s"))
        if found.get(key) is not None
    ]
    href, kind = quote(role, safe=""), "one" if mark == "✓" else "nobody"
    body = (
        f"<header><h1>{escape(action.capitalize())} of {escape(role)}</h1></header><main>"
        f'<p class="verdict {kind}"><span class="mark">{mark} {escape(outcome)}</span></p>'
        f"<p>{escape(str(found.get('detail') or found.get('error') or ''))}</p>"
        f'<p class="quiet">{escape("; ".join(facts))}</p>'
        f'<p><a href="/-/console?role={href}">To the picture</a>, <a href="{PATH}?role={href}">to the actions</a></p>'
        "</main>"
    )
    return document(f"{outcome}: {role}", body, live=False)
