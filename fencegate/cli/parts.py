"""Settings into parts: routes, limits, the election and its electors. Each function makes one kind of part."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fencegate.cli.loading import election_tls, read_secret
from fencegate.config import RouteSettings, Settings
from fencegate.config.routes import member_names
from fencegate.election.consul import ConsulElection
from fencegate.election.elector import Elector
from fencegate.election.etcd import EtcdElection
from fencegate.election.follower import Follower
from fencegate.election.handoff import HandoffResult, Handoffs
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess, in_cluster
from fencegate.election.postgres import PostgresElection
from fencegate.election.postgres_advisory import PostgresAdvisoryElection
from fencegate.errors import ConfigurationError
from fencegate.fence import FenceStore
from fencegate.gateway.admin import Handover
from fencegate.gateway.app import Limits
from fencegate.gateway.routes import Route
from fencegate.lease import Candidate, ElectionBackend
from fencegate.observations import Observation, Observer


@dataclass(slots=True)
class Observers:
    """Hands every observation to each listener. A listener that fails must not disturb what it listens to."""

    on_failure: Callable[[Exception], None]
    listeners: list[Observer] = field(default_factory=list)

    def __call__(self, observation: Observation) -> None:
        for listen in self.listeners:
            try:
                listen(observation)
            except Exception as error:
                self.on_failure(error)


def routes(settings: Settings) -> list[Route]:
    return [_route(route) for route in settings.route]


def _route(route: RouteSettings) -> Route:
    target = route.parsed_target
    members = frozenset(member_names(route.members)) if route.members is not None else frozenset()
    return Route(
        path=route.path,
        role=route.role,
        target=target.kind,
        argument=target.argument,
        members=members,
        methods=frozenset(route.methods) if route.methods is not None else None,
        idempotency=route.idempotency,
        max_body_bytes=route.max_body_bytes,
        timeout=route.timeout,
        mode=route.mode,
    )


def limits(settings: Settings) -> Limits:
    found = settings.limits
    return Limits(
        header_bytes=found.header_bytes,
        connections=found.connections,
        in_flight=found.in_flight,
        header_timeout=found.header_timeout,
        body_timeout=found.body_timeout,
        idle_timeout=found.idle_timeout,
    )


def election(settings: Settings, store_dsn: str) -> ElectionBackend:
    """The election to campaign in or to follow. Raises :class:`ConfigurationError`."""
    chosen = settings.election
    if chosen.source == "postgres":
        return PostgresElection(chosen.dsn or store_dsn, chosen.timings)
    if chosen.source == "postgres-advisory":
        return PostgresAdvisoryElection(chosen.dsn or store_dsn, chosen.timings)
    if chosen.source == "kubernetes":
        return _kubernetes(settings)
    if chosen.source == "consul":
        return _consul(settings)
    password = read_secret(chosen.password_file, "election.password_file") if chosen.password_file else None
    try:
        return _zookeeper(settings, password) if chosen.source == "zookeeper" else _etcd(settings, password)
    except (ValueError, ImportError) as error:
        raise ConfigurationError([f"election: {error}"]) from None


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
        prefix=chosen.prefix,
        username=chosen.username,
        password=password,
        tls=tls,
        transport=transport,
    )


def _zookeeper(settings: Settings, password: str | None) -> ElectionBackend:
    from fencegate.election.zookeeper import ZookeeperElection  # an extra

    chosen = settings.election
    return ZookeeperElection(
        list(chosen.endpoints),
        chosen.timings,
        prefix=chosen.prefix,
        username=chosen.username,
        password=password,
        tls=election_tls(settings),
    )


def _kubernetes(settings: Settings) -> KubernetesElection:
    chosen = settings.election
    try:
        if chosen.endpoints:
            access = KubernetesAccess(
                list(chosen.endpoints), chosen.namespace or "", chosen.token_file, election_tls(settings)
            )
        else:
            pod = in_cluster(os.environ)
            tls = election_tls(settings) or pod.tls
            access = KubernetesAccess(pod.endpoints, chosen.namespace or pod.namespace, pod.token_file, tls)
        return KubernetesElection(access, chosen.timings, name_foreign_terms=chosen.mode == "follow")
    except ValueError as error:
        raise ConfigurationError([f"election: {error}"]) from None


def _consul(settings: Settings) -> ConsulElection:
    chosen = settings.election
    try:
        return ConsulElection(
            list(chosen.endpoints),
            chosen.timings,
            prefix=chosen.prefix,
            token_file=chosen.token_file,
            tls=election_tls(settings),
        )
    except ValueError as error:
        raise ConfigurationError([f"election: {error}"]) from None


def electors(settings: Settings, backend: ElectionBackend, store: FenceStore, observe: Observer) -> dict[str, Elector]:
    """One elector per role, where this gateway campaigns; none where it follows."""
    if settings.election.mode != "campaign":
        return {}
    candidate = Candidate(settings.node, settings.region, settings.advertise)
    timings, strict = settings.election.timings, settings.election.strict_wait
    return {
        role: Elector(role, candidate, backend, store, timings, observe, strict_wait=strict) for role in settings.roles
    }


HandOver = Callable[[str, str, float], Awaitable[Handover]]

_STATUS = {"done": 200, "already": 200, "pending": 202, "busy": 409, "no_candidate": 409, "not_here": 409}
"""What a handoff's outcome is answered with; every other is 503."""


def hand_over(settings: Settings, backend: ElectionBackend, electors: dict[str, Elector]) -> HandOver | None:
    """The handoffs that the admin listener can make; none where nobody campaigns here."""
    if not electors:
        return None
    timings = settings.election.timings
    handoffs = {role: Handoffs(elector, backend, timings) for role, elector in electors.items()}

    async def to(role: str, region: str, limit: float) -> Handover:
        return _handover(await handoffs[role].to(region, limit))

    return to


def _handover(result: HandoffResult) -> Handover:
    paused = None if result.paused is None else round(result.paused * 1000)
    document: dict[str, object] = {
        "outcome": result.outcome,
        "detail": result.detail,
        "token": result.token,
        "paused_ms": paused,
    }
    return Handover(_STATUS.get(result.outcome, 503), document)


def followers(settings: Settings, backend: ElectionBackend, store: FenceStore, observe: Observer) -> list[Follower]:
    """One follower per role, where applications lead."""
    if settings.election.mode != "follow":
        return []
    return [Follower(role, backend, store, settings.election.timings, observe) for role in settings.roles]
