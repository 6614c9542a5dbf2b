"""Settings become the parts that they mean, whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fencegate import observations
from fencegate.cli import parts
from fencegate.config import Flag, Settings, parse
from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.etcd_grpc import EtcdGrpc
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.election.storeless import StorelessTerm
from fencegate.election.zookeeper import ZookeeperElection
from fencegate.errors import ConfigurationError
from fencegate.gateway.routes import RouteTable

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[store]
dsn = "postgresql://localhost/ledger"
[limits]
header_bytes = 2048
connections = 5
in_flight = 6
header_timeout = 1
body_timeout = 2
idle_timeout = 3
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
[[route]]
path = "/shards/{shard}/*"
role = "shards/{shard}"
members = 3
target = "http://upstream:9000/base/"
methods = ["PUT"]
idempotency = "required"
max_body_bytes = 7
timeout = 2.5
mode = "observe"
[[route]]
path = "/f"
role = "ledger"
target = "function:app.record_decision"
"""


def settings(*flags: tuple[str, str]) -> Settings:
    return parse(file=("F", TEXT), flags=[Flag("--set", key, text) for key, text in flags])


def test_routes_carry_every_key_and_hold_together_in_the_table() -> None:
    ledger, shards, function = parts.routes(settings())
    assert (ledger.target, ledger.argument, ledger.methods) == ("ledger", "", None)
    assert (function.target, function.argument) == ("function", "app.record_decision")
    assert (shards.target, shards.argument) == ("http", "http://upstream:9000/base")
    assert shards.methods == {"PUT"}
    assert shards.members == {"0", "1", "2"}
    assert (shards.idempotency, shards.max_body_bytes, shards.timeout, shards.mode) == ("required", 7, 2.5, "observe")
    table = RouteTable(parts.routes(settings()))
    match = table.match(("shards", "2", "x"))
    assert match is not None
    assert match.role == "shards/2"
    assert table.family_of("shards/2") == "shards/{shard}"


def test_limits_carry_every_key() -> None:
    found = parts.limits(settings())
    assert (found.header_bytes, found.connections, found.in_flight) == (2048, 5, 6)
    assert (found.header_timeout, found.body_timeout, found.idle_timeout) == (1, 2, 3)


async def test_the_election_is_the_one_configured() -> None:
    postgres = parts.election(settings(), "postgresql://localhost/ledger")
    assert isinstance(postgres, PostgresElection)
    etcd = parts.election(settings(("election.source", "etcd"), ("election.endpoints", "http://h:1")), "unused")
    assert isinstance(etcd, EtcdElection)
    await postgres.close()
    await etcd.close()


async def test_the_other_elections_are_made_of_their_own_settings() -> None:
    advisory = parts.election(settings(("election.source", "postgres-advisory")), "postgresql://localhost/ledger")
    assert isinstance(advisory, PostgresAdvisoryElection)
    zookeeper = parts.election(
        settings(("election.source", "zookeeper"), ("election.endpoints", "zk-1:2181,zk-2:2181")), "unused"
    )
    assert isinstance(zookeeper, ZookeeperElection)
    assert zookeeper.link.hosts == ["zk-1:2181", "zk-2:2181"]
    etcd3 = parts.election(
        settings(("election.source", "etcd"), ("election.endpoints", "http://h:1"), ("election.client", "etcd3")),
        "unused",
    )
    assert isinstance(etcd3, EtcdElection)
    assert isinstance(etcd3.gateway, EtcdGrpc)
    for backend in (advisory, zookeeper, etcd3):
        await backend.close()


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("fencegate.election.zookeeper", "fencegate.election.zookeeper_link"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fencegate\[zookeeper\]'"):
        parts.election(settings(("election.source", "zookeeper"), ("election.endpoints", "zk-1:2181")), "unused")
    monkeypatch.delitem(sys.modules, "fencegate.election.etcd_grpc", raising=False)
    monkeypatch.setitem(sys.modules, "etcd3", None)
    etcd3 = (("election.source", "etcd"), ("election.endpoints", "http://h:1"), ("election.client", "etcd3"))
    with pytest.raises(ConfigurationError, match=r"pip install 'fencegate\[etcd3\]'"):
        parts.election(settings(*etcd3), "unused")


async def test_kubernetes_and_consul_are_made_of_their_keys() -> None:
    consul = parts.election(settings(("election.source", "consul"), ("election.endpoints", "http://h:8500")), "unused")
    assert isinstance(consul, ConsulElection)
    kubernetes = (("election.source", "kubernetes"), ("election.endpoints", "http://h:1"), ("election.namespace", "n"))
    campaigning = parts.election(settings(*kubernetes), "unused")
    assert isinstance(campaigning, KubernetesElection)
    await consul.close()
    await campaigning.close()


def test_kubernetes_without_endpoints_outside_of_a_pod_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match=r"this is no pod.*set election\.endpoints"):
        parts.election(settings(("election.source", "kubernetes")), "unused")


def test_a_password_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^election\.password_file: cannot read"):
        parts.election(
            settings(
                ("election.source", "etcd"),
                ("election.endpoints", "http://h:1"),
                ("election.username", "u"),
                ("election.password_file", str(tmp_path / "no")),
            ),
            "unused",
        )


async def test_campaigning_makes_an_elector_per_role_and_following_a_follower() -> None:
    for mode, electing in (("campaign", True), ("follow", False)):
        chosen = settings(("election.mode", mode))
        backend = parts.election(chosen, "postgresql://localhost/ledger")
        electors = parts.electors(chosen, backend, StorelessTerm(), observations.ignore)
        followers = parts.followers(chosen, backend, StorelessTerm(), observations.ignore)
        roles = ["ledger", "shards/0", "shards/1", "shards/2"]
        assert list(electors) == (roles if electing else [])
        assert [follower.role for follower in followers] == ([] if electing else roles)
        for role, elector in electors.items():
            assert elector.role == role
            assert elector.candidate.url == "https://ledger.eu.example"
            assert elector.candidate.holder == "eu/gw-1"
        await backend.close()


def test_a_listener_that_fails_disturbs_neither_the_others_nor_the_observed() -> None:
    heard: list[observations.Observation] = []
    failures: list[Exception] = []

    def failing(observation: observations.Observation) -> None:
        raise ValueError("broken")

    fan = parts.Observers(failures.append, [failing, heard.append])
    fan(observations.KeysExpired(1))
    assert heard == [observations.KeysExpired(1)]
    assert [str(error) for error in failures] == ["broken"]
