"""``fencegate handoff``: hands a role to another region through the admin listener of the node that leads it."""

from __future__ import annotations

from typing import Final

import click

from fencegate.cli.asking import EXIT_REFUSED, EXIT_UNDONE, Document, act_by, action_options, end
from fencegate.cli.look import console

_CODES: Final = {
    "done": 0,
    "already": 0,
    "busy": EXIT_REFUSED,
    "no_candidate": EXIT_REFUSED,
    "not_here": EXIT_REFUSED,
    "other_term": EXIT_REFUSED,
    "undone": EXIT_UNDONE,
}


@click.command()
@click.argument("role")
@click.option("--to", required=True, metavar="REGION", help="The region that is to lead.")
@click.option(
    "--limit",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    help="Seconds in which writes under way must have ended; after that everything is undone.",
)
@action_options("The leader's admin listener")
def handoff(
    role: str,
    to: str,
    limit: float,
    admin: str | None,
    token_file: str | None,
    as_json: bool,
    config: str | None,
    assign: tuple[str, ...],
) -> None:
    """Hand ROLE to another region: stop writes, drain, seal the old store, open the new one.

    Ask the node that leads. Asking twice is one handoff; asking for the region that leads already is success.

    \b
    Exit code: 0   REGION leads
               1   no answer, or begun and not known to be ended: see `fencegate status`
               69  refused before anything was stopped
               75  undone: writes go on where they went before
               78  bad configuration
    """
    document = act_by(admin, token_file, config, assign, role, "handoff", {"to": to, "limit": limit})
    end(document, _CODES, say, as_json=as_json)


def say(document: Document) -> None:
    """The outcome in a line: coloured on a terminal, plain elsewhere."""
    outcome = str(document["outcome"])
    style = {0: "good", EXIT_UNDONE: "act"}.get(_CODES.get(outcome, 1), "bad")
    out = console()
    line = f"{document['role']}: {outcome.replace('_', ' ')}"
    if document.get("token"):
        line += f", token {document['token']}"
    if document.get("paused_ms") is not None:
        line += f", writes paused for {document['paused_ms']} ms at most"
    out.print(line, style=style)
    out.print(f"  {document['detail']}", style="quiet", soft_wrap=True)
