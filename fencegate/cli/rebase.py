"""``fencegate rebase``: the way out where a restore took a role's tokens back (rule R10).

A step that only goes up, in the election store, where every elector reads it in the act of winning. Nothing in any
region's store is touched: a fence is never lowered. With one exception: a store in portability mode does not know by
itself that it was restored (rule R9), so it is told first, which closes every fence in it until a new term.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import click

from fencegate.access.database import Database
from fencegate.cli import connections, elections
from fencegate.cli.asking import NOT_NEEDED
from fencegate.cli.loading import flags_of, load, settings_options
from fencegate.cli.look import console
from fencegate.config import Settings
from fencegate.config.parsing import shown
from fencegate.config.several_stores import store_of
from fencegate.errors import FencegateError
from fencegate.lease import Rebased
from fencegate.observations import TokensRebased
from fencegate.store.control import Control
from fencegate.store.link import Server
from fencegate.telemetry.logs import Logs, configure

EXIT_REFUSED: Final = 69
"""``EX_UNAVAILABLE``: nothing was changed."""

ROOM: Final = 1_000_000
ROOM_OF_ZOOKEEPER: Final = 2**36
"""How far above every number that is known the next one lies: tokens may have been issued, before the restore, that
no store named here has seen. An int64 has room for millions of such steps. Each new
leader of a ZooKeeper takes a step of 2**32 by itself."""

_LIMIT: Final = 10.0
"""Seconds for each question to a store or to the election."""


class Refused(FencegateError):
    """Nothing was changed, and why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known before the step. ``seen``: by name of the store, the highest token accepted or sealed there."""

    role: str
    issued: int
    seen: dict[str, int]
    above: int

    @property
    def regressed(self) -> bool:
        return self.issued < max(self.seen.values(), default=0)


def planned(role: str, issued: int, seen: dict[str, int], above: int | None, room: int = ROOM) -> Plan:
    """The step to take; ``above`` is the operator's choice. Raises :class:`Refused` where it would not be enough."""
    highest = max(issued, *seen.values())
    if above is None:
        return Plan(role, issued, seen, highest + room)
    if above < highest:
        raise Refused(f"--above {above} is below {highest}, which was issued or accepted already")
    return Plan(role, issued, seen, above)


@click.command()
@click.argument("role")
@click.option("--store", "stores", multiple=True, metavar="DSN", help="Another region's store, to be read too.")
@click.option("--seen", type=click.IntRange(min=1), help="A max_token_seen of a store that cannot be read from here.")
@click.option(
    "--above",
    type=click.IntRange(min=1),
    help="The next token is above this (default: above all that is known, with room to spare).",
)
@click.option("--by", metavar="WHO", help="Who does it, for the record (default: this user at this host).")
@click.option("--confirm", metavar="ROLE", help="The role's name again, instead of typing it.")
@click.option("--json", "as_json", is_flag=True, help="What was done as JSON; needs --confirm.")
@settings_options("store.dsn")
def rebase(
    role: str,
    stores: tuple[str, ...],
    seen: int | None,
    above: int | None,
    by: str | None,
    confirm: str | None,
    as_json: bool,
    config: str | None,
    assign: tuple[str, ...],
    **named: str | None,
) -> None:
    """Move ROLE's tokens up, past every token that a store has accepted, after a restore took them back.

    Name the stores of all regions. Let the gateways stand still for a lease before you point them at a restored
    election store: it has forgotten who led. A term that is under way keeps its token.

    \b
    Exit code: 0   every token from now on is above
               1   no answer: not known to be done, ask again
               69  refused, nothing was changed
               78  bad configuration
    """
    defaults = {name: value for name, value in NOT_NEEDED.items() if name != "store"}
    settings = load(config, flags_of(assign, named), defaults=defaults)
    try:
        asyncio.run(_run(settings, role, stores, seen, above, by or who(), confirm, as_json))
    except Refused as error:
        click.echo(f"fencegate: nothing was changed: {error}", err=True)
        sys.exit(EXIT_REFUSED)


