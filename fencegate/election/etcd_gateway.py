"""etcd's JSON gateway over aiohttp: one session, our own list of endpoints, and a deadline on every call.

* A call goes to the endpoint that answered last; a failing one is left at once and remembered.
* One attempt never eats the whole deadline: a frozen member must leave time to ask another one.
* Only calls that may safely be sent twice go through here: reads, transactions that compare first,
  grants of leases (one that nobody uses lapses).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import aiohttp
import orjson

from fencegate.access.refusals import advice
from fencegate.election.http_endpoints import BROKEN_STREAM, LONGEST_ANSWER, Turns, at_most, json_of
from fencegate.election.masking import masked
from fencegate.election.strange_answers import reading
from fencegate.lease import Cause, ElectionUnavailable

Json = dict[str, Any]

_ROUND_PAUSE: Final = 0.1
_LEAST_ATTEMPT: Final = 0.05
_HAS_LEADER: Final = {"Grpc-Metadata-hasleader": "true"}

_UNAUTHENTICATED: Final = 16
_INVALID_ARGUMENT: Final = 3
TRANSIENT: Final[dict[int, Cause]] = {
    1: "connection",  # cancelled
    4: "timeout",  # deadline exceeded
    8: "refused",  # too many requests, or over the quota
    10: "quorum",  # aborted
    13: "connection",  # internal
    14: "quorum",  # no leader, leader changed, not reachable
}
"""gRPC codes after which another endpoint, or the same one later, may do better."""


class EtcdRefused(Exception):
    """etcd understood the call and said no. ``code`` is gRPC's: 5 is "not found"."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"etcd: {message} (code {code})")
        self.code = code
        self.message = message


