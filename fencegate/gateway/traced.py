"""The gateway with a span around every request that reaches it. Where nobody traces, nothing of this is there.

A subclass and not a hook: the plain gateway has no question to ask on its way. What a span tells is what the caller
was told, read from the reply itself. It ends with the reply's head; a streamed body may still be on its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from fencegate.fence import WritePath
from fencegate.gateway.app import Gateway
from fencegate.gateway.exchange import Exchange, Pending
from fencegate.gateway.header_lines import Fields
from fencegate.gateway.replies import lines_of
from fencegate.gateway.request import Reply, Request
from fencegate.gateway.routes import Route
from fencegate.gateway.targets.http import HttpTarget
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.gateway.targets.traced_http import TracedHttpTarget
from fencegate.gateway.traced_store import TracedStore
from fencegate.gateway.ways import Way
from fencegate.lease import LeadershipView
from fencegate.telemetry import conventions as names
from fencegate.telemetry.tracing import Attributes, Tracing


class TracedGateway(Gateway):
    """A :class:`Gateway` whose requests are followed by ``tracing``. ``database``: what spans say of the store."""

    _at_once = False  # Nothing is sent to an upstream without its span.

    def __init__(
        self,
        routes: Iterable[Route],
        store: WritePath,
        view: LeadershipView,
        *,
        tracing: Tracing,
        database: Attributes,
        **more: Any,
    ) -> None:
        super().__init__(routes, TracedStore(store, tracing, database), view, **more)
        self._tracing = tracing
        self._beginning: _Followed | None = None

    def begin(self, request: Request) -> Reply | Pending | Coroutine[Any, Any, Reply]:
        followed = self._beginning = _Followed(self._tracing, request)
        with followed.span.current():
            begun = super().begin(request)
        self._beginning = None
        if isinstance(begun, Pending):
            return _FollowedPending(begun, followed)
        return self._going_on(begun, followed)

    def go_on(self, pending: Pending) -> Reply | Coroutine[Any, Any, Reply]:
        assert isinstance(pending, _FollowedPending)
        with pending.followed.span.current():
            begun = super().go_on(pending)
        return self._going_on(begun, pending.followed)

    @staticmethod
    def _going_on(begun: Reply | Coroutine[Any, Any, Reply], followed: _Followed) -> Reply | Coroutine[Any, Any, Reply]:
        if isinstance(begun, Reply):
            followed.answered(begun)
            return begun
        return followed.waited_for(begun)

    def _exchange(self, request: Request, fields: Fields, way: Way) -> Exchange:
        exchange = super()._exchange(request, fields, way)
        if self._beginning is not None:
            self._beginning.exchange = exchange
        return exchange

    def _target_over(self, pool: UpstreamPool) -> HttpTarget:
        return TracedHttpTarget(pool, self._tracing)


class _Followed:
    """One request's span, and what is known of the request by now."""

    __slots__ = ("_request", "exchange", "span")

    def __init__(self, tracing: Tracing, request: Request) -> None:
        self._request = request
        self.exchange: Exchange | None = None
        attributes = names.method(request.method) | {names.PATH: names.path(request.path), names.SCHEME: request.scheme}
        self.span = tracing.begin(names.span_name(request.method), "server", attributes, caller=request.headers)

    async def waited_for(self, reply: Coroutine[Any, Any, Reply]) -> Reply:
        try:
            with self.span.current():
                found = await reply
        except BaseException as error:
            self.span.fail(type(error).__name__)
            self.span.end()
            raise
        self.answered(found)
        return found

    def answered(self, reply: Reply) -> None:
        if self.span.recording:
            self._tell(reply)
        self.span.end()

    def _tell(self, reply: Reply) -> None:
        request, span = self._request, self.span
        found: dict[str, str | int | float | bool] = dict(names.fencing(lines_of(reply)))
        found[names.STATUS] = reply.status
        found |= names.server(request.header(b"host"), request.scheme)
        found |= {name: value for name, value in ((names.CLIENT, request.peer), (names.AGENT, request.agent)) if value}
        exchange = self.exchange
        if exchange is not None:
            span.rename(names.span_name(request.method, exchange.route.path))
            found |= {names.ROUTE: exchange.route.path, names.ROLE: exchange.role or exchange.route.role}
            for name, value in (
                (names.TOKEN, exchange.token),
                (names.WOULD_REFUSE, exchange.would_refuse),
                (names.HELD, exchange.held),
            ):
                if value:
                    found[name] = value
        span.put(found)
        if reply.status >= 500:
            span.fail(str(found.get(names.REFUSAL, reply.status)))


class _FollowedPending(Pending):
    __slots__ = ("_pending", "followed")

    def __init__(self, pending: Pending, followed: _Followed) -> None:
        super().__init__(pending.exchange)
        self._pending = pending
        self.followed = followed

    def wait(self, then: Callable[[object], None]) -> None:
        self._pending.wait(then)

    def give_up(self) -> None:
        self._pending.give_up()

    def go_on(self) -> Reply | None:
        return self._pending.go_on()

    def station(self, exchange: Exchange) -> Awaitable[Reply]:
        return self._pending.station(exchange)
