"""Settings into what connections to other systems are made with. Each raises ``ConfigurationError`` with its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fencegate.access.client_tls import ClientFiles, ClientTls
from fencegate.access.database import Database
from fencegate.config import Settings, TlsSettings
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.observations import Observation, Observer, ignore

POSTGRES_ALPN = ("postgresql",)
"""What a Postgres asks for that is spoken TLS to from the first byte (``sslnegotiation=direct``)."""
HTTP_ALPN = ("http/1.1",)


def store(settings: Settings, dsn: str, observe: Observer = ignore) -> Database:
    """The store at ``dsn``, which is that of the settings or of an embedded server."""
    tls = settings.store.tls
    context = ClientTls(files(tls, "store.tls"), observe, alpn=POSTGRES_ALPN) if tls.is_set else None
    return Database(dsn, context, settings.store.password_file)


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
