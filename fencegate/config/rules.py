"""The rules between keys: what is well shaped and still nonsense, or unsafe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencegate.config import grants, routes, transport
from fencegate.config.broken import Broken
from fencegate.config.identity import IdentitySettings
from fencegate.config.limits import LimitSettings
from fencegate.config.settings import (
    FOLLOWED,
    MAX_LEASES,
    SOURCES,
    ElectionSettings,
    RouteSettings,
    Settings,
)
from fencegate.config.values import is_loopback, split_address
from fencegate.lease import is_among

LONGEST_CONSUL_LEASE = 60


def broken(settings: Settings, numbers: Sequence[int], *, embedded: bool) -> Iterator[Broken]:
    """Every rule that the settings break. ``numbers``: which ``[[route]]`` of the file, from 0, each route is."""
    yield from _store(settings, embedded)
    yield from _listeners(settings)
    yield from transport.broken(settings, embedded=embedded)
    yield from _identity(settings)
    yield from _envoy(settings)
    yield from _workers(settings)
    yield from _election(settings, embedded)
    yield from _routes(settings, numbers)


def broken_election(settings: Settings) -> Iterator[Broken]:
    """The rules for a process that only campaigns: neither store nor routes nor listeners count."""
    yield from _election(settings, embedded=False)
    yield from transport.broken_campaign(settings)
    if settings.election.source in FOLLOWED:
        sentence = f"expected an election to campaign in; {settings.election.source} elects for itself"
        yield Broken("election.source", sentence)
    if settings.election.over_postgres and settings.election.dsn is None and settings.store.dsn is None:
        yield Broken("election.dsn", missing=True)


def _store(settings: Settings, embedded: bool) -> Iterator[Broken]:
    if settings.stores:
        return  # see several_stores.py
    if embedded and settings.store.dsn is not None:
        yield Broken("store.dsn", "expected no DSN together with --embedded, which starts its own Postgres")
    if not embedded and settings.store.dsn is None:
        yield Broken("store.dsn", missing=True)


def _listeners(settings: Settings) -> Iterator[Broken]:
    both = ("listen.data",)
    host, port = split_address(settings.listen.admin)
    if port and settings.listen.admin == settings.listen.data:
        yield Broken("listen.admin", "expected another address than listen.data", both)
    if not is_loopback(host) and settings.admin.token_file is None:
        yield Broken(
            "listen.admin",
            "expected a loopback address, or admin.token_file: the admin listener must not be open to a network",
            ("admin.token_file",),
        )
    if settings.admin.token_file is not None and settings.admin.token_file == settings.admin.read_token_file:
        yield Broken("admin.read_token_file", "expected another file than admin.token_file", ("admin.token_file",))


def _identity(settings: Settings) -> Iterator[Broken]:
    """What no caller could ever satisfy is a mistake, and so is what names callers and is believed of nobody."""
    identity, tls = settings.identity, settings.listen.tls
    if identity.certificate and tls.client_ca is None:
        sentence = "expected listen.tls.client_ca with it: only a certificate that was verified names a caller"
        yield Broken("identity.certificate", sentence, ("listen.tls.client_ca",))
    if identity.header is not None and not identity.proxies:
        sentence = "missing; expected with identity.header the networks of the proxies that set it"
        yield Broken("identity.from", sentence, ("identity.header",), missing=True)
    if identity.header is None and identity.proxies:
        yield Broken("identity.from", "expected identity.header with it", ("identity.header",))
    if identity.required and not identity.known:
        sources = ("identity.certificate", "identity.header")
        yield Broken("identity.required", "expected identity.certificate or identity.header with it", sources)


def _callers(key: str, route: RouteSettings, identity: IdentitySettings) -> Iterator[Broken]:
    """A route that takes writes of known callers only, where none can be known."""
    if route.callers is not None and not identity.known:
        sources = ("identity.certificate", "identity.header")
        yield Broken(f"{key}.callers", "expected identity.certificate or identity.header with it", sources)
    elif route.parsed_target.kind == "authz" and identity.header is None and (route.callers or identity.required):
        sentence = "expected identity.header with callers: the certificate that is seen there is the asking proxy's"
        yield Broken(f"{key}.target", sentence, ("identity.header",))


def _envoy(settings: Settings) -> Iterator[Broken]:
    role, listen = settings.envoy.role, settings.envoy.listen
    if role is not None and role not in settings.roles:
        yield Broken("envoy.role", "expected a role of a [[route]], a family's member by its own name")
    if listen is None:
        if role is not None:
            yield Broken("envoy.role", "expected envoy.listen with it", ("envoy.listen",))
        return
    host, port = split_address(listen)
    if port and listen in (settings.listen.data, settings.listen.admin):
        yield Broken("envoy.listen", "expected another address than those of the listeners", ("listen.data",))
    if not is_loopback(host) and settings.listen.tls.cert is not None:
        sentence = "expected a loopback address, since listen.tls is set: Envoy's questions come in the clear"
        yield Broken("envoy.listen", sentence, ("listen.tls.cert",))
    if settings.workers > 1:
        yield Broken("workers", "expected 1 together with envoy.listen", ("envoy.listen",))


def _workers(settings: Settings) -> Iterator[Broken]:
    """Each worker takes an equal share of the gateway's limits; a share of nothing would refuse everything."""
    for name in ("connections", "in_flight"):
        if getattr(settings.limits, name) < settings.workers:
            sentence = f"expected at least one for each of {settings.workers} workers, which share it equally"
            yield Broken(f"limits.{name}", sentence, ("workers",))


