"""Observations as Prometheus metrics. Names and labels are a contract; no label ever takes a client's value.

Every combination of labels that can occur is made at the start, at 0: a counter that appears with its
first event hides that event from ``increase()``. Facts about the members of a family share the family's
label: gauges of tokens show the highest member, ``fencing_leader`` counts the members that this node leads,
``fencing_lease_expires_timestamp_seconds`` shows the lease that ends first.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.samples import Sample

from fencegate import observations as seen
from fencegate.errors import PROBLEMS
from fencegate.lease import Cause
from fencegate.telemetry.issued import Issued
from fencegate.telemetry.labels import UNROUTED, RoleLabels
from fencegate.telemetry.tally import Tally

OUTCOMES: Final = ("accepted", "replayed", "refused", "would_refuse", "unknown")
TRANSITIONS: Final = (
    "gained",
    "handoff",
    "resigned",
    "renew_deadline",
    "lost",
    "store",
    "sealed",
    "incarnation",
    "superseded",
    "suspended",
    "shutdown",
)
HOLD_ENDS: Final = ("news", "expired", "stopping", "left", "full")
UNKNOWN_CAUSES: Final = ("timeout", "connection", "orphaned")
RENEWAL_CAUSES: Final[tuple[str, ...]] = get_args(Cause)
OTHER: Final = "other"
"""What a word outside the lists above is counted as, so that no surprise makes a new series."""

ByReason = Callable[[str], Mapping[str, int]]
"""A role's refusals by reason, at the time of one look."""

CHECK_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
RENEWAL_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0)


