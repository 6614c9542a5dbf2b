"""Settings into parts: routes, limits, electors, followers. Each function makes one kind of part."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencegate import __version__
from fencegate.access.database import Database
from fencegate.cli import connections
from fencegate.cli.elections import campaigned
from fencegate.cli.loading import RouteKeys, route_keys
from fencegate.config import RouteSettings, Settings
from fencegate.config.identity import network
from fencegate.config.routes import member_names
from fencegate.config.several_stores import by_store, names_of
from fencegate.config.values import is_loopback, split_address
from fencegate.election.drain import DrainResult, Drains
from fencegate.election.elector import Elector
from fencegate.election.followers import Followers
from fencegate.election.handoff import HandoffResult, Handoffs
from fencegate.election.sealing import SealResult, seal
from fencegate.errors import ConfigurationError
from fencegate.fence import FenceStore, WritePath
from fencegate.gateway.actions import Acted, Action, Asked, status_of
from fencegate.gateway.app import Gateway
from fencegate.gateway.caller import Allowed, Callers
from fencegate.gateway.certificates import Certificates, TlsFiles
from fencegate.gateway.granting import Granting
from fencegate.gateway.limits import Limits
from fencegate.gateway.routes import Route, RouteTable
from fencegate.lease import Candidate, LeadershipSource, LeadershipView
from fencegate.observations import Observation, Observer
from fencegate.store.several import StoreAddress
from fencegate.telemetry.conventions import database
from fencegate.telemetry.leadership_spans import LeadershipSpans
from fencegate.telemetry.logs import configure
from fencegate.telemetry.metrics import Metrics

if TYPE_CHECKING:  # Imported where it is asked for.
    from fencegate.gateway.envoy import EnvoyAuthorizer
    from fencegate.telemetry.otlp import Exporting


@dataclass(slots=True)
class Observers:
    """Hands every observation to each listener that ``hears`` its kind: those that say nothing of it hear all.

    A listener may name a ``hearer`` for a kind, or ``None`` where it hears nothing of it at present: what comes with
    every write is told to nobody who would only drop it. A listener that fails must not disturb what it listens to.
    """

    on_failure: Callable[[Exception], None]
    listeners: list[Observer] = field(default_factory=list)
    _hearing: dict[type[Observation], list[Observer]] = field(default_factory=dict)

    def add(self, listener: Observer) -> None:
        self.listeners.append(listener)
        self.ask_again()

    def ask_again(self) -> None:
        """Who hears what may have changed."""
        self._hearing.clear()

    def __call__(self, observation: Observation) -> None:
        kind = type(observation)
        hearing = self._hearing.get(kind)
        if hearing is None:
            hears = [one for one in self.listeners if kind in getattr(one, "hears", (kind,))]
            asked = [one.hearer(kind) if hasattr(one, "hearer") else one for one in hears]
            hearing = self._hearing[kind] = [one for one in asked if one is not None]
        for listen in hearing:
            try:
                listen(observation)
            except Exception as error:
                self.on_failure(error)


def log_as(settings: Settings, observers: Observers, also: Mapping[str, object] | None = None) -> None:
    """From now on lines are written as these settings say, each with what is ``also`` to be said."""
    configure(settings.log.format, settings.log.level, also=also)
    observers.ask_again()


def metrics(settings: Settings) -> Metrics:
    """The metrics of a process that serves with these settings."""
    return Metrics(
        settings.families,
        node=settings.node,
        region=settings.region,
        backend=settings.election.source,
        version=__version__,
        observed=settings.observed,
        stores=names_of(settings),
        follows=settings.election.mode == "follow",
    )


def addresses(settings: Settings, places: Mapping[str, Database]) -> dict[str, StoreAddress]:
    """Each store's address and roles, by its name."""
    return {name: StoreAddress(places[name], part.roles) for name, part in by_store(settings).items()}


def tracing(settings: Settings, *, worker: int = 0) -> Exporting | None:
    """Where this process's spans go; ``None`` where nobody asked for any, and then nothing of it is imported.

    Raises :class:`fencegate.errors.ConfigurationError` where OpenTelemetry is not installed.
    """
    otel = settings.otel
    if not otel.on:
        return None
    _let_etcd3_choose(settings)
    try:
        from fencegate.telemetry.otlp import Exporting
    except ImportError as error:
        raise ConfigurationError([f"otel: {error}"]) from None
    return Exporting(
        node=settings.node,
        region=settings.region,
        instance=f"{settings.node}/{worker}" if worker else settings.node,
        endpoint=otel.endpoint,
        service_name=otel.service_name,
        sample_ratio=otel.sample_ratio,
    )


