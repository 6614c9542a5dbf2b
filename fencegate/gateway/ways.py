"""Where a request goes: its route, and the station that takes it there. Found once for what recurs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from fencegate.gateway import authz, discovery, second_path
from fencegate.gateway.exchange import Exchange, Pending
from fencegate.gateway.request import Reply, Request, refused
from fencegate.gateway.routes import DISCOVERY, Match, NoSuchPath, Route, RouteTable, segments_of
from fencegate.gateway.targets import function, ledger, usual
from fencegate.gateway.targets.http import HttpTarget

_MOST_REMEMBERED: Final = 1024
"""Ways; and as many beside as families have members, whose paths all recur. Each takes half a KiB, less than a role."""
_LONGEST_REMEMBERED: Final = 256

Station = Callable[[Exchange], Awaitable[Reply]]
Starter = Callable[[Exchange], Pending | None]


@dataclass(frozen=True, slots=True)
class Way:
    """What a method and a path alone say: the route, and the station that takes the request (``None``: not allowed)."""

    found: Match
    privileged: bool
    fenced: bool
    """A stale token is refused, whatever else may be wrong."""
    station: Station | None
    starter: Starter | None = None
    """What may give the request to the store before anybody waits."""
    kind: object = field(default_factory=object)
    """The same one for all ways whose requests are checked alike: those of a method and a route."""


class Ways:
    """The ways of a table of routes, and the upstreams that they lead to.

    Raises :class:`fencegate.errors.ConfigurationError` for routes that do not hold together.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        target_of: Callable[[str], HttpTarget],
        *,
        at_once: bool = True,
    ) -> None:
        """``target_of``: makes the target for an upstream's URL. ``at_once``: nobody is told of each step there."""
        self.routes = RouteTable(routes)
        self._target_of = target_of
        self._at_once = at_once
        self._upstreams: dict[str, HttpTarget] = {}
        self._known: dict[tuple[str, str], Way] = {}
        self._kinds: dict[tuple[int, str], object] = {}
        self.known = self._known.get

    def use(self, routes: Iterable[Route]) -> None:
        """From now on. Raises :class:`fencegate.errors.ConfigurationError`, and nothing has changed then."""
        self.routes = RouteTable(routes)
        self._known.clear()
        self._kinds.clear()

    async def close(self, until: float, clock: Callable[[], float]) -> int:
        """As :meth:`fencegate.gateway.app.Gateway.close`."""
        abandoned = 0
        for target in self._upstreams.values():
            abandoned += await target.close(max(0.0, until - clock()))
        self._upstreams.clear()
        return abandoned

    def find(self, request: Request) -> Way | None:
        """Where the request goes; ``None`` for discovery. Raises ``unknown_route``."""
        found = None
        try:
            if request.path.startswith(discovery.PREFIX):
                return None
            if request.path.startswith(authz.PREFIX):
                return self._remembered(request, self._way_of_authz(request))
            segments = segments_of(request.path)
            if segments[0] != "-" and segments[:2] != DISCOVERY[:2]:
                found = self.routes.match(segments)
        except NoSuchPath:
            pass
        if found is None:
            raise refused("unknown_route", "No route is configured for this path.")
        route = found.route
        privileged = route.privileged(request.method)
        allowed = route.allows(request.method)
        station = None if not allowed else self._writer(route) if privileged else self._reader(route, request.method)
        starter = None if station is None else self._starter(route, privileged)
        if station is not None and request.method in second_path.METHODS:
            station, starter = partial(second_path.checked, station, found, self.routes), None
        # Entries of the ledger are not written, whatever the token.
        fenced = privileged and route.mode == "enforce" and not (route.target == "ledger" and found.rest)
        if len(self._kinds) >= _MOST_REMEMBERED:  # Clients choose methods.
            self._kinds.clear()
        kind = object() if found.role is None else self._kinds.setdefault((id(route), request.method), object())
        return self._remembered(request, Way(found, privileged, fenced, station, starter, kind))

    def _remembered(self, request: Request, way: Way) -> Way:
        if way.found.role is not None and len(request.path) <= _LONGEST_REMEMBERED:
            if len(self._known) >= _MOST_REMEMBERED + self.routes.members:
                self._known.clear()
            self._known[request.method, request.path] = way
        return way

    def _way_of_authz(self, request: Request) -> Way:
        role = authz.question_of(request).role
        family = self.routes.family_of(role)
        if family is None:
            raise refused("unknown_role", "No role of this name is configured here.")
        route = authz.route_for(family, self.routes)
        return Way(Match(route, role), True, route.mode == "enforce", authz.decide)

    def _writer(self, route: Route) -> Station:
        if route.target == "ledger":
            return ledger.write
        if route.target == "function":
            return function.write
        return self._upstream(route).write

    def _reader(self, route: Route, method: str) -> Station:
        if route.target == "http":
            return self._upstream(route).read
        return _options if method == "OPTIONS" else ledger.read

    def _starter(self, route: Route, privileged: bool) -> Starter | None:
        if route.target == "http":
            start = usual.start_write if privileged else usual.start_read
            return partial(start, self._upstream(route)) if self._at_once else None
        return ledger.start if privileged and route.target == "ledger" else None

    def _upstream(self, route: Route) -> HttpTarget:
        if (target := self._upstreams.get(route.argument)) is None:
            target = self._upstreams[route.argument] = self._target_of(route.argument)
        return target


async def _options(exchange: Exchange) -> Reply:
    region = exchange.around.places.region.encode()
    return Reply(204, [(b"Allow", exchange.route.allowed.encode()), (b"X-Fencing-Region", region)])
