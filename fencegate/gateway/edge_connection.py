"""One client connection of the aiohttp edge: aiohttp's protocol with the deadlines and limits that it lacks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from fencegate.errors import Refusal, problem
from fencegate.gateway.admission import SOON_MS
from fencegate.gateway.caller import name_in
from fencegate.gateway.cut_off import close_in_time, cut_off
from fencegate.gateway.edge_parts import Edge, fields_too_large, http_date, not_http
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.reply_bytes import has_body, head_bytes, length_of
from fencegate.gateway.reply_stream import send_stream
from fencegate.gateway.request import Departure, Refused, Reply, refused
from fencegate.steady_clock import steady_clock

_log = logging.getLogger("fencegate.gateway.edge")

_HEAD_SLACK: Final = 16 * 1024
"""Bytes past the header limit that may be pending before a head is known to be too large."""


class RawReply:
    """A reply in the shape that aiohttp's connection loop expects of a response, written as bytes."""

    def __init__(self, connection: Connection, method: str, reply: Reply, keep_alive: bool, http_1_0: bool) -> None:
        self._connection = connection
        self._method = method
        self._reply = reply
        self._http_1_0 = http_1_0
        self.keep_alive = keep_alive and not reply.close

    async def prepare(self, request: web.BaseRequest) -> None:
        """Called by aiohttp before :meth:`write_eof`; everything is written there."""

    async def write_eof(self) -> None:
        reply, connection = self._reply, self._connection
        connection.answering = True
        try:
            if isinstance(reply.body, bytes):
                await self._whole(reply.body)
            else:
                await self._streamed(reply.body)
        finally:
            connection.answering = False
            connection.finished_one()

    async def _whole(self, body: bytes) -> None:
        head = self.head(length_of(self._method, self._reply, body))
        self._connection.send(head + body if has_body(self._method, self._reply.status) else head)
        await self._connection.drained()

    async def _streamed(self, chunks: Any) -> None:
        if self._connection.ending:
            self.keep_alive = False
        self.keep_alive = await send_stream(
            self._connection, self._method, self._reply, chunks, keep_alive=self.keep_alive, http_1_0=self._http_1_0
        )

    def head(self, length: bytes | None) -> bytes:
        """Status line and header lines; the last word on whether the connection is kept."""
        if self._connection.ending:
            self.keep_alive = False
        return head_bytes(self._reply, length, http_date(), keep_alive=self.keep_alive, http_1_0=self._http_1_0)


