"""Target ``http``: a streaming reverse proxy behind the fence, guarantee level *drain* (rule R12).

A write is marked in flight and admitted by the store, then sent upstream exactly once, then settled. An edge
never cancels what it has begun: a client that leaves changes nothing about the outcome of its write.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from fencegate import tokens
from fencegate.fence import Admission, Effect, StoredAnswer
from fencegate.gateway.exchange import Exchange, operation_digest
from fencegate.gateway.header_lines import Headers, header_block
from fencegate.gateway.hop_headers import end_to_end_request, forwarded, passed_on
from fencegate.gateway.replies import accepted_block, accepted_headers, region_block
from fencegate.gateway.reply_bytes import has_body
from fencegate.gateway.request import Refused, Reply, Request, too_large
from fencegate.gateway.targets.answer_bytes import ResponseHead
from fencegate.gateway.targets.answers import AnswerStream, Collected, collect
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
_TOKEN: Final = tokens.HEADER_TOKEN.encode()
_MAX_SEEN: Final = tokens.HEADER_MAX_SEEN.encode()
_TIMEOUT: Final = tokens.HEADER_TIMEOUT.encode()
_KEY: Final = tokens.HEADER_IDEMPOTENCY_KEY.encode()
_CLOSE: Final = (b"Connection", b"close")
_ORIGIN: Final = (b"Fencegate-Origin", b"upstream")
_FROM_UPSTREAM: Final = header_block([_ORIGIN])
_NOT_KEPT: Final = (b"Fencegate-Replayed-Body", b"not-kept")


class Payload:
    """The request's body on its way: ``first`` is in memory, the rest comes from the client's stream.

    ``keyed``: a digest is made of method, target and every body byte taken so far. ``limit`` is in bytes.
    """

    __slots__ = ("_digest", "_limit", "_request", "first", "taken", "whole")

    def __init__(self, request: Request, limit: int, *, keyed: bool) -> None:
        self._request = request
        self._limit = limit
        self.first = b""
        self.whole = False
        self.taken = 0
        self._digest = operation_digest(request) if keyed else None

    @property
    def in_hand(self) -> int | None:
        """Bytes of the body in memory: all of it, or none while the client waits to be asked; else ``None``."""
        if self.whole:
            return len(self.first)
        return 0 if self._request.expects_continue and not self.taken else None

    async def next_chunk(self) -> bytes:
        """The next bytes from the client, hashed and counted. Raises ``Refused``, ``body_too_large`` included."""
        chunk = await self._request.body.next_chunk()
        self.taken += len(chunk)
        if self.taken > self._limit:
            raise too_large(self._limit)
        if self._digest is not None:
            self._digest.update(chunk)
        if not chunk:
            self.whole = True
        return chunk

    async def read_first(self, most: int) -> None:
        """Take the body's beginning into memory: all of it, or a little more than ``most`` bytes."""
        if not self.taken and (content := self._request.body.at_once()) is not None:
            self.first, self.taken, self.whole = content, len(content), True
            if self._digest is not None:
                self._digest.update(content)
            return
        parts = [self.first]
        size = len(self.first)
        while not self.whole and size <= most:
            chunk = await self.next_chunk()
            parts.append(chunk)
            size += len(chunk)
        self.first = b"".join(parts)

    async def rest(self) -> AsyncIterator[bytes]:
        while chunk := await self.next_chunk():
            yield chunk

    async def finish(self) -> bytes:
        """Hash what is left without keeping it; the digest. Raises ``Refused``."""
        while not self.whole and await self.next_chunk():
            pass
        return b"" if self._digest is None else self._digest.digest()


