"""The shape of the settings: every key, its default, and (as ``description``) what is expected of its value.

A fault quotes that description after "expected", so it reads as the end of that sentence. Keys
that are part of the configuration's language but not built are in ``NOT_YET``: they are known,
and refused in so many words, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field

from fencegate.config import identity, routes
from fencegate.config.envoy import EnvoySettings
from fencegate.config.identity import IdentitySettings
from fencegate.config.limits import IdempotencySettings, LimitSettings, LogSettings
from fencegate.config.otel import OtelSettings
from fencegate.config.store import StoreSettings, TlsSettings
from fencegate.config.values import Address, Dsn, Endpoint, File, Holder, Name, Origin, Seconds, Table, checked
from fencegate.fence import Mode
from fencegate.grant import LIFETIME, LONGEST_LIFETIME
from fencegate.lease import LeaseTimings

NOT_YET: Final[dict[str, str]] = {
    "peer": "sealing the other region's store is not in this version; a new term waits for the lease to lapse instead",
    "tls": "one table for every connection is not in this version; [listen.tls] and those of the others have theirs",
    "route.lease": "one lease for a whole family is not in this version; each member has its own",
}
"""Known keys without a feature behind them, and what to do instead."""

FOLLOWED: Final = ("patroni", "redis-sentinel", "kafka")
"""Systems that elect for themselves: they can be followed, nobody campaigns there."""
SOURCES: Final = ("etcd", "postgres", "postgres-advisory", "zookeeper", "kubernetes", "consul", *FOLLOWED)
INSTALLED: Final = "installed:"
"""Before the name of an election that another package brings along (``election/installed.py``)."""
MAX_LEASES: Final = 256
"""In campaign mode each member of a family is a lease of its own; more of them would flood the quorum."""

MAX_WORKERS: Final = 64


def _source(text: str) -> str:
    installed = text.removeprefix(INSTALLED)
    if text not in SOURCES and (installed == text or not installed.strip()):
        raise ValueError(f"expected one of {', '.join(SOURCES)}, or {INSTALLED}NAME for an election of another package")
    return text


def _client(text: str) -> str:
    if text not in ("json", "etcd3"):
        raise ValueError("expected json (etcd's JSON gateway) or etcd3 (gRPC, with the extra fencegate[etcd3])")
    return text


def _role_from(text: str) -> str:
    raise ValueError("expected no role_from: a role named by a header is not in this version; put it into the path")


def _target(text: str) -> str:
    routes.parse_target(text)
    return text


class ListenTlsSettings(Table):
    """TLS on both listeners, from files in PEM. ``client_ca`` signs the clients' certificates, which ``client`` wants.

    ``cert`` holds the chain, the listeners' own certificate first; ``key`` is its key, without a passphrase.
    """

    cert: File | None = None
    key: File | None = None
    client_ca: File | None = None
    client: Annotated[
        Literal["required", "data", "optional"],
        Field(description="required (on both listeners), data (required there, optional for operators) or optional"),
    ] = "required"


class ListenSettings(Table):
    data: Address = "127.0.0.1:8080"
    admin: Address = "127.0.0.1:8081"
    tls: ListenTlsSettings = ListenTlsSettings()

    @property
    def scheme(self) -> Literal["http", "https"]:
        return "http" if self.tls.cert is None else "https"

    @property
    def admin_url(self) -> str:
        return f"{self.scheme}://{self.admin}"


class ElectionSettings(Table):
    """Which election decides, and by which timings. ``dsn`` is for those over Postgres; default: the store's.

    A term lasts ``lease_duration`` unless renewed; it is renewed each ``retry_period``, and given up where that failed
    for ``renew_deadline``. The store closes ``margin`` earlier than the lease ends: at least the drift of its clock
    over a lease, plus the longest stall between its look at the clock and COMMIT, plus the largest step backward.
    ``strict_wait``: who wins without the seal of the term before waits until that is over by its own clock, a lease
    and the margin, and does not trust that the election has let it lapse. ``prefix``, before all keys, is the same for
    every gateway of a deployment, and no other's lies below it. ``client``: etcd over its JSON gateway, or over gRPC.

    ``token_file`` is for ``kubernetes`` and ``consul``, ``namespace`` for ``kubernetes``; a pod that sets no
    ``endpoints`` takes both from its service account. ``cluster`` is Patroni's scope, or the name by which sentinels
    monitor a primary; ``dcs`` is the etcd that Patroni keeps its leader key in, below ``prefix``. ``holders``: who is
    believed to lead; empty for whoever wins.
    """

    source: Annotated[str, checked(_source), Field(description=f"one of {', '.join(SOURCES)}")] = "postgres"
    mode: Annotated[
        Literal["campaign", "follow"],
        Field(description="campaign (this gateway's elector leads for its region) or follow (applications lead)"),
    ] = "campaign"
    endpoints: Annotated[
        list[Endpoint], Field(description="a list such as http://etcd-1:2379 for etcd, zk-1:2181 for zookeeper")
    ] = []
    dsn: Dsn | None = None
    client: Annotated[str, checked(_client), Field(description="json or etcd3")] = "json"
    prefix: (
        Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]{0,199}$", description="a key prefix that begins with /")]
        | None
    ) = None
    cluster: (
        Annotated[
            str,
            Field(
                pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
                description="the name of a cluster: letters, digits, '.', '_' or '-'",
            ),
        ]
        | None
    ) = None
    dcs: Annotated[list[Endpoint], Field(description="a list such as http://etcd-1:2379")] = []
    username: Annotated[str, Field(min_length=1, description="a user name")] | None = None
    password_file: File | None = None
    token_file: File | None = None
    namespace: (
        Annotated[
            str,
            Field(
                pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
                description="a Kubernetes namespace: 1 to 63 of a-z, 0-9 and '-'",
            ),
        ]
        | None
    ) = None
    lease_duration: Seconds = 15.0
    renew_deadline: Seconds = 10.0
    retry_period: Seconds = 2.0
    margin: Annotated[
        float, Field(ge=0, le=86400, allow_inf_nan=False, description="a number of seconds, 0 or more")
    ] = 1.0
    strict_wait: Annotated[bool, Field(description="true or false")] = False
    holders: list[Holder] = []
    tls: TlsSettings = TlsSettings()

    @property
    def key_prefix(self) -> str:
        """``prefix``, or what is usual where the election keeps its keys."""
        return self.prefix or ("/service" if self.source == "patroni" else "/fencegate")

    @property
    def installed(self) -> str | None:
        """The name of the election of another package, if it is one."""
        return self.source.removeprefix(INSTALLED) if self.source.startswith(INSTALLED) else None

    @property
    def over_postgres(self) -> bool:
        """Whether the election is in a Postgres, its own (``dsn``) or the store's."""
        return self.source in ("postgres", "postgres-advisory")

    @property
    def timings(self) -> LeaseTimings:
        return LeaseTimings(self.lease_duration, self.renew_deadline, self.retry_period, self.margin)

    @property
    def led_by_applications(self) -> bool:
        """Whether whoever leads is a process that knows its own token: no gateway, and no system that is followed."""
        return self.mode == "follow" and self.source not in FOLLOWED

    @property
    def store_mode(self) -> Mode:
        """The mode of the rows in the store: regions with a store each, or leaders that are applications."""
        return "lease" if self.mode == "campaign" else "token"


