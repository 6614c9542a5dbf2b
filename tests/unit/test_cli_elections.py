"""The table ``[election]`` becomes the election that it means, or a fault that says what to do."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from fencegate.cli import elections
from fencegate.config import Flag, Settings, parse
from fencegate.election import installed
from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.etcd_grpc import EtcdGrpc
from fencegate.election.installed import ElectionOptions
from fencegate.election.kafka import KafkaSource
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.patroni import PatroniSource
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.election.redis_sentinel import RedisSentinelSource
from fencegate.election.zookeeper import ZookeeperElection
from fencegate.election.zookeeper_followed import ZookeeperFollowed
from fencegate.errors import ConfigurationError
from fencegate.lease import LeadershipSource, Term
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[store]
dsn = "postgresql://localhost/ledger"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""


def settings(*flags: tuple[str, str]) -> Settings:
    return parse(file=("F", TEXT), flags=[Flag("--set", key, text) for key, text in flags])


def chosen(source: str, *flags: tuple[str, str]) -> Settings:
    return settings(("election.source", source), *((f"election.{key}", text) for key, text in flags))


async def test_the_election_is_the_one_configured() -> None:
    postgres = elections.source(settings(), "postgresql://localhost/ledger")
    assert isinstance(postgres, PostgresElection)
    etcd = elections.source(settings(("election.source", "etcd"), ("election.endpoints", "http://h:1")), "unused")
    assert isinstance(etcd, EtcdElection)
    await postgres.close()
    await etcd.close()


async def test_the_other_elections_are_made_of_their_own_settings() -> None:
    advisory = elections.source(settings(("election.source", "postgres-advisory")), "postgresql://localhost/ledger")
    assert isinstance(advisory, PostgresAdvisoryElection)
    zookeeper = elections.source(
        settings(("election.source", "zookeeper"), ("election.endpoints", "zk-1:2181,zk-2:2181")), "unused"
    )
    assert isinstance(zookeeper, ZookeeperElection)
    assert zookeeper.link.hosts == ["zk-1:2181", "zk-2:2181"]
    etcd3 = elections.source(
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
        elections.source(settings(("election.source", "zookeeper"), ("election.endpoints", "zk-1:2181")), "unused")
    monkeypatch.delitem(sys.modules, "fencegate.election.etcd_grpc", raising=False)
    monkeypatch.setitem(sys.modules, "etcd3", None)
    etcd3 = (("election.source", "etcd"), ("election.endpoints", "http://h:1"), ("election.client", "etcd3"))
    with pytest.raises(ConfigurationError, match=r"pip install 'fencegate\[etcd3\]'"):
        elections.source(settings(*etcd3), "unused")


async def test_kubernetes_and_consul_are_made_of_their_keys() -> None:
    consul = elections.source(
        settings(("election.source", "consul"), ("election.endpoints", "http://h:8500")), "unused"
    )
    assert isinstance(consul, ConsulElection)
    kubernetes = (("election.source", "kubernetes"), ("election.endpoints", "http://h:1"), ("election.namespace", "n"))
    campaigning = elections.source(settings(*kubernetes), "unused")
    assert isinstance(campaigning, KubernetesElection)
    await consul.close()
    await campaigning.close()


def test_kubernetes_without_endpoints_outside_of_a_pod_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match=r"this is no pod.*set election\.endpoints"):
        elections.source(settings(("election.source", "kubernetes")), "unused")


def test_a_password_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^election\.password_file: cannot read"):
        elections.source(
            settings(
                ("election.source", "etcd"),
                ("election.endpoints", "http://h:1"),
                ("election.username", "u"),
                ("election.password_file", str(tmp_path / "no")),
            ),
            "unused",
        )


# -- followed ---------------------------------------------------------------------------------------------


async def test_what_elects_for_itself_is_made_of_its_own_settings() -> None:
    follow = ("mode", "follow")
    sentinel = elections.source(
        chosen("redis-sentinel", follow, ("endpoints", "s-1:26379,s-2:26379"), ("cluster", "mymaster")), "unused"
    )
    assert isinstance(sentinel, RedisSentinelSource)
    kafka = elections.source(chosen("kafka", follow, ("endpoints", "k-1:9092")), "unused")
    assert isinstance(kafka, KafkaSource)
    patroni = elections.source(
        chosen("patroni", follow, ("endpoints", "http://pg-1:8008"), ("dcs", "http://e:2379"), ("cluster", "batman")),
        "unused",
    )
    assert isinstance(patroni, PatroniSource)
    assert patroni._key("leader") == b"/service/batman/leader"
    zookeeper = elections.source(chosen("zookeeper", follow, ("endpoints", "zk-1:2181")), "unused")
    assert isinstance(zookeeper, ZookeeperFollowed)
    for source in (sentinel, kafka, patroni, zookeeper):
        await source.close()


def test_the_extra_for_redis_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fencegate.election.redis_sentinel", raising=False)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'fencegate\[redis\]'"):
        elections.source(
            chosen("redis-sentinel", ("mode", "follow"), ("endpoints", "s-1:26379"), ("cluster", "mymaster")), "unused"
        )


def test_nobody_can_campaign_in_what_elects_for_itself() -> None:
    with pytest.raises(ConfigurationError, match="kafka elects for itself"):
        elections.backend(chosen("kafka", ("mode", "follow"), ("endpoints", "k-1:9092")), "unused")


# -- of another package -----------------------------------------------------------------------------------


class OnlyFollowed(LeadershipSource):
    name = "only-followed"

    async def read(self, role: str, deadline: float) -> Term | None:
        return None

    async def changes(self, role: str) -> AsyncIterator[None]:
        return
        yield

    async def close(self) -> None:
        pass


OPENED: list[ElectionOptions] = []


def open_backend(options: ElectionOptions) -> LeadershipSource:
    OPENED.append(options)
    return MemoryElection(MemoryQuorum(lambda: 0.0), options.timings)


def open_followed(options: ElectionOptions) -> LeadershipSource:
    return OnlyFollowed()


def open_refusing(options: ElectionOptions) -> LeadershipSource:
    raise ValueError("name a quorum in election.cluster")


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that declare elections, as an installer would write it down."""
    sys.modules.setdefault("elections_of_a_test", sys.modules[__name__])
    declared = [
        EntryPoint(name, f"elections_of_a_test:{function}", installed.GROUP)
        for name, function in (
            ("mine", "open_backend"),
            ("other", "open_followed"),
            ("gone", "nothing"),
            ("refusing", "open_refusing"),
            ("twice", "open_backend"),
            ("twice", "open_followed"),
        )
    ]
    declared.append(EntryPoint("none", "builtins:repr", installed.GROUP))
    monkeypatch.setattr(installed, "entry_points", lambda **which: EntryPoints(declared).select(**which))