class Connection(RequestHandler):
    """One client connection: aiohttp's protocol with the deadlines and limits that it lacks."""

    __slots__ = (
        "_came", "_edge", "_head_bytes", "_head_timer", "_last_bytes", "answering", "certificate", "departure",
        "ending", "peer",
    )  # fmt: skip

    def __init__(self, edge: Edge[Connection], manager: web.Server, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._edge = edge
        self._head_timer: asyncio.TimerHandle | None = None
        self._last_bytes: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._came: deque[float] = deque()
        self.answering = False
        self.certificate = self.peer = ""
        self.departure = Departure()
        self.ending = False

    # -- arriving bytes ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.certificate = name_in(transport.get_extra_info("peercert"))
        self.peer = str(self.peername[0]) if isinstance(self.peername, tuple) else ""
        if not self._edge.admit(self):
            refusal = Refusal(problem("overloaded"), "Too many connections here.", retry_after_ms=SOON_MS)
            self._refuse_outright(Refused(refusal))
            return
        self._watch_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_watching()
        if self._last_bytes is not None:
            self._last_bytes.cancel()
        self.departure.happens()
        self._edge.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        count = self._request_count
        # Under TLS more can come before the handler has taken a request from the queue: its body, and no head.
        waiting = self._waiter is not None and self._current_request is None and not self._messages
        super().data_received(data)
        if self._request_count != count:
            self._came.extend([steady_clock()] * (self._request_count - count))
            self._stop_watching()
            if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
                self._break_open_bodies()
        elif waiting and data and not self._force_close:
            self._head_bytes += len(data)
            if self._head_bytes > self._edge.limits.header_bytes + _HEAD_SLACK:
                self._refuse_outright(fields_too_large(self._edge.limits))
            elif self._head_timer is None:
                self._watch_head()

    def next_came(self, now: float) -> float:
        """When the head of the request whose turn it is came whole. Once a request."""
        return self._came.popleft() if self._came else now

    def _break_open_bodies(self) -> None:
        """aiohttp queues a malformed chunk behind the request whose body it is in; that request must hear of it now."""
        payloads = [payload for _, payload in self._messages]
        if self._current_request is not None:
            payloads.append(self._current_request.content)
        for payload in payloads:
            if not payload.is_eof():
                payload.set_exception(web.RequestPayloadError("badly framed"))

    def _watch_head(self) -> None:
        self._head_timer = self._loop.call_later(self._edge.limits.header_timeout, self._head_is_late)

    def _stop_watching(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            late = refused("request_timeout", "The request's head did not come in time.", retry_after_ms=SOON_MS)
            self._refuse_outright(late)
        else:
            self.force_close()

    def _refuse_outright(self, error: Refused) -> None:
        """Answer without a request, and end the connection."""
        self._stop_watching()
        transport = self.transport
        if transport is not None and not transport.is_closing():
            reply = refusal_reply(error.refusal, self._edge.region, close=True)
            raw = RawReply(self, "POST", reply, False, False)
            body = reply.body if isinstance(reply.body, bytes) else b""
            transport.write(raw.head(b"%d" % len(body)) + body)
        self.force_close()

    # -- leaving bytes ----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport. Raises ``ConnectionResetError`` once the client has gone."""
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client has gone")
        self.transport.write(data)

    async def drained(self) -> None:
        """Wait until the client takes more; a client that takes nothing for ``idle_timeout`` s is cut off."""
        if not self._paused:
            return
        try:
            async with asyncio.timeout(self._edge.limits.idle_timeout):
                await self._drain_helper()
        except TimeoutError:
            if self.transport is not None:
                cut_off(self.transport)
            raise ConnectionResetError("the client stopped reading") from None

    def break_off(self) -> None:
        """End the connection at once, with whatever is unsent."""
        if self.transport is not None:
            self.transport.abort()

    # -- ending -----------------------------------------------------------------------------------

    def force_close(self) -> None:
        """End the connection once all is sent, or the client has not taken it in time."""
        if self.transport is not None and self._last_bytes is None:
            self._last_bytes = close_in_time(self.transport, self._loop)
        super().force_close()

    @property
    def busy(self) -> bool:
        return self.answering or self._request_in_progress or bool(self._messages)

    def finish_up(self) -> None:
        """Take no further request: close now if idle, else after the reply under way."""
        self.ending = True
        if not self.busy:
            self.force_close()

    def finished_one(self) -> None:
        """A reply is out. One that was begun before the end was announced may have promised to keep the connection."""
        self._edge.check_idle()
        if self.ending:
            self._loop.call_soon(self.finish_up)

    # -- aiohttp's own words, replaced ------------------------------------------------------------

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> Any:
        """A message that aiohttp's parser refused, or a fault of the edge itself."""
        if isinstance(exc, LineTooLong):
            error = fields_too_large(self._edge.limits)
        elif status == 500:
            _log.error("unexpected failure at the edge", exc_info=exc)
            raise ConnectionResetError("nothing certain can be said: break off")
        elif "Too many headers" in str(message or exc):
            error = fields_too_large(self._edge.limits)
        else:
            error = not_http()
        return RawReply(self, "POST", refusal_reply(error.refusal, self._edge.region, close=True), False, False)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp logs a traceback for every client that misbehaves; one quiet line is enough."""
        _log.debug(*args)