def encode(text: str | bytes) -> str:
    """A key or value as the gateway takes it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def decode(text: str) -> bytes:
    return base64.b64decode(text)


class EtcdGateway:
    """Calls to an etcd cluster. ``username`` and ``password`` turn authentication on.

    Raises ``ValueError`` where no endpoint is given or one is not an http(s) URL.
    """

    def __init__(
        self,
        endpoints: list[str],
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if not endpoints:
            raise ValueError("election endpoints: name at least one etcd endpoint, such as http://etcd-1:2379")
        for endpoint in endpoints:
            if not endpoint.startswith(("http://", "https://")):
                raise ValueError(f"election endpoints: {endpoint!r} must begin with http:// or https://")
        self.endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._username = username
        self._password = password
        self.tls = tls
        self._turns = Turns(self.endpoints)
        self._auth_token = ""
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The endpoint that the next call tries first."""
        return self._turns.first

    def only(self, endpoint: str) -> EtcdGateway:
        """A link to that one endpoint, for the same user. Close it."""
        return EtcdGateway([endpoint], username=self._username, password=self._password, tls=self.tls)

    async def call(self, path: str, body: Json, deadline: float) -> Json:
        """POST ``body`` to ``path`` (such as ``/v3/kv/txn``) until an endpoint answers, for ``deadline`` s at most.

        Raises :class:`EtcdRefused`, or :class:`~fencegate.lease.ElectionUnavailable` with the last failure.
        """
        if self._closed:
            raise ElectionUnavailable("the election was closed", "refused")
        last = ElectionUnavailable(f"etcd did not answer {path} within {deadline:g} s", "timeout")
        try:
            async with asyncio.timeout(deadline):
                ends = asyncio.get_running_loop().time() + deadline
                while True:
                    for untried, endpoint in self._turns.round():
                        left = ends - asyncio.get_running_loop().time()
                        try:
                            return await self._attempt(endpoint, path, body, max(left / untried, _LEAST_ATTEMPT))
                        except ElectionUnavailable as error:
                            if self._closed:
                                raise
                            last = error
                            self._turns.failed(endpoint)
                    await asyncio.sleep(_ROUND_PAUSE)
        except TimeoutError:
            raise last from None

    async def watch(self, key: bytes, range_end: bytes) -> AsyncIterator[set[bytes]]:
        """The keys of each change in the range. Ends when the link or the quorum is lost; may be silent for ever."""
        body = {"create_request": {"key": encode(key), "range_end": encode(range_end)}}
        no_limit = aiohttp.ClientTimeout(total=None, sock_connect=5)
        endpoint = self.endpoint
        try:
            headers = {**_HAS_LEADER, **await self._auth_headers(endpoint, 5)}
            async with self._send(f"{endpoint}/v3/watch", body, headers, timeout=no_limit) as response:
                async for line in response.content:
                    if response.status != 200 or b'"error"' in line[:20]:
                        return
                    if b'"events"' in line:
                        with reading("etcd"):
                            yield {decode(event["kv"]["key"]) for event in orjson.loads(line)["result"]["events"]}
        except (*BROKEN_STREAM, ElectionUnavailable, EtcdRefused):
            return

    async def close(self) -> None:
        """For good: a call that is still under way somewhere must not open a session that nobody closes."""
        self._closed = True
        if self._session:
            await self._session.close()
            self._session = None

    # -- one attempt --------------------------------------------------------------------------------

    async def _attempt(self, endpoint: str, path: str, body: Json, limit: float) -> Json:
        try:
            async with asyncio.timeout(limit):
                try:
                    return await self._post(endpoint, path, body, await self._auth_headers(endpoint, limit))
                except EtcdRefused as error:
                    if not self._auth_expired(error):
                        raise
                    self._auth_token = ""
                    return await self._post(endpoint, path, body, await self._auth_headers(endpoint, limit))
        except TimeoutError:
            raise ElectionUnavailable(f"{endpoint} did not answer {path} within {limit:.2g} s", "timeout") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ElectionUnavailable(f"{endpoint}: {advice(error)}", "connection") from error

    async def _post(self, endpoint: str, path: str, body: Json, headers: dict[str, str]) -> Json:
        async with self._send(endpoint + path, body, headers) as response:
            answer = json_of(await at_most(response, LONGEST_ANSWER))
            if response.status == 200 and isinstance(answer, dict):
                return answer
            raise self._refusal(endpoint, path, response.status, answer)

    def _send(
        self, url: str, body: Json, headers: dict[str, str], **options: Any
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A redirect would carry the password, and the word on who leads, to a server that nobody configured."""
        return self._open().post(url, data=orjson.dumps(body), headers=headers, allow_redirects=False, **options)

    def _refusal(self, endpoint: str, path: str, status: int, answer: object) -> Exception:
        if not isinstance(answer, dict) or "code" not in answer:
            hint = " (is the JSON gateway turned off, --enable-grpc-gateway=false?)" if status == 404 else ""
            return ElectionUnavailable(f"{endpoint}{path} answered HTTP {status}, not as etcd does{hint}", "refused")
        with reading("etcd"):
            code = int(answer["code"])
        message = self._quoted(str(answer.get("message") or answer.get("error") or ""))
        if code in TRANSIENT:
            return ElectionUnavailable(f"{endpoint}: {message}", TRANSIENT[code])
        return EtcdRefused(code, message)

    # -- session and authentication -----------------------------------------------------------------

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ElectionUnavailable("the election was closed", "refused")
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, ssl=self.tls if self.tls is not None else True)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,  # a few kB could stand for gigabytes
                headers={"Accept-Encoding": "identity"},
            )
        return self._session

    async def _auth_headers(self, endpoint: str, limit: float) -> dict[str, str]:
        if self._username is None:
            return {}
        if not self._auth_token:
            async with asyncio.timeout(limit):
                credentials = {"name": self._username, "password": self._password or ""}
                answer = await self._post(endpoint, "/v3/auth/authenticate", credentials, {})
            self._auth_token = str(answer.get("token", ""))
        return {"Authorization": self._auth_token}

    def _auth_expired(self, error: EtcdRefused) -> bool:
        """A token of etcd ends after 5 minutes, with its member, or with a change of users."""
        if self._username is None or not self._auth_token:
            return False
        outdated = error.code == _INVALID_ARGUMENT and "revision" in error.message
        return outdated or error.code == _UNAUTHENTICATED

    def _quoted(self, message: str) -> str:
        """A message of the server's, without what it was told in confidence."""
        return masked(message, (self._password, self._auth_token))
