"""Calls to one of several equal HTTP servers: our own list of endpoints, and a deadline on every call.

* A call goes to the endpoint that answered last; a failing one is left at once and remembered.
* One attempt never eats the whole deadline: a frozen server must leave time to ask another one.
* Only requests that may safely be sent twice go through here: reads, and writes that compare first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from fencegate.access.refusals import advice
from fencegate.access.secret import secret_line
from fencegate.election.masking import masked
from fencegate.lease import ElectionUnavailable

_ROUND_PAUSE: Final = 0.1
_LEAST_ATTEMPT: Final = 0.05
LONGEST_ANSWER: Final = 4 * 1024 * 1024
"""Bytes of an answer beyond which nothing is read: it is cut off there, and no JSON."""

BROKEN_STREAM: Final = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError)
"""What reading a stream line by line may raise: the link is gone, a line has no end, or it is something else."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, whole. ``headers`` have lower-case names; ``asked_with`` are the credentials' header values."""

    status: int
    headers: Mapping[str, str]
    raw: bytes
    asked_with: tuple[str, ...] = ()

    @property
    def json(self) -> Any:
        """The body as JSON; ``None`` where it is none."""
        return json_of(self.raw)

    @property
    def text(self) -> str:
        """The first line of the body, for messages."""
        lines = self.raw[:2000].decode("utf-8", "replace").strip().splitlines()
        return self.quoted(lines[0]) if lines else ""

    def quoted(self, text: str) -> str:
        """A piece of the answer as a message may show it: printable, short, and without any credentials of ours."""
        printable = "".join(c for c in text if c.isprintable())
        # "Bearer x": the scheme is no secret, and the rest is one by itself.
        return masked(printable, [value.rpartition(" ")[2] for value in self.asked_with])[:300]


class Deadline:
    """What is left of one call's time, over all of its steps. Seconds."""

    def __init__(self, system: str, limit: float) -> None:
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + limit

    @property
    def left(self) -> float:
        """Raises :class:`~fencegate.lease.ElectionUnavailable` where nothing is left."""
        left = self._ends - self._loop.time()
        if left <= 0:
            raise ElectionUnavailable(f"{self._system}: the call's time is up", "timeout")
        return left


class Turns:
    """Which of several equal ``endpoints`` is asked next: the one that answered last, until it fails.

    Calls go on at the same time. Each tries every endpoint once a round, and however many leave one that failed, it is
    left once: their steps must not add up to a way back to it.
    """

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = tuple(endpoints)
        self._first = 0

    @property
    def first(self) -> str:
        """The endpoint that the next round begins with."""
        return self._endpoints[self._first]

    def round(self) -> Iterator[tuple[int, str]]:
        """Each endpoint, and how many have not had their turn in this round, itself among them."""
        begins = self._first
        for untried in range(len(self._endpoints), 0, -1):
            yield untried, self._endpoints[begins - untried]

    def failed(self, endpoint: str) -> None:
        """``endpoint`` is not asked first again, until those after it have failed."""
        if endpoint == self.first:
            self._first = (self._first + 1) % len(self._endpoints)


