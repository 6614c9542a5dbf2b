"""``fencegate serve``: the gateway, with its elector where configured; ``--embedded`` brings a Postgres with it."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from fencegate import __version__
from fencegate.cli import supervision
from fencegate.cli.loading import flags_of, load, settings_options
from fencegate.cli.loops import run
from fencegate.cli.wiring import Service
from fencegate.config import Flag, Settings
from fencegate.config.settings import RouteSettings
from fencegate.config.values import split_address
from fencegate.embedded import postgres as embedded_postgres
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import ConfigurationError
from fencegate.observations import LeadershipGained, Observation

_log = logging.getLogger("fencegate.serve")

EMBEDDED_DATA: Final = "127.0.0.1:8080"
WATCH_PERIOD: Final = 1.0


@click.command()
@settings_options(
    "node",
    "region",
    "advertise",
    "workers",
    "listen.data",
    "listen.admin",
    "store.dsn",
    "election.source",
    "log.format",
    "log.level",
)
@click.option(
    "--embedded",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Bring a Postgres of its own in DIR, for the store and the election: nothing to configure.",
)
@click.option("--migrate", is_flag=True, help="Apply missing migrations before serving.")
@click.option(
    "--grace",
    type=click.FloatRange(0, 3600),
    default=10.0,
    show_default=True,
    help="Seconds that requests under way get after SIGTERM.",
)
def serve(
    config: str | None,
    assign: tuple[str, ...],
    embedded: str | None,
    migrate: bool,
    grace: float,
    **named: str | None,
) -> None:
    """Run the gateway. SIGTERM ends it in order, a second one at once; SIGHUP reloads what can be reloaded."""
    flags = flags_of(assign, named)
    if embedded is None:
        settings = _that_can_be_served(load(config, flags, without_file="; or try it with none: --embedded DIR"))
        service = Service(
            settings,
            store_dsn=settings.store.dsn or "",  # several have theirs in the settings
            reload=lambda: load(config, flags),
            grace=grace,
            migrate=migrate,
        )
        run(service.run(lambda data, admin: _say_started(settings, data, admin)))
        return
    first = load(config, flags, defaults=embedded_defaults(EMBEDDED_DATA), embedded=True)
    # Whoever asks for a free port is told it, and hints must name it too: so it is chosen before anything starts.
    data = with_a_port(first.listen.data)
    flags = [*(flag for flag in flags if flag.key != "listen.data"), Flag("--data", "listen.data", data)]

    def reload() -> Settings:
        return load(config, flags, defaults=embedded_defaults(data), embedded=True)

    run(_serve_embedded(_that_can_be_served(reload()), EmbeddedPostgres(embedded), reload, grace))


def _that_can_be_served(settings: Settings) -> Settings:
    if faults := supervision.refused(settings, sys.platform):
        raise ConfigurationError(faults)
    return settings


def embedded_defaults(data: str) -> dict[str, Any]:
    """What ``--embedded`` puts under the settings: one node, one region, one ledger."""
    return {
        "node": "local",
        "region": "local",
        "advertise": f"http://{data}",
        "route": [{"path": "/v1/entries", "role": "ledger", "target": "ledger"}],
    }


def with_a_port(address: str) -> str:
    """``address``, with a free port in place of port 0."""
    host, port = split_address(address)
    if port:
        return address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        free = probe.getsockname()[1]
    return f"[{host}]:{free}" if ":" in host else f"{host}:{free}"


async def _serve_embedded(
    settings: Settings, server: EmbeddedPostgres, reload: Callable[[], Settings], grace: float
) -> None:
    click.echo(embedded_postgres.describe())
    async with server:
        service = Service(settings, store_dsn=server.dsn, reload=reload, grace=grace, migrate=True)
        service.observers.add(Example(settings))
        watch = asyncio.create_task(_keep_running(server))
        try:
            await service.run(lambda data, admin: _say_started(settings, data, admin))
        finally:
            watch.cancel()
            await asyncio.wait([watch])


async def _keep_running(server: EmbeddedPostgres) -> None:
    """A server that was killed comes back; until then the gateway is closed."""
    while True:
        await asyncio.sleep(WATCH_PERIOD)
        if server.running:
            continue
        _log.error("the embedded Postgres has ended; starting it again")
        try:
            await server.start()
        except (embedded_postgres.EmbeddedServerError, OSError) as error:
            _log.error("the embedded Postgres does not start: %s", error)


def _say_started(settings: Settings, data: str, admin: str) -> None:
    click.echo(
        f"fencegate {__version__}: node {settings.node} of region {settings.region} takes requests at {data}, "
        f"operators at {admin}"
    )


class Example:
    """An observer that shows a first write, with the token of the first term, once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shown = False

    def __call__(self, observation: Observation) -> None:
        if self._shown or not isinstance(observation, LeadershipGained):
            return
        route = next((route for route in self._settings.route if route.role == observation.role), None)
        if route is None:
            return
        self._shown = True
        url, needed = self._settings.advertise, list(_needed(self._settings, route))
        what = f"A write, which needs {' and '.join(needed)} besides" if needed else "A write that is taken"
        key = "-H 'Idempotency-Key: first' " if route.idempotency == "required" else ""
        click.echo(
            f"Leading {route.role} with token {observation.token}. {what}, and who leads:\n"
            f"  curl -i {url}{route.path} -H 'X-Fencing-Token: {observation.token}' {key}"
            f"-H 'Content-Type: application/json' -d '{{\"decision\": \"approve\"}}'\n"
            f"  curl {url}/.well-known/fencegate/leader/{route.role}"
        )


def _needed(settings: Settings, route: RouteSettings) -> Iterator[str]:
    """What a write on ``route`` needs that no example can hold."""
    if settings.listen.tls.client_ca is not None and settings.listen.tls.client != "optional":
        yield "a client certificate"
    if route.callers or settings.identity.required:
        yield "a caller who may write there"
    if route.grant == "required":
        yield "the grant that discovery gives"
