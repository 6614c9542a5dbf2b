"""``fencegate reopen``: the way out where a store was found to have gone back in time (rule R9).

Only the operator knows whether the newest files can still be put in their place. Where they can't, what was
acknowledged and is not there is lost, and somebody has to say so: the store keeps who did.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

import click

from fencegate.access.database import Database
from fencegate.cli import connections
from fencegate.cli.asking import NOT_NEEDED
from fencegate.cli.loading import flags_of, load, settings_options
from fencegate.cli.look import console
from fencegate.cli.rebase import EXIT_REFUSED, Refused, at_a_terminal, who
from fencegate.config.parsing import shown
from fencegate.store import rollback

_LIMIT: Final = 10.0
_WORD: Final = "lost"


@click.command()
@click.option("--store", "name", metavar="NAME", help="Which of several [[store]]s.")
@click.option("--by", metavar="WHO", help="Who does it, for the record (default: this user at this host).")
@click.option("--confirm", metavar=_WORD, help=f"The word {_WORD!r}, instead of typing it.")
@click.option("--json", "as_json", is_flag=True, help="What was done as JSON; needs --confirm.")
@settings_options("store.dsn")
def reopen(
    name: str | None,
    by: str | None,
    confirm: str | None,
    as_json: bool,
    config: str | None,
    assign: tuple[str, ...],
    **named: str | None,
) -> None:
    """Take a store as it is, after a gateway found that it lacks writes that it had acknowledged.

    Where its newest files are still there, put those back instead: then gateways take it again by themselves. What this
    gives up is lost: look for it first in the other region's copy (fencegate diff). Each role then needs a new term.

    \b
    Exit code: 0   reopened
               1   no answer: not known to be done, ask again
               69  refused, nothing was changed
               78  bad configuration
    """
    defaults = {key: value for key, value in NOT_NEEDED.items() if key != "store"}
    settings = load(config, flags_of(assign, named), defaults=defaults)
    stores = connections.stores(settings, settings.store.dsn or "")
    try:
        if name is None and len(stores) > 1:
            raise Refused(f"there are several stores: say which by --store, {', '.join(stores)}")
        if (name or "") not in stores:
            raise Refused(f"there is no [[store]] {name!r}")
        asyncio.run(_run(stores[name or ""], by or who(), confirm, as_json))
    except (Refused, rollback.NotMigrated) as error:
        click.echo(f"fencegate: nothing was changed: {error}", err=True)
        sys.exit(EXIT_REFUSED)


async def _run(database: Database, by: str, confirm: str | None, as_json: bool) -> None:
    found = await rollback.find(database, _LIMIT)
    if not found:
        raise Refused("nobody has found that this store went back")
    _confirm(database, found, confirm, as_json)
    ended = await rollback.reopen(database, by, _LIMIT)
    if as_json:
        click.echo(json.dumps({"reopened": ended, "by": by}))
        return
    out = console()
    out.print("The store is taken as it is.", style="good")
    out.print("  Each role opens with its next term, which needs a lease and a few retries.", style="quiet")


def _confirm(database: Database, found: list[rollback.Finding], confirm: str | None, as_json: bool) -> None:
    if confirm is None:
        if as_json or not at_a_terminal():
            raise click.UsageError(f"not at a terminal: confirm by --confirm {_WORD}")
        out = console()
        place = shown("dsn", database.dsn).strip('"')
        out.print(f"{place} went back in time,", soft_wrap=True)
        for each in found:
            out.print(f"  {each}", style="bad", soft_wrap=True)
        out.print("What it had acknowledged in between is lost unless its newest files are put back. Cannot be undone.")
        confirm = click.prompt(f"Type {_WORD} to take it as it is", default="", show_default=False)
    if confirm != _WORD:
        raise Refused(f"the word is {_WORD!r}, not {confirm!r}")
