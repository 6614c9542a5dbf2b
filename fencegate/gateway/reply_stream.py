"""A streamed reply on its way to a client: framed, under back-pressure, broken off where its source breaks."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from fencegate.gateway.edge_parts import http_date
from fencegate.gateway.reply_bytes import declared_length, has_body, head_bytes
from fencegate.gateway.request import Reply

_log = logging.getLogger("fencegate.gateway.edge")


class Outlet(Protocol):
    """The connection that a reply leaves by."""

    def send(self, data: bytes) -> None:
        """Hand bytes to the transport. Raises ``ConnectionResetError`` once the client has gone."""
        ...

    async def drained(self) -> None:
        """Wait until the client takes more. Raises ``ConnectionResetError``."""
        ...

    def break_off(self) -> None:
        """End the connection at once."""
        ...


async def send_stream(
    outlet: Outlet, method: str, reply: Reply, chunks: Any, *, keep_alive: bool, http_1_0: bool
) -> bool:
    """Send head and body; whether the connection can be kept. Raises ``ConnectionResetError`` where it broke off."""
    length = declared_length(reply)
    bodied = has_body(method, reply.status)
    chunked = length is None and bodied and not http_1_0
    if length is None and bodied and http_1_0:
        keep_alive = False
    try:
        outlet.send(head_bytes(reply, length, http_date(), keep_alive=keep_alive, chunked=chunked, http_1_0=http_1_0))
        if bodied:
            async for chunk in chunks:
                outlet.send(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                await outlet.drained()
            if chunked:
                outlet.send(b"0\r\n\r\n")
        await outlet.drained()
    except Exception as error:
        # The head is out: breaking the connection is the only way left to say that the body is not whole.
        _log.info("an answer broke off: %s", error)
        outlet.break_off()
        raise ConnectionResetError("the answer broke off") from None
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
    return keep_alive
