"""A request and a reply as plain values, and what the request's header lines say.

Every HTTP edge builds a :class:`Request` and sends a :class:`Reply`; no station behind the edge
sees an object of the HTTP library. Header names and values are bytes, as sent, in order, without
the optional white space around the value (RFC 9110, section 5.5).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from fencegate.errors import FencegateError, Refusal, problem
from fencegate.gateway.header_lines import Fields, Headers
from fencegate.tokens import MalformedKey, MalformedToken, parse_idempotency_key, parse_token

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that need no token unless a route names them."""

_METHOD = re.compile(r"[A-Z][A-Z0-9!#$%&'*+.^_`|~-]{0,31}", re.ASCII)
_MOST_DIGITS: Final = 19
_AGENT_LENGTH: Final = 200
_BUDGET = re.compile(rb"0|[1-9][0-9]{0,9}")


class Refused(FencegateError):
    """The request ends here with this refusal. ``close`` ends the connection too."""

    def __init__(self, refusal: Refusal, *, close: bool = False) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal
        self.close = close


def refused(code: str, detail: str, *, close: bool = False, retry_after_ms: int | None = None) -> Refused:
    """The exception for a refusal that needs no facts but its code and a sentence."""
    return Refused(Refusal(problem(code), detail, retry_after_ms=retry_after_ms), close=close)


class BodyStream(ABC):
    """The body of a request, read once, in constant memory, under back-pressure.

    Reading raises :class:`Refused`: ``request_timeout`` for a sender that is too slow,
    ``request_malformed`` for a body that breaks off or is badly framed.
    """

    received: int = 0
    """Bytes handed out so far."""
    finished: bool = False
    """The whole body has been handed out."""

    @property
    def here(self) -> bool:
        """Whether :meth:`at_once` has it."""
        return False

    def at_once(self) -> bytes | None:
        """All of the body, where it is in memory and nothing of it was handed out; then it is handed out now."""
        return None

    @abstractmethod
    async def next_chunk(self) -> bytes:
        """The next bytes, or ``b""`` at the end and ever after."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.next_chunk():
            yield chunk

    async def read(self, limit: int) -> bytes:
        """The rest of the body. Raises ``body_too_large`` once more than ``limit`` bytes have come."""
        parts: list[bytes] = []
        total = 0
        while chunk := await self.next_chunk():
            total += len(chunk)
            if total > limit:
                raise too_large(limit)
            parts.append(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class BufferedBody(BodyStream):
    """A body that is already in memory."""

    def __init__(self, content: bytes = b"") -> None:
        self._content = content

    @property
    def here(self) -> bool:
        return not self.finished

    def at_once(self) -> bytes | None:
        if self.finished:
            return None
        content, self._content = self._content, b""
        self.received, self.finished = len(content), True
        return content

    async def next_chunk(self) -> bytes:
        chunk, self._content = self._content, b""
        self.received += len(chunk)
        self.finished = True
        return chunk


def too_large(limit: int) -> Refused:
    """The refusal of a body over ``limit`` bytes; what is left of it is not read."""
    return refused("body_too_large", f"This route takes bodies of at most {limit} bytes.", close=True)


async def no_continue() -> None:
    """The ``send_continue`` of a request that does not wait for one."""


class Departure:
    """The going away of a client, one a connection: whether it has ``happened``, and whom to ``tell`` of it."""

    __slots__ = ("happened", "tell")

    def __init__(self) -> None:
        self.happened = False
        self.tell: Callable[[], None] | None = None

    def has_happened(self) -> bool:
        return self.happened

    def happens(self) -> None:
        """The client has closed the connection, or its sending side: nobody may be there to be answered."""
        self.happened = True
        if self.tell is not None:
            self.tell()


@dataclass(slots=True)
class Request:
    """One request. ``path`` and ``query`` are raw, still percent-encoded; ``query`` has no ``?``.

    ``content_length`` is ``None`` for a chunked body and 0 for none. ``received_at`` is on the steady
    clock, in seconds. ``headers`` may be without the line of the ``key``. ``peer`` is the other end's address, for logs
    and ``X-Forwarded-For``. ``departure`` tells a request that waits that its client has gone.
    """

    method: str
    path: str
    query: str
    headers: Headers
    body: BodyStream
    content_length: int | None
    peer: str
    received_at: float
    scheme: str = "http"
    expects_continue: bool = False
    send_continue: Callable[[], Awaitable[None]] = no_continue
    departure: Departure = field(default_factory=Departure)
    fields: Fields | None = None
    """What the header lines say, where the edge has looked already."""
    certificate: str = ""
    """The name in the client's verified certificate (:func:`fencegate.gateway.caller.name_in`), ``""`` for none."""
    waited: float = 0.0
    """Seconds before ``received_at`` for which it waited behind another request of its connection."""
    key: bytes | None = None
    """The value of its one ``Idempotency-Key`` line, where the edge has taken that out of ``fields``."""

    @property
    def target(self) -> str:
        """Path and query as the client sent them."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def agent(self) -> str:
        """The client's ``User-Agent``, for logs: its beginning."""
        value = self.fields.agent[:_AGENT_LENGTH] if self.fields is not None else b""
        return value.decode("latin-1") if value else ""

    @property
    def forwarded(self) -> str:
        """Whom a proxy in front says that it speaks for (``X-Forwarded-For``), for logs: the last of them."""
        value = self.fields.forwarded[-_AGENT_LENGTH:] if self.fields is not None else b""
        return value.decode("latin-1") if value else ""

    def header(self, name: bytes) -> str:
        """The first line of this (lower-case) name for logs and hints, or ``""``; never for a decision."""
        for key, value in self.headers:
            if key.lower() == name:
                return value.decode("latin-1")
        return ""


