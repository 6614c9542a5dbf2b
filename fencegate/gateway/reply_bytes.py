"""A reply's head as bytes. Pure, so that every HTTP edge frames replies in one way."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fencegate.gateway.header_lines import Headers, header_block
from fencegate.gateway.request import Reply

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_NO_BODY: Final = frozenset({204, 304})


def _status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def has_body(method: str, status: int) -> bool:
    """Whether body bytes follow the head of a reply to ``method``."""
    return method != "HEAD" and status not in _NO_BODY


def declared_length(reply: Reply) -> bytes | None:
    """The ``Content-Length`` among the reply's own headers."""
    for name, value in reply.headers:
        if name.lower() == b"content-length":
            return value
    return None


def ready_block(headers: Headers) -> tuple[bytes, bool]:
    """As :func:`header_block`, without ``Content-Length``; and whether ``Date`` is among them."""
    kept = [field for field in headers if field[0].lower() != b"content-length"]
    return header_block(kept), any(name.lower() == b"date" for name, _ in kept)


def length_of(method: str, reply: Reply, body: bytes) -> bytes | None:
    """The length to declare for a whole body; replies to HEAD, and 304, may declare one that isn't there."""
    if reply.status == 204:
        return None
    if not body and not has_body(method, reply.status):
        return declared_length(reply)
    return b"%d" % len(body)


def whole_reply(method: str, reply: Reply, body: bytes, date: bytes, *, keep_alive: bool, http_1_0: bool) -> bytes:
    """Head and body of a reply to ``method`` whose body is here; ``date`` as for :func:`head_bytes`."""
    status_line = _STATUS_LINES.get(reply.status)
    plain = keep_alive and not http_1_0 and not reply.headers and method != "HEAD"
    if plain and status_line is not None and reply.status not in _NO_BODY:
        if reply.dated:
            return b"%b%bContent-Length: %d\r\n\r\n%b" % (status_line, reply.block, len(body), body)
        return b"%b%bContent-Length: %d\r\nDate: %b\r\n\r\n%b" % (status_line, reply.block, len(body), date, body)
    length = length_of(method, reply, body)
    head = head_bytes(reply, length, date, keep_alive=keep_alive, http_1_0=http_1_0)
    return head + body if has_body(method, reply.status) else head


def head_bytes(
    reply: Reply, length: bytes | None, date: bytes, *, keep_alive: bool, chunked: bool = False, http_1_0: bool = False
) -> bytes:
    """Status line and header lines. ``date`` is used where the reply has no ``Date`` of its own."""
    lines = [_status_line(reply.status)]
    dated = reply.dated
    for field in reply.headers:
        name = field[0]
        # The length first: most names are told apart by it alone.
        if len(name) == 14 and name.lower() == b"content-length":
            continue
        if len(name) == 4 and name.lower() == b"date":
            dated = True
        lines.append(b"%b: %b\r\n" % field)
    lines.append(reply.block)
    if length is not None:
        lines.append(b"Content-Length: %b\r\n" % length)
    if chunked:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if not dated:
        lines.append(b"Date: %b\r\n" % date)
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif http_1_0:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
