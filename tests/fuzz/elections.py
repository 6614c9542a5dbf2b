"""Every election source against a server that answers with whatever bytes: it says "unavailable", or it was an answer.

The bytes are cut into answers at each ``ANSWER`` mark; the server gives one to each request, the last one again and
again. For the HTTP systems an answer is a JSON body, or, where it begins with ``HTTP/``, the whole response.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.kafka import KafkaSource
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess
from fencegate.election.patroni import PatroniSource
from fencegate.election.redis_sentinel import RedisSentinelSource
from fencegate.errors import Unavailable
from fencegate.lease import (
    Candidate,
    ElectionBackend,
    LeadershipSource,
    LeaseLost,
    LeaseTimings,
    SealRecord,
    Term,
    Won,
)
from fencegate.testing.tcp_server import TcpServer
from fencegate.tokens import MAX_TOKEN

ANSWER = b"\n--\n"
TIMINGS = LeaseTimings(lease_duration=3.0, renew_deadline=0.4, retry_period=0.1, margin=0.1)
CANDIDATE = Candidate("gw-1", "eu", "https://ledger.eu.example")
ROLE = "ledger"
_LIMIT = 0.06
_HANG = 5.0


def sources(address: str) -> dict[str, Callable[[], LeadershipSource]]:
    """Each source over the server at ``address``; the names are those of the configuration."""
    url = f"http://{address}"
    return {
        "etcd": lambda: EtcdElection([url], TIMINGS),
        "kubernetes": lambda: KubernetesElection(KubernetesAccess([url], "default"), TIMINGS),
        "kubernetes-follow": lambda: KubernetesElection(
            KubernetesAccess([url], "default"), TIMINGS, name_foreign_terms=True
        ),
        "consul": lambda: ConsulElection([url], TIMINGS),
        "patroni": lambda: PatroniSource([url], [url], "ledger", TIMINGS),
        "redis-sentinel": lambda: RedisSentinelSource([address], "ledger", TIMINGS),
        "kafka": lambda: KafkaSource([address], TIMINGS),
    }


NAMES = tuple(sources(""))


class Elections:
    """One server, and one loop that lives between the calls."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._answers: list[bytes] = []
        self._server: TcpServer | None = None
        self._name = ""

    def check(self, name: str, data: bytes) -> None:
        """Raises what broke a contract: any exception but the ones it names, a term that is none, a hang."""
        self._runner.run(self._check(name, data))

    async def _check(self, name: str, data: bytes) -> None:
        if self._server is None:
            self._server = TcpServer(self._serve)
            await self._server.start()
        self._name, self._answers = name, data.split(ANSWER)
        source = sources(self._server.address)[name]()
        try:
            async with asyncio.timeout(_HANG):
                await ask_everything(source)
        finally:
            await source.close()
            self._server.drop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serve = {"redis-sentinel": self._redis, "kafka": self._kafka}.get(self._name, self._http)
        with suppress(ValueError):
            await serve(reader, writer)

    def _next(self) -> bytes:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(lengths[0]) if lengths else 0)
            answer = self._next()
            if answer.startswith(b"HTTP/"):
                writer.write(answer)
                return
            writer.write(b"HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)

    async def _kafka(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            answer = request[4:8] + self._next()
            writer.write(struct.pack(">i", len(answer)) + answer)

    async def _redis(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(self._next())


async def ask_everything(source: LeadershipSource) -> None:
    """Each method of the source once, each under its contract."""
    await _under_contract(source.read(ROLE, _LIMIT), _is_term)
    await _under_contract(source.candidates(ROLE, _LIMIT))
    await _under_contract(source.issued_up_to(ROLE, _LIMIT))
    with suppress(TimeoutError):
        async with asyncio.timeout(_LIMIT):
            async for _ in source.changes(ROLE):
                break
    if not isinstance(source, ElectionBackend):
        return
    won = await _under_contract(source.acquire(ROLE, CANDIDATE, _LIMIT), _is_outcome)
    token = won.token if isinstance(won, Won) else 7
    await _under_contract(source.renew(ROLE, token, CANDIDATE, active=True, deadline=_LIMIT))
    await _under_contract(source.rebase(ROLE, 100, "an operator", _LIMIT))
    await _under_contract(source.release(ROLE, token, SealRecord(token, "eu"), _LIMIT))
    await _under_contract(source.withdraw(ROLE, _LIMIT))


async def _under_contract(call: Awaitable[object], look: Callable[[object], None] = lambda _: None) -> object:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        found = await call
    except (Unavailable, LeaseLost, NotImplementedError):
        found = None
    assert loop.time() - began < _LIMIT + 2, "a call that outlasts its deadline"
    look(found)
    return found


def _is_term(found: object) -> None:
    if found is not None:
        assert isinstance(found, Term)
        assert type(found.token) is int
        assert 0 < found.token <= MAX_TOKEN
        assert math.isfinite(found.lease_duration)
        assert found.lease_duration >= 0
        for text in (found.node, found.region, found.url):
            assert isinstance(text, str)


def _is_outcome(found: object) -> None:
    if isinstance(found, Won):
        assert type(found.token) is int
        assert 0 < found.token <= MAX_TOKEN
        assert found.predecessor_sealed is None or type(found.predecessor_sealed.token) is int
