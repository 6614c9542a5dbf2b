"""The table ``[election]`` into an election: one to campaign in, or one to follow."""

from __future__ import annotations

import os

from fencegate.cli.loading import election_tls, read_secret
from fencegate.config import Settings
from fencegate.config.values import FOLLOWED
from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.installed import ElectionOptions, NotInstalled, open_installed
from fencegate.election.kafka import KafkaSource
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess, in_cluster
from fencegate.election.patroni import PatroniSource
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.errors import ConfigurationError
from fencegate.lease import ElectionBackend, LeadershipSource


def source(settings: Settings, store_dsn: str) -> LeadershipSource:
    """The election to campaign in or to follow. Raises :class:`ConfigurationError`."""
    found = _source(settings, store_dsn)
    if settings.validated and not found.proves_terms:
        raise ConfigurationError(
            [
                f"route.validate: the election {found.name} does not say that its reads can prove a term within each "
                f"batch (LeadershipSource.proves_terms); leave validate out for {', '.join(settings.validated)}"
            ]
        )
    return found


def _source(settings: Settings, store_dsn: str) -> LeadershipSource:
    chosen = settings.election
    password = read_secret(chosen.password_file, "election.password_file") if chosen.password_file else None
    try:
        if chosen.installed is not None:
            return _installed(settings, store_dsn, chosen.installed, password)
        if chosen.source in FOLLOWED:
            return _followed(settings, password)
        return _backend(settings, store_dsn, password)
    except (ValueError, ImportError, NotInstalled) as error:
        raise ConfigurationError([f"election: {error}"]) from None


def backend(settings: Settings, store_dsn: str) -> ElectionBackend:
    """The election to campaign in. Raises :class:`ConfigurationError`, also where it can only be followed."""
    return campaigned(source(settings, store_dsn))


def campaigned(source: LeadershipSource) -> ElectionBackend:
    """``source`` as what it is where somebody campaigns in it. Raises :class:`ConfigurationError`."""
    if not isinstance(source, ElectionBackend):
        raise ConfigurationError([f"election.source: {source.name} elects for itself, and can only be followed"])
    return source


def _backend(settings: Settings, store_dsn: str, password: str | None) -> ElectionBackend:
    chosen = settings.election
    match chosen.source:
        case "postgres":
            return PostgresElection(chosen.dsn or store_dsn, chosen.timings)
        case "postgres-advisory":
            return PostgresAdvisoryElection(chosen.dsn or store_dsn, chosen.timings)
        case "kubernetes":
            return _kubernetes(settings)
        case "consul":
            return _consul(settings)
        case "zookeeper":
            return _zookeeper(settings, password)
        case _:
            return _etcd(settings, password)


def _followed(settings: Settings, password: str | None) -> LeadershipSource:
    chosen = settings.election
    endpoints, cluster, tls = list(chosen.endpoints), chosen.cluster or "", election_tls(settings)
    if chosen.source == "redis-sentinel":
        from fencegate.election.redis_sentinel import RedisSentinelSource, SentinelAccess  # an extra

        access = SentinelAccess(chosen.username, password, chosen.tls.ca, chosen.tls.cert, chosen.tls.key)
        return RedisSentinelSource(endpoints, cluster, chosen.timings, access)
    if chosen.source == "kafka":
        return KafkaSource(endpoints, chosen.timings, tls=tls)
    return PatroniSource(
        endpoints,
        list(chosen.dcs),
        cluster,
        chosen.timings,
        namespace=chosen.key_prefix,
        username=chosen.username,
        password=password,
        tls=tls,
    )


def _installed(settings: Settings, store_dsn: str, name: str, password: str | None) -> LeadershipSource:
    chosen = settings.election
    options = ElectionOptions(
        chosen.timings,
        chosen.mode,
        endpoints=tuple(chosen.endpoints),
        dsn=chosen.dsn or store_dsn,
        prefix=chosen.key_prefix,
        cluster=chosen.cluster,
        username=chosen.username,
        password=password,
        token_file=chosen.token_file,
        tls=election_tls(settings),
    )
    return open_installed(name, options)


def _etcd(settings: Settings, password: str | None) -> ElectionBackend:
    chosen, endpoints = settings.election, list(settings.election.endpoints)
    tls = election_tls(settings)
    transport = None
    if chosen.client == "etcd3":
        # Not at the top: the package is an extra, and changes how this process runs protobuf.
        from fencegate.election.etcd_grpc import EtcdGrpc, PemFiles

        pem = PemFiles(chosen.tls.ca, chosen.tls.cert, chosen.tls.key)
        transport = EtcdGrpc(endpoints, username=chosen.username, password=password, pem=pem)
    return EtcdElection(
        endpoints,
        chosen.timings,
        prefix=chosen.key_prefix,
        username=chosen.username,
        password=password,
        tls=tls,
        transport=transport,
    )


def _zookeeper(settings: Settings, password: str | None) -> ElectionBackend:
    from fencegate.election.zookeeper import ZookeeperElection  # an extra
    from fencegate.election.zookeeper_followed import ZookeeperFollowed

    chosen = settings.election
    kind = ZookeeperFollowed if chosen.mode == "follow" else ZookeeperElection
    return kind(
        list(chosen.endpoints),
        chosen.timings,
        prefix=chosen.key_prefix,
        username=chosen.username,
        password=password,
        tls=election_tls(settings),
    )


def _kubernetes(settings: Settings) -> KubernetesElection:
    chosen = settings.election
    if chosen.endpoints:
        access = KubernetesAccess(
            list(chosen.endpoints), chosen.namespace or "", chosen.token_file, election_tls(settings)
        )
    else:
        pod = in_cluster(os.environ)
        tls = election_tls(settings) or pod.tls
        access = KubernetesAccess(pod.endpoints, chosen.namespace or pod.namespace, pod.token_file, tls)
    return KubernetesElection(access, chosen.timings, name_foreign_terms=chosen.mode == "follow")


def _consul(settings: Settings) -> ConsulElection:
    chosen = settings.election
    return ConsulElection(
        list(chosen.endpoints),
        chosen.timings,
        prefix=chosen.key_prefix,
        token_file=chosen.token_file,
        tls=election_tls(settings),
    )
