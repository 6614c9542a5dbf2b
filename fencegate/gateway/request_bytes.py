"""Bytes of HTTP/1.1 into the parts of a request. Pure, and strict: what two readers could frame differently is refused.

The head is matched as a whole against the grammar of RFC 9112, in one pass of a regular expression, and only
then taken apart: there is no lenient reading to be switched off. A property test holds it against llhttp: what is
taken here is read the same there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fencegate.errors import FencegateError
from fencegate.gateway.request import Headers

_NAME: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_TEXT: Final = rb"[\t -~\x80-\xff]"
_LINE = re.compile(rb"([A-Z][A-Z0-9!#$%&'*+.^_`|~-]{0,31}) ([!-~\x80-\xff]++) HTTP/1\.([01])\r\n")
# Possessive: what does not match is known in one pass, however it is spelled.
_FIELDS = re.compile(rb"(?:" + _NAME + rb"++:" + _TEXT + rb"*+\r\n)*+\r\n")
_FIELD = re.compile(rb"([^:]++):[ \t]*+([^\r]*+)\r\n")
_TRAILER = re.compile(_NAME + rb"++:" + _TEXT + rb"*+\r\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;" + _TEXT + rb"*+)?\r\n")

LONGEST_CHUNK_LINE: Final = 256
LARGEST_TRAILER: Final = 8192


class Malformed(FencegateError):
    """The bytes are no well-formed HTTP/1.1; where the next message would begin is unknown."""


@dataclass(slots=True)
class Head:
    """A request's head. ``target`` is raw; ``headers`` as sent, without the white space around the values."""

    method: bytes
    target: bytes
    http_1_0: bool
    headers: Headers
    keep_alive: bool
    expects_continue: bool


def read_head(raw: bytes) -> Head:
    """The head that ``raw`` is, to the empty line and with it. Raises :class:`Malformed`."""
    line = _LINE.match(raw)
    if line is None:
        raise Malformed("the request line is malformed")
    start = line.end()
    if _FIELDS.fullmatch(raw, start) is None:
        raise Malformed("a header line is malformed")
    headers: Headers = _FIELD.findall(raw, start)
    if raw.find(b" \r", start) >= 0 or raw.find(b"\t\r", start) >= 0:
        headers = [(name, value.rstrip(b" \t")) for name, value in headers]
    method, target, minor = line.groups()
    http_1_0 = minor == b"0"
    options: list[bytes] = []
    expects = False
    for name, value in headers:
        # The length first: most names are told apart by it alone.
        if len(name) == 10 and name.lower() == b"connection":
            options += [option.strip(b" \t") for option in value.lower().split(b",")]
        elif len(name) == 6 and name.lower() == b"expect":
            expects = not http_1_0 and value.lower() == b"100-continue"
    keep_alive = b"close" not in options and (not http_1_0 or b"keep-alive" in options)
    return Head(method, target, http_1_0, headers, keep_alive, expects)


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