def leadership_spans(exporting: Exporting | None, observers: Observers) -> LeadershipSpans | None:
    """Spans of what becomes of the leadership, from now on."""
    if exporting is None:
        return None
    spans = LeadershipSpans(exporting.leadership)
    observers.add(spans)
    return spans


def gateway(
    settings: Settings,
    table: list[Route],
    store: WritePath,
    view: LeadershipView,
    observe: Observer,
    origins: dict[str, str],
    *,
    exporting: Exporting | None,
    store_dsn: str,
) -> Gateway:
    """The gateway; with spans where they have somewhere to go. ``store_dsn``: where there is one store."""
    common: dict[str, Any] = {
        "region": settings.region,
        "observe": observe,
        "limits": limits(settings),
        "origins": origins,
        "callers": callers(settings),
        "pool": connections.upstream_pools(settings, observe),
    }
    if exporting is None:
        return Gateway(table, store, view, **common)
    from fencegate.gateway.traced import TracedGateway

    of_store = database("" if settings.stores else store_dsn)
    return TracedGateway(table, store, view, tracing=exporting.requests, database=of_store, **common)


def envoy_authorizer(settings: Settings, gateway: Gateway) -> EnvoyAuthorizer | None:
    """The authorizer over gRPC, where it is to listen.

    Raises :class:`fencegate.errors.ConfigurationError` where gRPC is not installed.
    """
    if settings.envoy.listen is None:
        return None
    _let_etcd3_choose(settings)
    try:
        from fencegate.gateway.envoy import EnvoyAuthorizer
    except ImportError as error:
        raise ConfigurationError([f"envoy.listen: {error}"]) from None
    return EnvoyAuthorizer(gateway, role=settings.envoy.role or "", identity_header=settings.identity.header or "")


def _let_etcd3_choose(settings: Settings) -> None:
    """Protobuf's implementation is chosen when it is first imported, and the package etcd3 can do with one alone."""
    if settings.election.client == "etcd3":
        with contextlib.suppress(ImportError):  # What is missing is said where the election is made.
            importlib.import_module("fencegate.election.etcd_grpc")


def routes(settings: Settings) -> list[Route]:
    """The routes, with their keys. Raises :class:`fencegate.errors.ConfigurationError` for a key file."""
    keys = route_keys(settings)
    return [_route(route, keys, granting(settings, route, keys)) for route in settings.route]


def check_routes(settings: Settings) -> None:
    """Raises :class:`fencegate.errors.ConfigurationError` for routes that do not hold together."""
    RouteTable(routes(settings))


def granting(settings: Settings, route: RouteSettings, keys: RouteKeys) -> Granting | None:
    """What the route has to do with grants; ``None`` where it has no keys for them."""
    if route.grant_key_file is None:
        return None
    return Granting(
        keys.grant[route.grant_key_file],
        required=route.grant == "required",
        hands_out=not settings.election.led_by_applications,
        lifetime=route.grant_lifetime,
    )


def _route(route: RouteSettings, keys: RouteKeys, granting: Granting | None) -> Route:
    target = route.parsed_target
    # Whoever needs a grant needs an identity, which it is bound to.
    anybody = ["*"] if granting is not None and granting.required else None
    callers = route.callers or anybody
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
        hold=route.hold_ms / 1000,
        method_from=route.method_from or "",
        callers=Allowed(callers) if callers is not None else None,
        mode=route.mode,
        granting=granting,
        proof_key=None if route.proof_key_file is None else keys.proof[route.proof_key_file][0],
    )


def limits(settings: Settings) -> Limits:
    found = settings.limits
    return Limits(
        header_bytes=found.header_bytes,
        connections=found.connections,
        connections_per_peer=found.connections_per_peer,
        in_flight=found.in_flight,
        header_timeout=found.header_timeout,
        body_timeout=found.body_timeout,
        idle_timeout=found.idle_timeout,
    )


def callers(settings: Settings) -> Callers | None:
    """How callers are known; ``None`` where none has an identity."""
    found = settings.identity
    if not found.known:
        return None
    return Callers(
        certificate=found.certificate,
        header=found.header or "",
        proxies=[network(text) for text in found.proxies],
        required=found.required,
    )


