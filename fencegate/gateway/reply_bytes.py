"""A reply's head as bytes. Pure, so that every HTTP edge frames replies in one way."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fencegate.gateway.request import Reply

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_NO_BODY: Final = frozenset({204, 304})


def has_body(method: str, status: int) -> bool:
    """Whether body bytes follow the head of a reply to ``method``."""
    return method != "HEAD" and status not in _NO_BODY


def declared_length(reply: Reply) -> bytes | None:
    """The ``Content-Length`` among the reply's own headers."""
    for name, value in reply.headers:
        if name.lower() == b"content-length":
            return value
    return None


def length_of(method: str, reply: Reply, body: bytes) -> bytes | None:
    """The length to declare for a whole body; replies to HEAD, and 304, may declare one that isn't there."""
    if reply.status == 204:
        return None
    if not body and not has_body(method, reply.status):
        return declared_length(reply)
    return b"%d" % len(body)


def head_bytes(
    reply: Reply, *, length: bytes | None, chunked: bool, keep_alive: bool, http_1_0: bool, date: bytes
) -> bytes:
    """Status line and header lines. ``date`` is used where the reply has no ``Date`` of its own."""
    lines = [b"HTTP/1.1 %d %b" % (reply.status, _REASONS.get(reply.status, b"Unknown"))]
    dated = False
    for name, value in reply.headers:
        # The length first: most names are told apart by it alone.
        if len(name) == 14 and name.lower() == b"content-length":
            continue
        if len(name) == 4 and name.lower() == b"date":
            dated = True
        lines.append(b"%b: %b" % (name, value))
    if length is not None:
        lines.append(b"Content-Length: " + length)
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    if not dated:
        lines.append(b"Date: " + date)
    if not keep_alive:
        lines.append(b"Connection: close")
    elif http_1_0:
        lines.append(b"Connection: keep-alive")
    return b"\r\n".join(lines) + b"\r\n\r\n"