Chunks = AsyncIterator[bytes]


@dataclass(slots=True)
class Reply:
    """One reply. A streamed ``body`` ends the connection where it breaks off.

    ``close`` ends the connection after the reply. A ``body`` of ``bytes`` is sent with its length;
    for a stream the edge uses the ``Content-Length`` among ``headers``, else chunked framing.
    ``block`` are further header lines, ready as bytes (:func:`fencegate.gateway.header_lines.header_block`);
    ``Content-Length`` is not among them, and ``Date`` only where it is ``dated``.
    """

    status: int
    headers: Headers
    body: bytes | Chunks = b""
    close: bool = False
    block: bytes = b""
    dated: bool = False


def check_method(method: str) -> None:
    """Refuses a method that is no upper-case token (``request_malformed``), and the connection ends."""
    if not _METHOD.fullmatch(method):
        raise _malformed("The method is not an upper-case HTTP token.")


def check_framing(fields: Fields, http_1_0: bool) -> int | None:
    """The body's length, ``None`` if chunked. A second look, after the edge's parser, at what smugglers use.

    Raises ``request_malformed``, and the connection has to end, for a repeated or malformed length, a
    length beside a transfer coding, any coding but plain ``chunked``, and a ``Host`` that is missing or repeated.
    """
    if fields.known_length is not None and not http_1_0:
        return fields.known_length
    lengths, codings = fields.lengths, fields.codings
    if fields.framing_twin or fields.hosts > 1 or len(lengths) > 1 or len(codings) > 1:
        raise _malformed("Host, Content-Length and Transfer-Encoding must come once, under their own names.")
    if not http_1_0 and not fields.hosts:
        raise _malformed("A request in HTTP/1.1 needs one Host header.")
    if codings:
        if lengths:
            raise _malformed("A request has a Content-Length or a Transfer-Encoding, not both.")
        if http_1_0 or codings[0].lower() != b"chunked":
            raise _malformed("The only transfer coding taken is plain chunked, in HTTP/1.1.")
        return None
    text = lengths[0] if lengths else b"0"
    if not text.isdigit() or len(text) > _MOST_DIGITS:
        raise _malformed("Content-Length must be a plain decimal number.")
    length = int(text)
    if not http_1_0:
        fields.known_length = length
    return length


def _malformed(detail: str) -> Refused:
    return refused("request_malformed", detail, close=True)


PROTECTED: Final = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"idempotency-key", b"early-data", b"expect", b"authorization"}
)
"""Besides ``X-Fencing-*``: names that ``Connection`` may not declare hop-by-hop."""


def check_connection(fields: Fields) -> None:
    """Refuses a ``Connection`` header that would take away a header after it was checked (``request_malformed``)."""
    for name in fields.nominated:
        if name in PROTECTED or name.startswith(b"x-fencing-"):
            raise _malformed("The Connection header may not name a header that the fence depends on.")


def presented_token(fields: Fields) -> int:
    """The one token presented. Raises ``token_required`` or ``token_malformed``; the value is never echoed."""
    if fields.known_token:
        return fields.known_token
    if not fields.token:
        refusal = Refusal(
            problem("token_required"),
            "A privileged write needs the X-Fencing-Token header: the token of the current term.",
            extra={"required_header": "X-Fencing-Token"},
        )
        raise Refused(refusal)
    if fields.token_twin:
        raise refused("token_malformed", "A header may not be spelled so that it folds into X-Fencing-Token.")
    if len(fields.token) > 1:
        raise refused("token_malformed", "X-Fencing-Token must come on exactly one line, even if the lines are equal.")
    try:
        fields.known_token = parse_token(fields.token[0].decode("latin-1"))
    except MalformedToken as error:
        raise refused("token_malformed", f"X-Fencing-Token is malformed: {error}.") from None
    return fields.known_token


def idempotency_key(fields: Fields, taken: bytes | None = None, *, required: bool) -> str:
    """The key, ``""`` without one. ``taken``: the value of its line, where that is not among ``fields``.

    Raises ``idempotency_key_required`` or ``idempotency_key_malformed``.
    """
    if taken is not None:
        return _key(taken)
    if not fields.key:
        if required:
            raise refused("idempotency_key_required", "This route needs an Idempotency-Key header on every write.")
        return ""
    if fields.key_twin:
        raise refused("idempotency_key_malformed", "A header may not be spelled so that it folds into Idempotency-Key.")
    if len(fields.key) > 1:
        raise refused("idempotency_key_malformed", "Idempotency-Key must come on exactly one line.")
    return _key(fields.key[0])


def _key(value: bytes) -> str:
    try:
        return parse_idempotency_key(value.decode("latin-1"))
    except MalformedKey as error:
        raise refused("idempotency_key_malformed", f"Idempotency-Key is malformed: {error}.") from None


def budget(fields: Fields) -> float | None:
    """The caller's remaining time in seconds, or ``None``. Raises ``request_malformed``."""
    if not fields.budget:
        return None
    if len(fields.budget) > 1 or not _BUDGET.fullmatch(fields.budget[0]):
        raise refused("request_malformed", "X-Fencing-Timeout-Ms must be one whole number of milliseconds.")
    return int(fields.budget[0]) / 1000
