"""``fencegate drain``: stops the writes of a role for a while, through the admin listener of the node that leads it."""

from __future__ import annotations

from typing import Final

import click

from fencegate.cli.asking import EXIT_REFUSED, EXIT_UNDONE, Document, act_by, action_options, end
from fencegate.cli.look import console

_CODES: Final = {
    "drained": 0,
    "resumed": 0,
    "busy": EXIT_REFUSED,
    "not_here": EXIT_REFUSED,
    "not_draining": EXIT_REFUSED,
    "other_term": EXIT_REFUSED,
    "undone": EXIT_UNDONE,
}


@click.command()
@click.argument("role")
@click.option(
    "--limit",
    type=click.FloatRange(0.1, 600),
    default=30.0,
    show_default=True,
    help="Seconds after which writes are taken again by themselves.",
)
@click.option("--resume", is_flag=True, help="Take writes again now.")
@action_options("The leader's admin listener")
def drain(
    role: str,
    limit: float,
    resume: bool,
    admin: str | None,
    token_file: str | None,
    as_json: bool,
    config: str | None,
    assign: tuple[str, ...],
) -> None:
    """Stop the writes of ROLE for a while: none begins (503 draining), those under way end, the term goes on.

    Ask the node that leads. Asking again moves the end; --resume ends it now.

    \b
    Exit code: 0   no write is under way and none begins; with --resume, they are taken again
               1   no answer, or writes are still under way
               69  refused before anything was stopped
               75  undone: the store did not answer, or writes were taken again meanwhile
               78  bad configuration
    """
    name, asked = ("resume", {}) if resume else ("drain", {"limit": limit})
    # Whoever wanted writes stopped must not go on as if they were, where somebody else or the limit ended it.
    codes = _CODES if resume else {**_CODES, "resumed": EXIT_UNDONE}
    end(act_by(admin, token_file, config, assign, role, name, asked), codes, say, as_json=as_json)


def say(document: Document) -> None:
    """The outcome in a line, and why."""
    outcome = str(document["outcome"])
    line = f"{document['role']}: {outcome.replace('_', ' ')}"
    if document.get("left_s"):
        line += f", writes are taken again in {document['left_s']:.0f} s"
    out = console()
    out.print(line, style={0: "good", EXIT_UNDONE: "act"}.get(_CODES.get(outcome, 1), "bad"))
    out.print(f"  {document['detail']}", style="quiet", soft_wrap=True)
