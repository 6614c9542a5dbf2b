"""``mode = "follow"`` over every election that we can also campaign in: somebody else leads, and we only look.

The leaders are what they really are (``etcdctl elect``, kazoo's ``Election``, fencegate's own backends in another
process' place), but for Go: there a contender follows client-go's documented rules.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from urllib.parse import urlsplit, urlunsplit

import pytest
import pytest_asyncio
from kazoo.client import KazooClient

from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.election.zookeeper_followed import ZookeeperFollowed
from fencegate.embedded.binaries import etcd_binary
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.zookeeper import EmbeddedZookeeper
from fencegate.lease import Candidate, ElectionBackend, LeadershipSource, LeaseTimings, SealRecord, Won
from fencegate.testing.client_go import ClientGo
from fencegate.testing.consul_agent import ConsulAgent
from fencegate.testing.followed_suite import Followed, FollowedContract
from fencegate.testing.kubernetes_api import KubernetesApi
from fencegate.testing.tcp_link import TcpLink

LONG = LeaseTimings(30.0, 20.0, 2.0, 1.0)
"""No leader here renews: a test is over before."""
LIMIT = 10.0

NewSource = Callable[[LeaseTimings], LeadershipSource]


class Led(Followed):
    """Led by fencegate's own backends, as in ``lead(...)`` of an application: ``process`` makes one on the store."""

    def __init__(self, source: NewSource, links: list[TcpLink], process: Callable[[], ElectionBackend]) -> None:
        self.role = f"ledger-{uuid.uuid4().hex[:8]}"
        self.links = links
        self._source = source
        self._process = process
        self._numbers = itertools.count(1)
        self._holder: tuple[ElectionBackend, int] | None = None

    def source(self, timings: LeaseTimings) -> LeadershipSource:
        return self._source(timings)

    async def change_holder(self) -> None:
        if self._holder is not None:
            backend, token = self._holder
            await backend.release(self.role, token, SealRecord(token, "eu"), LIMIT)
            await backend.close()
        backend, me = self._process(), Candidate(f"app-{next(self._numbers)}", "eu", "")
        async with asyncio.timeout(LIMIT):
            won = await backend.acquire(self.role, me, LIMIT)
            while not isinstance(won, Won):
                await asyncio.sleep(0.05)
                won = await backend.acquire(self.role, me, LIMIT)
        await backend.renew(self.role, won.token, me, active=True, deadline=LIMIT)
        self._holder = backend, won.token

    async def close(self) -> None:
        if self._holder is not None:
            await self._holder[0].close()


async def links_to(stack: AsyncExitStack, *addresses: str) -> list[TcpLink]:
    links = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        links.append(TcpLink(host, int(port)))
        await links[-1].start()
        stack.push_async_callback(links[-1].close)
    return links


async def led(stack: AsyncExitStack, followed: Led) -> Led:
    await followed.change_holder()
    stack.push_async_callback(followed.close)
    return followed


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


class TestEtcd(FollowedContract):
    @pytest_asyncio.fixture
    async def followed(self, stack: AsyncExitStack, etcd: EmbeddedEtcd, fresh_prefix: str) -> Followed:
        links = await links_to(stack, *(urlsplit(origin).netloc for origin in etcd.endpoints))
        ways = [f"http://{link.address}" for link in links]
        return await led(
            stack,
            Led(
                lambda timings: EtcdElection(ways, timings, prefix=fresh_prefix),
                links,
                lambda: EtcdElection(etcd.endpoints, LONG, prefix=fresh_prefix),
            ),
        )

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return EtcdElection([f"http://{silent_server}"] * 2, timings)


