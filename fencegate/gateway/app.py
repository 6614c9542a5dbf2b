"""The gateway: one request through its stations, in the wire contract's order of checks.

limits and early data, route, token present, token well formed, idempotency key, role, then the target,
where the fence decides. Whatever goes wrong unexpectedly fails closed, and a write that may have been
sent is never called "not applied".
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fencegate.errors import Refusal, Unavailable, problem
from fencegate.fence import WritePath
from fencegate.gateway import discovery
from fencegate.gateway.admission import SOON_MS, Places, unavailable
from fencegate.gateway.exchange import Exchange, Surroundings
from fencegate.gateway.holding import places
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.request import (
    SAFE_METHODS,
    Fields,
    Refused,
    Reply,
    Request,
    budget,
    check_connection,
    idempotency_key,
    presented_token,
    read_fields,
    refused,
    too_large,
)
from fencegate.gateway.routes import DISCOVERY, Match, NoSuchPath, Route, RouteTable, segments_of
from fencegate.gateway.targets import function, ledger
from fencegate.gateway.targets.http import HttpTarget
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.gateway.waiting_room import WaitingRoom
from fencegate.lease import LeadershipView
from fencegate.observations import Observer, WriteRefused, ignore

_log = logging.getLogger("fencegate.gateway")
_QUERY = re.compile(r"[!-\"$-~\x80-\U0010ffff]*")

Station = Callable[[Exchange], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one gateway takes before it says no. Times in seconds, sizes in bytes.

    A body may take ``body_timeout`` plus its size divided by ``min_body_rate`` (bytes per second). A connection
    is closed after ``idle_timeout`` without a request; ``header_timeout`` bounds a request's head.
    """

    header_bytes: int = 16_384
    connections: int = 10_000
    in_flight: int = 1_000
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    idle_timeout: float = 75.0
    min_body_rate: int = 1024


DEFAULT_LIMITS: Final = Limits()


