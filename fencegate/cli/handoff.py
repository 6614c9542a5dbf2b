"""``fencegate handoff``: hands a role to another region through the admin listener of the node that leads it."""

from __future__ import annotations

import json
import sys
from typing import Final

import click

from fencegate.cli.asking import EXIT_REFUSED, EXIT_UNDONE, NOT_NEEDED, Document, act
from fencegate.cli.loading import flags_of, load, read_secret, settings_options
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
@click.option("--admin", metavar="ADDRESS", help="The leader's admin listener, host:port or URL.")
@click.option("--token-file", metavar="FILE", help="The bearer token for actions (else that of the settings).")
@click.option("--json", "as_json", is_flag=True, help="The admin listener's answer as it came.")
@settings_options()
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
    settings = load(config, flags_of(assign, {}), defaults=NOT_NEEDED)
    path = token_file or settings.admin.token_file
    token = read_secret(path, "the token file") if path else None
    document = act(admin or settings.listen.admin_url, token, role, "handoff", {"to": to, "limit": limit})
    if as_json:
        click.echo(json.dumps(document))
    else:
        say(document)
    sys.exit(_CODES.get(str(document.get("outcome")), 1))


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
