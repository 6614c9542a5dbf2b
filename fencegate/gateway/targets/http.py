"""Target ``http``: a streaming reverse proxy behind the fence, guarantee level *drain* (rule R12).

A write is marked in flight and admitted by the store, then sent upstream exactly once, then settled. An edge
never cancels what it has begun: a client that leaves changes nothing about the outcome of its write.

The usual exchange takes a shorter way (:mod:`fencegate.gateway.targets.usual`); whatever is not usual comes here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from fencegate import tokens
from fencegate.fence import Admission, Effect, StoredAnswer
from fencegate.gateway.exchange import Exchange
from fencegate.gateway.header_lines import Headers, checked_block, header_block
from fencegate.gateway.hop_headers import end_to_end_request, forwarded, passed_on
from fencegate.gateway.replies import accepted_block, region_block
from fencegate.gateway.request import Reply
from fencegate.gateway.targets.answer_bytes import ResponseHead
from fencegate.gateway.targets.answers import AnswerStream, Parts, collect
from fencegate.gateway.targets.outcomes import FROM_UPSTREAM, replay, stored, unknown, whole
from fencegate.gateway.targets.payload import Payload, begun, in_time
from fencegate.gateway.targets.pool import ConnectFailed, UpstreamPool
from fencegate.gateway.targets.sending import request_head, send
from fencegate.gateway.targets.signing import proof_line
from fencegate.gateway.targets.upstream import UpstreamBroken, UpstreamConnection, UpstreamLate

READ_FIRST: Final = 64 * 1024
"""A body up to this size is read before the write is admitted, so that a slow client holds up no drain."""
KEPT_BODY: Final = 1024 * 1024
"""The largest answer kept under an idempotency key."""

_BODIED: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose body every upstream expects."""
_NO_LENGTH: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
"""Methods of which a request without a body declares no length."""
_TOKEN: Final = b"%b: %%d\r\n" % tokens.HEADER_TOKEN.encode()
_MAX_SEEN: Final = b"%b: %%d\r\n" % tokens.HEADER_MAX_SEEN.encode()
_TIMEOUT: Final = b"%b: %%d\r\n" % tokens.HEADER_TIMEOUT.encode()
_OF_AN_ADMITTED: Final = b"Host: %b\r\n" + _TOKEN + _MAX_SEEN + _TIMEOUT
_KEY: Final = tokens.HEADER_IDEMPOTENCY_KEY.encode()
NO_KEY: Final = StoredAnswer(200, (), None, b"")
"""For a write without a key, of which no answer is kept: only that there was one."""


