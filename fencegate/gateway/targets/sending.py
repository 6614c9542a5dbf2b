"""A request on its way to an upstream: its bytes, sent exactly once, and the head of the answer to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from fencegate.gateway.targets.answer_bytes import ResponseHead
from fencegate.gateway.targets.upstream import UpstreamBroken, UpstreamConnection


def request_head(method: str, target: bytes, block: bytes) -> bytes:
    """The request line and the header lines of ``block``. Raises ``ValueError`` for a target of several lines."""
    if b"\n" in target or b"\r" in target or b"\0" in target:
        raise ValueError("the target holds a line break or NUL")
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode("ascii"), target, block)


def _framed(chunk: bytes, chunked: bool) -> bytes:
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked and chunk else chunk


def _nothing() -> None:
    pass


async def send(
    connection: UpstreamConnection,
    method: str,
    head: bytes,
    first: bytes,
    rest: AsyncIterator[bytes] | None,
    *,
    chunked: bool,
    look: Callable[[], None] = _nothing,
) -> ResponseHead:
    """One exchange up to the answer's head. ``first`` travels with the head; ``rest`` is streamed after it.

    ``look`` is called with everything ready to go: where it raises, not one byte is written.

    An answer that comes while the body is still being sent ends the sending (and the connection will not be
    reused). Raises :class:`UpstreamBroken`; an exception of ``rest`` passes through; in both cases the
    first byte may have been written.
    """
    connection.begin(method)
    ending = b"0\r\n\r\n" if chunked and rest is None else b""
    message = head + _framed(first, chunked) + ending
    look()
    connection.write_first(message)
    if rest is None:
        return await connection.head()
    sender = asyncio.ensure_future(_pump(connection, rest, chunked))
    answer = asyncio.ensure_future(connection.head())
    try:
        await asyncio.wait((sender, answer), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done() and not isinstance(sender.exception(), UpstreamBroken):
            sender.result()
        found = await answer
        if not sender.done() or sender.exception() is not None:  # It may have broken off as the answer came.
            connection.refuse_reuse()
        return found
    finally:
        for task in (sender, answer):
            task.cancel()
        await asyncio.gather(sender, answer, return_exceptions=True)


async def _pump(connection: UpstreamConnection, rest: AsyncIterator[bytes], chunked: bool) -> None:
    async for chunk in rest:
        connection.write(_framed(chunk, chunked))
        await connection.drain()
    if chunked:
        connection.write(b"0\r\n\r\n")