class HttpTarget:
    """Forwards to one upstream. ``close`` waits for writes under way."""

    def __init__(self, pool: UpstreamPool) -> None:
        self._pool = pool
        self._running = 0
        self._ended = asyncio.Event()

    # -- reads ----------------------------------------------------------------------------------

    async def read(self, exchange: Exchange) -> Reply:
        """Forwards a request that needs no fence. Its failure applies nothing."""
        request = exchange.request
        payload = Payload(request, exchange.route.max_body_bytes, keyed=False)
        if request.expects_continue:
            await request.send_continue()
        await payload.read_first(READ_FIRST)
        connection = await self._connect(exchange, read=True)
        try:
            head = await self._send(exchange, connection, payload, None)
        except UpstreamLate:
            self._pool.release(connection)
            raise exchange.refused("upstream_unavailable", "The upstream did not answer in time.", status=504) from None
        except UpstreamBroken as error:
            self._pool.release(connection)
            raise exchange.refused("upstream_unavailable", f"The read broke off: {error}.", status=502) from error
        except BaseException:
            self._pool.release(connection)
            raise
        finally:
            self._pool.deadlines.discard(connection)
        block = _FROM_UPSTREAM + region_block(exchange.around.places.region)
        headers = head.end_to_end
        content = connection.whole_body() if request.method != "HEAD" else None
        if content is not None:
            self._pool.release(connection)
            return _whole(head, content, not payload.whole, block)
        stream = AnswerStream(self._pool, connection, (), exchange.route.timeout)
        return Reply(head.status, headers, stream, not payload.whole, block)

    # -- writes ---------------------------------------------------------------------------------

    async def write(self, exchange: Exchange) -> Reply:
        """Admits, forwards and settles one write."""
        request = exchange.request
        payload = Payload(request, exchange.route.max_body_bytes, keyed=bool(exchange.key))
        if (request.content_length or 0) <= READ_FIRST:
            if request.expects_continue:
                await exchange.peek()
                await request.send_continue()
            await payload.read_first(READ_FIRST)
        started = exchange.around.clock()
        admission = await exchange.admitted(payload.in_hand)
        duration = exchange.around.clock() - started - exchange.held
        effect = admission.effect
        assert effect is not None
        exchange.check_effect(effect, admission.max_token_seen)
        if effect is Effect.REPLAYED:
            reply = await _replay(exchange, payload, admission)
            exchange.accepted(replayed=True, check_duration=duration)
            return reply
        self._running += 1
        try:
            return await self._forward(exchange, payload, admission, duration)
        finally:
            self._running -= 1
            if not self._running:
                self._ended.set()

    async def close(self, time_limit: float) -> int:
        """Wait up to ``time_limit`` s for writes under way, then end every connection. How many were given up."""
        await self._all_ended(time_limit)
        abandoned = self._running
        await self._pool.close()
        if abandoned:
            await self._all_ended(1.0)
        return abandoned

    async def _all_ended(self, time_limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, time_limit)):
                while self._running:
                    self._ended.clear()
                    await self._ended.wait()

    async def _forward(self, exchange: Exchange, payload: Payload, admission: Admission, duration: float) -> Reply:
        store, ticket = exchange.around.store, admission.ticket
        connection: UpstreamConnection | None = None
        try:
            if exchange.request.expects_continue:
                await exchange.request.send_continue()
            if not payload.whole and not payload.first:
                await _begun(exchange, payload)
            connection = await self._connect(exchange)  # Last: while a client takes its time, an idle one may end.
            head = await self._send(exchange, connection, payload, admission)
            content = connection.whole_body()
            if content is not None:
                collected = Collected((content,), True)
            else:
                most = KEPT_BODY if exchange.key else READ_FIRST
                collected = await collect(connection, most, patient=bool(exchange.key))
        except BaseException as error:
            if connection is not None:
                self._pool.deadlines.discard(connection)
                if exchange.sent:
                    self._pool.release(connection)
                else:
                    self._pool.give_back_unused(connection)
            await store.settle(ticket, None, sent=exchange.sent)
            told = _unknown(exchange, error) if exchange.sent else None
            if told is None:
                raise
            raise told from error
        self._pool.deadlines.discard(connection)
        stored = await _stored(exchange, payload, head, collected)
        await store.settle(ticket, stored)
        exchange.accepted(replayed=False, check_duration=duration)
        return self._reply(exchange, payload, admission, connection, head, collected)

    def _reply(
        self,
        exchange: Exchange,
        payload: Payload,
        admission: Admission,
        connection: UpstreamConnection,
        head: ResponseHead,
        collected: Collected,
    ) -> Reply:
        block = _FROM_UPSTREAM + accepted_block(exchange.around.places.region, admission.max_token_seen, False)
        headers = head.end_to_end
        close = not payload.whole
        if collected.whole:
            self._pool.release(connection)
            if exchange.request.method == "HEAD":
                return Reply(head.status, headers, b"", close, block)
            return _whole(head, collected.content, close, block)
        stream = AnswerStream(self._pool, connection, collected.parts, exchange.route.timeout)
        return Reply(head.status, headers, stream, close, block)

    async def _connect(self, exchange: Exchange, *, read: bool = False) -> UpstreamConnection:
        try:
            return await self._pool.acquire(exchange.time_left(), read=read)
        except ConnectFailed as error:
            raise exchange.refused("upstream_unavailable", f"Nothing was sent: {error}.") from error

    async def _send(
        self, exchange: Exchange, connection: UpstreamConnection, payload: Payload, admission: Admission | None
    ) -> ResponseHead:
        request = exchange.request
        told_at = exchange.around.clock()
        left = exchange.deadline - told_at
        chunked = request.content_length is None
        headers, block = self._headers(exchange, admission, left), b""
        if self._as_they_came(exchange, admission):
            block = passed_on(request, exchange.fields)
        else:
            headers[1:1] = self._travelling(exchange)
        if admission is not None and exchange.route.proof_key is not None:
            body = payload.first if payload.whole else None
            headers.append(proof_line(exchange, exchange.route.proof_key, self._pool.prefix, headers, body))
        if chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        elif request.content_length or request.method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
            headers.append((b"Content-Length", b"%d" % (request.content_length or 0)))
        if request.content_length != 0 and request.method not in _BODIED:
            # An upstream that does not read it would take it for the next request, which nobody has let through.
            headers.append(_CLOSE)
            connection.refuse_reuse()
        target = (self._pool.prefix + request.target).encode("utf-8", "surrogateescape")
        head = request_head(request.method, target, headers, block)
        rest = None if payload.whole else _in_time(exchange, connection, payload)
        self._pool.deadlines.add(connection, left)

        def look() -> None:
            if admission is not None:
                exchange.look_again(admission, told_at)
                exchange.sent = True

        return await send(connection, request.method, head, payload.first, rest, chunked=chunked, look=look)

    def _as_they_came(self, exchange: Exchange, admission: Admission | None) -> bool:
        """Whether the client's headers travel on as those of any other client that sends the same."""
        return exchange.around.callers is None and (admission is None or exchange.route.proof_key is None)

    def _travelling(self, exchange: Exchange) -> Headers:
        """The headers that travel on, and what this hop adds to them."""
        request, callers = exchange.request, exchange.around.callers
        kept = end_to_end_request(request.headers, exchange.fields)
        kept = kept if callers is None else callers.for_upstream(kept, request, exchange.caller)
        return [*kept, *forwarded(request)]

    def _headers(self, exchange: Exchange, admission: Admission | None, left: float) -> Headers:
        """``Host``, and what the gateway says of the write, which has ``left`` s."""
        headers: Headers = [(b"Host", self._pool.host_header)]
        if admission is None:
            return headers
        if exchange.token:
            headers.append((_TOKEN, b"%d" % exchange.token))
        if admission.max_token_seen is not None:
            headers.append((_MAX_SEEN, b"%d" % admission.max_token_seen))
        headers.append((_TIMEOUT, b"%d" % max(1, int(left * 1000))))
        if exchange.key:
            headers.append((_KEY, exchange.request.key or exchange.fields.key[0]))
        return headers