def _election(settings: Settings, embedded: bool) -> Iterator[Broken]:
    election = settings.election
    names = ("lease_duration", "renew_deadline", "retry_period", "margin")
    for fault in election.timings.faults():
        named = [name for name in names if name in fault]
        key, *others = [f"election.{name}" for name in named]
        yield Broken(key, f"expected timings that hold together: {fault}", tuple(others))
    if embedded and election.source != "postgres":
        yield Broken("election.source", "expected postgres together with --embedded")
    if embedded and election.dsn is not None:
        yield Broken("election.dsn", "expected no DSN together with --embedded, which uses its own Postgres")
    alone = election.mode == "campaign" and not is_among(election.holders, settings.region, settings.node)
    if election.holders and alone:
        sentence = f"expected {settings.region}/{settings.node} among them, this node: its own term would not count"
        yield Broken("election.holders", sentence, ("node", "region"))
    if election.installed is None:
        yield from _election_address(election)
        yield from _followed(election)
    yield from _password(election)


def _password(election: ElectionSettings) -> Iterator[Broken]:
    """A Postgres' user is in its DSN; whoever else is known by a password is known by a user's name with it."""
    if election.over_postgres:
        return
    if (election.username is None) != (election.password_file is None):
        key, other = ("username", "password_file") if election.username is not None else ("password_file", "username")
        yield Broken(f"election.{key}", f"expected election.{other} with it", (f"election.{other}",))


_EXAMPLES = {
    "etcd": "the etcd members, such as http://etcd-1:2379",
    "zookeeper": "ZooKeeper's members, such as zk-1:2181",
    "consul": "agents of one Consul datacenter, such as http://127.0.0.1:8500",
    "kubernetes": "API servers, such as https://kubernetes.default.svc",
    "patroni": "Patroni's REST API on each member, such as http://pg-1:8008",
    "redis-sentinel": "every sentinel, such as sentinel-1:26379",
    "kafka": "brokers or controllers, such as kafka-1:9092",
}
_BY_HOST_AND_PORT = ("zookeeper", "redis-sentinel", "kafka")


def _election_address(election: ElectionSettings) -> Iterator[Broken]:
    """Where the election is: endpoints, and who asks there; or a DSN."""
    source = ("election.source",)
    # A pod is told its API server by its environment.
    if not election.over_postgres and election.source != "kubernetes" and not election.endpoints:
        yield Broken(
            "election.endpoints",
            f"missing; expected {_EXAMPLES[election.source]} "
            "(set election.endpoints in the file, FENCEGATE_ELECTION_ENDPOINTS, or --set election.endpoints=A,B,C)",
            source,
            missing=True,
        )
    if len(set(election.endpoints)) != len(election.endpoints):
        yield Broken("election.endpoints", "expected each endpoint once")
    if not election.over_postgres and any(
        ("://" in each) == (election.source in _BY_HOST_AND_PORT) for each in election.endpoints
    ):
        yield Broken("election.endpoints", f"expected {_EXAMPLES[election.source]}", source)
    if election.client != "json" and election.source != "etcd":
        yield Broken("election.client", 'expected only with election.source = "etcd"', source)
    if election.over_postgres:
        for key, is_set in (
            ("endpoints", bool(election.endpoints)),
            ("username", election.username is not None),
            ("password_file", election.password_file is not None and election.dsn is None),
        ):
            if is_set:
                yield Broken(
                    f"election.{key}",
                    f"expected only with an election that is not over Postgres; for {election.source} set election.dsn",
                    source,
                )
    elif election.dsn is not None:
        expected = 'expected only with election.source = "postgres" or "postgres-advisory"'
        yield Broken("election.dsn", expected, source)
    yield from _tokens(election)