class ByEtcdctl(Followed):
    """Each leader is a process ``etcdctl elect``."""

    def __init__(self, etcd: EmbeddedEtcd, prefix: str, links: list[TcpLink]) -> None:
        self.links = links
        self._etcd = etcd
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._leader: asyncio.subprocess.Process | None = None

    def source(self, timings: LeaseTimings) -> LeadershipSource:
        return EtcdElection([f"http://{link.address}" for link in self.links], timings, prefix=self._prefix)

    async def change_holder(self) -> None:
        await self.close()
        self._leader = await asyncio.create_subprocess_exec(
            etcd_binary().parent / "etcdctl",
            f"--endpoints={','.join(self._etcd.endpoints)}",
            "elect",
            f"{self._prefix.rstrip('/')}/{self.role}",
            f"worker-{next(self._numbers)}",
            env={"ETCDCTL_API": "3"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._leader.stdout
        async with asyncio.timeout(LIMIT):
            await self._leader.stdout.readline()

    async def close(self) -> None:
        if self._leader is not None:
            self._leader.terminate()  # upon which it gives its place up
            await self._leader.communicate()


class TestEtcdctlElect(FollowedContract):
    @pytest_asyncio.fixture
    async def followed(self, stack: AsyncExitStack, etcd: EmbeddedEtcd, fresh_prefix: str) -> Followed:
        links = await links_to(stack, *(urlsplit(origin).netloc for origin in etcd.endpoints))
        followed = ByEtcdctl(etcd, fresh_prefix, links)
        stack.push_async_callback(followed.close)
        await followed.change_holder()
        return followed

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return EtcdElection([f"http://{silent_server}"] * 2, timings)


class TestPostgres(FollowedContract):
    election: type[PostgresElection] = PostgresElection

    @pytest_asyncio.fixture
    async def followed(self, stack: AsyncExitStack, migrated_dsn: str) -> Followed:
        parts = urlsplit(migrated_dsn)
        links = await links_to(stack, f"{parts.hostname}:{parts.port}")
        user, _, _ = parts.netloc.rpartition("@")
        way = urlunsplit(parts._replace(netloc=f"{user}@{links[0].address}"))
        return await led(
            stack,
            Led(lambda timings: self.election(way, timings), links, lambda: self.election(migrated_dsn, LONG)),
        )

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return self.election(f"postgresql://nobody@{silent_server}/none", timings)


class TestPostgresAdvisory(TestPostgres):
    election = PostgresAdvisoryElection


class TestConsul(FollowedContract):
    """Against a small server of the documented API."""

    @pytest_asyncio.fixture
    async def followed(self, stack: AsyncExitStack) -> Followed:
        agent = ConsulAgent(session_ttl_min=1.0)
        origin = await agent.start()
        stack.push_async_callback(agent.close)
        links = await links_to(stack, urlsplit(origin).netloc)
        way = [f"http://{links[0].address}"]
        return await led(
            stack,
            Led(
                lambda timings: ConsulElection(way, timings, shortest_ttl=1),
                links,
                lambda: ConsulElection([origin], LONG, shortest_ttl=1),
            ),
        )

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return ConsulElection([f"http://{silent_server}"] * 2, timings)


class ByClientGo(Followed):
    """Go controllers on one Lease. It can be deleted, and made anew in a cluster whose versions begin lower."""

    can_fall = True

    def __init__(self, api: KubernetesApi, links: list[TcpLink]) -> None:
        self.links = links
        self._api = api
        self._numbers = itertools.count(1)
        self._leader: ClientGo | None = None

    def source(self, timings: LeaseTimings) -> LeadershipSource:
        access = KubernetesAccess([f"http://{link.address}" for link in self.links], "default")
        return KubernetesElection(access, timings, name_foreign_terms=True)

    async def change_holder(self) -> None:
        if self._leader is not None:
            await self._leader.try_acquire_or_renew()  # it may have lost an update to a follower's annotation
            assert await self._leader.release()
        self._leader = ClientGo(self._api.url, f"go_{next(self._numbers)}", time.monotonic, seconds=30)
        while not await self._leader.try_acquire_or_renew():  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def fall(self) -> None:
        self._api.leases.clear()
        self._api.version = 3
        self._leader = None
        await self.change_holder()


class TestKubernetesByClientGo(FollowedContract):
    """Against a small server of the documented API."""

    @pytest_asyncio.fixture
    async def followed(self, stack: AsyncExitStack) -> Followed:
        api = KubernetesApi()
        api.bookmark_period = 0.2  # by which it finds that a watcher is gone
        origin = await api.start()
        stack.push_async_callback(api.close)
        followed = ByClientGo(api, await links_to(stack, urlsplit(origin).netloc))
        await followed.change_holder()
        return followed

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return KubernetesElection(KubernetesAccess([f"http://{silent_server}"] * 2, "default"), timings)


class TestZookeeper(FollowedContract):
    @pytest_asyncio.fixture
    async def followed(self, stack: AsyncExitStack, zookeeper: EmbeddedZookeeper) -> Followed:
        prefix = f"/t/{uuid.uuid4().hex}"
        links = await links_to(stack, *zookeeper.hosts)
        return await led(
            stack,
            Led(
                lambda timings: ZookeeperFollowed([link.address for link in links], timings, prefix=prefix),
                links,
                lambda: ZookeeperFollowed(zookeeper.hosts, LONG, prefix=prefix),
            ),
        )

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return ZookeeperFollowed([silent_server], timings)


class ByKazoo(Followed):
    """Each leader is a client of its own that runs kazoo's ``Election`` in a thread."""

    def __init__(self, hosts: list[str], prefix: str, links: list[TcpLink]) -> None:
        self.links = links
        self._hosts = hosts
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._end: Callable[[], None] | None = None

    def source(self, timings: LeaseTimings) -> LeadershipSource:
        return ZookeeperFollowed([link.address for link in self.links], timings, prefix=self._prefix)

    async def change_holder(self) -> None:
        await self.close()
        leads, resign = threading.Event(), threading.Event()
        client = KazooClient(hosts=",".join(self._hosts))

        def lead() -> None:
            leads.set()
            resign.wait(60)

        def campaign() -> None:
            client.start()
            client.Election(f"{self._prefix}/{self.role}", f"worker-{next(self._numbers)}").run(lead)
            client.stop()
            client.close()

        thread = threading.Thread(target=campaign)
        thread.start()

        def end() -> None:
            resign.set()
            thread.join()

        self._end = end
        assert await asyncio.to_thread(leads.wait, LIMIT)

    async def close(self) -> None:
        if self._end is not None:
            await asyncio.to_thread(self._end)
            self._end = None


class TestKazooElection(FollowedContract):
    @pytest_asyncio.fixture
    async def followed(self, stack: AsyncExitStack, zookeeper: EmbeddedZookeeper) -> Followed:
        links = await links_to(stack, *zookeeper.hosts)
        followed = ByKazoo(zookeeper.hosts, f"/t/{uuid.uuid4().hex}", links)
        stack.push_async_callback(followed.close)
        await followed.change_holder()
        return followed

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        return ZookeeperFollowed([silent_server], timings)
