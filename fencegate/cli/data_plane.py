"""The part of a gateway that takes the clients' requests, as the rest sees it; and that part in this very process."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from fencegate.cli import parts
from fencegate.config import Settings
from fencegate.config.values import split_address
from fencegate.errors import ConfigurationError, FencegateError
from fencegate.fence import WritePath
from fencegate.gateway.edge_protocol import ProtocolEdge
from fencegate.lease import LeadershipView
from fencegate.observations import Observer, ReloadRefused

if TYPE_CHECKING:
    from fencegate.telemetry.otlp import Exporting


class DataPlane(Protocol):
    """:meth:`start`, then :meth:`stop`; both once."""

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        ...

    async def start(self) -> str:
        """Take requests; the URL at which. Raises :class:`FencegateError`."""
        ...

    def use(self, settings: Settings) -> None:
        """From now on these limits, these routes and this log."""
        ...

    def waiting_for(self) -> str:
        """Why no requests should be sent here now, ``""`` for nothing."""
        ...

    async def stop(self, time_limit: float) -> int:
        """Stop accepting, let what is under way finish for ``time_limit`` s. How many were given up."""
        ...


class Here:
    """The gateway and its edge in this process."""

    def __init__(
        self,
        settings: Settings,
        store: WritePath,
        view: LeadershipView,
        observe: Observer,
        origins: dict[str, str],
        *,
        exporting: Exporting | None,
        store_dsn: str,
    ) -> None:
        self._settings = settings
        self._observe = observe
        self._routes = parts.routes(settings)
        self._gateway = parts.gateway(
            settings, self._routes, store, view, observe, origins, exporting=exporting, store_dsn=store_dsn
        )
        self._envoy = parts.envoy_authorizer(settings, self._gateway)
        self._certificates = parts.certificates(settings, observe)
        context = self._certificates.context if self._certificates is not None else None
        self._edge = ProtocolEdge(self._gateway, ssl_context=context)
        self._following: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        return self._gateway.in_flight

    async def start(self) -> str:
        host, port = split_address(self._settings.listen.data)
        try:
            await self._edge.start(host, port)
        except OSError as error:
            raise cannot_listen("listen.data", self._settings.listen.data, error) from None
        await self._listen_for_envoy()
        self._follow()
        return url(host, self._edge.port, self._edge.scheme)

    async def start_on(self, sockets: Sequence[socket.socket]) -> None:
        """Take requests on sockets that listen already."""
        await self._edge.start_on(sockets)
        self._follow()

    async def _listen_for_envoy(self) -> None:
        address = self._settings.envoy.listen
        if self._envoy is None or address is None:
            return
        try:
            await self._envoy.start(address)
        except OSError as error:
            raise cannot_listen("envoy.listen", address, error) from None

    def _follow(self) -> None:
        if self._certificates is not None:
            self._following = asyncio.create_task(self._certificates.follow(self._edge.use_tls), name="certificates")

    def use(self, settings: Settings) -> None:
        kept = self._gateway.limits.min_body_rate
        self._gateway.limits = self._edge.limits = replace(parts.limits(settings), min_body_rate=kept)
        self._use_routes(settings)
        self._settings = settings
        if self._certificates is not None:
            self._certificates.look_now()

    def _use_routes(self, settings: Settings) -> None:
        """Look at the files of the routes too. One that has gone since it was checked: all go on as they are."""
        try:
            routes = parts.routes(settings)
        except ConfigurationError as error:
            self._observe(ReloadRefused(tuple(error.faults)))
            return
        if routes != self._routes:
            self._gateway.use_routes(routes)
            self._routes = routes

    def waiting_for(self) -> str:
        return ""

    async def stop(self, time_limit: float) -> int:
        until = time.monotonic() + time_limit
        if self._following is not None:
            self._following.cancel()
        if self._envoy is not None:
            _, abandoned = await asyncio.gather(self._envoy.stop(time_limit), self._edge.stop(time_limit))
        else:
            abandoned = await self._edge.stop(time_limit)
        return abandoned + await self._gateway.close(max(0.0, until - time.monotonic()))


def cannot_listen(key: str, address: str, error: OSError) -> FencegateError:
    """Only what may not be listened on is the configuration's fault: a port gets free, an address comes to a machine,
    a name is resolved again, and then another start helps.
    """
    said = f'{key} = "{address}": cannot listen there: {error.strerror or error}'
    return ConfigurationError([said]) if isinstance(error, PermissionError) else FencegateError(said)


def url_here(address: str, port: int, scheme: str) -> str:
    """Where a program on this machine comes to what listens at ``address``, which may be all of its addresses."""
    host = split_address(address)[0]
    return url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, scheme)


def url(host: str, port: int, scheme: str) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