async def _begun(exchange: Exchange, payload: Payload) -> None:
    """Wait for a body's first bytes, as long as the mark stands that was made for the write."""
    try:
        async with asyncio.timeout(exchange.time_left()):
            await payload.read_first(0)
    except TimeoutError:
        detail = "The write's time ran out before its body came."
        raise exchange.refused("deadline_exceeded", detail, close=True) from None


async def _in_time(exchange: Exchange, connection: UpstreamConnection, payload: Payload) -> AsyncIterator[bytes]:
    """The rest of a body, up to its end, while there is time. Of an upload that is late the end is never sent.

    The process may have been stopped, or the machine asleep: the timers find out when they come to it.
    """
    async for chunk in payload.rest():
        if exchange.left() <= 0:
            connection.time_out()
        yield chunk
    if exchange.left() <= 0:
        connection.time_out()


def _whole(head: ResponseHead, content: bytes, close: bool, block: bytes) -> Reply:
    """The upstream's answer, all of which is here, with our ``block``; not to ``HEAD``."""
    if not has_body("", head.status):
        return Reply(head.status, head.end_to_end, content, close, block)
    theirs, dated = head.block()
    return Reply(head.status, [], content, close, theirs + block, dated)


def _unknown(exchange: Exchange, error: BaseException) -> Refused | None:
    """The refusal for a write whose first byte may have been written; ``None``: the error speaks for itself."""
    if isinstance(error, UpstreamLate):
        return exchange.outcome_unknown("The upstream did not answer in time; it may still apply the write.", "timeout")
    if isinstance(error, UpstreamBroken):
        return exchange.outcome_unknown(f"The write was sent and its answer was lost: {error}.", "connection")
    if isinstance(error, Refused):
        detail = f"The request broke off while it was being forwarded: {error.refusal.detail}"
        unknown = exchange.outcome_unknown(detail, "connection")
        unknown.close = True
        return unknown
    return None


async def _stored(
    exchange: Exchange, payload: Payload, head: ResponseHead, collected: Collected
) -> StoredAnswer | None:
    """The answer to keep. ``None`` (unknown to a retry) if the client's body cannot be hashed to its end."""
    if not exchange.key:
        return StoredAnswer(head.status, (), None, b"")
    try:
        async with asyncio.timeout(max(0.0, exchange.left())):
            digest = await payload.finish()
    except (Refused, TimeoutError):
        return None
    headers = tuple(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in head.end_to_end
        if name.lower() != b"content-length"
    )
    return StoredAnswer(head.status, headers, collected.content if collected.whole else None, digest)


async def _replay(exchange: Exchange, payload: Payload, admission: Admission) -> Reply:
    """The stored answer for the same payload. Raises ``idempotency_key_reused`` for another one."""
    stored = admission.stored
    if stored is None:
        raise exchange.outcome_unknown(
            "An earlier request with this key was answered; its answer is gone.", "connection"
        )
    await exchange.request.send_continue()
    if await payload.finish() != stored.payload_digest:
        exchange.check_effect(Effect.KEY_REUSED, admission.max_token_seen)
    region = exchange.around.places.region
    headers: Headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in stored.headers]
    headers += [_ORIGIN, *accepted_headers(region, admission.max_token_seen, replayed=True)]
    if stored.body is None:
        headers.append(_NOT_KEPT)
    return Reply(stored.status, headers, stored.body or b"")
