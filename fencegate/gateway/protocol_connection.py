"""One client connection of the protocol edge: requests in order, one at a time, each on the shortest way.

A request whose body came whole with its head is handed on at once. Bytes that come while a reply is under way
wait, and over a limit the reading stops. One timer a connection carries every deadline between requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast

from fencegate.errors import Refusal, problem
from fencegate.gateway.admission import SOON_MS
from fencegate.gateway.app import Limits
from fencegate.gateway.arriving_body import ArrivingBody
from fencegate.gateway.edge_parts import LINGER, MOST_FIELDS, Edge, fields_too_large, http_date, not_http, target_parts
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.reply_bytes import has_body, head_bytes, length_of
from fencegate.gateway.reply_stream import send_stream
from fencegate.gateway.request import (
    BufferedBody,
    Departure,
    Refused,
    Reply,
    Request,
    check_framing,
    no_continue,
    refused,
)
from fencegate.gateway.request_bytes import Chunked, Head, Malformed, Sized, read_head

_log = logging.getLogger("fencegate.gateway.edge")

_WAITING_BYTES: Final = 64 * 1024
"""Bytes of requests that wait behind the one under way; over it nothing more is read."""
_NEVER: Final = float("inf")
_STARTS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class _Edge(Edge["ProtocolConnection"], Protocol):
    scheme: str

    @property
    def handle(self) -> Callable[[Request], Awaitable[Reply]]: ...


class ProtocolConnection(asyncio.Protocol):
    """One client connection. ``ending``: no further request is taken after the one under way."""

    def __init__(self, edge: _Edge, loop: asyncio.AbstractEventLoop) -> None:
        self._edge = edge
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._pending = b""
        self._searched = 0
        self._head_began = False
        self._body: ArrivingBody | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._due = _NEVER
        self._eof = self._lost = self._closing = self._paused = self._served = False
        self._keep = self._old = False
        self._method = ""
        self._departure = Departure()
        self.ending = False

    # -- arriving bytes ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no assert: uvloop's transports are no asyncio.Transport by class.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self._edge.admit(self):
            refusal = Refusal(problem("overloaded"), "Too many connections here.", retry_after_ms=SOON_MS)
            self._refuse_outright(Refused(refusal), soft=False)
            return
        self._watch(self._edge.limits.header_timeout)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        body = self._body
        if body is not None:
            if body.broken:
                return
            rest = body.feed(data)
            if rest is None:
                return
            self._body = None
            data = rest
        self._pending = self._pending + data if self._pending else data
        if self._task is None:
            self._advance()
        elif len(self._pending) > _WAITING_BYTES:
            self._pause()

    def eof_received(self) -> bool:
        """The client sends no more. What it has asked for is still answered."""
        self._eof = True
        self._departure.happens()
        if self._body is not None:
            self._body.break_off("the client ended it")
        return self._task is not None and not self._closing and self._edge.scheme == "http"

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._departure.happens()
        if self._timer is not None:
            self._timer.cancel()
        if self._body is not None:
            self._body.break_off("the client has gone")
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(ConnectionResetError("the client has gone"))
            self._writable.exception()  # Seen, even if nobody waits any more.
        self._edge.lost(self)

    def _advance(self) -> None:
        request = self._next()
        if request is not None:
            self._task = self._loop.create_task(self._serve(request))

    def _next(self) -> Request | None:
        """The next request whose head has come whole. ``None``: not yet, or never; then deadlines are set."""
        raw = self._pending
        while raw[:2] == b"\r\n":
            raw = self._pending = raw[2:]
        if not raw:
            return None
        limits = self._edge.limits
        end = raw.find(b"\r\n\r\n", self._searched) + 4
        # Twice, since the fields and the target are each held to the limit; the gateway adds up the fields.
        if end > 2 * limits.header_bytes or (end < 4 and len(raw) > 2 * limits.header_bytes):
            self._refuse_outright(fields_too_large(limits))
            return None
        if end < 4:
            self._searched = max(0, len(raw) - 3)
            if raw[0] not in _STARTS and raw != b"\r":
                self._refuse_outright(not_http())
            elif not self._head_began:
                self._head_began = True
                self._watch(limits.header_timeout)
            return None
        self._searched, self._head_began, self._due = 0, False, _NEVER
        self._pending = raw[end:]
        try:
            head = read_head(raw[:end])
            return self._request(head, limits)
        except Malformed:
            self._refuse_outright(not_http())
        except Refused as error:
            self._refuse_outright(error)
        return None

    def _request(self, head: Head, limits: Limits) -> Request:
        headers = head.headers
        if len(headers) > MOST_FIELDS or len(head.target) > limits.header_bytes:
            raise fields_too_large(limits)
        method = head.method.decode("ascii")
        length = check_framing(method, headers, head.http_1_0)
        path, query = target_parts(head.target.decode("utf-8", "surrogateescape"))
        self._method, self._old, self._keep = method, head.http_1_0, head.keep_alive
        expects = head.expects_continue and length != 0
        body: BufferedBody | ArrivingBody
        if length is not None and length <= len(self._pending) and not expects:
            body = BufferedBody(self._pending[:length])
            self._pending = self._pending[length:]
        else:
            framing = Chunked() if length is None else Sized(length)
            body = self._arriving(ArrivingBody(framing, limits, self._pause, self._resume))
        return Request(
            method,
            path,
            query,
            headers,
            body,
            length,
            self._peer,
            time.monotonic(),
            self._edge.scheme,
            expects,
            self._continuation() if expects else no_continue,
            self._departure,
        )

    def _arriving(self, body: ArrivingBody) -> ArrivingBody:
        waiting, self._pending = self._pending, b""
        self._body = body
        if waiting:
            rest = body.feed(waiting)
            if rest is not None:
                self._body, self._pending = None, rest
        if self._eof:
            body.break_off("the client ended it")
        return body

    # -- one request after another ----------------------------------------------------------------

    async def _serve(self, request: Request | None) -> None:
        try:
            while request is not None:
                reply = await self._edge.handle(request)
                if not await self._answered(request, reply):
                    return
                self._served = True
                if self._paused and len(self._pending) <= _WAITING_BYTES:
                    self._resume()
                if not self._pending:
                    break
                request = self._next()
            if not self._head_began:
                self._watch(self._edge.limits.idle_timeout)
            if (self._eof or self.ending) and not self._closing:
                self._end_softly()
        except ConnectionResetError:
            self.break_off()
        except Exception:
            # Nothing certain can be said of the write: an answer without words is the honest one.
            _log.exception("unexpected failure at the edge")
            self.break_off()
        finally:
            self._task = None
            self._edge.check_idle()

    async def _answered(self, request: Request, reply: Reply) -> bool:
        """Send the reply; whether another request may follow on this connection."""
        body = request.body
        keep = self._keep and not reply.close and not self.ending and not self._closing
        if isinstance(body, ArrivingBody) and (
            body.broken or (request.expects_continue and not body.finished)  # Whether it still comes is unknown.
        ):
            keep = False
        content = reply.body
        if isinstance(content, bytes):
            method = self._method
            head = head_bytes(
                reply,
                length=length_of(method, reply, content),
                chunked=False,
                keep_alive=keep,
                http_1_0=self._old,
                date=http_date(),
            )
            self.send(head + content if has_body(method, reply.status) else head)
            if self._writable is not None:
                await self.drained()
        else:
            keep = await send_stream(self, self._method, reply, content, keep_alive=keep, http_1_0=self._old)
        if isinstance(body, ArrivingBody) and not body.complete:
            self._half_close(keep)
            keep = await body.drop(LINGER) and keep
            self._body = None
            if not keep:
                self._end()
        elif not keep:
            self._end_softly()
        return keep

    def _continuation(self) -> Callable[[], Awaitable[None]]:
        sent = False

        async def send_continue() -> None:
            nonlocal sent
            if not sent:
                sent = True
                self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

        return send_continue

    # -- leaving bytes ----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport. Raises ``ConnectionResetError`` once the client has gone."""
        transport = self._transport
        if self._lost or transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        transport.write(data)

    async def drained(self) -> None:
        """Wait until the client takes more; a client that takes nothing for ``idle_timeout`` s is cut off."""
        if self._writable is None:
            return
        try:
            async with asyncio.timeout(self._edge.limits.idle_timeout):
                await asyncio.shield(self._writable)
        except TimeoutError:
            self.break_off()
            raise ConnectionResetError("the client stopped reading") from None

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None and not self._lost:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None and not self._lost:
            self._paused = False
            self._transport.resume_reading()

    # -- deadlines and endings --------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._task is not None

    def finish_up(self) -> None:
        """Take no further request: close now if idle, else after the reply under way."""
        self.ending = True
        if not self.busy and not self._closing:
            self._end()

    def break_off(self) -> None:
        """End the connection at once, with whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def _watch(self, seconds: float) -> None:
        """Look again in ``seconds``. The timer is moved forward only: most deadlines pass unneeded."""
        self._due = self._loop.time() + seconds
        if self._timer is None or self._timer_at > self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self._due
            self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due == _NEVER or self._lost:
            return
        if self._loop.time() < self._due:
            self._timer_at = self._due
            self._timer = self._loop.call_at(self._due, self._look)
        elif self._closing or not self._head_began:
            self._end()
        else:
            late = refused("request_timeout", "The request's head did not come in time.", retry_after_ms=SOON_MS)
            self._refuse_outright(late)

    def _refuse_outright(self, error: Refused, *, soft: bool = True) -> None:
        """Answer without a request, and end the connection."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            reply = refusal_reply(error.refusal, self._edge.region, close=True)
            content = reply.body if isinstance(reply.body, bytes) else b""
            length = b"%d" % len(content)
            head = head_bytes(reply, length=length, chunked=False, keep_alive=False, http_1_0=False, date=http_date())
            transport.write(head + content)
        self._half_close(False)
        if soft:
            self._watch(LINGER)
        else:
            self._end()

    def _end_softly(self) -> None:
        """Close once the reply is out. What the client is still sending is read and dropped for a while."""
        if self._pending and not self._eof:
            self._half_close(False)
            self._watch(LINGER)
        else:
            self._end()

    def _half_close(self, keep: bool) -> None:
        """Say that no more will be sent, so that the client reads the reply to its end."""
        if keep or self._transport is None:
            return
        if self._body is None:
            self._closing = True
            self._pending = b""
        self._resume()
        if not self._lost and not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    def _end(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()
