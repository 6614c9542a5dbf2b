"""The shipped contract of followed sources: Patroni and Redis Sentinel as they really are, Kafka as documented."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from fencegate.election.kafka import KafkaSource
from fencegate.election.patroni import PatroniSource
from fencegate.election.redis_sentinel import RedisSentinelSource
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.lease import LeadershipSource, LeaseTimings
from fencegate.testing.followed_suite import Followed, FollowedContract
from fencegate.testing.kafka_quorum import KafkaQuorum
from fencegate.testing.patroni_pair import PatroniPair
from fencegate.testing.redis_sentinels import CLUSTER, RedisSentinels
from fencegate.testing.tcp_link import TcpLink


async def linked(addresses: list[str]) -> list[TcpLink]:
    """A link of its own to each ``host:port``."""
    links = [TcpLink(host, int(port)) for host, _, port in (address.rpartition(":") for address in addresses)]
    for link in links:
        await link.start()
    return links


class FollowedSentinels(Followed):
    can_fall = has_minority = True

    def __init__(self, sentinels: RedisSentinels, links: list[TcpLink]) -> None:
        self.links = links
        self._sentinels = sentinels

    def source(self, timings: LeaseTimings) -> LeadershipSource:
        return RedisSentinelSource([link.address for link in self.links], CLUSTER, timings)

    async def change_holder(self) -> None:
        await self._sentinels.until_whole()
        await self._sentinels.fail_over()

    async def fall(self) -> None:
        await self._sentinels.forget()

    def lose_majority(self) -> None:
        for link in self.links[1:]:
            link.cut()


class TestRedisSentinel(FollowedContract):
    @pytest_asyncio.fixture
    async def followed(self, redis_sentinels: RedisSentinels) -> AsyncIterator[Followed]:
        links = await linked(redis_sentinels.endpoints)
        yield FollowedSentinels(redis_sentinels, links)
        for link in links:
            await link.close()

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return RedisSentinelSource([silent_server, silent_server.replace("127.0.0.1", "localhost")], CLUSTER, timings)


class FollowedPatroni(Followed):
    def __init__(self, pair: PatroniPair, links: list[TcpLink]) -> None:
        self.links = links
        self._pair = pair

    def source(self, timings: LeaseTimings) -> LeadershipSource:
        members = [f"http://127.0.0.1:{port}" for port in self._pair.members.values()]
        return PatroniSource(members, [f"http://{link.address}" for link in self.links], self._pair.scope, timings)

    async def change_holder(self) -> None:
        await self._pair.switch_over()


class TestPatroni(FollowedContract):
    @pytest_asyncio.fixture
    async def followed(self, patroni: PatroniPair, etcd: EmbeddedEtcd) -> AsyncIterator[Followed]:
        links = await linked([urlsplit(origin).netloc for origin in etcd.endpoints])
        yield FollowedPatroni(patroni, links)
        for link in links:
            await link.close()

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        hung = [f"http://{silent_server}"]
        return PatroniSource(hung, hung * 2, "batman", timings)


class FollowedKafka(Followed):
    can_fall = has_minority = True

    def __init__(self, quorum: KafkaQuorum, links: list[TcpLink]) -> None:
        self.links = links
        self._quorum = quorum
        self._leader = 1

    def source(self, timings: LeaseTimings) -> LeadershipSource:
        return KafkaSource([link.address for link in self.links], timings)

    async def change_holder(self) -> None:
        self._leader = self._leader % 3 + 1
        self._quorum.elect(self._leader)

    async def fall(self) -> None:
        self._quorum.elect(1, epoch=1)

    def lose_majority(self) -> None:
        for controller in (1, 2, 3):
            self._quorum.cut_off(controller)


class TestKafka(FollowedContract):
    """Against a small server of the documented protocol: no Kafka can be had in a test."""

    gives_hints = False

    @pytest_asyncio.fixture
    async def followed(self) -> AsyncIterator[Followed]:
        quorum = KafkaQuorum()
        await quorum.start()
        links = await linked(quorum.brokers)
        yield FollowedKafka(quorum, links)
        for link in links:
            await link.close()
        await quorum.close()

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return KafkaSource([silent_server] * 2, timings)
