"""One HTTP/1.1 connection to an upstream, and one exchange on it, sent exactly once.

Nothing in here ever sends a request again: whatever goes wrong after the first byte is the caller's to
report as unknown. Both directions stream in constant memory, under back-pressure.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import httptools

from fencegate.access.refusals import Keys, tls_advice
from fencegate.errors import FencegateError
from fencegate.gateway.cut_off import cut_off
from fencegate.gateway.header_lines import Headers
from fencegate.gateway.targets.answer_bytes import ResponseHead, whole_answer

_HIGH_WATER: Final = 256 * 1024
_LOW_WATER: Final = 64 * 1024
_HEAD_LIMIT: Final = 128 * 1024
_NO_BODY: Final = frozenset({204, 304})


KEYS: Final = Keys("upstream.tls", "the route's target")


class UpstreamBroken(FencegateError):
    """The exchange broke off after its first byte was written: the upstream may have acted on it."""


class UpstreamLate(UpstreamBroken):
    """The exchange took too long."""


class UpstreamConnection(asyncio.Protocol):
    """One connection. :meth:`begin` starts an exchange; it is reusable once the answer ended cleanly."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        """Of the socket, while the transport is not closing; asked for once, since each question costs."""
        self._plain = False
        self._parser: httptools.HttpResponseParser | None = None
        self._method = ""
        self._headers: Headers = []
        self._asked = False
        self._tell: Callable[[], None] | None = None
        self._head: asyncio.Future[ResponseHead] | None = None
        self.answer: ResponseHead | None = None
        """The head of the final answer, after any interim ones, once it is there."""
        self._head_bytes = 0
        self._interim = False
        self._until_eof = False
        self._keep_alive = False
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._reading_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._writing_paused = False
        self._complete = False
        self.failure: UpstreamBroken | None = None
        self._lost = False
        self._spoiled = False
        self.idle_limit: float | None = None
        """Seconds that the upstream promises to keep the connection, from its ``Keep-Alive`` field."""
        self.idle_until = 0.0
        """When the pool closes it, on the loop's clock."""
        self._poll: select.poll | None = None

    # -- the exchange ---------------------------------------------------------------------------

    def begin(self, method: str, tell: Callable[[], None] | None = None) -> None:
        """Get ready for one exchange. Each has a parser of its own, so that nothing of one leaks into the next.

        ``tell`` is called once, when :attr:`answer` is there, or :attr:`failure`; never before this returns.
        """
        self._parser = None  # Made if its answer needs one.
        self._method = method
        self._asked, self._tell = True, tell
        self._head = self.answer = None
        self._head_bytes = 0
        self._interim = self._until_eof = self._keep_alive = self._complete = False

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport. Raises :class:`UpstreamBroken` once the connection is gone."""
        if self.failure is not None:
            raise self.failure
        if self._transport is None or self._transport.is_closing():
            raise UpstreamBroken("the upstream closed the connection")
        self._transport.write(data)

    def write_first(self, data: bytes) -> None:
        """As :meth:`write`, but what the system takes at once has gone when this returns, not when the loop is free.

        Bytes that are encrypted first go as any others.
        """
        transport = self._transport
        if (
            self._plain
            and self.failure is None
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            try:
                written = os.write(self._fd, data)
            except OSError:
                written = 0  # The transport finds the same, and tells the protocol.
            if written == len(data):
                return
            data = data[written:]
        self.write(data)

    async def drain(self) -> None:
        """Wait until the upstream takes more. Raises :class:`UpstreamBroken`."""
        if self.failure is not None:
            raise self.failure
        if self._writing_paused:
            self._writer = self.loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    def head(self) -> asyncio.Future[ResponseHead]:
        """:attr:`answer`, once it is there, or :class:`UpstreamBroken`.

        A caller that is cancelled has to close the connection: whether its answer still comes is unknown.
        """
        assert self._head is None
        head = self._head = self.loop.create_future()
        if self.answer is not None or self.failure is not None:
            self._hand_out(head)
        return head

    def _hand_out(self, head: asyncio.Future[ResponseHead]) -> None:
        if self.answer is not None:
            head.set_result(self.answer)
        elif self.failure is not None:
            head.set_exception(self.failure)
            head.exception()  # Seen: an exchange that ended otherwise never asks for it.

    def _answered(self) -> None:
        """The answer's head is there, or there will be none."""
        if self.answer is None and self.failure is None:
            return
        if self._head is not None and not self._head.done():
            self._hand_out(self._head)
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def whole_body(self) -> bytes | None:
        """The answer's body, handed out at once where all of it is here."""
        if not self._complete:
            return None
        content = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        self._read_on()
        return content

    def time_out(self) -> None:
        """The exchange under way has taken too long: it ends here."""
        self._fail("the upstream did not answer in time", UpstreamLate)

    def give_up(self) -> None:
        """Nobody waits any longer for the exchange under way: it ends here."""
        self._fail("the gateway ended before the upstream had answered")

    async def next_chunk(self) -> bytes:
        """The next bytes of the answer's body, ``b""`` at its end. Raises :class:`UpstreamBroken`."""
        while not self._chunks:
            if self._complete:
                return b""
            if self.failure is not None:
                raise self.failure
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        chunk = self._chunks.popleft()
        self._buffered -= len(chunk)
        self._read_on()
        return chunk

    def _read_on(self) -> None:
        """Read from the upstream again, where little enough is left to be handed out."""
        if self._reading_paused and self._buffered < _LOW_WATER and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    @property
    def reusable(self) -> bool:
        clean = self._complete and self._keep_alive and not self._chunks
        return clean and not self._lost and not self._spoiled and self.failure is None

    def usable_when_idle(self) -> bool:
        """Whether a connection out of the pool can take a first byte: nothing has come, not even its end."""
        transport = self._transport
        if self._lost or transport is None or transport.is_closing():
            return False
        if self._poll is None:
            if self._fd < 0:
                return False
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN | select.POLLHUP | select.POLLERR)
        return not self._poll.poll(0)

    def refuse_reuse(self) -> None:
        """The request was not sent to its end: no other may follow on this connection."""
        self._spoiled = True

    def close(self) -> None:
        """End the connection at once, whatever was under way: that has not come to its end by this."""
        self._until_eof = False
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no assert: uvloop's transports are no asyncio.Transport by class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        socket = transport.get_extra_info("socket")
        self._fd = -1 if socket is None else socket.fileno()
        self._plain = self._fd >= 0 and transport.get_extra_info("sslcontext") is None

    def data_received(self, data: bytes) -> None:
        unasked = self._complete or not self._asked or (self._head is not None and self._head.cancelled())
        if unasked or self.failure is not None:
            self.close()  # Bytes that nobody asked for: the two ends disagree on where an answer ended. Or too late.
            return
        if self._parser is None:
            whole = whole_answer(data) if self._method != "HEAD" and len(data) <= _HEAD_LIMIT else None
            if whole is not None:
                self._take_whole(*whole)
                return
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the upstream's answer is malformed: {error}")
            return
        # Only while the head is incomplete is all of it the head: one read may hold a whole head and much of a body.
        if self.answer is None:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_LIMIT:
                self._fail("the upstream's header fields are too large")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if isinstance(exc, ConnectionError) and not self._complete:
            self._read_last_words()
        if self._until_eof and exc is None and self.failure is None:
            self._finish()
        elif not self._complete:
            # Of TLS 1.3: a server that wants another certificate of ours says so after the handshake, and the request.
            why = tls_advice(exc, KEYS)
            self._fail(why or "the upstream closed the connection before its answer was complete")
        self._wake()

    def _read_last_words(self) -> None:
        """An upstream that answers early and closes makes the next write fail: its answer may still be unread."""
        transport = self._transport
        if transport is None or transport.get_extra_info("sslcontext") is not None:
            return
        socket = transport.get_extra_info("socket")
        if socket is None:
            return
        try:
            while socket.fileno() >= 0 and not self._complete and not self._reading_paused:
                data = os.read(socket.fileno(), 65536)
                if not data:
                    return
                self.data_received(data)
        except OSError:
            return

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _take_whole(self, head: ResponseHead, body: bytes) -> None:
        if body:
            self._chunks.append(body)
            self._buffered = len(body)
        self._keep_alive = self._complete = True
        self.answer = head
        self._wake()
        self._answered()  # Last: what is told of it may begin the next exchange here.

    # -- parser callbacks -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = []
        self._interim = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.answer is not None:
            return  # A trailer field: dropped, and never taken for a header.
        self._headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._complete or self.answer is not None:
            raise UpstreamBroken("a second answer")
        status = self._parser.get_status_code()
        if status < 100:
            raise UpstreamBroken("the upstream's status is none")  # RFC 9110, section 15
        if status < 200:
            if status == 101:
                raise UpstreamBroken("the upstream switched protocols without being asked")
            self._interim = True
            return
        if sum(len(name) + len(value) + 4 for name, value in self._headers) > _HEAD_LIMIT:
            raise UpstreamBroken("the upstream's header fields are too large")
        codings = [value.lower() for name, value in self._headers if name.lower() == b"transfer-encoding"]
        if codings and codings != [b"chunked"]:
            raise UpstreamBroken("the upstream used a transfer coding other than chunked")
        has_length = any(name.lower() == b"content-length" for name, _ in self._headers)
        self._keep_alive = self._parser.should_keep_alive()
        self._read_keep_alive()
        self.answer = ResponseHead(status, self._headers)
        self.loop.call_soon(self._answered)  # Not from within the parser.
        if self._method == "HEAD" or status in _NO_BODY:
            self._finish()
        else:
            self._until_eof = not codings and not has_length

    def on_body(self, body: bytes) -> None:
        if self._complete:
            raise UpstreamBroken("a body where none belongs")
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > _HIGH_WATER and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if not self._interim and not self._complete:
            self._finish()

    # -- state ----------------------------------------------------------------------------------

    def _read_keep_alive(self) -> None:
        for name, value in self._headers:
            if name.lower() == b"keep-alive":
                for part in value.split(b","):
                    key, _, number = part.strip().partition(b"=")
                    if key.strip().lower() == b"timeout" and number.strip().isdigit() and len(number) < 10:
                        self.idle_limit = float(number)

    def _finish(self) -> None:
        self._complete = True
        self._wake()

    def _fail(self, reason: str, kind: type[UpstreamBroken] = UpstreamBroken) -> None:
        if not self._complete and self.failure is None:
            self.failure = kind(reason)
            if self.answer is None:
                self.loop.call_soon(self._answered)
        self._keep_alive = False
        if self._transport is not None:
            cut_off(self._transport)  # What has not reached the upstream yet never will.
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if (self._lost or self.failure) and self._writer is not None and not self._writer.done():
            self._writer.set_exception(self.failure or UpstreamBroken("the upstream closed the connection"))