@pytest.mark.usefixtures("packages")
async def test_an_election_of_another_package_is_found_by_its_entry_point_and_gets_the_options() -> None:
    OPENED.clear()
    found = elections.backend(
        chosen("installed:mine", ("endpoints", "q-1:1"), ("cluster", "c"), ("lease_duration", "20")), "postgresql://s"
    )
    assert isinstance(found, MemoryElection)
    (options,) = OPENED
    assert (options.endpoints, options.cluster, options.dsn) == (("q-1:1",), "c", "postgresql://s")
    assert (options.timings.lease_duration, options.mode, options.prefix) == (20, "campaign", "/fencegate")
    assert isinstance(elections.source(chosen("installed:other", ("mode", "follow")), ""), OnlyFollowed)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unknown", "no package declares.*declared: gone, mine, none, other, refusing, twice"),
        ("gone", "cannot be imported"),
        ("none", "which is no LeadershipSource"),
        ("other", 'can only be followed: set election.mode = "follow"'),
        ("refusing", "name a quorum"),
        ("twice", "several packages declare"),
    ],
)
def test_one_that_cannot_be_had_is_a_fault_that_says_why(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        elections.source(chosen(f"installed:{name}"), "")


def test_without_any_package_the_fault_says_so() -> None:
    with pytest.raises(ConfigurationError, match="declared: none"):
        elections.source(chosen("installed:mine"), "")


# -- validate = true ----------------------------------------------------------------------------------------

VALIDATED = f"{TEXT}validate = true\n"


@pytest.mark.usefixtures("packages")
def test_a_validated_role_is_refused_where_an_election_does_not_say_that_it_proves_terms() -> None:
    flags = [Flag("--set", "election.source", "installed:other"), Flag("--set", "election.mode", "follow")]
    with pytest.raises(ConfigurationError, match=r"only-followed does not say .* leave validate out for ledger"):
        elections.source(parse(file=("F", VALIDATED), flags=flags), "")
    mine = parse(file=("F", VALIDATED), flags=[Flag("--set", "election.source", "installed:mine")])
    assert isinstance(elections.source(mine, ""), MemoryElection)


def test_the_elections_that_prove_terms_are_those_that_the_configuration_lets_validate() -> None:
    campaigned = (EtcdElection, PostgresElection, PostgresAdvisoryElection, ZookeeperElection, ZookeeperFollowed)
    assert all(kind.proves_terms for kind in (*campaigned, KubernetesElection, ConsulElection))
    assert not any(kind.proves_terms for kind in (KafkaSource, PatroniSource, RedisSentinelSource))