class HttpEndpoints:
    """Requests to ``endpoints``. ``credentials`` makes the headers of each attempt, so that a rotated secret is seen.

    ``judge`` raises :class:`~fencegate.lease.ElectionUnavailable` for an answer after which another endpoint, or
    the same one later, may do better. Raises ``ValueError`` where no endpoint is given or one is not an http(s) URL.
    """

    def __init__(
        self,
        system: str,
        endpoints: list[str],
        *,
        example: str,
        judge: Callable[[str, Answer], None],
        credentials: Callable[[], Mapping[str, str]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not endpoints:
            raise ValueError(f"election endpoints: name at least one, such as {example}")
        for endpoint in endpoints:
            if not endpoint.startswith(("http://", "https://")):
                raise ValueError(f"election endpoints: {endpoint!r} must begin with http:// or https://")
        self.system = system
        self.endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._judge = judge
        self._credentials = credentials
        self._tls = tls
        self._turns = Turns(self.endpoints)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The endpoint that the next call tries first."""
        return self._turns.first

    async def call(
        self,
        method: str,
        path: str,
        deadline: float,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> Answer:
        """Ask until an endpoint gives an answer that stands, for ``deadline`` seconds at most.

        Raises :class:`~fencegate.lease.ElectionUnavailable` with the last failure.
        """
        if self._closed:
            raise self._is_closed()
        last = ElectionUnavailable(f"{self.system} did not answer {path} within {deadline:.3g} s", "timeout")
        try:
            async with asyncio.timeout(max(0.0, deadline)):
                ends = asyncio.get_running_loop().time() + deadline
                while True:
                    for untried, endpoint in self._turns.round():
                        left = ends - asyncio.get_running_loop().time()
                        limit = max(left / untried, _LEAST_ATTEMPT)
                        try:
                            return await self._attempt(endpoint, method, path, query, body, limit)
                        except ElectionUnavailable as error:
                            if self._closed:
                                raise
                            last = error
                            self._turns.failed(endpoint)
                    await asyncio.sleep(_ROUND_PAUSE)
        except TimeoutError:
            raise last from None

    async def ask_once(self, path: str, query: Mapping[str, str], limit: float) -> Answer:
        """One GET of the present endpoint, of ``limit`` seconds at most: for a long poll, which no other is asked."""
        return await self._attempt(self.endpoint, "GET", path, query, None, limit)

    def stream(
        self, path: str, query: Mapping[str, str], *, silence: float | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A GET without a limit on its whole length; ``silence`` is the longest wait for bytes, in seconds."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=silence)
        url, headers = self.endpoint + path, self._credentials()
        return self._open().get(url, params=query, headers=headers, timeout=limit, allow_redirects=False)

    async def close(self) -> None:
        """For good: a call that is still under way somewhere must not open a session that nobody closes."""
        self._closed = True
        if self._session:
            await self._session.close()
            self._session = None

    async def _attempt(
        self, endpoint: str, method: str, path: str, query: Mapping[str, str] | None, body: object, limit: float
    ) -> Answer:
        try:
            async with asyncio.timeout(limit):
                answer = await self._send(method, endpoint + path, query, body)
        except TimeoutError:
            raise ElectionUnavailable(f"{endpoint} did not answer {path} within {limit:.2g} s", "timeout") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ElectionUnavailable(f"{endpoint}: {advice(error)}", "connection") from error
        self._judge(endpoint, answer)
        return answer

    async def _send(self, method: str, url: str, query: Mapping[str, str] | None, body: object) -> Answer:
        credentials = self._credentials()
        headers = {"Accept": "application/json", **credentials}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = orjson.dumps(body)
        # A redirect would carry the credentials, and a write, to a server that nobody configured.
        async with self._open().request(
            method, url, params=query, data=data, headers=headers, allow_redirects=False
        ) as response:
            raw = await at_most(response, LONGEST_ANSWER)
            found = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, found, raw, tuple(credentials.values()))

    def _is_closed(self) -> ElectionUnavailable:
        return ElectionUnavailable(f"{self.system}: the election was closed", "refused")

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise self._is_closed()
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls if self._tls is not None else True)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,  # a few kB could stand for gigabytes
                headers={"Accept-Encoding": "identity"},
            )
        return self._session


async def at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, or its first ``limit`` bytes and a little more; then the connection is given up."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size >= limit:
            response.close()
            break
    return b"".join(parts)


def json_of(raw: bytes) -> Any:
    """``None`` where it is no JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def secret_of(path: str, system: str) -> str:
    """The one line in a token's file, read anew each time: such tokens are rotated under a running process.

    Raises :class:`~fencegate.lease.ElectionUnavailable`, never showing what the file holds.
    """
    try:
        return secret_line(path)
    except ValueError as fault:
        raise ElectionUnavailable(f"{system}: the token file: {fault}", "refused") from None
