"""Follows the active controller of a Kafka cluster on KRaft. How it may lie: see DESIGN.md beside this file.

The token is the controller's epoch, the term of the Raft quorum behind ``__cluster_metadata``. A controller that was
deposed and does not know it yet answers like one that leads; so its word counts only once a majority of the voters
was seen to follow it (:class:`~fencegate.election.kafka_wire.Witnesses`), which takes about a second.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fencegate.access.refusals import advice
from fencegate.election.followed_cluster import FollowedCluster
from fencegate.election.kafka_wire import KafkaRefused, NotKafka, Quorum, Witnesses, answer_of, question
from fencegate.lease import ElectionUnavailable, LeaseTimings, Term

_PACE: Final = 0.1
"""Seconds between two questions to one controller. A voter fetches at least every half second."""
_LONGEST: Final = 1024 * 1024
_LEAST_SHARE: Final = 0.4


class KafkaSource(FollowedCluster):
    """``endpoints`` are brokers or controllers, each a ``host:port``; they are asked in turn.

    Raises ``ValueError`` for a bad endpoint.
    """

    name = "kafka"

    def __init__(self, endpoints: list[str], timings: LeaseTimings, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(timings)
        if not endpoints:
            raise ValueError("election endpoints: name a broker or a controller, such as kafka-1:9092")
        self._endpoints = [_address(endpoint) for endpoint in endpoints]
        self._tls = tls
        self._correlations = itertools.count(1)

    async def leader(self, limit: float) -> Term | None:
        """``None`` where the quorum says that it has no leader."""
        loop = asyncio.get_running_loop()
        ends, said = loop.time() + limit, ""
        for untried in range(len(self._endpoints), 0, -1):
            host, port = self._endpoints[0]
            try:
                async with asyncio.timeout((ends - loop.time()) * max(_LEAST_SHARE, 1 / untried)):
                    quorum = await self._proven(host, port)
                return self.term(quorum.epoch, f"controller-{quorum.leader}") if quorum else None
            except TimeoutError:
                said = f"{host}:{port}: no leader that a majority of the voters follows, or no answer at all"
            except (OSError, EOFError, KafkaRefused, NotKafka) as error:
                said = f"{host}:{port}: {advice(error)}"
            self._endpoints.append(self._endpoints.pop(0))  # another one first, also next time
        raise ElectionUnavailable(f"kafka: {said}", "quorum")

    async def hints(self) -> AsyncIterator[None]:
        """Kafka tells nobody: there is nothing but to look again."""
        await asyncio.Event().wait()
        yield

    async def hang_up(self) -> None:
        """Every question has a connection of its own, which is gone with it."""

    async def _proven(self, host: str, port: int) -> Quorum | None:
        """The leader that a majority of the voters follows. Takes for ever where there is none."""
        async with self._connection(host, port) as link:
            quorum = await self._ask(link)
            witnesses = Witnesses(quorum)
            while quorum.leader >= 0 and quorum.epoch > 0 and not witnesses.enough:
                await asyncio.sleep(_PACE)
                quorum = await self._ask(link)
                if not witnesses.hear(quorum):
                    witnesses = Witnesses(quorum)
            return quorum if quorum.leader >= 0 and quorum.epoch > 0 else None

    async def _ask(self, link: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> Quorum:
        reader, writer = link
        correlation = next(self._correlations) % 2**31
        writer.write(question(correlation))
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(4), signed=True)
        if not 0 < length <= _LONGEST:
            raise NotKafka(f"an answer of {length} bytes")
        return answer_of(await reader.readexactly(length), correlation)

    @asynccontextmanager
    async def _connection(
        self, host: str, port: int
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


def _address(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    if not colon or not host or not port.isdecimal() or "/" in host:
        raise ValueError(f"election endpoints: {endpoint!r} must be host:port, such as kafka-1:9092")
    return host.strip("[]"), int(port)
