"""The HTTP edge on aiohttp's low-level server: bytes in, :class:`Request` out; :class:`Reply` in, bytes out.

aiohttp parses and keeps the connection. The edge adds what it lacks: a deadline for a request's head and a
least rate for its body, a limit on the sum of header bytes and on connections, ``100 Continue`` only when
a station asks for the body, refusals of malformed HTTP in the contract's own words, and an end that
waits for requests under way. Header and body bytes pass through untouched, in both directions.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_writer import HttpVersion10
from aiohttp.web_protocol import RequestHandler

from fencegate.errors import Refusal, problem
from fencegate.gateway.admission import SOON_MS
from fencegate.gateway.app import Gateway, Limits
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.request import (
    BodyStream,
    BufferedBody,
    Headers,
    Refused,
    Reply,
    Request,
    check_framing,
    no_continue,
    refused,
)

_log = logging.getLogger("fencegate.gateway.edge")

MOST_FIELDS: Final = 128
_LINGER: Final = 1.0
"""Seconds in which the rest of a refused body is read and dropped, so that the reply is not lost to a reset."""
_READ_BUFFER: Final = 64 * 1024
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_NO_BODY: Final = frozenset({204, 304})


class _Body(BodyStream):
    """The client's body, under a deadline that moves on with every byte (see :class:`Limits`)."""

    def __init__(self, content: Any, limits: Limits) -> None:
        self._content = content
        self._limits = limits
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()

    async def next_chunk(self) -> bytes:
        content = self._content
        try:
            if content.is_eof() or content.total_bytes > self.received:
                chunk: bytes = await content.readany()
            else:
                async with asyncio.timeout_at(self._deadline()):
                    chunk = await content.readany()
        except TimeoutError:
            raise refused(
                "request_timeout", "The body did not come fast enough.", close=True, retry_after_ms=SOON_MS
            ) from None
        except (web.RequestPayloadError, ConnectionError, RuntimeError) as error:
            raise refused("request_malformed", f"The body broke off or is malformed: {error}.", close=True) from None
        self.received += len(chunk)
        if not chunk:
            self.finished = True
        return chunk

    def _deadline(self) -> float:
        return self._started + self._limits.body_timeout + self.received / self._limits.min_body_rate


class _Raw:
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
        head = self._head(self._length_of(body))
        self._connection.send(head if self._method == "HEAD" or self._reply.status in _NO_BODY else head + body)
        await self._connection.drained()

    def _length_of(self, body: bytes) -> bytes | None:
        """The length to declare; an answer to HEAD, and a 304, may bring that of a body that is not there."""
        if self._reply.status == 204:
            return None
        if (self._method == "HEAD" or self._reply.status == 304) and not body:
            return self._declared()
        return b"%d" % len(body)

    async def _streamed(self, chunks: Any) -> None:
        length = self._declared()
        bodiless = self._method == "HEAD" or self._reply.status in _NO_BODY
        chunked = length is None and not bodiless and not self._http_1_0
        if length is None and not bodiless and self._http_1_0:
            self.keep_alive = False
        try:
            self._connection.send(self._head(length, chunked=chunked))
            if not bodiless:
                async for chunk in chunks:
                    self._connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                    await self._connection.drained()
                if chunked:
                    self._connection.send(b"0\r\n\r\n")
            await self._connection.drained()
        except Exception as error:
            # The head is out: breaking the connection is the only way left to say that the body is not whole.
            _log.info("an answer broke off: %s", error)
            self._connection.break_off()
            raise ConnectionResetError("the answer broke off") from None
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    def _declared(self) -> bytes | None:
        for name, value in self._reply.headers:
            if name.lower() == b"content-length":
                return value
        return None

    def _head(self, length: bytes | None, *, chunked: bool = False) -> bytes:
        if self._connection.ending:
            self.keep_alive = False
        reply = self._reply
        lines = [b"HTTP/1.1 %d %b" % (reply.status, _REASONS.get(reply.status, b"Unknown"))]
        dated = False
        for name, value in reply.headers:
            lowered = name.lower()
            if lowered == b"content-length":
                continue
            dated |= lowered == b"date"
            lines.append(name + b": " + value)
        if length is not None:
            lines.append(b"Content-Length: " + length)
        if chunked:
            lines.append(b"Transfer-Encoding: chunked")
        if not dated:
            lines.append(b"Date: " + _http_date())
        if not self.keep_alive:
            lines.append(b"Connection: close")
        elif self._http_1_0:
            lines.append(b"Connection: keep-alive")
        return b"\r\n".join(lines) + b"\r\n\r\n"


_date: tuple[int, bytes] = (0, b"")


def _http_date() -> bytes:
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True).encode())
    return _date[1]


