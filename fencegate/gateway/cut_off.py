"""How a connection is ended whose other end takes nothing any more: by a reset, which leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final

LAST_BYTES: Final = 30.0
"""Seconds that a connection which is closed has to take what is unsent: less than a transport calls full."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)


def cut_off(transport: asyncio.Transport) -> None:
    """End the connection at once, and drop what is unsent in the system too.

    A plain close leaves that to the system, which goes on offering it to a peer that hardly reads: some MB for each
    connection, for hours, though no process holds it any more.
    """
    found = transport.get_extra_info("socket")
    if found is not None and found.fileno() >= 0:
        # By a duplicate: the loops' own socket objects do not all take options.
        with suppress(OSError), socket.fromfd(found.fileno(), found.family, socket.SOCK_STREAM) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def close_in_time(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> asyncio.TimerHandle | None:
    """End the connection once all is sent. The timer that cuts it off, where that has to wait for the other end.

    By itself a transport would wait for ever, for a peer that reads nothing.
    """
    timer = loop.call_later(LAST_BYTES, cut_off, transport) if transport.get_write_buffer_size() else None
    transport.close()
    return timer
