"""One client connection of the protocol edge: requests in order, one at a time, each on the shortest way.

A request whose body came whole with its head is handed on at once, and a reply that needs no waiting is sent at
once: only what has to be waited for gets a task. Bytes that come while a reply is under way wait, and over a limit
the reading stops. One timer a connection carries every deadline between requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from fencegate.errors import Refusal, problem
from fencegate.gateway.admission import SOON_MS
from fencegate.gateway.arriving_body import ArrivingBody
from fencegate.gateway.arriving_requests import ArrivingRequests
from fencegate.gateway.caller import name_in
from fencegate.gateway.connection_flow import ConnectionFlow
from fencegate.gateway.due_time import DueTime
from fencegate.gateway.edge_parts import LINGER, Edge, continuing, date_of, http_date
from fencegate.gateway.exchange import Pending
from fencegate.gateway.limits import Limits
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.reply_bytes import whole_reply
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
from fencegate.gateway.request_bytes import Chunked, Head, Sized
from fencegate.steady_clock import steady_clock

_log = logging.getLogger("fencegate.gateway.edge")

_WAITING_BYTES: Final = 64 * 1024
"""Bytes of requests that wait behind the one under way; over it nothing more is read."""
_MOST_AT_ONCE: Final = 32
"""Requests of one connection that are answered in a row before others get their turn."""

Begun = Reply | Coroutine[Any, Any, Reply]


class _Edge(Edge["ProtocolConnection"], Protocol):
    scheme: str

    @property
    def begin(self) -> Callable[[Request], Begun | Pending]: ...

    @property
    def go_on(self) -> Callable[[Pending], Begun]: ...


class ProtocolConnection(asyncio.Protocol):
    """One client connection. ``ending``: no further request is taken after the one under way; ``peer``: whose it is."""

    __slots__ = (
        "_arriving", "_asked", "_body", "_certificate", "_closing", "_departure", "_due", "_edge", "_eof", "_flow",
        "_keep", "_loop", "_method", "_old", "_task", "ending", "peer",
    )  # fmt: skip

    def __init__(self, edge: _Edge, loop: asyncio.AbstractEventLoop) -> None:
        self._edge = edge
        self._loop = loop
        self._flow = ConnectionFlow(loop)
        self.peer = self._certificate = ""
        self._arriving = ArrivingRequests()
        self._body: ArrivingBody | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked: Pending | None = None
        self._due = DueTime(loop, self._too_late)
        self._eof = self._closing = self._keep = self._old = False
        self._method = ""
        self._departure = Departure()
        self.ending = False

    # -- arriving bytes ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = self._flow.made(transport)
        self._certificate = name_in(transport.get_extra_info("peercert"))
        if not self._edge.admit(self):
            refusal = Refusal(problem("overloaded"), "Too many connections here.", retry_after_ms=SOON_MS)
            self._refuse_outright(Refused(refusal), soft=False)
            return
        self._due.set(self._edge.limits.header_timeout)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        body = self._body
        if body is not None:
            if body.broken or (rest := body.feed(data)) is None:
                return
            self._body, data = None, rest
        if not self.busy:
            self._arriving.add(data)
            self._advance()
        elif self._arriving.add_behind(data) > _WAITING_BYTES:
            self._flow.pause()

    def eof_received(self) -> bool:
        """The client sends no more. What it has asked for is still answered."""
        self._eof = True
        self._departure.happens()
        if self._body is not None:
            self._body.break_off("the client ended it")
        return self.busy and not self._closing and self._edge.scheme == "http"

    def connection_lost(self, exc: Exception | None) -> None:
        self._due.end()
        self._departure.happens()
        if self._body is not None:
            self._body.break_off("the client has gone")
        self._flow.lose()
        self._edge.lost(self)

    def _next(self) -> Request | None:
        """The next request whose head has come whole. ``None``: not yet, or never; then deadlines are set."""
        arriving, limits = self._arriving, self._edge.limits
        if not arriving.waiting:
            return None
        began = arriving.head_began
        try:
            found = arriving.next_head(limits)
            if found is not None:
                self._due.clear()
                return self._request(*found, limits)
        except Refused as error:
            self._refuse_outright(error)
            return None
        if arriving.head_began and not began:
            self._due.set(limits.header_timeout)
        self._flow.resume()  # However much waits: it takes more to go on.
        return None

    def _request(self, head: Head, key: bytes | None, limits: Limits) -> Request:
        line, fields = head.line, head.fields
        length = check_framing(fields, line.http_1_0)
        self._method, self._old, self._keep = line.method, line.http_1_0, head.keep_alive
        expects = head.expects_continue and length != 0
        content = self._arriving.take(length) if length is not None and not expects else None
        body: BufferedBody | ArrivingBody
        if content is not None:
            body = BufferedBody(content)
        else:
            framing = Chunked() if length is None else Sized(length)
            body = self._arriving_body(ArrivingBody(framing, limits, self._flow.pause, self._flow.resume))
        return Request(
            line.method,
            line.path,
            line.query,
            head.headers,
            body,
            length,
            self.peer,
            steady_clock(),
            self._edge.scheme,
            expects,
            continuing(self.send) if expects else no_continue,
            self._departure,
            fields,
            self._certificate,
            self._arriving.waited() if self._arriving.marks else 0.0,
            key,
        )

    def _arriving_body(self, body: ArrivingBody) -> ArrivingBody:
        waiting = self._arriving.waiting
        self._arriving.drop()
        self._flow.resume()  # Nothing waits any more; the body says itself when it is enough.
        self._body = body
        if waiting and (rest := body.feed(waiting)) is not None:
            self._body = None
            self._arriving.put_back(rest)
        if self._eof:
            body.break_off("the client ended it")
        return body

    # -- one request after another ----------------------------------------------------------------

    def _advance(self, answered: int = 0) -> None:
        """Answer what can be answered at once; a task takes over where more than one answer has to be waited for.

        ``answered``: so many were in this turn already.
        """
        for count in range(answered, _MOST_AT_ONCE):
            if not self._arriving.waiting or (request := self._next()) is None:
                if count and not self._arriving.head_began and not self._closing:
                    self._due.set(self._edge.limits.idle_timeout)
                return
            begun = self._edge.begin(request)
            if isinstance(begun, Pending):
                self._wait_for(begun)
                return
            if not isinstance(begun, Reply) or not self._sent_at_once(request, begun):
                self._task = self._loop.create_task(self._serve(request, begun))
                return
            if self._flow.full:
                break
        self._task = self._loop.create_task(self._serve(None, None))

    def _wait_for(self, pending: Pending) -> None:
        self._asked = pending
        pending.wait(self._go_on)

    def _go_on(self, _: object) -> None:
        pending, self._asked = self._asked, None
        assert pending is not None
        request, arriving = pending.exchange.request, self._arriving
        try:
            begun = self._edge.go_on(pending)
            if not isinstance(begun, Reply) or not self._sent_at_once(request, begun):
                self._task = self._loop.create_task(self._serve(request, begun))
            elif self._eof or self._flow.full or self._flow.paused:
                self._task = self._loop.create_task(self._serve(None, None))
            elif arriving.waiting or arriving.head_began or self._closing:
                self._advance(1)
            else:
                self._due.set(self._edge.limits.idle_timeout)
        except Exception:
            _log.exception("unexpected failure at the edge")
            self.break_off()
        finally:
            if self.ending:
                self._edge.check_idle()

    async def _serve(self, request: Request | None, begun: Begun | None) -> None:
        """Answer the request that was begun, if any, and all that wait behind it."""
        count = 0
        try:
            while True:
                if request is not None and begun is not None:
                    reply = begun if isinstance(begun, Reply) else await begun
                    if not self._sent_at_once(request, reply) and not await self._answered(request, reply):
                        return
                if self._flow.full:
                    await self.drained()
                if self._flow.paused and len(self._arriving.waiting) <= _WAITING_BYTES:
                    self._flow.resume()
                request = self._next()
                if request is None:
                    break
                count += 1
                if count % _MOST_AT_ONCE == 0:
                    await asyncio.sleep(0)
                next_one = self._edge.begin(request)
                if isinstance(next_one, Pending):
                    self._wait_for(next_one)
                    return
                begun = next_one
            if not self._arriving.head_began and not self._closing:
                self._due.set(self._edge.limits.idle_timeout)
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

    def _sent_at_once(self, request: Request, reply: Reply) -> bool:
        """Send the usual reply, after which all goes on as before. False: nothing was sent, it takes more."""
        content, flow = reply.body, self._flow
        if (
            not isinstance(content, bytes)
            or not isinstance(request.body, BufferedBody)
            or reply.close
            or not self._keep
            or self._old
            or self.ending
            or self._closing
            or flow.full
            or flow.lost
        ):
            return False
        try:
            self._flow.send(whole_reply(self._method, reply, content, date_of(reply), keep_alive=True, http_1_0=False))
        except ConnectionResetError:
            self.break_off()
        return True

    async def _answered(self, request: Request, reply: Reply) -> bool:
        """Send the reply; whether another request may follow on this connection."""
        body = request.body
        keep = self._keep and not reply.close and not self.ending and not self._closing
        if isinstance(body, ArrivingBody) and (
            body.broken or (request.expects_continue and not body.finished)  # Whether it still comes is unknown.
        ):
            keep = False
        if isinstance(content := reply.body, bytes):
            whole = whole_reply(self._method, reply, content, date_of(reply), keep_alive=keep, http_1_0=self._old)
            self._flow.send(whole)
            if self._flow.full:
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

    # -- leaving bytes ----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport. Raises ``ConnectionResetError`` once the client has gone."""
        self._flow.send(data)

    async def drained(self) -> None:
        """Wait until the client takes more; a client that takes nothing for ``idle_timeout`` s is cut off."""
        await self._flow.drained(self._edge.limits.idle_timeout)

    def pause_writing(self) -> None:
        self._flow.fill()

    def resume_writing(self) -> None:
        self._flow.empty()

    # -- deadlines and endings --------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._asked is not None or self._task is not None

    def finish_up(self) -> None:
        """Take no further request: close now if idle, else after the reply under way."""
        self.ending = True
        if not self.busy and not self._closing:
            self._end()

    def give_up(self) -> None:
        """Wait no longer for what the request under way waits for: its reply says so."""
        if self._asked is not None:
            self._asked.give_up()
        elif self._task is not None:
            self._task.cancel()

    def break_off(self) -> None:
        """End the connection at once, with whatever is unsent."""
        self._flow.abort()

    def _too_late(self) -> None:
        """The deadline of what is awaited from the client has passed."""
        if self._flow.lost:
            return
        if self._closing or not self._arriving.head_began:
            self._end()
        else:
            late = refused("request_timeout", "The request's head did not come in time.", retry_after_ms=SOON_MS)
            self._refuse_outright(late)

    def _refuse_outright(self, error: Refused, *, soft: bool = True) -> None:
        """Answer without a request, and end the connection."""
        if self._flow.open:
            reply = refusal_reply(error.refusal, self._edge.region, close=True)
            content = reply.body if isinstance(reply.body, bytes) else b""
            self._flow.send(whole_reply("", reply, content, http_date(), keep_alive=False, http_1_0=False))
        self._half_close(False)
        if soft:
            self._due.set(LINGER)
        else:
            self._end()

    def _end_softly(self) -> None:
        """Close once the reply is out. What the client is still sending is read and dropped for a while."""
        if self._arriving.waiting and not self._eof:
            self._half_close(False)
            self._due.set(LINGER)
        else:
            self._end()

    def _half_close(self, keep: bool) -> None:
        """Say that no more will be sent, so that the client reads the reply to its end."""
        if keep:
            return
        if self._body is None:
            self._closing = True
            self._arriving.drop()
        self._flow.resume()
        self._flow.half_close()

    def _end(self) -> None:
        self._closing = True
        self._flow.close()