async def _run(
    settings: Settings,
    role: str,
    stores: tuple[str, ...],
    seen: int | None,
    above: int | None,
    by: str,
    confirm: str | None,
    as_json: bool,
) -> None:
    store = store_of(settings, role)
    if store is None:
        raise Refused(f"no [[store]] has a pattern that matches the role {role!r}")
    named = connections.stores(settings, settings.store.dsn or "")
    known = {each.dsn: each for each in named.values()}
    database = known[store.dsn or ""]
    async with AsyncExitStack() as stack:
        election = elections.backend(settings, connections.home(settings, named))
        stack.push_async_callback(election.close)
        try:
            issued = await election.issued_up_to(role, _LIMIT)
        except NotImplementedError:
            issued = 0  # it does not tell, or has no record of the role
        accepted = await _accepted(role, dict.fromkeys((database, *(known.get(dsn, Database(dsn)) for dsn in stores))))
        if seen is not None:
            accepted["--seen"] = seen
        room = ROOM_OF_ZOOKEEPER if settings.election.source == "zookeeper" else ROOM
        plan = planned(role, issued, accepted, above, room)
        _confirm(plan, settings.election.source, confirm, as_json, closes=database.portable)
        history = await _begin_history(database, by) if database.portable else ""
        try:
            rebased = await election.rebase(role, plan.above, by, _LIMIT)
        except (NotImplementedError, ValueError) as error:
            if history:
                raise FencegateError(f"{role}: the store is another history now, {history}; but {error}") from None
            raise _refusal(error) from None
    configure(settings.log.format, settings.log.level)
    Logs([role])(TokensRebased(role, by, rebased.before, rebased.after))
    _say(plan, rebased, by, as_json, history)


def _refusal(error: NotImplementedError | ValueError) -> Refused:
    more = "; what to do instead stands in fencegate/election/DESIGN.md"
    return Refused(f"{error}{more if isinstance(error, NotImplementedError) else ''}")


async def _begin_history(database: Database, by: str) -> str:
    store = Control(database, Server(), sessions=1, limit=_LIMIT, connect_limit=_LIMIT)
    try:
        return await store.begin_history(by)
    finally:
        await store.close()


async def _accepted(role: str, databases: Iterable[Database]) -> dict[str, int]:
    """The highest token that each store has accepted or sealed. Raises :class:`Refused` where one does not say."""
    found: dict[str, int] = {}
    for database in databases:
        name = shown("dsn", database.dsn).strip('"')
        store = Control(database, Server(), sessions=1, limit=_LIMIT, connect_limit=_LIMIT)
        try:
            fence = await store.read(role)
        except FencegateError as error:
            raise Refused(f"{name}: {error}. Every store named has to answer; else give its number by --seen") from None
        finally:
            await store.close()
        if fence is not None:
            found[name] = max(fence.max_token_seen, fence.sealed, found.get(name, 0))
    if not found:
        raise Refused(f"no store named here knows the role {role!r}")
    return found


def _confirm(plan: Plan, source: str, confirm: str | None, as_json: bool, *, closes: bool) -> None:
    """The typed confirmation. Raises :class:`Refused` unless the role's name was typed or given."""
    if confirm is None:
        if as_json or not at_a_terminal():
            raise click.UsageError(f"not at a terminal: confirm by --confirm {plan.role}")
        out = console()
        out.print(f"The election over {source} has issued tokens of {plan.role} up to {plan.issued}.")
        for name, token in plan.seen.items():
            out.print(f"  {name} has accepted {token}", style="bad" if token > plan.issued else "quiet", soft_wrap=True)
        if not plan.regressed:
            out.print("No store named here has seen a higher one: nothing seems to have gone back.", style="act")
        if closes:
            line = "The store is in portability mode: every fence in it, of all roles, closes until its next term."
            out.print(line, style="act", soft_wrap=True)
        out.print(f"From now on every token would be above {plan.above}. This cannot be undone.")
        confirm = click.prompt("Type the role's name to do it", default="", show_default=False)
    if confirm != plan.role:
        raise Refused(f"the role is {plan.role!r}, not {confirm!r}")


def _say(plan: Plan, rebased: Rebased, by: str, as_json: bool, history: str) -> None:
    if as_json:
        document = {"role": plan.role, "before": rebased.before, "after": rebased.after, "seen": plan.seen, "by": by}
        if history:
            document["incarnation"] = history
        click.echo(json.dumps(document))
        return
    out = console()
    if history:
        out.print(f"{plan.role}: its store is another history now, {history}: every fence in it is closed", style="act")
    if rebased.before == rebased.after:
        out.print(f"{plan.role}: every token is above {plan.above} already; nothing was changed", style="good")
        return
    out.print(
        f"{plan.role}: from now on every token is above {rebased.after}, where it was {rebased.before}", style="good"
    )
    out.print(
        "  The next term opens by itself, after at most a lease and a few retries.", style="quiet", soft_wrap=True
    )


def at_a_terminal() -> bool:
    return sys.stdin.isatty()


def who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