class HttpTarget:
    """Forwards to one upstream. ``close`` waits for writes under way."""

    def __init__(self, pool: UpstreamPool) -> None:
        self.pool = pool
        self._running = 0
        self._ended = asyncio.Event()
        self._errands: set[asyncio.Future[None]] = set()

    # -- reads ----------------------------------------------------------------------------------

    async def read(self, exchange: Exchange) -> Reply:
        """Forwards a request that needs no fence. Its failure applies nothing."""
        request = exchange.request
        payload = Payload(request, exchange.route.max_body_bytes, keyed=False)
        if request.expects_continue:
            await request.send_continue()
        await payload.read_first(READ_FIRST)
        connection = await self._connect(exchange, read=True)
        return await self.read_on(exchange, payload.whole, connection, self._send(exchange, connection, payload, None))

    async def read_on(
        self, exchange: Exchange, complete: bool, connection: UpstreamConnection, answer: Awaitable[ResponseHead]
    ) -> Reply:
        """What becomes of a read, from its answer's head on. ``complete``: its body has been taken to the end."""
        try:
            head = await answer
        except UpstreamLate:
            self.pool.release(connection)
            raise exchange.refused("upstream_unavailable", "The upstream did not answer in time.", status=504) from None
        except UpstreamBroken as error:
            self.pool.release(connection)
            raise exchange.refused("upstream_unavailable", f"The read broke off: {error}.", status=502) from error
        except BaseException:
            self.pool.release(connection)
            raise
        finally:
            self.pool.deadlines.discard(connection)
        block = FROM_UPSTREAM + region_block(exchange.around.places.region)
        content = connection.whole_body() if exchange.request.method != "HEAD" else None
        if content is not None:
            self.pool.release(connection)
            return whole(head, content, not complete, block)
        stream = AnswerStream(self.pool, connection, (), exchange.route.timeout)
        return Reply(head.status, head.end_to_end, stream, not complete, block)

    # -- writes ---------------------------------------------------------------------------------

    async def write(
        self, exchange: Exchange, first: Admission | BaseException | None = None, began: float = 0.0
    ) -> Reply:
        """Admits, forwards and settles one write. ``first``: what the store said, where it was asked at ``began``."""
        request = exchange.request
        payload = Payload(request, exchange.route.max_body_bytes, keyed=bool(exchange.key))
        if (request.content_length or 0) <= READ_FIRST:
            if request.expects_continue:
                await exchange.peek()
                await request.send_continue()
            await payload.read_first(READ_FIRST)
        started = exchange.around.clock() if first is None else began
        admission = await exchange.admitted(payload.in_hand, first)
        duration = exchange.around.clock() - started - exchange.held
        effect = admission.effect
        assert effect is not None
        exchange.check_effect(effect, admission.max_token_seen)
        if effect is Effect.REPLAYED:
            reply = await replay(exchange, payload, admission)
            exchange.accepted(replayed=True, check_duration=duration)
            return reply
        self.one_more()
        return await self.write_on(exchange, payload, admission, duration)

    async def write_on(
        self,
        exchange: Exchange,
        payload: Payload,
        admission: Admission,
        duration: float,
        connection: UpstreamConnection | None = None,
        answer: Awaitable[ResponseHead] | None = None,
    ) -> Reply:
        """What becomes of an admitted write that was counted. ``answer``: to come, of what was sent on ``connection``.

        ``duration``: s that the fence's check took.
        """
        try:
            return await self._forward(exchange, payload, admission, duration, connection, answer)
        finally:
            self.one_less()

    def one_more(self) -> None:
        """A write is under way, up to :meth:`one_less`."""
        self._running += 1

    def one_less(self) -> None:
        self._running -= 1
        if not self._running:
            self._ended.set()

    def errand(self, settled: Awaitable[None]) -> None:
        """See to it, though nobody waits for it."""
        errand = asyncio.ensure_future(settled)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def close(self, time_limit: float) -> int:
        """Wait up to ``time_limit`` s for writes under way, then end every connection. How many were given up."""
        await self._all_ended(time_limit)
        abandoned = self._running
        await self.pool.close()
        if abandoned:
            await self._all_ended(1.0)
        return abandoned

    async def _all_ended(self, time_limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, time_limit)):
                while self._running:
                    self._ended.clear()
                    await self._ended.wait()

    async def _forward(
        self,
        exchange: Exchange,
        payload: Payload,
        admission: Admission,
        duration: float,
        connection: UpstreamConnection | None,
        answer: Awaitable[ResponseHead] | None,
    ) -> Reply:
        store, ticket = exchange.around.store, admission.ticket
        try:
            if connection is None or answer is None:
                if exchange.request.expects_continue:
                    await exchange.request.send_continue()
                if not payload.whole and not payload.first:
                    await begun(exchange, payload)
                connection = await self._connect(exchange)  # Last: while a client takes its time, an idle one may end.
                answer = self._send(exchange, connection, payload, admission)
            head = await answer
            parts: Parts = ()
            if (content := connection.whole_body()) is None:
                most = KEPT_BODY if exchange.key else READ_FIRST
                content, parts = await collect(connection, most, patient=bool(exchange.key))
        except BaseException as error:
            if connection is not None:
                self.pool.deadlines.discard(connection)
                if exchange.sent:
                    self.pool.release(connection)
                else:
                    self.pool.give_back_unused(connection)
            await store.settle(ticket, None, sent=exchange.sent)
            told = unknown(exchange, error) if exchange.sent else None
            if told is None:
                raise
            raise told from error
        self.pool.deadlines.discard(connection)
        await store.settle(ticket, await stored(exchange, payload, head, content) if exchange.key else NO_KEY)
        exchange.accepted(replayed=False, check_duration=duration)
        return self.reply(exchange, payload.whole, admission, connection, head, content, parts)

    def reply(
        self,
        exchange: Exchange,
        complete: bool,
        admission: Admission,
        connection: UpstreamConnection,
        head: ResponseHead,
        content: bytes | None,
        parts: Parts = (),
    ) -> Reply:
        """The upstream's answer. ``complete``: the request's body has been taken to the end.

        ``content``: the answer's; ``None`` where it goes on behind ``parts``.
        """
        block = FROM_UPSTREAM + accepted_block(exchange.around.places.region, admission.max_token_seen, False)
        if content is None:
            stream = AnswerStream(self.pool, connection, parts, exchange.route.timeout)
            return Reply(head.status, head.end_to_end, stream, not complete, block)
        self.pool.release(connection)
        if exchange.request.method == "HEAD":
            return Reply(head.status, head.end_to_end, b"", not complete, block)
        return whole(head, content, not complete, block)

    async def _connect(self, exchange: Exchange, *, read: bool = False) -> UpstreamConnection:
        try:
            return await self.pool.acquire(exchange.time_left(), read=read)
        except ConnectFailed as error:
            raise exchange.refused("upstream_unavailable", f"Nothing was sent: {error}.") from error

    # -- what is sent -----------------------------------------------------------------------------

    async def _send(
        self, exchange: Exchange, connection: UpstreamConnection, payload: Payload, admission: Admission | None
    ) -> ResponseHead:
        request = exchange.request
        told_at = exchange.around.clock()
        left = exchange.deadline - told_at
        head = self.head(exchange, connection, admission, left, payload.first if payload.whole else None)
        rest = None if payload.whole else in_time(exchange, connection, payload)
        self.pool.deadlines.add(connection, left)

        def look() -> None:
            if admission is not None:
                exchange.look_again(admission, told_at)
                exchange.sent = True

        chunked = request.content_length is None
        return await send(connection, request.method, head, payload.first, rest, chunked=chunked, look=look)

    def send_at_once(
        self,
        exchange: Exchange,
        connection: UpstreamConnection,
        admission: Admission | None,
        body: bytes,
        now: float,
        tell: Callable[[], None],
    ) -> None:
        """Sends a request of which all is here. ``tell`` is called once there is an answer, or why there is none.

        Raises what speaks against it; where :attr:`Exchange.sent` says so, its first byte may have been written.
        """
        request, left = exchange.request, exchange.deadline - now
        message = self.head(exchange, connection, admission, left, body) + body
        self.pool.deadlines.add(connection, left)
        connection.begin(request.method, tell)
        if admission is not None:
            exchange.look_again(admission, now)
            exchange.sent = True
        connection.write_first(message)

    def head(
        self,
        exchange: Exchange,
        connection: UpstreamConnection,
        admission: Admission | None,
        left: float,
        body: bytes | None,
    ) -> bytes:
        """The head of the request to be sent on ``connection``. ``left``: s that the upstream has for it.

        ``body``: all of it, or ``None`` where it has not come to its end.
        """
        request, route, length = exchange.request, exchange.route, exchange.request.content_length
        block = self._ours(exchange, admission, left)
        if self._as_they_came(exchange):
            block += passed_on(request, exchange.fields)
        else:
            block += checked_block(self._travelling(exchange))
        if admission is not None and route.proof_key is not None:
            block += header_block([proof_line(exchange, route.proof_key, self.pool.prefix, block, body)])
        if length is None:
            block += b"Transfer-Encoding: chunked\r\n"
        elif length or request.method not in _NO_LENGTH:
            block += b"Content-Length: %d\r\n" % length
        if length != 0 and request.method not in _BODIED:
            # An upstream that does not read it would take it for the next request, which nobody has let through.
            block += b"Connection: close\r\n"
            connection.refuse_reuse()
        target = (self.pool.prefix + request.target).encode("utf-8", "surrogateescape")
        return request_head(request.method, target, block)

    def _as_they_came(self, exchange: Exchange) -> bool:
        """Whether the client's headers travel on as those of any other client that sends the same."""
        return exchange.around.callers is None

    def _travelling(self, exchange: Exchange) -> Headers:
        """The headers that travel on, and what this hop adds to them."""
        request, callers = exchange.request, exchange.around.callers
        kept = end_to_end_request(request.headers, exchange.fields)
        kept = kept if callers is None else callers.for_upstream(kept, request, exchange.caller)
        return [*kept, *forwarded(request)]

    def _ours(self, exchange: Exchange, admission: Admission | None, left: float) -> bytes:
        """``Host``, and what the gateway says of the write, which has ``left`` s."""
        host, token = self.pool.host_header, exchange.token
        if admission is None:
            return b"Host: %b\r\n" % host
        seen, milliseconds = admission.max_token_seen, max(1, int(left * 1000))
        if token and seen is not None:
            block = _OF_AN_ADMITTED % (host, token, seen, milliseconds)
        else:
            block = b"Host: %b\r\n" % host
            block += _TOKEN % token if token else b""
            block += _MAX_SEEN % seen if seen is not None else b""
            block += _TIMEOUT % milliseconds
        if exchange.key:
            block += checked_block([(_KEY, exchange.request.key or exchange.fields.key[0])])
        return block