class Metrics:
    """One gateway's metrics in a registry of their own. An ``Observer``: call it with an observation.

    ``families``: the roles as configured; ``observed``: those with a route in observe mode, where nothing is
    refused. ``backend``: the election's name. ``stores``: the names of several; empty for one, which has no label.
    ``follows``: this node never leads, and says nothing of whether it does: a 0 of all nodes would be no leader.
    """

    def __init__(
        self,
        families: Sequence[str],
        *,
        node: str,
        region: str,
        backend: str,
        version: str,
        observed: Collection[str] = (),
        stores: Collection[str] = (),
        follows: bool = False,
    ) -> None:
        # "_created" series would double the page and are not part of the contract.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._tally = Tally(self._counter)
        self.registry.register(self._tally)  # First, so that all others are up to date when they are read.
        self._roles, self._issued = RoleLabels(families), Issued()
        self._node, self._region, self._backend = node, region, backend
        self._members: dict[tuple[str, str], dict[str, float]] = {}
        self._shown: dict[tuple[Gauge, str], float] = {}
        self._durations: dict[str, Histogram] = {}
        self._stores = tuple(stores)
        self._make()
        self._start_at_zero(follows)
        self._build.labels(version, platform.python_version()).set(1)
        self.only_observe(observed)
        self._handlers: dict[type[seen.Observation], Callable[[Any], None]] = {
            seen.WriteAccepted: self._accepted,
            seen.WriteRefused: self._refused,
            seen.WouldRefuse: lambda fact: self._check(fact.role, "would_refuse"),
            seen.WriteOutcomeUnknown: self._outcome_unknown,
            seen.WriteHeld: lambda fact: self._held.labels(self._roles.of(fact.role)).inc(),
            seen.HoldEnded: self._hold_ended,
            seen.HoldRefused: lambda fact: self._holds.labels(self._roles.of(fact.role), "full").inc(),
            seen.FenceChecked: self._fence_checked,
            seen.LeadershipGained: self._gained,
            seen.LeadershipLost: self._lost,
            seen.LeaseRenewed: self._renewed,
            seen.LeaseRenewalFailed: self._renewal_failed,
            seen.LeaderObserved: lambda fact: self._leader_observed(fact.role, fact.token),
            seen.TokenRegressed: lambda fact: self._highest(
                self._token_issued, fact.role, self._issued.went_back(fact.role, fact.token, fact.max_token_seen)
            ),
            seen.FenceSeen: self._fence,
            seen.StoreCameUp: lambda fact: self._store_is_up(fact.store, True),
            seen.StoreWentBack: lambda fact: self._of_store(self._store_went_back, fact.store).set(1),
            seen.StoreWentDown: lambda fact: self._store_is_up(fact.store, False),
            seen.OrphanedMarkExpired: lambda fact: self._unknown.labels(self._roles.of(fact.role), "orphaned").inc(),
        }

    @property
    def hears(self) -> Collection[type[seen.Observation]]:
        """The facts that change a metric."""
        return self._handlers.keys()

    def hearer(self, kind: type[seen.Observation]) -> Callable[[Any], None]:
        """What this does on hearing one of ``kind``, which is in :attr:`hears`: for who tells much of it."""
        return self._handlers[kind]

    def __call__(self, observation: seen.Observation) -> None:
        handle = self._handlers.get(type(observation))
        if handle is not None:
            handle(observation)

    def render(self) -> tuple[str, bytes]:
        """The page of ``/metrics``: its content type and its body."""
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.registry)

    def label_of(self, role: str) -> str:
        """The role's label: its own name, or its family's."""
        return self._roles.of(role)

    def rejections(self) -> ByReason:
        """A look at all refusals so far: what it returns gives those of a role by reason, those that occurred.

        A family's members share their family's counts.
        """
        return by_reason(self.refusals(), self.label_of)

    def refusals(self) -> Iterator[Sample]:
        """Every refusal so far, by the labels of ``fencing_rejections_total``."""
        self._tally.settle()
        for metric in self._rejections.collect():
            yield from metric.samples

    # -- what there is ----------------------------------------------------------------------------

    def only_observe(self, roles: Collection[str]) -> None:
        """Which of the roles have a route that refuses nothing."""
        for role in self._roles.names:
            self._enforcing.labels(role).set(role not in roles)

    def _make(self) -> None:
        registry = self.registry
        self._rejections = Counter(
            "fencing_rejections",
            "Privileged writes refused, by problem code.",
            ("role", "reason", "region"),
            registry=registry,
        )
        self._checks = Counter(
            "fencing_checks", "Privileged writes by what became of them.", ("role", "outcome"), registry=registry
        )
        self._unknown = Counter(
            "fencing_outcome_unknown",
            "Writes that were sent on and whose outcome was never learnt.",
            ("role", "cause"),
            registry=registry,
        )
        self._held = Gauge(
            "fencing_held_writes",
            "Writes that wait for the end of a handoff or an election.",
            ("role",),
            registry=registry,
        )
        self._holds = Counter(
            "fencing_holds", "Writes that were held, or found no place (full), by what ended it.", ("role", "end"),
            registry=registry,
        )  # fmt: skip
        self._check_duration = Histogram(
            "fencing_check_duration_seconds",
            "Time from asking the store's fence to its answer, per transaction.",
            ("role",),
            buckets=CHECK_BUCKETS,
            registry=registry,
        )
        self._leader = Gauge(
            "fencing_leader",
            "1 while this node believes that it leads (for a family: the members it leads).",
            ("role", "region", "node"),
            registry=registry,
        )
        self._transitions = Counter(
            "fencing_leader_transitions",
            "Terms gained by this node, and lost, by reason.",
            ("role", "kind"),
            registry=registry,
        )
        self._renewal_duration = Histogram(
            "fencing_lease_renewal_duration_seconds",
            "Time for one renewal of a lease: the store's clock, the quorum, the store.",
            ("role", "backend"),
            buckets=RENEWAL_BUCKETS,
            registry=registry,
        )
        self._renewal_failures = Counter(
            "fencing_lease_renewal_failures",
            "Renewals of a lease that failed, by cause.",
            ("role", "backend", "cause"),
            registry=registry,
        )
        self._expires = Gauge(
            "fencing_lease_expires_timestamp_seconds",
            "When this node's lease ends unless renewed, in seconds since the epoch; 0 without a lease.",
            ("role",),
            registry=registry,
        )
        self._max_token = Gauge(
            "fencing_max_token_seen", "Highest token accepted by this region's store.", ("role",), registry=registry
        )
        self._token_issued = Gauge(
            "fencing_token_issued",
            "Token of the current term by the election store's word, or how far it has issued where it went back; "
            "0 where nobody leads.",
            ("role",),
            registry=registry,
        )
        self._store_up = Gauge(
            "fencing_store_up",
            "1 while the fence's store answers (with several: each, by store).",
            ("store",) if self._stores else (),
            registry=registry,
        )
        self._store_went_back = Gauge(
            "fencing_store_went_back",
            "1 while the store lacks writes that it had acknowledged, and is closed (with several: each, by store).",
            ("store",) if self._stores else (),
            registry=registry,
        )
        self._draining = Gauge(
            "fencing_draining", "1 while the role's term is being ended in order.", ("role",), registry=registry
        )
        self._enforcing = Gauge(
            "fencing_enforcing",
            "0 while a route of the role only observes: nothing stale is refused there.",
            ("role",),
            registry=registry,
        )
        self._build = Gauge("fencing_build_info", "Always 1.", ("version", "python"), registry=registry)

    def _start_at_zero(self, follows: bool) -> None:
        for store in self._stores:
            self._store_up.labels(store)
            self._store_went_back.labels(store)
        for role in (*self._roles.names, UNROUTED):
            for code in (*PROBLEMS, OTHER):
                self._rejections.labels(role, code, self._region)
            for outcome in OUTCOMES:
                self._checks.labels(role, outcome)
        for role in self._roles.names:
            for cause in (*UNKNOWN_CAUSES, OTHER):
                self._unknown.labels(role, cause)
            for end in (*HOLD_ENDS, OTHER):
                self._holds.labels(role, end)
            for kind in (*TRANSITIONS, OTHER):
                self._transitions.labels(role, kind)
            for cause in (*RENEWAL_CAUSES, OTHER):
                self._renewal_failures.labels(role, self._backend, cause)
            for made in (
                self._expires,
                self._max_token,
                self._token_issued,
                self._draining,
                self._held,
                self._check_duration,
            ):
                made.labels(role)
            if not follows:
                self._leader.labels(role, self._region, self._node)
            self._renewal_duration.labels(role, self._backend)

    # -- what is heard ----------------------------------------------------------------------------

    def _check(self, role: str, outcome: str) -> None:
        self._tally.add("checks", role, outcome)

    def _accepted(self, fact: seen.WriteAccepted) -> None:
        self._check(fact.role, "replayed" if fact.replayed else "accepted")

    def _refused(self, fact: seen.WriteRefused) -> None:
        self._check(fact.role, "refused")
        self._tally.add("refusals", fact.role, fact.code if fact.code in PROBLEMS else OTHER)

    def _counter(self, what: str, role: str, word: str) -> Counter:
        label = self._roles.of(role)
        if what == "checks":
            return self._checks.labels(label, word)
        return self._rejections.labels(label, word, self._region)

    def _fence_checked(self, fact: seen.FenceChecked) -> None:
        for label in set(map(self._roles.of, fact.roles)):
            histogram = self._durations.get(label)
            if histogram is None:  # kept, since each batch asks
                histogram = self._durations[label] = self._check_duration.labels(label)
            histogram.observe(fact.duration)

    def _outcome_unknown(self, fact: seen.WriteOutcomeUnknown) -> None:
        self._check(fact.role, "unknown")
        self._unknown.labels(self._roles.of(fact.role), _of(fact.cause, UNKNOWN_CAUSES)).inc()

    def _hold_ended(self, fact: seen.HoldEnded) -> None:
        label = self._roles.of(fact.role)
        self._held.labels(label).dec()
        self._holds.labels(label, _of(fact.why, HOLD_ENDS)).inc()

    def _gained(self, fact: seen.LeadershipGained) -> None:
        self._transitions.labels(self._roles.of(fact.role), "gained").inc()
        self._leads(fact.role, True)
        self._leader_observed(fact.role, fact.token)

    def _leader_observed(self, role: str, token: int) -> None:
        self._highest(self._token_issued, role, self._issued.leads(role, token))

    def _lost(self, fact: seen.LeadershipLost) -> None:
        self._transitions.labels(self._roles.of(fact.role), _of(fact.reason, TRANSITIONS)).inc()
        self._leads(fact.role, False)
        self._lease(fact.role, None)

    def _lease(self, role: str, expires_at: float | None) -> None:
        label = self._roles.of(role)
        if label == UNROUTED:
            return
        leases = self._values("expires", role)
        leases.pop(role, None)
        if expires_at is not None:
            leases[role] = expires_at
        self._expires.labels(label).set(min(leases.values(), default=0))

    def _leads(self, role: str, leads: bool) -> None:
        if self._roles.of(role) == UNROUTED:
            return
        led = self._values("leader", role)
        if leads:
            led[role] = 1
        else:
            led.pop(role, None)
        self._leader.labels(self._roles.of(role), self._region, self._node).set(len(led))

    def _renewed(self, fact: seen.LeaseRenewed) -> None:
        self._renewal_duration.labels(self._roles.of(fact.role), self._backend).observe(fact.duration)
        self._lease(fact.role, fact.expires_at)

    def _renewal_failed(self, fact: seen.LeaseRenewalFailed) -> None:
        cause = _of(fact.cause, RENEWAL_CAUSES)
        self._renewal_failures.labels(self._roles.of(fact.role), self._backend, cause).inc()

    def _store_is_up(self, store: str, up: bool) -> None:
        self._of_store(self._store_up, store).set(up)
        if up:
            self._of_store(self._store_went_back, store).set(0)

    def _of_store(self, gauge: Gauge, store: str) -> Gauge:
        return gauge.labels(store) if self._stores else gauge

    def _fence(self, fact: seen.FenceSeen) -> None:
        self._highest(self._max_token, fact.role, fact.max_token_seen)
        self._highest(self._draining, fact.role, int(fact.draining))

    def _highest(self, gauge: Gauge, role: str, value: float) -> None:
        label = self._roles.of(role)
        if label == UNROUTED:  # a row of a role that is configured no more
            return
        values = self._values(str(id(gauge)), role)
        before, values[role] = values.get(role, 0.0), value
        highest = self._shown.get((gauge, label), 0.0)
        if value < highest and before == highest:  # perhaps it alone was as high: only then are all looked through
            highest = max(values.values())
        self._shown[gauge, label] = highest = max(highest, value)
        gauge.labels(label).set(highest)

    def _values(self, what: str, role: str) -> dict[str, float]:
        """One value per role under the role's label. Only configured roles get here."""
        return self._members.setdefault((what, self._roles.of(role)), {})


def by_reason(refusals: Iterable[Sample], label_of: Callable[[str], str]) -> ByReason:
    """As :meth:`Metrics.rejections`, out of all refusals."""
    found: dict[str, dict[str, int]] = {}
    for sample in refusals:
        if sample.value:
            found.setdefault(sample.labels["role"], {})[sample.labels["reason"]] = int(sample.value)
    return lambda role: found.get(label_of(role), {})


def _of(word: str, known: Sequence[str]) -> str:
    return word if word in known else OTHER