class UpstreamSettings(Table):
    """For every ``https://`` target."""

    tls: TlsSettings = TlsSettings()


class AdminSettings(Table):
    """Files that hold one bearer token each: for every action, and for reading only."""

    token_file: File | None = None
    read_token_file: File | None = None


class ConsoleSettings(Table):
    """The other nodes whose word the console shows: URLs of their admin listeners, and a token for reading there."""

    peers: list[Origin] = []
    token_file: File | None = None


class RouteSettings(Table):
    """One route. ``methods`` are the privileged ones (default: all but GET, HEAD, OPTIONS).

    ``members``: who may stand for the ``{parameter}`` of the role; a count stands for the names 0 to one less.
    ``timeout``: for a request with all its steps, in seconds; an upstream is told what is left of it.
    ``mode``: ``observe`` counts and logs what would be refused, and lets it through.
    ``validate``: no write counts before the election has proved that its term still leads (rule R15).
    ``hold_ms``: how long a write is kept during a handoff or an election instead of being refused; 0: not at all.
    ``method_from``, with the target ``authz`` only: the header in which the proxy tells the original request's method.
    ``callers``: who may write, by their identity (see ``[identity]``); ``*`` stands for any characters.
    ``proof_key_file``: the secrets that writes are signed with on their way to an upstream which checks that they came
    through the gate; one file for each upstream, its first line signs.
    ``grant``: ``required`` takes no write without a grant, which is bound to role, token and caller. Its secrets are in
    ``grant_key_file``, whose first line signs; with it discovery gives grants that hold ``grant_lifetime`` seconds.
    All routes of a role agree on these three.
    ``rehearsal``: the role is a canary, which a game day may hand over and write to.
    """

    path: Annotated[str, checked(routes.check_path), Field(description="a path such as /v1/entries")]
    role: Annotated[str, checked(routes.check_role), Field(description="a role such as ledger or ledger/{shard}")]
    target: Annotated[str, checked(_target), Field(description=routes.TARGET_EXPECTED)]
    members: (
        Annotated[list[str] | int, checked(routes.check_members), Field(description="a list of names, or a count")]
        | None
    ) = None
    methods: Annotated[list[str], checked(routes.check_methods), Field(description="a list of HTTP methods")] | None = (
        None
    )
    idempotency: Annotated[Literal["optional", "required"], Field(description="optional or required")] = "optional"
    max_body_bytes: Annotated[int, Field(ge=1, le=2**40, description="bytes, 1 to 1099511627776")] = 1_048_576
    timeout: Seconds = 30.0
    hold_ms: Annotated[int, Field(ge=0, le=60_000, description="a whole number of milliseconds, 0 to 60000")] = 0
    mode: Annotated[Literal["enforce", "observe"], Field(description="enforce or observe")] = "enforce"
    method_from: Annotated[str, checked(routes.check_header), Field(description="a header's name")] | None = None
    callers: (
        Annotated[
            list[str],
            checked(identity.check_callers),
            Field(description='a list of callers such as spiffe://example.org/ledger or "CN=ledger,*"'),
        ]
        | None
    ) = None
    proof_key_file: File | None = None
    grant: Annotated[Literal["off", "required"], Field(description="off or required")] = "off"
    grant_key_file: File | None = None
    grant_lifetime: Annotated[
        float, Field(ge=1, le=LONGEST_LIFETIME, allow_inf_nan=False, description="seconds, 1 to 86400 (a day)")
    ] = LIFETIME
    # Under another name: every pydantic model has a method that is called "validate".
    validated: Annotated[bool, Field(description="true or false", alias="validate")] = False
    rehearsal: Annotated[bool, Field(description="true or false")] = False
    role_from: Annotated[str, checked(_role_from), Field(description="no value")] | None = None

    @property
    def parsed_target(self) -> routes.Target:
        return routes.parse_target(self.target)

    @property
    def roles(self) -> list[str]:
        """Every role that this route can mean: one, or one per member of the family."""
        return routes.role_members(self.role, self.members)

    def limited(self, holds: Callable[[str], bool]) -> Self | None:
        """The same for those of its roles that ``holds`` says yes to; ``None`` for none of them."""
        names = routes.member_names(self.members) if self.members is not None else [""]
        kept = [name for name, role in zip(names, self.roles, strict=True) if holds(role)]
        if len(kept) == len(names):
            return self
        return self.model_copy(update={"members": kept}) if kept else None

    @property
    def paths(self) -> dict[str, str]:
        """The path of each role, where the role's parameter is all that varies in it."""
        names = routes.member_names(self.members) if self.members is not None else [""]
        filled = {role: routes.PARAMETER.sub(name, self.path) for role, name in zip(self.roles, names, strict=True)}
        return filled if routes.role_parameters(self.path) == routes.role_parameters(self.role) else {}


