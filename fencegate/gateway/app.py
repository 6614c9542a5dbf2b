"""The gateway: one request through its stations, in the wire contract's order of checks.

limits and early data, route, caller, token present, token well formed, idempotency key, role, grant, then the target,
where the fence decides. Whatever goes wrong unexpectedly fails closed, and a write that may have been
sent is never called "not applied".
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fencegate.errors import Refusal, Unavailable, problem
from fencegate.fence import WritePath
from fencegate.gateway import authz, discovery
from fencegate.gateway.admission import SOON_MS, Places, too_early, unavailable
from fencegate.gateway.caller import Callers
from fencegate.gateway.ending import Ending
from fencegate.gateway.exchange import Exchange, Pending, Surroundings
from fencegate.gateway.header_lines import Fields, read_fields
from fencegate.gateway.holding import places
from fencegate.gateway.limits import DEFAULT_LIMITS, Limits
from fencegate.gateway.method_override import hides_a_method
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.request import (
    SAFE_METHODS,
    Refused,
    Reply,
    Request,
    budget,
    check_connection,
    idempotency_key,
    refused,
    too_large,
)
from fencegate.gateway.routes import Match, Route, RouteTable
from fencegate.gateway.stale import HighestSeen, StaleReplies
from fencegate.gateway.targets.http import HttpTarget
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.gateway.unless_known import UnlessKnown
from fencegate.gateway.waiting_room import WaitingRoom
from fencegate.gateway.ways import Station, Way, Ways
from fencegate.lease import LeadershipView
from fencegate.observations import Observer, WriteRefused, ignore
from fencegate.steady_clock import steady_clock

_log = logging.getLogger("fencegate.gateway")
_HIDDEN: Final = "A read takes no form and no parameter from which its upstream could take another method."
_QUERY = re.compile(r"[!-\"$-~\x80-\U0010ffff]*")


class Gateway:
    """The stations, wired. ``origins`` maps regions to their advertised origins, for hints (configuration only).

    Raises :class:`fencegate.errors.ConfigurationError` for routes that do not hold together.
    """

    _at_once = True

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
        callers: Callers | None = None,
        pool: Callable[[str], UpstreamPool] = UpstreamPool,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self.limits = limits
        self._ways = Ways(routes, lambda url: self._target_over(pool(url)), at_once=self._at_once)
        around = Places(region, origins or {})
        self._room = WaitingRoom(view, store.peek, lambda: places(self.limits.in_flight), observe)
        self._around = Surroundings(store, view, around, observe, clock, self._room, HighestSeen(clock), callers)
        self._callers = callers
        self._stale_replies = StaleReplies(view, around, clock)
        self._in_flight = 0
        self.ending = Ending()

    @property
    def routes(self) -> RouteTable:
        return self._ways.routes

    @property
    def region(self) -> str:
        return self._around.places.region

    @property
    def in_flight(self) -> int:
        """Requests inside the gateway now."""
        return self._in_flight

    def use_routes(self, routes: Iterable[Route]) -> None:
        """From the next request on. Those that are inside go their way by the route that they came in by.

        Raises :class:`fencegate.errors.ConfigurationError`, and nothing has changed then.
        """
        self._ways.use(routes)

    async def handle(self, request: Request) -> Reply:
        """The reply to one request. Raises nothing but cancellation."""
        begun = self.begin(request)
        if isinstance(begun, Reply):
            return begun
        return await (self._awaited(begun, self.go_on) if isinstance(begun, Pending) else begun)

    async def _awaited(self, pending: Pending, go_on: Callable[[Pending], Reply | Coroutine[Any, Any, Reply]]) -> Reply:
        cancelled: asyncio.CancelledError | None = None
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        pending.wait(told.set_result)
        while not told.done():
            try:
                await asyncio.wait([told])
            except asyncio.CancelledError as error:
                cancelled = error
                pending.give_up()  # And what is left sees to what was begun.
        begun = go_on(pending)
        reply = begun if isinstance(begun, Reply) else await begun
        if cancelled is not None and not self.ending.was_that():
            raise cancelled
        return reply

    def begin(self, request: Request) -> Reply | Pending | Coroutine[Any, Any, Reply]:
        """The reply where none has to be waited for, else what to wait for: it counts as in flight from now on.

        A :class:`Pending` has to be handed to :meth:`go_on` once it calls.
        """
        return self._begin_authz(request) if request.path.startswith(authz.PREFIX) else self._begin(request)

    def _begin_authz(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        try:
            question = authz.question_of(request)
            family = self.routes.family_of(question.role)
            declared = None if family is None else self.routes.authorizer_of(family)
            if declared is not None and authz.is_read(request, declared.method_from):
                return authz.yes_to_a_read(self.region)
        except Refused as error:
            return self._refuse(request, None, error)
        begun = self._begin(authz.as_write(request))
        if isinstance(begun, Pending):
            begun = self._awaited(begun, partial(Gateway.go_on, self))  # Whatever follows it, follows all of this.
        return authz.answered(question, begun)

    def _begin(self, request: Request) -> Reply | Pending | Coroutine[Any, Any, Reply]:
        if self._in_flight >= self.limits.in_flight:
            refusal = Refusal(problem("overloaded"), "Too many requests are in flight here.", retry_after_ms=SOON_MS)
            return self._refuse(request, None, Refused(refusal))
        exchange: Exchange | None = None
        try:
            way, fields = self._ways.known((request.method, request.path)), request.fields
            if (
                way is not None
                and fields is not None
                and fields.known_kind is way.kind
                and not request.query
                and fields.size <= self.limits.header_bytes
            ):
                exchange = self._exchange(request, fields, way)
                station = self._known(exchange, way)
            else:
                fields = self._limits(request)
                if (way := way or self._ways.find(request)) is None:
                    around = self._around
                    return discovery.discover(request, self.routes, around.view, around.places, around.callers)
                exchange = self._exchange(request, fields, way)
                station = self._checked(exchange, way)
                if self._stands_in_lines(exchange, way):
                    fields.known_kind = way.kind
            if way.fenced and (highest := self._around.seen.above(exchange.role, exchange.token or 0)) is not None:
                if not exchange.key:
                    return self._stale(exchange, highest)
                unless = UnlessKnown(exchange, station, partial(self._stale, highest=highest))
                unless.ask()
                self._in_flight += 1
                return unless
            if way.starter is not None and (pending := way.starter(exchange)) is not None:
                self._in_flight += 1
                return pending
        except Exception as error:
            return self._failed(request, exchange, error)
        self._in_flight += 1
        return self._through(exchange, station)

    def go_on(self, pending: Pending) -> Reply | Coroutine[Any, Any, Reply]:
        """What became of a request that has called: its reply, or what else has to be waited for."""
        exchange = pending.exchange
        try:
            reply = pending.go_on()
        except Exception as error:
            self._in_flight -= 1  # First: its place is free, whatever comes of telling.
            return self._failed(exchange.request, exchange, error)
        if reply is None:
            return self._through(exchange, pending.station)
        self._in_flight -= 1
        return reply

    def hold_no_more(self) -> None:
        """The process ends: writes that are held are decided now, and none is held from now on."""
        self._room.close()

    async def close(self, time_limit: float) -> int:
        """Wait up to ``time_limit`` s for writes at an upstream, then close the links. How many were given up."""
        clock = self._around.clock
        return await self._ways.close(clock() + time_limit, clock)

    async def _through(self, exchange: Exchange, station: Station) -> Reply:
        try:
            return await station(exchange)
        except asyncio.CancelledError:
            if not self.ending.was_that():
                raise
            return self._refuse(exchange.request, exchange, self._fail_closed(exchange, "the gateway ended"))
        except Exception as error:
            return self._failed(exchange.request, exchange, error)
        finally:
            self._in_flight -= 1

    # -- the checks, in order ---------------------------------------------------------------------

    def _limits(self, request: Request) -> Fields:
        fields = request.fields or read_fields(request.headers)
        if fields.size > self.limits.header_bytes:
            raise refused("headers_too_large", f"Header fields over {self.limits.header_bytes} bytes.", close=True)
        if fields.nominated:
            check_connection(fields)
        if request.query and not _QUERY.fullmatch(request.query):
            raise refused("request_malformed", "The query holds a character that must be percent-encoded.", close=True)
        if fields.early_data and request.method not in SAFE_METHODS:
            raise too_early()
        return fields

    def _exchange(self, request: Request, fields: Fields, way: Way) -> Exchange:
        found = way.found
        route = found.route
        deadline = request.received_at + route.timeout
        return Exchange(request, route, found.role or "", fields, self._around, deadline, found.rest)

    def _checked(self, exchange: Exchange, way: Way) -> Station:
        """Every check before the fence; the station that takes the request from here."""
        request, route, fields = exchange.request, exchange.route, exchange.fields
        if self._callers is not None:
            exchange.caller = self._callers.of(request)
        if way.station is None:
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
            exchange.deadline = min(exchange.deadline, request.received_at - request.waited + remaining)
        if not way.privileged:
            if route.target == "http" and hides_a_method(request):
                raise exchange.refused("request_malformed", _HIDDEN)
            self._role_is_known(exchange, way.found)
            return way.station
        if fields.early_data:
            raise too_early()
        if route.callers is not None or (self._callers is not None and self._callers.required):
            exchange.check_caller()
        exchange.take_token()
        exchange.key = idempotency_key(fields, request.key, required=route.idempotency == "required")
        self._role_is_known(exchange, way.found)
        if route.granting is not None and route.granting.required:
            exchange.check_grant(route.granting)
        if remaining is not None:
            exchange.time_left()
        return way.station

    def _stands_in_lines(self, exchange: Exchange, way: Way) -> bool:
        """Whether all that was checked stands in the header lines, and comes to the same for all that have them."""
        route, fields = exchange.route, exchange.fields
        if self._callers is not None or route.callers is not None or route.granting is not None:
            return False
        if fields.budget or fields.key or exchange.request.query:
            return False
        return not way.privileged or (fields.known_token > 0 and route.idempotency != "required")

    @staticmethod
    def _known(exchange: Exchange, way: Way) -> Station:
        """As :meth:`_checked`, of lines that have passed it on a way of the same kind."""
        if way.privileged:
            exchange.token, key = exchange.fields.known_token, exchange.request.key
            if key is not None:
                exchange.key = idempotency_key(exchange.fields, key, required=False)
        assert way.station is not None
        return way.station

    @staticmethod
    def _role_is_known(exchange: Exchange, found: Match) -> None:
        if found.role is None:
            detail = (
                f"The family {exchange.route.role} has no such member; members are declared, never made by a request."
            )
            raise refused("unknown_role", detail)

    # -- stations ---------------------------------------------------------------------------------

    def _target_over(self, pool: UpstreamPool) -> HttpTarget:
        return HttpTarget(pool)

    # -- endings ----------------------------------------------------------------------------------

    def _stale(self, exchange: Exchange, highest: int) -> Reply:
        token = exchange.token or 0
        self._note_refusal(exchange.request, exchange, "stale_token", token, highest)
        return self._stale_replies.reply(exchange.role, token, highest)

    def _failed(self, request: Request, exchange: Exchange | None, error: Exception) -> Reply:
        if isinstance(error, Refused):
            return self._refuse(request, exchange, error)
        if isinstance(error, Unavailable):
            return self._refuse(request, exchange, self._fail_closed(exchange, str(error)))
        _log.error("unexpected failure of a request; failing closed", exc_info=error)
        return self._refuse(request, exchange, self._fail_closed(exchange, f"unexpected {type(error).__name__}"))

    def _fail_closed(self, exchange: Exchange | None, reason: str) -> Refused:
        if exchange is not None and exchange.sent:
            return exchange.outcome_unknown(f"The write was sent and its outcome is unknown: {reason}.", "connection")
        presented = None if exchange is None else exchange.presented
        return Refused(unavailable(f"Failed closed: {reason}.", presented))

    def _refuse(self, request: Request, exchange: Exchange | None, error: Refused) -> Reply:
        refusal = error.refusal
        if exchange is not None and refusal.role is None:
            refusal = replace(refusal, role=exchange.role or None, presented_token=exchange.token or None)
        self._note_refusal(request, exchange, refusal.problem.code, refusal.presented_token, refusal.max_token_seen)
        return refusal_reply(refusal, self.region, close=error.close)

    def _note_refusal(
        self, request: Request, exchange: Exchange | None, code: str, token: int | None, highest: int | None
    ) -> None:
        if request.method in SAFE_METHODS and (exchange is None or not exchange.route.privileged(request.method)):
            return
        role = member = caller = ""
        if exchange is not None:
            role, member, caller = exchange.route.role, exchange.member, exchange.caller
        self._around.observe(
            WriteRefused(role, code, token, highest, request.peer, request.agent, request.forwarded, member, caller)
        )
