"""The table ``[election]`` into an election: one to campaign in, or one to follow."""

from __future__ import annotations

import os

from fencegate.access.client_tls import ClientTls
from fencegate.access.database import Database
from fencegate.cli import connections
from fencegate.cli.connections import election_tls
from fencegate.cli.loading import read_secret
from fencegate.config import Settings
from fencegate.config.settings import FOLLOWED
from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.installed import ElectionOptions, NotInstalled, open_installed
from fencegate.election.kafka import KafkaSource
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess, in_cluster
from fencegate.election.patroni import PatroniSource
from fencegate.election.permitted import PermittedHolders
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.errors import ConfigurationError
from fencegate.lease import ElectionBackend, LeadershipSource
from fencegate.observations import Observer, ignore


def source(settings: Settings, store: str | Database, observe: Observer = ignore) -> LeadershipSource:
    """The election to campaign in or to follow, where the region's store is at ``store``.

    ``observe`` is told of certificates that change. Raises :class:`ConfigurationError`.
    """
    found = _source(settings, Database.at(store), observe)
    if settings.validated and not found.proves_terms:
        raise ConfigurationError(
            [
                f"route.validate: the election {found.name} does not say that its reads can prove a term within each "
                f"batch (LeadershipSource.proves_terms); leave validate out for {', '.join(settings.validated)}"
            ]
        )
    return found


def _source(settings: Settings, store: Database, observe: Observer) -> LeadershipSource:
    chosen = settings.election
    password = read_secret(chosen.password_file, "election.password_file") if chosen.password_file else None
    try:
        if chosen.over_postgres:
            kind = PostgresElection if chosen.source == "postgres" else PostgresAdvisoryElection
            return kind(connections.election(settings, store, observe), chosen.timings)
        tls = election_tls(settings, observe)
        if chosen.installed is not None:
            return _installed(settings, store.dsn, chosen.installed, password, tls)
        if chosen.source in FOLLOWED:
            return _followed(settings, password, tls)
        return _backend(settings, password, tls)
    except (ValueError, ImportError, NotInstalled) as error:
        raise ConfigurationError([f"election: {error}"]) from None


def believed(settings: Settings, source: LeadershipSource, observe: Observer) -> LeadershipSource:
    """``source`` as far as those lead who may."""
    holders = settings.election.holders
    return PermittedHolders(source, holders, observe) if holders else source


def backend(settings: Settings, store: str | Database, observe: Observer = ignore) -> ElectionBackend:
    """The election to campaign in. Raises :class:`ConfigurationError`, also where it can only be followed."""
    return campaigned(source(settings, store, observe))


def campaigned(source: LeadershipSource) -> ElectionBackend:
    """``source`` as what it is where somebody campaigns in it. Raises :class:`ConfigurationError`."""
    if not isinstance(source, ElectionBackend):
        raise ConfigurationError([f"election.source: {source.name} elects for itself, and can only be followed"])
    return source


def _backend(settings: Settings, password: str | None, tls: ClientTls | None) -> ElectionBackend:
    match settings.election.source:
        case "kubernetes":
            return _kubernetes(settings, tls)
        case "consul":
            return _consul(settings, tls)
        case "zookeeper":
            return _zookeeper(settings, password, tls)
        case _:
            return _etcd(settings, password, tls)


def _followed(settings: Settings, password: str | None, tls: ClientTls | None) -> LeadershipSource:
    chosen = settings.election
    endpoints, cluster = list(chosen.endpoints), chosen.cluster or ""
    if chosen.source == "redis-sentinel":
        from fencegate.election.redis_sentinel import RedisSentinelSource, SentinelAccess  # an extra

        access = SentinelAccess(chosen.username, password, tls)
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


def _installed(
    settings: Settings, store_dsn: str, name: str, password: str | None, tls: ClientTls | None
) -> LeadershipSource:
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
        tls=tls,
    )
    return open_installed(name, options)


def _etcd(settings: Settings, password: str | None, tls: ClientTls | None) -> ElectionBackend:
    chosen, endpoints = settings.election, list(settings.election.endpoints)
    transport = None
    if chosen.client == "etcd3":
        # Not at the top: the package is an extra, and changes how this process runs protobuf.
        from fencegate.election.etcd_grpc import EtcdGrpc

        transport = EtcdGrpc(endpoints, username=chosen.username, password=password, tls=tls)
    return EtcdElection(
        endpoints,
        chosen.timings,
        prefix=chosen.key_prefix,
        username=chosen.username,
        password=password,
        tls=tls,
        transport=transport,
    )


def _zookeeper(settings: Settings, password: str | None, tls: ClientTls | None) -> ElectionBackend:
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
        tls=tls,
    )


def _kubernetes(settings: Settings, tls: ClientTls | None) -> KubernetesElection:
    chosen = settings.election
    if chosen.endpoints:
        access = KubernetesAccess(list(chosen.endpoints), chosen.namespace or "", chosen.token_file, tls)
    else:
        pod = in_cluster(os.environ)
        access = KubernetesAccess(pod.endpoints, chosen.namespace or pod.namespace, pod.token_file, tls or pod.tls)
    return KubernetesElection(access, chosen.timings, name_foreign_terms=chosen.mode == "follow")


def _consul(settings: Settings, tls: ClientTls | None) -> ConsulElection:
    chosen = settings.election
    return ConsulElection(
        list(chosen.endpoints),
        chosen.timings,
        prefix=chosen.key_prefix,
        token_file=chosen.token_file,
        tls=tls,
    )
