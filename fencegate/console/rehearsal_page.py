"""The page of the console's game day: what it says while it goes on, and what came of it. Pure."""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import quote

from fencegate.console.forms import PATH, REPORT
from fencegate.console.rehearsal import Outcome, Rehearsal
from fencegate.console.render import document

_AGAIN: Final = 2
_LOOKS: Final[dict[Outcome, tuple[str, str]]] = {
    "under way": ("…", "blind"),
    "passed": ("✓", "one"),
    "failed": ("✗", "nobody"),
    "broken off": ("–", "blind"),
    "could not begin": ("✗", "nobody"),
}


def rehearsal_page(told: Rehearsal | None, now: float) -> str:
    """The latest game day, ``None`` for none so far; ``now`` is of the clock that its instants are of."""
    head = '<p><a href="/-/console">← to the picture</a></p></header><main>'
    if told is None:
        nothing = "<p>None was started here since this gateway began.</p></main>"
        return document("Game day", f"<header><h1>Game day</h1>{head}{nothing}", live=False)
    mark, kind = _LOOKS[told.outcome]
    running = told.ended is None
    seconds = round((now if told.ended is None else told.ended) - told.began)
    lines, role = escape("\n".join(told.lines)), escape(told.role)
    href = f"{PATH}?role={quote(told.role, safe='')}"
    body = (
        f"<header><h1>Game day on {role}</h1>{head}"
        f'<p class="verdict {kind}"><span class="mark">{mark} {told.outcome}</span> '
        f"{'for' if running else 'after'} {seconds} s of at most {told.limit:.0f} s</p>"
        + (f'<p><a href="{REPORT}">Its report</a></p>' if told.report else "")
        + f'<pre tabindex="0" aria-label="what it says">{lines}</pre>'
        + (f'<p class="quiet">To break it off: <a href="{href}">the actions of {role}</a>.</p>' if running else "")
        + "</main>"
    )
    return document(f"{told.outcome}: game day on {told.role}", body, live=False, again=_AGAIN if running else 0)
