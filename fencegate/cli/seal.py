"""``fencegate seal``: ends a term for good in one region's store, through any admin listener of that region."""

from __future__ import annotations

from typing import Final

import click

from fencegate.cli.asking import EXIT_REFUSED, Document, act_by, action_options, end
from fencegate.cli.look import console

_CODES: Final = {"sealed": 0, "already": 0, "other_term": EXIT_REFUSED}


@click.command()
@click.argument("role")
@click.option("--token", type=click.IntRange(1), required=True, help="The term: its fencing token.")
@click.option(
    "--limit", type=click.FloatRange(0.1, 600), default=10.0, show_default=True, help="Seconds for the seal to stand."
)
@action_options("An admin listener of the region")
def seal(
    role: str,
    token: int,
    limit: float,
    admin: str | None,
    token_file: str | None,
    as_json: bool,
    config: str | None,
    assign: tuple[str, ...],
) -> None:
    """Seal ROLE's term --token in this region's store. A seal is final: that term never writes here again.

    Asked of the node that leads, the term is drained, sealed and given back, and another region can open at once.
    Asked of any other gateway of the region, its store is sealed, whoever leads there steps down, and the next term
    waits for the lease to lapse.

    \b
    Exit code: 0   sealed
               1   no answer, or not known to be sealed: see `fencegate status`
               69  refused: the term is another one
               78  bad configuration
    """
    document = act_by(admin, token_file, config, assign, role, "seal", {"token": token, "limit": limit})

    def say(document: Document) -> None:
        out, outcome = console(), str(document["outcome"])
        line = f"{role}: {outcome.replace('_', ' ')}, token {token}"
        out.print(line, style="bad" if _CODES.get(outcome, 1) else "good")
        out.print(f"  {document['detail']}", style="quiet", soft_wrap=True)

    end(document, _CODES, say, as_json=as_json)
