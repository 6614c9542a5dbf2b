"""The shipped contract suite over every backend, against real servers."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.etcd_grpc import EtcdGrpc
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.election.zookeeper import ZookeeperElection
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.zookeeper import EmbeddedZookeeper
from fencegate.lease import ElectionBackend, LeaseTimings
from fencegate.testing.consul_agent import ConsulAgent
from fencegate.testing.election_rebases import RebaseContract
from fencegate.testing.election_suite import ElectionContract, NewBackend
from fencegate.testing.kubernetes_api import KubernetesApi
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum

MIGRATIONS = [
    Path(__file__).parents[2] / "migrations" / name
    for name in ("0002_create_election.sql", "0003_create_candidates.sql", "0004_add_floor.sql")
]
MANY_RENEWALS = 1000 if os.environ.get("FENCEGATE_LONG_TESTS") else 50


class TestEtcdElection(ElectionContract, RebaseContract):
    renewals = MANY_RENEWALS

    @pytest.fixture
    def new_backend(self, etcd: EmbeddedEtcd, fresh_prefix: str) -> NewBackend:
        return lambda timings: EtcdElection(etcd.endpoints, timings, prefix=fresh_prefix)

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        return EtcdElection([f"http://{silent_server}"] * 2, timings)


class TestEtcdElectionOverGrpc(ElectionContract, RebaseContract):
    """The same backend over the stubs of the etcd3 package."""

    renewals = MANY_RENEWALS

    @pytest.fixture
    def new_backend(self, etcd: EmbeddedEtcd, fresh_prefix: str) -> NewBackend:
        return lambda timings: EtcdElection(
            etcd.endpoints, timings, prefix=fresh_prefix, transport=EtcdGrpc(etcd.endpoints)
        )

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        endpoints = [f"http://{silent_server}"] * 2
        return EtcdElection(endpoints, timings, transport=EtcdGrpc(endpoints))


class TestPostgresElection(ElectionContract, RebaseContract):
    renewals = MANY_RENEWALS
    _numbers_per_role = True

    @pytest.fixture
    def new_backend(self, fresh_dsn: str) -> NewBackend:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(_create_table(fresh_dsn))
        return lambda timings: PostgresElection(fresh_dsn, timings)

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        return PostgresElection(f"postgresql://nobody@{silent_server}/none", timings)


class TestPostgresAdvisoryElection(ElectionContract, RebaseContract):
    renewals = MANY_RENEWALS
    _numbers_per_role = True

    @pytest.fixture
    def new_backend(self, fresh_dsn: str) -> NewBackend:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(_create_table(fresh_dsn))
        return lambda timings: PostgresAdvisoryElection(fresh_dsn, timings)

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        return PostgresAdvisoryElection(f"postgresql://nobody@{silent_server}/none", timings)


class TestZookeeperElection(ElectionContract, RebaseContract):
    renewals = MANY_RENEWALS

    @pytest.fixture
    def new_backend(self, zookeeper: EmbeddedZookeeper) -> NewBackend:
        prefix = f"/t/{uuid.uuid4().hex}"
        return lambda timings: ZookeeperElection(zookeeper.hosts, timings, prefix=prefix)

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        return ZookeeperElection([silent_server], timings)


class TestKubernetesElection(ElectionContract, RebaseContract):
    """Against a small server of the documented API: no real API server can be had in a test."""

    renewals = MANY_RENEWALS

    @pytest_asyncio.fixture
    async def new_backend(self) -> AsyncIterator[NewBackend]:
        server = KubernetesApi()
        access = KubernetesAccess([await server.start()], "default")
        yield lambda timings: KubernetesElection(access, timings)
        await server.close()

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        return KubernetesElection(KubernetesAccess([f"http://{silent_server}"] * 2, "default"), timings)


class TestConsulElection(ElectionContract, RebaseContract):
    """Against a small server of the documented API: no real Consul can be had in a test."""

    renewals = MANY_RENEWALS
    lapses_within = 6.5
    """A session ends after up to twice its TTL; then comes its lock-delay."""

    @pytest_asyncio.fixture
    async def new_backend(self) -> AsyncIterator[NewBackend]:
        server = ConsulAgent(session_ttl_min=1.0)
        endpoints = [await server.start()]
        yield lambda timings: ConsulElection(endpoints, timings, shortest_ttl=1)
        await server.close()

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        return ConsulElection([f"http://{silent_server}"] * 2, timings)


class TestMemoryElection(ElectionContract, RebaseContract):
    """The fake keeps the contract too: what is tested on it holds for the others."""

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        quorum = MemoryQuorum(time.monotonic)
        return lambda timings: MemoryElection(quorum, timings)

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        backend = MemoryElection(MemoryQuorum(time.monotonic), timings)
        backend.hanging = True
        return backend


async def _create_table(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE SCHEMA IF NOT EXISTS fencegate;")
        for migration in MIGRATIONS:
            await connection.execute(migration.read_text())
    finally:
        await connection.close()
