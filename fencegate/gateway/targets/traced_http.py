"""Target ``http`` with a span around each exchange with the upstream, whose own spans become children of it."""

from __future__ import annotations

from typing import Final

from fencegate.fence import Admission
from fencegate.gateway.exchange import Exchange
from fencegate.gateway.header_lines import Headers
from fencegate.gateway.request import Request
from fencegate.gateway.targets.answer_bytes import ResponseHead
from fencegate.gateway.targets.http import HttpTarget
from fencegate.gateway.targets.payload import Payload
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.gateway.targets.upstream import UpstreamConnection, UpstreamLate
from fencegate.telemetry import conventions as names
from fencegate.telemetry.tracing import UNSEEN, Span, Tracing

_OURS_NOW: Final = frozenset({b"traceparent", b"tracestate"})


class TracedHttpTarget(HttpTarget):
    """An :class:`HttpTarget`. The span ends with the head of the upstream's answer."""

    def __init__(self, pool: UpstreamPool, tracing: Tracing) -> None:
        super().__init__(pool)
        self._tracing = tracing
        scheme, _, authority = pool.name.partition("://")
        self._upstream = names.server(authority, scheme)
        self._url = pool.name + pool.prefix

    async def _send(
        self, exchange: Exchange, connection: UpstreamConnection, payload: Payload, admission: Admission | None
    ) -> ResponseHead:
        span = self._span_of(exchange.request)
        try:
            with span.current():
                head = await super()._send(exchange, connection, payload, admission)
        except BaseException as error:
            span.fail("timeout" if isinstance(error, UpstreamLate) else type(error).__name__)
            raise
        else:
            span.put({names.STATUS: head.status})
            if head.status >= 400:
                span.fail(str(head.status))
            return head
        finally:
            span.end()

    def _span_of(self, request: Request) -> Span:
        if not self._tracing.recording:
            return UNSEEN
        attributes = {**names.method(request.method), **self._upstream, names.URL: self._url + names.path(request.path)}
        return self._tracing.begin(names.span_name(request.method), "client", attributes)

    def _as_they_came(self, exchange: Exchange) -> bool:
        return False

    def _travelling(self, exchange: Exchange) -> Headers:
        carried = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._tracing.outgoing()]
        headers = super()._travelling(exchange)
        return [*(line for line in headers if line[0].lower() not in _OURS_NOW), *carried] if carried else headers