class Connection(RequestHandler):
    """One client connection: aiohttp's protocol with the deadlines and limits that it lacks."""

    __slots__ = ("_edge", "_head_bytes", "_head_timer", "answering", "ending")

    def __init__(self, edge: EdgeServer, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._edge = edge
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self.answering = False
        self.ending = False

    # -- arriving bytes ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._edge.admit(self):
            refusal = Refusal(problem("overloaded"), "Too many connections here.", retry_after_ms=SOON_MS)
            self._refuse_outright(Refused(refusal))
            return
        self._watch_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_watching()
        self._edge.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        count = self._request_count
        waiting = self._waiter is not None and self._current_request is None
        super().data_received(data)
        if self._request_count != count:
            self._stop_watching()
        elif waiting and data and not self._force_close:
            self._head_bytes += len(data)
            if self._head_bytes > self._edge.limits.header_bytes + _READ_BUFFER // 4:
                self._refuse_outright(_fields_too_large(self._edge.limits))
            elif self._head_timer is None:
                self._watch_head()

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
            raw = _Raw(self, "POST", reply, False, False)
            body = reply.body if isinstance(reply.body, bytes) else b""
            transport.write(raw._head(b"%d" % len(body)) + body)
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
            self.break_off()
            raise ConnectionResetError("the client stopped reading") from None

    def break_off(self) -> None:
        """End the connection at once, with whatever is unsent."""
        if self.transport is not None:
            self.transport.abort()

    # -- ending -----------------------------------------------------------------------------------

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
            error = _fields_too_large(self._edge.limits)
        elif status == 500:
            _log.error("unexpected failure at the edge", exc_info=exc)
            raise ConnectionResetError("nothing certain can be said: break off")
        elif "Too many headers" in str(message or exc):
            error = _fields_too_large(self._edge.limits)
        else:
            error = refused("request_malformed", "The request is not well-formed HTTP/1.1.", close=True)
        return _Raw(self, "POST", refusal_reply(error.refusal, self._edge.region, close=True), False, False)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp logs a traceback for every client that misbehaves; one quiet line is enough."""
        _log.debug(*args)


def _fields_too_large(limits: Limits) -> Refused:
    return refused("headers_too_large", f"Request line or header fields over {limits.header_bytes} bytes.", close=True)


def _target_parts(raw: str) -> tuple[str, str]:
    """Path and query of a request target in origin or absolute form. Raises ``request_malformed`` for others."""
    target = raw
    if not target.startswith("/"):
        scheme, separator, after = target.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise refused("request_malformed", "The request target must be a path.", close=True)
        slash = after.find("/")
        target = after[slash:] if slash >= 0 else "/"
    path, _, query = target.partition("?")
    return path, query


class EdgeServer:
    """The data listener. :meth:`start`, then :meth:`stop`; both once."""

    def __init__(self, gateway: Gateway, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._gateway = gateway
        self.limits = gateway.limits
        self.region = gateway.region
        self._ssl = ssl_context
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._manager: web.Server | None = None
        self._idle = asyncio.Event()
        self._stopping = False

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one (see :attr:`port`). Raises ``OSError``."""
        self._manager = web.Server(self._answer)
        limits = self.limits
        options = {
            "keepalive_timeout": limits.idle_timeout,
            "access_log": None,
            "auto_decompress": False,
            "lingering_time": _LINGER,
            "max_line_size": limits.header_bytes,
            "max_field_size": limits.header_bytes,
            "max_headers": MOST_FIELDS,
            "read_bufsize": _READ_BUFFER,
        }
        manager = self._manager
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self, manager, **options), host, port, ssl=self._ssl, reuse_address=True, backlog=1024
        )

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Connections with a request or a reply under way."""
        return sum(1 for connection in self._connections if connection.busy)

    async def stop(self, time_limit: float) -> int:
        """Stop accepting, let requests under way finish for ``time_limit`` s, close. How many were cut off."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.finish_up()
        abandoned = 0
        try:
            async with asyncio.timeout(time_limit):
                while self.in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            abandoned = self.in_flight
        if self._manager is not None:
            await self._manager.shutdown(0.1)
        for connection in list(self._connections):
            connection.break_off()
        return abandoned

    def admit(self, connection: Connection) -> bool:
        """Whether one more connection fits."""
        if self._stopping or len(self._connections) >= self.limits.connections:
            return False
        self._connections.add(connection)
        return True

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._idle.set()

    def check_idle(self) -> None:
        self._idle.set()

    async def _answer(self, incoming: web.BaseRequest) -> Any:
        connection = incoming.protocol
        assert isinstance(connection, Connection)
        http_1_0 = incoming.version <= HttpVersion10
        keep_alive = bool(incoming.keep_alive)
        try:
            request = self._request(incoming, connection, http_1_0)
        except Refused as error:
            reply = refusal_reply(error.refusal, self.region, close=error.close)
            return _Raw(connection, incoming.method, reply, keep_alive, http_1_0)
        reply = await self._gateway.handle(request)
        if not isinstance(request.body, BufferedBody) and not request.body.finished and request.expects_continue:
            reply.close = True  # Whether the client sends the body all the same is unknown: the framing is lost.
        return _Raw(connection, incoming.method, reply, keep_alive, http_1_0)

    def _request(self, incoming: web.BaseRequest, connection: Connection, http_1_0: bool) -> Request:
        headers: Headers = list(incoming.raw_headers)
        length = check_framing(incoming.method, headers, http_1_0)
        path, query = _target_parts(incoming.raw_path)
        peer = connection.peername
        expects = not http_1_0 and length != 0 and incoming.headers.get("Expect", "").lower() == "100-continue"
        return Request(
            method=incoming.method,
            path=path,
            query=query,
            headers=headers,
            body=BufferedBody() if length == 0 else _Body(incoming.content, self.limits),
            content_length=length,
            peer=str(peer[0]) if isinstance(peer, tuple) else "",
            received_at=time.monotonic(),
            scheme="https" if self._ssl is not None else "http",
            expects_continue=expects,
            send_continue=_continuation(connection) if expects else no_continue,
        )


def _continuation(connection: Connection) -> Callable[[], Awaitable[None]]:
    sent = False

    async def send_continue() -> None:
        nonlocal sent
        if not sent:
            sent = True
            connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    return send_continue
