"""Settings into parts: routes, limits, electors, followers. Each function makes one kind of part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fencegate.cli.elections import campaigned
from fencegate.config import RouteSettings, Settings
from fencegate.config.routes import member_names
from fencegate.election.elector import Elector
from fencegate.election.follower import Follower
from fencegate.election.handoff import HandoffResult, Handoffs
from fencegate.fence import FenceStore
from fencegate.gateway.admin import Handover
from fencegate.gateway.app import Limits
from fencegate.gateway.routes import Route, RouteTable
from fencegate.lease import Candidate, LeadershipSource
from fencegate.observations import Observation, Observer


@dataclass(slots=True)
class Observers:
    """Hands every observation to each listener that ``hears`` its kind: those that say nothing of it hear all.

    A listener that fails must not disturb what it listens to.
    """

    on_failure: Callable[[Exception], None]
    listeners: list[Observer] = field(default_factory=list)
    _hearing: dict[type[Observation], list[Observer]] = field(default_factory=dict)

    def add(self, listener: Observer) -> None:
        self.listeners.append(listener)
        self._hearing.clear()

    def __call__(self, observation: Observation) -> None:
        kind = type(observation)
        hearing = self._hearing.get(kind)
        if hearing is None:
            hearing = [one for one in self.listeners if kind in getattr(one, "hears", (kind,))]
            self._hearing[kind] = hearing
        for listen in hearing:
            try:
                listen(observation)
            except Exception as error:
                self.on_failure(error)


def routes(settings: Settings) -> list[Route]:
    return [_route(route) for route in settings.route]


def check_routes(settings: Settings) -> None:
    """Raises :class:`fencegate.errors.ConfigurationError` for routes that do not hold together."""
    RouteTable(routes(settings))


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
        hold=route.hold_ms / 1000,
        method_from=route.method_from or "",
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


def electors(settings: Settings, source: LeadershipSource, store: FenceStore, observe: Observer) -> dict[str, Elector]:
    """One elector per role, where this gateway campaigns; none where it follows."""
    if settings.election.mode != "campaign":
        return {}
    backend = campaigned(source)
    candidate = Candidate(settings.node, settings.region, settings.advertise)
    timings, strict = settings.election.timings, settings.election.strict_wait
    return {
        role: Elector(role, candidate, backend, store, timings, observe, strict_wait=strict) for role in settings.roles
    }


HandOver = Callable[[str, str, float], Awaitable[Handover]]

_STATUS = {"done": 200, "already": 200, "pending": 202, "busy": 409, "no_candidate": 409, "not_here": 409}
"""What a handoff's outcome is answered with; every other is 503."""


def hand_over(settings: Settings, source: LeadershipSource, electors: dict[str, Elector]) -> HandOver | None:
    """The handoffs that the admin listener can make; none where nobody campaigns here."""
    if not electors:
        return None
    backend, timings = campaigned(source), settings.election.timings
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


def followers(settings: Settings, source: LeadershipSource, store: FenceStore, observe: Observer) -> list[Follower]:
    """One follower per role, where somebody else campaigns."""
    if settings.election.mode != "follow":
        return []
    return [Follower(role, source, store, settings.election.timings, observe) for role in settings.roles]
