"""Bytes of HTTP/1.1 into the parts of a request. Pure, and strict: what two readers could frame differently is refused.

Each line is matched as a whole against the grammar of RFC 9112 before it is taken apart: there is no lenient
reading to be switched off. A property test holds the parser against llhttp: what is taken here is read the same there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fencegate.errors import FencegateError
from fencegate.gateway.header_lines import (
    NAME,
    PERSONAL,
    TEXT,
    Fields,
    Headers,
    Line,
    fields_of,
    read_line,
    remembered_lines,
)
from fencegate.gateway.request import refused

_REQUEST_LINE = re.compile(rb"([A-Z][A-Z0-9!#$%&'*+.^_`|~-]{0,31}) ([!-~\x80-\xff]++) HTTP/1\.([01])")
_ORIGIN = re.compile(r"https?://[^/?#]++", re.ASCII | re.IGNORECASE)
_TRAILER = re.compile(NAME + rb"++:" + TEXT + rb"*+\r\n")
_VALUE = re.compile(TEXT + rb"*+")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;" + TEXT + rb"*+)?\r\n")

LONGEST_CHUNK_LINE: Final = 256
LARGEST_TRAILER: Final = 8192

_LONGEST_REMEMBERED: Final = 256
_LONGEST_BLOCK: Final = 1024
_MOST_LINES: Final = 16_384
_remembered: dict[bytes, RequestLine] = {}
"""Request lines that came before: as many paths recur as there are roles. Each takes half a KiB."""
_MOST_BLOCKS: Final = 256
_blocks: dict[bytes, tuple[Headers, Fields]] = {}
"""Header lines that came before together, without keys and credentials: most clients send the same ones again and
again, but for the idempotency key. Each block begins with the end of the request line, and ends with the empty line."""
_LONGEST_HEAD: Final = 512
_heads: dict[bytes, Head] = {}
"""The same with their request lines, as many as of these."""
_KEY_LINE: Final = b"\r\nIdempotency-Key: "
"""Where the key begins as nearly everybody spells it; other spellings only take longer."""


class Malformed(FencegateError):
    """The bytes are no well-formed HTTP/1.1; where the next message would begin is unknown."""


@dataclass(frozen=True, slots=True)
class RequestLine:
    """The first line of a request. ``target`` is raw; ``path`` and ``query`` are its parts."""

    method: str
    target: bytes
    http_1_0: bool
    path: str
    query: str


@dataclass(slots=True)
class Head:
    """A request's head, but for the line of a key that was taken out. Those that are the same share it.

    ``headers`` as sent, without the white space around the values. ``keep_alive``: whether the client will send another
    request on this connection.
    """

    line: RequestLine
    headers: Headers
    fields: Fields
    keep_alive: bool
    expects_continue: bool


def target_parts(raw: str) -> tuple[str, str]:
    """Path and query of a request target in origin or absolute form. Raises ``request_malformed`` for others."""
    target = raw
    if not target.startswith("/"):
        origin = _ORIGIN.match(target)
        if origin is None:
            raise refused("request_malformed", "The request target must be a path.", close=True)
        target = target[origin.end() :]
        if not target.startswith("/"):
            target = f"/{target}"  # RFC 9110, section 4.2.3: an empty path is the path "/".
    path, _, query = target.partition("?")
    return path, query


def read_head(raw: bytes) -> tuple[Head, bytes | None]:
    """The head that ``raw`` is, its empty line included, and the value of the one line of a key, if that stands alone.

    The line of the key is taken out, since the rest is the same in one request after another. Raises
    :class:`Malformed`, or as :func:`target_parts`.
    """
    begin = raw.find(_KEY_LINE)
    if begin < 0:
        return _heads.get(raw) or _read_head(raw), None
    end = raw.find(b"\r\n", begin + 2)
    if end < 0:
        raise Malformed("the head does not end with an empty line")
    rest = raw[:begin] + raw[end:]
    head = _heads.get(rest) or _read_head(rest)
    if head.fields.key:
        return _read_head(raw), None  # Two keys: refused, and by what the lines say in their order.
    value = raw[begin + len(_KEY_LINE) : end]
    if not _VALUE.fullmatch(value):
        raise Malformed("a header line is malformed")
    return head, value.strip(b" \t")


def _read_head(raw: bytes) -> Head:
    first = raw.find(b"\r\n")
    if first < 0:
        raise Malformed("the head does not end with an empty line")
    text, block = raw[:first], raw[first:]
    known = _remembered.get(text)
    line = known or _read_request_line(text)
    headers, fields = _blocks.get(block) or _read_block(block)
    options = fields.options
    keep_alive = b"close" not in options and (not line.http_1_0 or b"keep-alive" in options)
    head = Head(line, headers, fields, keep_alive, fields.expect == b"100-continue" and not line.http_1_0)
    # Not at once: of lines that are all others none would last.
    if known is not None and block in _blocks and len(raw) <= _LONGEST_HEAD:
        if len(_heads) >= _MOST_LINES:
            _heads.clear()
        _heads[raw] = head
    return head


def _read_block(raw: bytes) -> tuple[Headers, Fields]:
    lines = raw.split(b"\r\n")
    if len(lines) < 3 or lines.pop() or lines.pop():
        raise Malformed("the head does not end with an empty line")
    del lines[0]
    headers: Headers = []
    marked: list[Line] = []
    known = remembered_lines
    for text in lines:
        found = known.get(text) or read_line(text)
        if found is None:
            raise Malformed("a header line is malformed")
        headers.append(found[0])
        if found[1]:
            marked.append(found)
    block = headers, fields_of(marked, len(raw) - 4)
    if len(raw) <= _LONGEST_BLOCK and PERSONAL.isdisjoint(mark for _, mark in marked):
        if len(_blocks) >= _MOST_BLOCKS:
            _blocks.clear()
        _blocks[raw] = block
    return block


def _read_request_line(raw: bytes) -> RequestLine:
    found = _REQUEST_LINE.fullmatch(raw)
    if found is None:
        raise Malformed("the request line is malformed")
    method, target, minor = found.groups()
    path, query = target_parts(target.decode("utf-8", "surrogateescape"))
    line = RequestLine(method.decode("ascii"), target, minor == b"0", path, query)
    if len(raw) <= _LONGEST_REMEMBERED:
        if len(_remembered) >= _MOST_LINES:
            _remembered.clear()
        _remembered[raw] = line
    return line


class Sized:
    """The framing of a body whose length is declared."""

    __slots__ = ("_left",)

    def __init__(self, length: int) -> None:
        self._left = length

    def feed(self, data: bytes) -> tuple[list[bytes], bytes | None]:
        """Body bytes in ``data``, and what follows the body; ``None`` while the body goes on."""
        if len(data) < self._left:
            self._left -= len(data)
            return [data], None
        left, self._left = self._left, 0
        return [data[:left]], data[left:]


class Chunked:
    """The framing of a chunked body. Extensions are read over; trailer fields are checked and dropped."""

    __slots__ = ("_after_chunk", "_in_trailer", "_left", "_pending", "_trailer_bytes")

    def __init__(self) -> None:
        self._pending = b""
        self._left = 0
        self._after_chunk = self._in_trailer = False
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> tuple[list[bytes], bytes | None]:
        """As :meth:`Sized.feed`. Raises :class:`Malformed`."""
        if self._pending:
            data, self._pending = self._pending + data, b""
        parts: list[bytes] = []
        at = 0
        while True:
            if self._left:
                part = data[at : at + self._left]
                if part:
                    parts.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    return parts, None
            if self._after_chunk:
                ending = data[at : at + 2]
                if ending != b"\r\n"[: len(ending)]:
                    raise Malformed("a chunk is longer than its size")
                if len(ending) < 2:
                    break
                at += 2
                self._after_chunk = False
            stop = data.find(b"\n", at) + 1
            if not stop:
                if len(data) - at > (LARGEST_TRAILER if self._in_trailer else LONGEST_CHUNK_LINE):
                    raise Malformed("a chunk's line is too long")
                break
            line, at = data[at:stop], stop
            if self._in_trailer:
                if line == b"\r\n":
                    return parts, data[at:]
                self._read_trailer(line)
            else:
                self._read_size(line)
        self._pending = data[at:]
        return parts, None

    def _read_size(self, line: bytes) -> None:
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None or len(line) > LONGEST_CHUNK_LINE:
            raise Malformed("a chunk's size is malformed")
        self._left = int(size[1], 16)
        self._after_chunk = self._left > 0
        self._in_trailer = self._left == 0

    def _read_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if self._trailer_bytes > LARGEST_TRAILER or _TRAILER.fullmatch(line) is None:
            raise Malformed("the trailer is malformed or too large")
