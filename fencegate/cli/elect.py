"""``fencegate elect ROLE -- CMD…``: runs a command only while this node leads."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Final, Literal

import click

from fencegate.cli import connections, elections
from fencegate.cli.elect_term import EXIT_LOST, Elect
from fencegate.cli.loading import flags_of, load, settings_options
from fencegate.cli.loops import run
from fencegate.client.grants import Grants
from fencegate.config import UNADVERTISED, Settings, role_parameters
from fencegate.config.routes import check_role
from fencegate.config.several_stores import by_store
from fencegate.errors import ConfigurationError
from fencegate.lease import Candidate, ElectionBackend
from fencegate.observations import Observer, ignore
from fencegate.telemetry import logs

EXIT_NOT_EXECUTABLE: Final = 126
EXIT_NOT_FOUND: Final = 127


@click.command(
    epilog=f"""Exit code: that of CMD, 128+n where signal n ended it; {EXIT_LOST} when leadership was lost; 78 for a bad
    configuration; {EXIT_NOT_EXECUTABLE} or {EXIT_NOT_FOUND} when CMD cannot be run or found; 128+n when signal n came
    while waiting to lead."""
)
@settings_options("node", "region", "advertise", "store.dsn", "election.source", "log.format", "log.level")
@click.option("--once", is_flag=True, help="CMD is a job: with --on-lost restart, end when it has run to its end once.")
@click.option(
    "--on-lost",
    type=click.Choice(["exit", "restart"]),
    default="exit",
    show_default=True,
    help="After a lost term: exit with 75, or stand for the role again and start CMD anew. With restart, a CMD that"
    " ended by itself is started anew too, after its node has stood in line like any other.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86400),
    default=10.0,
    show_default=True,
    help="Seconds from SIGTERM to SIGKILL at most; less when the lease ends before.",
)
@click.option(
    "--shared-store",
    is_flag=True,
    help="Give the lease back when CMD has ended, instead of letting it lapse. Only where every write of CMD lands in"
    " one store that checks the token in the write's own transaction.",
)
@click.option(
    "--grant-key-file",
    metavar="FILE",
    help="Where gateways require grants: their grant_key_file. CMD reads its grant from FENCEGATE_GRANT_FILE.",
)
@click.option("--grant-subject", metavar="NAME", help="The name by which the gateways know CMD, such as CN=node-1.")
@click.argument("role")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
def elect(
    role: str,
    command: tuple[str, ...],
    once: bool,
    on_lost: Literal["exit", "restart"],
    grace: float,
    shared_store: bool,
    grant_key_file: str | None,
    grant_subject: str | None,
    config: str | None,
    assign: tuple[str, ...],
    **named: str | None,
) -> int:
    """Run CMD only while this node leads ROLE, with FENCEGATE_TOKEN, FENCEGATE_ROLE and, where --advertise is set,
    FENCEGATE_URL in its environment; and FENCEGATE_GRANT_FILE with --grant-key-file.

    When leadership is lost, CMD and all that it started get SIGTERM, and SIGKILL before the lease can end. SIGTERM and
    SIGINT are passed on to CMD.
    """
    settings = load(config, flags_of(assign, named), only_election=True)
    check(role, settings)
    if (code := unusable(command[0])) is not None:
        return code
    _backend(settings)  # a fault in what the settings name is one now, not later
    grants = grants_by(grant_key_file, grant_subject)
    logs.configure(settings.log.format, settings.log.level)
    observe = logs.Logs([role])
    url = "" if settings.advertise == UNADVERTISED else settings.advertise
    work = Elect(
        role,
        list(command),
        backend=lambda: _backend(settings, connections.on_this_loop(observe)),
        candidate=Candidate(settings.node, settings.region, url),
        timings=settings.election.timings,
        observe=observe,
        grace=grace,
        shared_store=shared_store,
        again=on_lost == "restart",
        once=once,
        grants=grants,
    )
    codes: list[int] = []

    async def supervise() -> None:
        codes.append(await work.run())

    run(supervise())
    return codes[0]


def _backend(settings: Settings, observe: Observer = ignore) -> ElectionBackend:
    """Of stores it makes only the connections to the one that the election is in."""
    own, dsn = settings.election.dsn, settings.store.dsn or ""
    if settings.election.over_postgres:
        for part in by_store(settings).values():
            if own in (None, part.store.dsn):
                return elections.backend(settings, connections.store(part, part.store.dsn or "", observe), observe)
    return elections.backend(settings, dsn, observe)


def grants_by(key_file: str | None, subject: str | None) -> Grants | None:
    """What CMD's writes are granted by; ``None`` where nobody asks for that. Raises :class:`ConfigurationError`."""
    if key_file is None and subject is None:
        return None
    if key_file is None or subject is None:
        missing = "--grant-key-file" if key_file is None else "--grant-subject"
        raise ConfigurationError([f"{missing}: missing; a grant has a key that it is signed with, and a caller"])
    return Grants(key_file, subject)


def check(role: str, settings: Settings) -> None:
    """Raises :class:`ConfigurationError` where ``role`` is no single role, or the gateways lead it themselves."""
    try:
        check_role(role)
    except ValueError as fault:
        raise ConfigurationError([f"ROLE = {role}: {fault}"]) from None
    if role_parameters(role):
        raise ConfigurationError([f"ROLE = {role}: expected one role, such as {role.replace('{', '').rstrip('}')}-1"])
    if role in settings.roles and settings.election.mode == "campaign":
        sentence = f'election.mode: expected "follow", since {role} has a route: with "campaign" its gateways lead it'
        raise ConfigurationError([sentence])


def unusable(program: str) -> int | None:
    """Says on stderr why ``program`` cannot be run, and gives the exit code; ``None`` where it can be."""
    if shutil.which(program) is not None:
        return None
    there = os.sep in program and os.path.exists(program)
    reason = os.strerror(errno.EACCES) if there else "no such command"
    click.echo(f"fencegate: cannot run {program}: {reason}", err=True)
    return EXIT_NOT_EXECUTABLE if there else EXIT_NOT_FOUND