class Settings(Table):
    """All settings. ``node`` is unique among the gateways; ``advertise`` is what hints say of this region.

    ``workers``: how many processes take requests; more than 1 are supervised by a process that takes none.
    """

    node: Name
    region: Name
    advertise: Origin
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS, description=f"a whole number of 1 to {MAX_WORKERS}")] = 1
    listen: ListenSettings = ListenSettings()
    store: StoreSettings = StoreSettings()
    stores: list[StoreSettings] = []
    """Those of a file with several ``[[store]]``; empty where ``store`` is the only one."""
    election: ElectionSettings = ElectionSettings()
    identity: IdentitySettings = IdentitySettings()
    upstream: UpstreamSettings = UpstreamSettings()
    admin: AdminSettings = AdminSettings()
    console: ConsoleSettings = ConsoleSettings()
    limits: LimitSettings = LimitSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    log: LogSettings = LogSettings()
    otel: OtelSettings = OtelSettings()
    envoy: EnvoySettings = EnvoySettings()
    route: Annotated[list[RouteSettings], Field(description="at least one [[route]] table")] = []

    @property
    def observed(self) -> set[str]:
        """The roles, as configured, with a route in observe mode."""
        return {route.role for route in self.route if route.mode == "observe"}

    @property
    def observed_roles(self) -> set[str]:
        """Every single role that has such a route."""
        return {role for route in self.route if route.mode == "observe" for role in route.roles}

    @property
    def upstreams(self) -> list[str]:
        """The URLs of the upstreams, each once."""
        targets = [route.parsed_target for route in self.route]
        return list(dict.fromkeys(target.argument for target in targets if target.kind == "http"))

    def document(self) -> dict[str, Any]:
        """All of it as JSON, by the names of the keys: ``model_validate`` of it gives the same settings."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def timings(self) -> LeaseTimings:
        """Those of the election, for stores whose clocks are as far apart as those of any store here."""
        offsets = [store.clock_offset or 0.0 for store in (self.stores or [self.store])]
        return replace(self.election.timings, clock_offset=max(offsets))

    @property
    def validated(self) -> list[str]:
        """Every single role whose writes wait for the election's proof of their term (rule R15)."""
        return list(dict.fromkeys(role for route in self.route if route.validated for role in route.roles))

    @property
    def pending(self) -> bool:
        """Whether any of them lands in the store itself, where it is pending until then."""
        return any(route.validated and route.parsed_target.kind in ("ledger", "function") for route in self.route)

    @property
    def rehearsals(self) -> dict[str, str]:
        """The roles that a game day may take, members of families by name, each with the path of its ledger."""
        return {role: path for route in self.route if route.rehearsal for role, path in route.paths.items()}

    @property
    def families(self) -> list[str]:
        """The roles as configured, each once and in order: what metric labels are made of."""
        return list(dict.fromkeys(route.role for route in self.route))

    @property
    def roles(self) -> list[str]:
        """Every single role, the members of families included, each once and in order."""
        return list(dict.fromkeys(role for route in self.route for role in route.roles))
