"""What the HTTP edges have in common: a connection's view of them, limits that are not configured, dates."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Final, Protocol, TypeVar

from fencegate.gateway.limits import Limits
from fencegate.gateway.request import Refused, Reply, refused

MOST_FIELDS: Final = 128
LAST_WORDS: Final = 1.0
"""Seconds after the grace in which what is still under way is told that nothing is known of it."""
LINGER: Final = 1.0
"""Seconds in which the rest of a refused body is read and dropped, so that the reply is not lost to a reset."""


C = TypeVar("C", contravariant=True)


class Edge(Protocol[C]):
    """What a connection (``C``) asks of the server that it belongs to."""

    limits: Limits
    region: str

    def admit(self, connection: C) -> bool:
        """Whether one more connection fits."""
        ...

    def lost(self, connection: C) -> None: ...

    def check_idle(self) -> None:
        """A reply is out: look again at whether anything is under way."""
        ...


def continuing(send: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
    """Says ``100 Continue`` over ``send``, once however often it is called.

    Of a client that has gone the body tells, which breaks off.
    """
    sent = False

    async def send_continue() -> None:
        nonlocal sent
        if not sent:
            sent = True
            with suppress(ConnectionResetError):
                send(b"HTTP/1.1 100 Continue\r\n\r\n")

    return send_continue


_date: tuple[int, bytes] = (0, b"")


def http_date() -> bytes:
    """Now, as HTTP writes it; made once a second."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True).encode())
    return _date[1]


def fields_too_large(limits: Limits) -> Refused:
    return refused("headers_too_large", f"Request line or header fields over {limits.header_bytes} bytes.", close=True)


def not_http() -> Refused:
    return refused("request_malformed", "The request is not well-formed HTTP/1.1.", close=True)


def date_of(reply: Reply) -> bytes:
    """:func:`http_date`, for a reply that has none of its own."""
    return b"" if reply.dated else http_date()