def certificates(settings: Settings, observe: Observer, *, operators: bool = False) -> Certificates | None:
    """The certificates of the data listener, or of the operators'; ``None`` without TLS.

    Raises :class:`fencegate.errors.ConfigurationError` for files that cannot be used.
    """
    files = tls_files(settings, operators=operators)
    return Certificates(files, observe) if files is not None else None


def exposures(settings: Settings) -> list[str]:
    """What others on the network could see or do by these settings, in sentences for the log; the worst is refused."""
    host, _ = split_address(settings.listen.admin)
    found: list[str] = []
    if is_loopback(host):
        return found
    where = f"the operators' listener is on {settings.listen.admin}"
    if settings.listen.scheme == "http":
        found.append(f"{where} in the clear: its tokens can be read on the way; set [listen.tls], or use loopback")
    if settings.admin.read_token_file is None:
        found.append(f"{where} and whoever reaches it may read: set admin.read_token_file, or use loopback")
    return found


def weaker(settings: Settings) -> list[str]:
    """What holds less than usual by these settings, in sentences for the log."""
    return [
        f"{connections.table_of(store)}: portability = true: the fence relies on row conflicts alone. A copy of this "
        "store that is restored or failed over to is not known to be one: run fencegate rebase before it is used"
        for store in settings.stores or [settings.store]
        if store.portability
    ]


def tls_files(settings: Settings, *, operators: bool = False) -> TlsFiles | None:
    tls = settings.listen.tls
    if tls.cert is None or tls.key is None:
        return None
    required = tls.client == "required" or (tls.client == "data" and not operators)
    return TlsFiles("listen.tls", tls.cert, tls.key, tls.client_ca, required)


def electors(settings: Settings, source: LeadershipSource, store: FenceStore, observe: Observer) -> dict[str, Elector]:
    """One elector per role, where this gateway campaigns; none where it follows."""
    if settings.election.mode != "campaign":
        return {}
    backend = campaigned(source)
    candidate = Candidate(settings.node, settings.region, settings.advertise)
    timings, strict = settings.timings, settings.election.strict_wait
    return {
        role: Elector(role, candidate, backend, store, timings, observe, strict_wait=strict) for role in settings.roles
    }


def actions(
    settings: Settings,
    source: LeadershipSource,
    electors: dict[str, Elector],
    store_of: Callable[[str], FenceStore],
    observe: Observer,
    resign_limit: float,
) -> dict[str, Action]:
    """What the admin listener can do. Where nobody campaigns here only a seal is left: the leadership is another's.

    ``store_of`` gives the store that holds a role.
    """

    async def seal_term(role: str, asked: Asked) -> Acted:
        return _acted(await seal(role, asked["token"], asked["limit"], electors=electors, store=store_of(role)))

    if not electors:
        return {"seal": seal_term}
    backend, timings = campaigned(source), settings.timings
    handoffs = {role: Handoffs(elector, backend, timings) for role, elector in electors.items()}
    drains = {role: Drains(elector, store_of(role), timings, observe) for role, elector in electors.items()}

    async def hand_over(role: str, asked: Asked) -> Acted:
        return _acted(await handoffs[role].to(asked["to"], asked["limit"], asked.get("token")))

    async def drain(role: str, asked: Asked) -> Acted:
        return _acted(await drains[role].begin(asked["limit"], asked.get("token")))

    async def resume(role: str, _: Asked) -> Acted:
        return _acted(await drains[role].resume())

    async def resign(role: str, _: Asked) -> Acted:
        if electors[role].token is None:
            return Acted(409, {"error": "This node does not lead the role."})
        if not await electors[role].resign("resigned", resign_limit):
            reason = "the seal is not known to stand; the lease lapses by itself"
            return Acted(503, {"error": f"The leadership was not given up: {reason}"})
        return Acted(200, {"resigned": True})

    return {"handoff": hand_over, "drain": drain, "resume": resume, "seal": seal_term, "resign": resign}


def _acted(result: HandoffResult | DrainResult | SealResult) -> Acted:
    document: dict[str, object] = {"outcome": result.outcome, "detail": result.detail, "token": result.token}
    if isinstance(result, HandoffResult):
        document["paused_ms"] = None if result.paused is None else round(result.paused * 1000)
    if isinstance(result, DrainResult):
        document["left_s"] = None if result.left is None else round(result.left, 3)
    return Acted(status_of(result.outcome), document)


def followers(settings: Settings, source: LeadershipSource, store: FenceStore, observe: Observer) -> Followers | None:
    """A follower per role, where somebody else campaigns."""
    if settings.election.mode != "follow":
        return None
    return Followers(settings.roles, source, store, settings.election.timings, observe)
