"""The shipped contract suite over every backend, against real servers."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio
from kazoo.client import KazooClient

from fencegate.election.consul import DEFAULT_PREFIX, ConsulElection
from fencegate.election.consul_records import key_of
from fencegate.election.etcd import EtcdElection
from fencegate.election.etcd_gateway import EtcdGateway, encode
from fencegate.election.etcd_grpc import EtcdGrpc
from fencegate.election.etcd_records import Names
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess
from fencegate.election.kubernetes_records import lease_name
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.election.zookeeper import ZookeeperElection
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.zookeeper import EmbeddedZookeeper
from fencegate.lease import ElectionBackend, LeaseTimings
from fencegate.testing.consul_agent import ConsulAgent
from fencegate.testing.election_rebases import RebaseContract
from fencegate.testing.election_suite import BackendAt, ElectionContract, Network
from fencegate.testing.kubernetes_api import KubernetesApi
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum

MIGRATIONS = [
    Path(__file__).parents[2] / "migrations" / name
    for name in ("0002_create_election.sql", "0003_create_candidates.sql", "0004_add_floor.sql")
]
MANY_TERMS = 1000 if os.environ.get("FENCEGATE_LONG_TESTS") else 50

Wipe = Callable[[str], Awaitable[None]]


class OverEtcd(ElectionContract, RebaseContract):
    cycles = MANY_TERMS

    @pytest.fixture
    def servers(self, etcd: EmbeddedEtcd) -> list[str]:
        return [endpoint.removeprefix("http://") for endpoint in etcd.endpoints]

    @pytest.fixture
    def wipe(self, etcd: EmbeddedEtcd, fresh_prefix: str) -> Wipe:
        async def delete(role: str) -> None:
            gateway = EtcdGateway(etcd.endpoints)
            names = Names(fresh_prefix.rstrip("/"), role)
            await gateway.call(
                "/v3/kv/deleterange", {"key": encode(names.line), "range_end": encode(names.line_end)}, 5
            )
            for key in (names.term, names.sealed):
                await gateway.call("/v3/kv/deleterange", {"key": encode(key)}, 5)
            await gateway.close()

        return delete


class TestEtcdElection(OverEtcd):
    @pytest.fixture
    def backend_at(self, fresh_prefix: str) -> BackendAt:
        return lambda servers, timings: EtcdElection(_urls(servers), timings, prefix=fresh_prefix)


class TestEtcdElectionOverGrpc(OverEtcd):
    """The same backend over the stubs of the etcd3 package."""

    untouched_by_steps = ("grpc.",)

    @pytest.fixture
    def backend_at(self, fresh_prefix: str) -> BackendAt:
        return lambda servers, timings: EtcdElection(
            _urls(servers), timings, prefix=fresh_prefix, transport=EtcdGrpc(_urls(servers))
        )


class OverPostgres(ElectionContract, RebaseContract):
    cycles = MANY_TERMS
    _numbers_per_role = True
    election: type[PostgresElection]

    @pytest.fixture
    def servers(self, fresh_dsn: str) -> list[str]:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(_create_table(fresh_dsn))
        return [urlsplit(fresh_dsn).netloc.rpartition("@")[2]]

    @pytest.fixture
    def backend_at(self, fresh_dsn: str) -> BackendAt:
        address = urlsplit(fresh_dsn).netloc.rpartition("@")[2]
        return lambda servers, timings: self.election(fresh_dsn.replace(address, servers[0]), timings)

    @pytest.fixture
    def wipe(self, fresh_dsn: str) -> Wipe:
        async def delete(role: str) -> None:
            link = await asyncpg.connect(fresh_dsn)
            await link.execute("SET session_replication_role = replica")  # past the trigger that forbids it
            await link.execute("DELETE FROM fencegate.election WHERE role = $1", role)
            await link.close()

        return delete


class TestPostgresElection(OverPostgres):
    election = PostgresElection


class TestPostgresAdvisoryElection(OverPostgres):
    election = PostgresAdvisoryElection


class TestZookeeperElection(ElectionContract, RebaseContract):
    cycles = MANY_TERMS

    @pytest.fixture
    def prefix(self) -> str:
        return f"/t/{uuid.uuid4().hex}"

    @pytest.fixture
    def servers(self, zookeeper: EmbeddedZookeeper) -> list[str]:
        return zookeeper.hosts

    @pytest.fixture
    def backend_at(self, prefix: str) -> BackendAt:
        return lambda servers, timings: ZookeeperElection(servers, timings, prefix=prefix)

    @pytest.fixture
    def wipe(self, servers: list[str], prefix: str) -> Wipe:
        def delete(role: str) -> None:
            client = KazooClient(",".join(servers))
            client.start(10)
            client.delete(prefix, recursive=True)
            client.stop()
            client.close()

        return lambda role: asyncio.to_thread(delete, role)


class TestKubernetesElection(ElectionContract, RebaseContract):
    """Against a small server of the documented API: no real API server can be had in a test."""

    cycles = MANY_TERMS
    tells_who_waits = False

    @pytest_asyncio.fixture
    async def api(self) -> AsyncIterator[KubernetesApi]:
        server = KubernetesApi()
        yield server
        await server.close()

    @pytest_asyncio.fixture
    async def servers(self, api: KubernetesApi) -> list[str]:
        return [(await api.start()).removeprefix("http://")]

    @pytest.fixture
    def backend_at(self) -> BackendAt:
        return lambda servers, timings: KubernetesElection(KubernetesAccess(_urls(servers), "default"), timings)

    @pytest.fixture
    def wipe(self, api: KubernetesApi) -> Wipe:
        async def delete(role: str) -> None:
            api.remove(lease_name(role))

        return delete


class TestConsulElection(ElectionContract, RebaseContract):
    """Against a small server of the documented API: no real Consul can be had in a test."""

    cycles = MANY_TERMS

    @pytest_asyncio.fixture
    async def agent(self) -> AsyncIterator[ConsulAgent]:
        server = ConsulAgent(session_ttl_min=1.0)
        yield server
        await server.close()

    @pytest_asyncio.fixture
    async def servers(self, agent: ConsulAgent) -> list[str]:
        return [(await agent.start()).removeprefix("http://")]

    @pytest.fixture
    def backend_at(self) -> BackendAt:
        return lambda servers, timings: ConsulElection(_urls(servers), timings, shortest_ttl=1)

    @pytest.fixture
    def wipe(self, agent: ConsulAgent) -> Wipe:
        async def delete(role: str) -> None:
            agent.remove(key_of(DEFAULT_PREFIX, role))

        return delete


class TestMemoryElection(ElectionContract, RebaseContract):
    """The fake keeps the contract too: what is tested on it holds for the others."""

    @pytest.fixture
    def servers(self) -> list[str]:
        return []

    @pytest.fixture
    def quorum(self) -> MemoryQuorum:
        return MemoryQuorum(time.monotonic)

    @pytest.fixture
    def backend_at(self, quorum: MemoryQuorum) -> BackendAt:
        return lambda _, timings: MemoryElection(quorum, timings)

    @pytest.fixture
    def hung_backend(self, quorum: MemoryQuorum, timings: LeaseTimings) -> ElectionBackend:
        backend = MemoryElection(quorum, timings)
        backend.hanging = True
        return backend

    @pytest.fixture
    def network(self, quorum: MemoryQuorum, long_timings: LeaseTimings) -> tuple[ElectionBackend, Network]:
        backend = MemoryElection(quorum, long_timings)
        return backend, _MemoryNetwork(backend)

    @pytest.fixture
    def wipe(self, quorum: MemoryQuorum) -> Wipe:
        async def delete(role: str) -> None:
            quorum.holders.pop(role, None)
            quorum.seals.pop(role, None)

        return delete


class _MemoryNetwork:
    def __init__(self, backend: MemoryElection) -> None:
        self._backend = backend

    def stall(self) -> None:
        self._backend.hanging = True

    def resume(self) -> None:
        self._backend.hanging = False

    def strand(self) -> None:
        """It has no connections."""

    def cut(self) -> None:
        """It has no connections."""


def _urls(servers: list[str]) -> list[str]:
    return [f"http://{server}" for server in servers]


async def _create_table(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE SCHEMA IF NOT EXISTS fencegate;")
        for migration in MIGRATIONS:
            await connection.execute(migration.read_text())
    finally:
        await connection.close()