def _followed(election: ElectionSettings) -> Iterator[Broken]:
    """The systems that elect for themselves: their cluster's name, and what they have no use for."""
    source = ("election.source",)
    if election.source in FOLLOWED and election.mode != "follow":
        sentence = f'expected "follow" with {election.source}, which elects for itself'
        yield Broken("election.mode", sentence, source)
    named = {"patroni": "Patroni's scope", "redis-sentinel": "the name by which the sentinels monitor the primary"}
    if election.source in named and election.cluster is None:
        yield Broken("election.cluster", f"missing; expected {named[election.source]}", source, missing=True)
    if election.source not in named and election.cluster is not None:
        yield Broken("election.cluster", 'expected only with election.source = "patroni" or "redis-sentinel"', source)
    etcd = "the etcd that Patroni keeps its leader key in, such as http://etcd-1:2379"
    if election.source == "patroni" and not election.dcs:
        yield Broken("election.dcs", f"missing; expected {etcd}", source, missing=True)
    if election.source != "patroni" and election.dcs:
        yield Broken("election.dcs", 'expected only with election.source = "patroni"', source)
    if any("://" not in each for each in election.dcs):
        yield Broken("election.dcs", f"expected {etcd}")
    if election.source == "kafka" and election.username is not None:
        sentence = "expected none with kafka: signing in over SASL is not in this version"
        yield Broken("election.username", sentence, source)
    if election.source in ("kafka", "redis-sentinel") and election.prefix is not None:
        yield Broken("election.prefix", f"expected none with {election.source}, which has no keys", source)


def _tokens(election: ElectionSettings) -> Iterator[Broken]:
    """The elections that know us by a token: Kubernetes and Consul."""
    source = ("election.source",)
    by_token = election.source in ("kubernetes", "consul")
    if by_token and election.username is not None:
        yield Broken("election.username", f"expected election.token_file with {election.source}", source)
    if not by_token and election.token_file is not None:
        yield Broken("election.token_file", 'expected only with election.source = "kubernetes" or "consul"', source)
    if election.source != "kubernetes" and election.namespace is not None:
        yield Broken("election.namespace", 'expected only with election.source = "kubernetes"', source)
    if election.source == "kubernetes":
        outside = bool(election.endpoints)
        if outside and election.namespace is None:
            yield Broken("election.namespace", "expected the Leases' namespace with election.endpoints", source)
        if not outside and election.token_file is not None:
            yield Broken("election.token_file", "expected election.endpoints with it; a pod has its own token", source)
    if election.source == "consul" and election.lease_duration > LONGEST_CONSUL_LEASE:
        sentence = f"expected at most {LONGEST_CONSUL_LEASE} s with consul, whose lock-delay is no longer"
        yield Broken("election.lease_duration", sentence, source)


def _routes(settings: Settings, numbers: Sequence[int]) -> Iterator[Broken]:
    if not settings.route:
        yield Broken("route", "missing; expected at least one [[route]] table in the file", missing=True)
    numbered = list(zip(numbers, settings.route, strict=True))
    for index, (number, route) in enumerate(numbered):
        yield from _route(f"route.{number}", route)
        yield from _holding(f"route.{number}", route, settings.limits)
        yield from _validating(f"route.{number}", route, settings.election)
        yield from _rehearsal(f"route.{number}", route)
        yield from _callers(f"route.{number}", route, settings.identity)
        yield from grants.broken(f"route.{number}", route, settings.identity)
        for earlier, other in numbered[:index]:
            yield from _pair(f"route.{number}", route, f"[[route]] {earlier + 1}", other)
            yield from grants.broken_pair(f"route.{number}", route, f"[[route]] {earlier + 1}", other)
    if settings.election.mode == "campaign":
        families = [(number, route) for number, route in numbered if route.members is not None]
        if len({role for _, route in families for role in route.roles}) > MAX_LEASES:
            largest, _ = max(families, key=lambda family: len(family[1].roles))
            yield Broken(
                f"route.{largest}.members",
                f"expected at most {MAX_LEASES} members in all: in campaign mode each is a lease of its own; "
                'one lease for a whole family is not in this version (election.mode = "follow" has no such limit)',
                ("election.mode",),
            )