class Gateway:
    """The stations, wired. ``origins`` maps regions to their advertised origins, for hints (configuration only).

    Raises :class:`fencegate.errors.ConfigurationError` for routes that do not hold together.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        store: WritePath,
        view: LeadershipView,
        *,
        region: str,
        observe: Observer = ignore,
        limits: Limits = DEFAULT_LIMITS,
        origins: Mapping[str, str] | None = None,
        pool: Callable[[str], UpstreamPool] = UpstreamPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.routes = RouteTable(routes)
        self._room = WaitingRoom(view, store.peek, lambda: places(self.limits.in_flight), observe)
        self._around = Surroundings(store, view, Places(region, origins or {}), observe, clock, self._room)
        self._pool = pool
        self._upstreams: dict[str, HttpTarget] = {}
        self._in_flight = 0
        self._found: dict[str, Match] = {}

    @property
    def region(self) -> str:
        return self._around.places.region

    @property
    def in_flight(self) -> int:
        """Requests inside the gateway now."""
        return self._in_flight

    async def handle(self, request: Request) -> Reply:
        """The reply to one request. Raises nothing but cancellation."""
        if self._in_flight >= self.limits.in_flight:
            refusal = Refusal(problem("overloaded"), "Too many requests are in flight here.", retry_after_ms=SOON_MS)
            return self._refuse(request, None, Refused(refusal))
        self._in_flight += 1
        try:
            return await self._through(request)
        finally:
            self._in_flight -= 1

    def hold_no_more(self) -> None:
        """The process ends: writes that are held are decided now, and none is held from now on."""
        self._room.close()

    async def close(self, time_limit: float) -> int:
        """Wait up to ``time_limit`` s for writes at an upstream, then close the links. How many were given up."""
        abandoned = 0
        until = self._around.clock() + time_limit
        for target in self._upstreams.values():
            abandoned += await target.close(max(0.0, until - self._around.clock()))
        self._upstreams.clear()
        return abandoned

    async def _through(self, request: Request) -> Reply:
        exchange: Exchange | None = None
        try:
            fields = self._limits(request)
            found = self._route(request)
            if found is None:
                places = self._around.places
                return discovery.discover(request, self.routes, self._around.view, places)
            exchange = self._begin(request, fields, found)
            station = self._checked(exchange, found)
            return await station(exchange)
        except Refused as error:
            return self._refuse(request, exchange, error)
        except Unavailable as error:
            return self._refuse(request, exchange, self._fail_closed(exchange, str(error)))
        except Exception as error:
            _log.exception("unexpected failure of a request; failing closed")
            return self._refuse(request, exchange, self._fail_closed(exchange, f"unexpected {type(error).__name__}"))

    # -- the checks, in order ---------------------------------------------------------------------

    def _limits(self, request: Request) -> Fields:
        fields = read_fields(request.headers)
        if fields.size > self.limits.header_bytes:
            raise refused("headers_too_large", f"Header fields over {self.limits.header_bytes} bytes.", close=True)
        check_connection(fields)
        if request.query and not _QUERY.fullmatch(request.query):
            raise refused("request_malformed", "The query holds a character that must be percent-encoded.", close=True)
        if fields.early_data and request.method not in SAFE_METHODS:
            raise _too_early()
        return fields

    def _route(self, request: Request) -> Match | None:
        """The route's match; ``None`` for discovery. Raises ``unknown_route``."""
        found = self._found.get(request.path)
        if found is not None:
            return found
        try:
            if request.path.startswith(discovery.PREFIX):
                return None
            segments = segments_of(request.path)
            if segments[0] != "-" and segments[:2] != DISCOVERY[:2]:
                found = self.routes.match(segments)
                if found is not None and found.route.path == request.path:
                    self._found[request.path] = found  # One a route: no client can make this grow.
        except NoSuchPath:
            pass
        if found is None:
            raise refused("unknown_route", "No route is configured for this path.")
        return found

    def _begin(self, request: Request, fields: Fields, found: Match) -> Exchange:
        route = found.route
        return Exchange(
            request=request,
            route=route,
            role=found.role or "",
            fields=fields,
            around=self._around,
            deadline=request.received_at + route.timeout,
            rest=found.rest,
        )

    def _checked(self, exchange: Exchange, found: Match) -> Station:
        """Every check before the fence; the station that takes the request from here."""
        request, route, fields = exchange.request, exchange.route, exchange.fields
        if not route.allows(request.method):
            detail = f"The method {request.method} is not taken here."
            raise exchange.refused("method_not_allowed", detail, extra={"allow": route.allowed})
        if fields.upgrade:
            raise exchange.refused("upgrade_refused", "A fenced path takes no protocol upgrade.", close=True)
        if fields.override:
            raise exchange.refused("request_malformed", "A fenced path takes no method override header.")
        if request.content_length is not None and request.content_length > route.max_body_bytes:
            raise too_large(route.max_body_bytes)
        remaining = budget(fields)
        if remaining is not None:
            exchange.deadline = min(exchange.deadline, request.received_at + remaining)
        if not route.privileged(request.method):
            self._role_is_known(exchange, found)
            return self._reader(exchange)
        if fields.early_data:
            raise _too_early()
        self._take_token(exchange)
        exchange.key = idempotency_key(fields, required=route.idempotency == "required")
        self._role_is_known(exchange, found)
        exchange.time_left()
        return self._writer(exchange)

    def _take_token(self, exchange: Exchange) -> None:
        try:
            exchange.token = presented_token(exchange.fields)
        except Refused as error:
            if exchange.enforce:
                raise
            exchange.token = 0
            exchange.would_refuse = error.refusal.problem.code

    @staticmethod
    def _role_is_known(exchange: Exchange, found: Match) -> None:
        if found.role is None:
            detail = (
                f"The family {exchange.route.role} has no such member; members are declared, never made by a request."
            )
            raise refused("unknown_role", detail)

    # -- stations ---------------------------------------------------------------------------------

    def _writer(self, exchange: Exchange) -> Station:
        if exchange.route.target == "ledger":
            return ledger.write
        if exchange.route.target == "function":
            return function.write
        return self._upstream(exchange.route).write

    def _reader(self, exchange: Exchange) -> Station:
        if exchange.route.target == "http":
            return self._upstream(exchange.route).read
        return _options if exchange.request.method == "OPTIONS" else ledger.read

    def _upstream(self, route: Route) -> HttpTarget:
        target = self._upstreams.get(route.argument)
        if target is None:
            target = self._upstreams[route.argument] = HttpTarget(self._pool(route.argument))
        return target

    # -- endings ----------------------------------------------------------------------------------

    def _fail_closed(self, exchange: Exchange | None, reason: str) -> Refused:
        if exchange is not None and exchange.sent:
            return exchange.outcome_unknown(f"The write was sent and its outcome is unknown: {reason}.", "connection")
        presented = None if exchange is None else exchange.presented
        return Refused(unavailable(f"Failed closed: {reason}.", presented))

    def _refuse(self, request: Request, exchange: Exchange | None, error: Refused) -> Reply:
        refusal = error.refusal
        if exchange is not None and refusal.role is None:
            refusal = replace(refusal, role=exchange.role or None, presented_token=exchange.token or None)
        if request.method not in SAFE_METHODS:
            family = exchange.route.role if exchange is not None else ""
            agent = request.header(b"user-agent")[:200]
            self._around.observe(
                WriteRefused(
                    family,
                    refusal.problem.code,
                    refusal.presented_token,
                    refusal.max_token_seen,
                    request.peer,
                    agent,
                )
            )
        return refusal_reply(refusal, self.region, close=error.close)


async def _options(exchange: Exchange) -> Reply:
    region = exchange.around.places.region.encode()
    return Reply(204, [(b"Allow", exchange.route.allowed.encode()), (b"X-Fencing-Region", region)])


def _too_early() -> Refused:
    return refused(
        "too_early",
        "A write may not travel in TLS early data, which can be replayed; send it again after the handshake.",
        retry_after_ms=SOON_MS,
    )
