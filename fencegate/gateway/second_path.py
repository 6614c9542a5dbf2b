"""Writes that name a second path: ``COPY`` and ``MOVE`` (RFC 4918) write to where their ``Destination`` header says.

The route was found by the request's own path. Whatever the other one belongs to, its fence would not be asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from fencegate.gateway.exchange import Exchange
from fencegate.gateway.request import Refused, Reply, Request
from fencegate.gateway.request_bytes import target_parts
from fencegate.gateway.routes import Match, NoSuchPath, RouteTable, segments_of

METHODS: Final = frozenset({"COPY", "MOVE"})
_ELSEWHERE: Final = (
    "The Destination of a COPY or MOVE must be a path of the same route and role, as its upstream has it."
)


async def checked(
    station: Callable[[Exchange], Awaitable[Reply]], found: Match, table: RouteTable, exchange: Exchange
) -> Reply:
    """The station's reply. Raises ``request_malformed`` for a write whose second path belongs elsewhere."""
    if not stays_within(exchange.request, found, table):
        raise exchange.refused("request_malformed", _ELSEWHERE)
    return await station(exchange)


def stays_within(request: Request, found: Match, table: RouteTable) -> bool:
    """Whether the second path, if there is one, belongs to the route and the role of the first.

    It is read as the upstream will: below the path of the route's target, if that has one.
    """
    named = [value.decode("latin-1") for name, value in request.headers if name.lower() == b"destination"]
    if not named:
        return True
    below = urlsplit(found.route.argument).path.rstrip("/")
    try:
        path, _ = target_parts(named[0])
        if len(named) > 1 or not path.startswith(f"{below}/"):
            return False
        other = table.match(segments_of(path.removeprefix(below)))
    except (Refused, NoSuchPath):
        return False
    return other is not None and (other.route, other.role) == (found.route, found.role)
