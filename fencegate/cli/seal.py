"""``fencegate seal``: ends a term for good in one region's store, through any admin listener of that region."""

from __future__ import annotations

import json
import sys
from typing import Final

import click

from fencegate.cli.asking import EXIT_REFUSED, NOT_NEEDED, act
from fencegate.cli.loading import flags_of, load, read_secret, settings_options
from fencegate.cli.look import console

_CODES: Final = {"sealed": 0, "already": 0, "other_term": EXIT_REFUSED}


@click.command()
@click.argument("role")
@click.option("--token", type=click.IntRange(1), required=True, help="The term: its fencing token.")
@click.option(
    "--limit", type=click.FloatRange(0.1, 600), default=10.0, show_default=True, help="Seconds for the seal to stand."
)
@click.option("--admin", metavar="ADDRESS", help="An admin listener of the region, host:port or URL.")
@click.option("--token-file", metavar="FILE", help="The bearer token for actions (else that of the settings).")
@click.option("--json", "as_json", is_flag=True, help="The admin listener's answer as it came.")
@settings_options()
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
    settings = load(config, flags_of(assign, {}), defaults=NOT_NEEDED)
    path = token_file or settings.admin.token_file
    secret = read_secret(path, "the token file") if path else None
    document = act(admin or settings.listen.admin_url, secret, role, "seal", {"token": token, "limit": limit})
    code = _CODES.get(str(document["outcome"]), 1)
    if as_json:
        click.echo(json.dumps(document))
    else:
        out, outcome = console(), str(document["outcome"]).replace("_", " ")
        out.print(f"{role}: {outcome}, token {token}", style="bad" if code else "good")
        out.print(f"  {document['detail']}", style="quiet", soft_wrap=True)
    sys.exit(code)
