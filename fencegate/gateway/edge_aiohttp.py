"""The HTTP edge on aiohttp's low-level server: bytes in, :class:`Request` out; :class:`Reply` in, bytes out.

aiohttp parses and keeps the connection. The edge adds what it lacks: a deadline for a request's head and a
least rate for its body, a limit on the sum of header bytes and on connections, ``100 Continue`` only when
a station asks for the body, refusals of malformed HTTP in the contract's own words, and an end that
waits for requests under way. Header and body bytes pass through untouched, in both directions.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final

from aiohttp import web
from aiohttp.http_writer import HttpVersion10, HttpVersion11

from fencegate.gateway.admission import SOON_MS
from fencegate.gateway.app import Gateway
from fencegate.gateway.edge_connection import Connection, RawReply
from fencegate.gateway.edge_parts import LAST_WORDS, LINGER, MOST_FIELDS, continuing, not_http
from fencegate.gateway.guests import Guests
from fencegate.gateway.header_lines import Headers, read_fields
from fencegate.gateway.limits import Limits
from fencegate.gateway.listener import Listener
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.request import (
    BodyStream,
    BufferedBody,
    Refused,
    Reply,
    Request,
    check_framing,
    check_method,
    no_continue,
    refused,
)
from fencegate.gateway.request_bytes import target_parts
from fencegate.steady_clock import steady_clock

_READ_BUFFER: Final = 64 * 1024


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


class EdgeServer:
    """The data listener. :meth:`start`, then :meth:`stop`; both once."""

    def __init__(self, gateway: Gateway, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._gateway = gateway
        self.limits = gateway.limits
        self.region = gateway.region
        self._ssl = ssl_context
        self._connections: Guests[Connection] = Guests()
        self._listener: Listener | None = None
        self._manager: web.Server | None = None
        self._stopping = False
        self._handling: set[asyncio.Task[Reply]] = set()
        self._closing: set[asyncio.Future[Any]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one (see :attr:`port`). Raises ``OSError``."""
        self._manager = web.Server(self._answer)
        limits = self.limits
        options = {
            "keepalive_timeout": limits.idle_timeout,
            "access_log": None,
            "auto_decompress": False,
            "lingering_time": LINGER,
            "max_line_size": limits.header_bytes,
            "max_field_size": limits.header_bytes,
            "max_headers": MOST_FIELDS,
            "read_bufsize": _READ_BUFFER,
        }
        manager = self._manager
        self._listener = Listener(lambda: Connection(self, manager, **options), self._ssl)
        await self._listener.start(host, port, limits.header_timeout)

    async def use_tls(self, context: ssl.SSLContext) -> None:
        """As :meth:`Listener.use`, where there was TLS from the start. Raises ``OSError``."""
        assert self._listener is not None
        await self._listener.use(context, self.limits.header_timeout)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._listener is not None
        return self._listener.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Connections with a request or a reply under way."""
        return self._connections.busy

    async def stop(self, time_limit: float) -> int:
        """Stop accepting, let requests under way finish for ``time_limit`` s, close. How many were given up.

        Those are answered too, as far as there is anybody to hear it: that their outcome is not known.
        """
        self._stopping = True
        self._gateway.hold_no_more()
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections:
            connection.finish_up()
        abandoned = 0
        if not await self._connections.none_busy(time_limit):
            abandoned = self.in_flight
            self._gateway.ending.begin()
            for task in list(self._handling):
                task.cancel()
            await self._connections.none_left(LAST_WORDS)
        if self._manager is not None:
            await self._manager.shutdown(0.1)
        for connection in self._connections:
            connection.break_off()
        return abandoned

    def admit(self, connection: Connection) -> bool:
        """Whether one more connection fits."""
        return not self._stopping and self._connections.admit(connection, self.limits)

    def lost(self, connection: Connection) -> None:
        self._connections.left(connection)

    def check_idle(self) -> None:
        self._connections.look_again()

    async def _answer(self, incoming: web.BaseRequest) -> Any:
        connection = incoming.protocol
        assert isinstance(connection, Connection)
        http_1_0 = incoming.version <= HttpVersion10
        keep_alive = bool(incoming.keep_alive)
        try:
            request = self._request(incoming, connection, http_1_0)
        except Refused as error:
            reply = refusal_reply(error.refusal, self.region, close=error.close)
            return RawReply(connection, incoming.method, reply, keep_alive, http_1_0)
        # In a task of its own: aiohttp cancels its handlers when it is shut down, and a write goes on to its end.
        task = asyncio.create_task(self._gateway.handle(request))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)
        try:
            reply = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._drop)
            raise
        if not isinstance(request.body, BufferedBody) and not request.body.finished and request.expects_continue:
            reply.close = True  # Whether the client sends the body all the same is unknown: the framing is lost.
        return RawReply(connection, incoming.method, reply, keep_alive, http_1_0)

    def _drop(self, task: asyncio.Task[Reply]) -> None:
        """The client has gone: nobody will read the answer, and what it comes from is given back."""
        if task.cancelled() or task.exception() is not None:
            return
        close = getattr(task.result().body, "aclose", None)
        if close is not None:
            closing = asyncio.ensure_future(close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _request(self, incoming: web.BaseRequest, connection: Connection, http_1_0: bool) -> Request:
        now = steady_clock()
        came = connection.next_came(now)
        if incoming.version not in (HttpVersion10, HttpVersion11):
            raise not_http()  # llhttp takes HTTP/0.9, a line without any version, and HTTP/2.0 spelt out
        headers: Headers = list(incoming.raw_headers)
        fields = read_fields(headers)
        check_method(incoming.method)
        length = check_framing(fields, http_1_0)
        path, query = target_parts(incoming.raw_path)
        expects = not http_1_0 and length != 0 and fields.expect == b"100-continue"
        return Request(
            method=incoming.method,
            path=path,
            query=query,
            headers=headers,
            body=BufferedBody() if length == 0 else _Body(incoming.content, self.limits),
            content_length=length,
            peer=connection.peer,
            received_at=now,
            scheme="https" if self._ssl is not None else "http",
            expects_continue=expects,
            send_continue=continuing(connection.send) if expects else no_continue,
            departure=connection.departure,
            fields=fields,
            certificate=connection.certificate,
            waited=now - came,
        )