def _route(key: str, route: RouteSettings) -> Iterator[Broken]:
    in_path, in_role = routes.role_parameters(route.path), routes.role_parameters(route.role)
    for name in in_role:
        if name not in in_path:
            yield Broken(f"{key}.role", f"expected {{{name}}} in the path {route.path} too", (f"{key}.path",))
    if in_role and route.members is None:
        yield Broken(
            f"{key}.role", f"expected members with it: who may be {{{in_role[0]}}} is declared, never asked for"
        )
    if not in_role and route.members is not None:
        yield Broken(f"{key}.members", f"expected a {{parameter}} in the role {route.role} with it", (f"{key}.role",))
    target = route.parsed_target
    if target.kind != "http" and route.path.endswith("/*"):
        yield Broken(f"{key}.path", f"expected no * with the target {target.kind}; only an upstream takes what follows")
    if (target.kind == "authz") != route.path.startswith(routes.AUTHZ):
        yield Broken(
            f"{key}.path", "expected a path below /-/authz/ with the target authz, and only there", (f"{key}.target",)
        )
    elif target.kind == "authz" and route.path != routes.AUTHZ + route.role:
        yield Broken(f"{key}.path", f"expected {routes.AUTHZ}{route.role}, the role's own", (f"{key}.role",))
    if route.method_from is not None and target.kind != "authz":
        yield Broken(f"{key}.method_from", "expected only with the target authz", (f"{key}.target",))
    if route.proof_key_file is not None and target.kind != "http":
        yield Broken(f"{key}.proof_key_file", "expected only with an upstream as the target", (f"{key}.target",))
    if target.kind != "http" and route.methods is not None and set(route.methods) != {"POST"}:
        yield Broken(f"{key}.methods", f"expected POST alone with the target {target.kind}", (f"{key}.target",))


def _holding(key: str, route: RouteSettings, limits: LimitSettings) -> Iterator[Broken]:
    """A write that is held must still have the time to be carried out, and its body the time to come."""
    hold = route.hold_ms / 1000
    if hold >= route.timeout:
        sentence = f"expected less than the route's timeout, {route.timeout:g} s, within which a held write is answered"
        yield Broken(f"{key}.hold_ms", sentence, (f"{key}.timeout",))
    if hold > limits.body_timeout / 2:
        sentence = (
            f"expected at most half of limits.body_timeout, {limits.body_timeout:g} s, in which a body has to come"
        )
        yield Broken(f"{key}.hold_ms", sentence, ("limits.body_timeout",))


def _validating(key: str, route: RouteSettings, election: ElectionSettings) -> Iterator[Broken]:
    """Rule R15: what cannot prove a term in the moment of a write must not look as if it did."""
    if not route.validated:
        return
    key, mode = f"{key}.validate", f"{key}.mode"
    if election.source in FOLLOWED:
        proving = [source for source in SOURCES if source not in FOLLOWED]
        sentence = (
            f"expected one of the elections that prove a term within each batch, {', '.join(proving)}; "
            f"{election.source} does not: what it says is a majority's opinion, or comes too slowly"
        )
        yield Broken(key, sentence, ("election.source",))
    if route.mode == "observe":
        yield Broken(key, "expected mode = enforce with it: what is let through anyway needs no proof", (mode,))


def _rehearsal(key: str, route: RouteSettings) -> Iterator[Broken]:
    """A game day writes to the role and is judged by what its ledger holds in the end."""
    if not route.rehearsal:
        return
    if route.parsed_target.kind != "ledger":
        sentence = 'expected false, or target = "ledger": a rehearsal is judged by the ledger\'s entries'
        yield Broken(f"{key}.rehearsal", sentence, (f"{key}.target",))
    if routes.role_parameters(route.path) != routes.role_parameters(route.role):
        sentence = "expected false, or a path without a {parameter} of its own: a rehearsal must know where to write"
        yield Broken(f"{key}.rehearsal", sentence, (f"{key}.path",))


def _pair(key: str, route: RouteSettings, name: str, other: RouteSettings) -> Iterator[Broken]:
    path, others = routes.PARAMETER.sub("{}", route.path), routes.PARAMETER.sub("{}", other.path)
    if path == others:
        yield Broken(f"{key}.path", f"expected another path than that of {name}")
    elif path.lower() == others.lower() and "http" in (route.parsed_target.kind, other.parsed_target.kind):
        but = "from which it differs only in case: many an upstream takes the one for the other, past its fence"
        yield Broken(f"{key}.path", f"expected another path than that of {name}, {other.path}, {but}")
    if route.role == other.role and route.validated != other.validated:
        yield Broken(
            f"{key}.validate", f"expected the same as in {name}: it is the role {route.role} that is validated"
        )
    if route.role == other.role and route.members != other.members:
        yield Broken(f"{key}.members", f"expected the members that {name} gives the role {route.role}")
    if route.role == other.role and route.rehearsal != other.rehearsal:
        given = "true" if other.rehearsal else "false"
        yield Broken(f"{key}.rehearsal", f"expected {given}, as {name} says of the role {route.role}")
