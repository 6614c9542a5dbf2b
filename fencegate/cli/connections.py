"""Settings into what connections to other systems are made with. Each raises ``ConfigurationError`` with its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fencegate.access.client_tls import ClientFiles, ClientTls
from fencegate.access.database import Database, key_in
from fencegate.config import Settings, TlsSettings
from fencegate.config.several_stores import by_store
from fencegate.config.store import StoreSettings
from fencegate.errors import ConfigurationError
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.observations import Observation, Observer, ignore

POSTGRES_ALPN = ("postgresql",)
"""What a Postgres asks for that is spoken TLS to from the first byte (``sslnegotiation=direct``)."""
HTTP_ALPN = ("http/1.1",)


def store(settings: Settings, dsn: str, observe: Observer = ignore) -> Database:
    """The store at ``dsn``, which is that of the settings or of an embedded server."""
    tls, table = settings.store.tls, table_of(settings.store)
    context = ClientTls(files(tls, key_in(table, "tls")), observe, alpn=POSTGRES_ALPN) if tls.is_set else None
    offset = settings.store.clock_offset or 0.0
    return Database(dsn, context, settings.store.password_file, table, settings.store.portability, offset)


def table_of(store: StoreSettings) -> str:
    """What messages call its table."""
    return "store" if store.name is None else f"[[store]] {store.name}"


def stores(settings: Settings, dsn: str, observe: Observer = ignore) -> dict[str, Database]:
    """Each store by its name; ``dsn`` is that of the only one. Raises with the faults of all of them."""
    found: dict[str, Database] = {}
    faults: list[str] = []
    for name, part in by_store(settings).items():
        try:
            found[name] = store(part, part.store.dsn or "" if settings.stores else dsn, observe)
        except ConfigurationError as error:
            faults += error.faults
    if faults:
        raise ConfigurationError(faults)
    return found


def home(settings: Settings, stores: Mapping[str, Database]) -> Database:
    """The store that an election may be in: the only one, or of several the one whose DSN the election names.

    Of several it may be none: that is a database without an address.
    """
    if not settings.stores:
        return stores[""]
    return next((each for each in stores.values() if each.dsn == settings.election.dsn), Database(""))


def election(settings: Settings, store: Database, observe: Observer = ignore) -> Database:
    """The Postgres of an election: its own, or the store."""
    chosen = settings.election
    tls, own = chosen.tls, chosen.tls.is_set or chosen.password_file is not None
    if chosen.dsn is None or (chosen.dsn == store.dsn and not own):
        return store
    context = ClientTls(files(tls, "election.tls"), observe, alpn=POSTGRES_ALPN) if tls.is_set else None
    return Database(chosen.dsn, context, chosen.password_file, "election")


def election_tls(settings: Settings, observe: Observer = ignore) -> ClientTls | None:
    """For an election that is over no Postgres, where its settings or an https endpoint ask for TLS."""
    chosen = settings.election
    secure = any(endpoint.startswith("https:") for endpoint in (*chosen.endpoints, *chosen.dcs))
    return ClientTls(files(chosen.tls, "election.tls"), observe) if secure or chosen.tls.is_set else None


def upstream_tls(settings: Settings, observe: Observer = ignore) -> ClientTls | None:
    """For every ``https://`` target; ``None`` where there is none."""
    if not any(upstream.startswith("https:") for upstream in settings.upstreams):
        return None
    return ClientTls(files(settings.upstream.tls, "upstream.tls"), observe, alpn=HTTP_ALPN)


def upstream_pools(settings: Settings, observe: Observer) -> Callable[[str], UpstreamPool]:
    """Makes the connections to an upstream, given its URL.

    The context is made at once, so that files that cannot be used are a fault of the start; or with the first
    ``https://`` target that a reload brings.
    """
    context = upstream_tls(settings, observe)

    def pool(url: str) -> UpstreamPool:
        nonlocal context
        if context is None and url.startswith("https:"):
            context = ClientTls(files(settings.upstream.tls, "upstream.tls"), observe, alpn=HTTP_ALPN)
        return UpstreamPool(url, ssl_context=context)

    return pool


def files(tls: TlsSettings, table: str) -> ClientFiles:
    """What the table says."""
    return ClientFiles(table, tls.ca, tls.cert, tls.key, tls.server_name)


def on_this_loop(observe: Observer) -> Observer:
    """``observe``, called in the running loop whichever thread a connection is made in."""
    loop = asyncio.get_running_loop()

    def told(observation: Observation) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            observe(observation)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(observe, observation)

    return told
