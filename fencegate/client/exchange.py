"""One try over HTTP: a request leaves at most once, and what came of it is told apart exactly.

aiohttp sends a GET, PUT or DELETE a second time by itself when a kept-alive connection drops, which
its public interface cannot switch off. Each try therefore runs under a middleware (public interface)
that lets aiohttp through to the network once, and answers the second attempt with the first one's error.
"""

from __future__ import annotations

import asyncio
import math
import ssl as tls
from dataclasses import dataclass
from typing import Final

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from fencegate.client.answers import Answer, Lost, read_answer
from fencegate.tokens import OUTCOME_ACCEPTED

CONNECT_SHARE: Final = 0.9
"""A connection that is not there after this share of a try's time is given up while surely nothing was sent."""
DOCUMENT_LIMIT: Final = 64 * 1024
"""Bytes of a document that is read as JSON, a refusal's or discovery's: what reads it holds up the event loop."""
REFUSAL_PATIENCE: Final = 1.0
"""Seconds for the body of a refusal: its headers alone are enough to act on."""

_NOT_SENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole answer as it came."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class _Once:
    """The middleware of one try: the second attempt that aiohttp makes by itself never reaches the network."""

    def __init__(self) -> None:
        self._first: Exception | None = None
        self._used = False

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if self._used:
            raise self._first or aiohttp.ClientConnectionError("a try is sent once")
        self._used = True
        try:
            return await handler(request)
        except Exception as error:
            self._first = error
            raise


async def send_once(
    session: aiohttp.ClientSession,
    method: str,
    url: URL,
    *,
    headers: CIMultiDict[str],
    body: bytes | None,
    limit: float,
    answer_limit: int,
    ssl: tls.SSLContext | bool,
) -> tuple[Answer | Lost, Reply | None]:
    """One try in at most ``limit`` seconds. The :class:`Reply` comes with every whole answer.

    Redirects are never followed. Raises only what the caller did wrong (``ValueError`` for a bad header).
    """
    if session.closed:
        return Lost(sent=False, detail="the aiohttp session is closed"), None
    head: tuple[int, CIMultiDictProxy[str]] | None = None
    try:
        async with (
            asyncio.timeout(limit),
            session.request(
                method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                raise_for_status=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=limit * CONNECT_SHARE, ceil_threshold=math.inf),
                middlewares=(_Once(),),
                ssl=ssl,
            ) as response,
        ):
            head = response.status, response.headers
            received = await _body(response, answer_limit)
    except _NOT_SENT as error:
        return Lost(sent=False, detail=str(error)), None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        if head is None:
            timed_out = isinstance(error, TimeoutError)
            return Lost(sent=True, detail=_say(error, limit), timed_out=timed_out), None
        return read_answer(head[0], head[1].items(), complete=False), None
    if received is None:
        return read_answer(head[0], head[1].items(), complete=False), None
    answer = read_answer(head[0], head[1].items(), received)
    return answer, Reply(head[0], head[1], received)


async def _body(response: aiohttp.ClientResponse, answer_limit: int) -> bytes | None:
    """The body, or ``None`` where it is longer than it may be. A refusal's gets little time and little room."""
    verdict = read_answer(response.status, response.headers.items())
    if verdict.outcome in (None, OUTCOME_ACCEPTED):
        return await _at_most(response, answer_limit)
    async with asyncio.timeout(REFUSAL_PATIENCE):
        return await _at_most(response, DOCUMENT_LIMIT)


async def _at_most(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > limit:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _say(error: Exception, limit: float) -> str:
    return f"no answer within {limit:.3g} s" if isinstance(error, TimeoutError) else f"{error!s:.200}"
