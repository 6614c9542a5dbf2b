"""What is remembered of paths: each of a large family's, and no more than was configured, whoever asks for what."""

from __future__ import annotations

import pytest

from fencegate.gateway.request import BufferedBody, Request
from fencegate.gateway.routes import Route
from fencegate.gateway.targets.http import HttpTarget
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.gateway.ways import Ways


def ways(*more: Route, members: int = 10, at_once: bool = True) -> Ways:
    route = Route("/{shard}/entries", "ledger/{shard}", "ledger", members=frozenset(map(str, range(members))))
    return Ways([route, *more], lambda url: HttpTarget(UpstreamPool(url)), at_once=at_once)


def request(path: str, method: str = "POST") -> Request:
    return Request(method, path, "", [], BufferedBody(b""), 0, "::1", 0.0, "http", False)


def test_the_paths_of_a_large_family_are_all_remembered_and_are_of_one_kind() -> None:
    known = ways(members=5_000)
    for number in range(5_000):
        assert known.find(request(f"/{number}/entries")) is not None
    found = [known.known(("POST", f"/{number}/entries")) for number in range(5_000)]
    assert len({way.kind for way in found if way is not None}) == 1


@pytest.mark.parametrize(
    ("path", "method"),
    [("/3/entries/{}", "GET"), ("/3/entries", "M{}"), ("/3/entries/" + "x" * 300, "M{}")],
    ids=["entries", "methods", "methods of a long path"],
)
def test_whatever_clients_ask_for_no_more_is_remembered_than_configured(path: str, method: str) -> None:
    known = ways()
    for number in range(5_000):
        known.find(request(path.format(number), method.format(number)))
        assert len(known._known) <= 1024 + 10
        assert len(known._kinds) <= 1024
    assert known._kinds


def test_ways_of_another_route_or_method_or_table_are_of_another_kind() -> None:
    known = ways(Route("/other", "other", "ledger"))
    asked = [request("/3/entries"), request("/3/entries", "GET"), request("/other")]
    kinds = [way.kind for way in map(known.find, asked) if way is not None]
    known.use(known.routes.routes)
    kinds += [way.kind for way in map(known.find, asked) if way is not None]
    assert len(set(kinds)) == 6


def test_a_way_that_is_found_anew_each_time_is_never_of_a_kind_that_was_seen() -> None:
    known = ways()
    stranger = [known.find(request("/99/entries")) for _ in range(2)]
    assert [way is not None and way.found.role for way in stranger] == [None, None]
    assert len({way.kind for way in stranger if way is not None}) == 2


async def test_where_each_step_is_told_nothing_goes_to_an_upstream_on_the_shortest_way() -> None:
    web = Route("/web/*", "web", "http", "http://127.0.0.1:9")
    for at_once in (True, False):
        found = [ways(web, at_once=at_once).find(request("/web/x", method)) for method in ("POST", "GET")]
        assert [way is not None and way.starter is not None for way in found] == [at_once, at_once]
