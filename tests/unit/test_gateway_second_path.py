"""A write's second path: read as its upstream reads it, and held against the route of the first."""

from __future__ import annotations

import pytest

from fencegate.gateway.request import BufferedBody, Request
from fencegate.gateway.routes import Route, RouteTable, segments_of
from fencegate.gateway.second_path import stays_within

ROUTES = RouteTable(
    [
        Route("/dav/{shard}/*", "dav/{shard}", "http", "http://u", members=frozenset({"eu", "us"})),
        Route("/dav/eu/admin", "admin", "http", "http://u"),
        Route("/below/*", "below", "http", "http://u/base/"),
    ]
)


def stays(path: str, *destinations: bytes) -> bool:
    headers = [(b"Destination", value) for value in destinations]
    found = ROUTES.match(segments_of(path))
    assert found is not None
    return stays_within(Request("MOVE", path, "", headers, BufferedBody(), 0, "", 0.0), found, ROUTES)


@pytest.mark.parametrize("there", [b"/dav/eu/b", b"/dav/eu/b/c?x", b"http://other.example:81/dav/eu/b", b"/dav/eu/"])
def test_a_path_of_the_same_role_is_taken(there: bytes) -> None:
    assert stays("/dav/eu/a", there)
    assert stays("/dav/eu/a")


@pytest.mark.parametrize(
    "there",
    [
        *(b"/dav/us/b", b"/dav/de/b", b"/dav/eu/admin", b"/dav/eu/Admin", b"/dav/eu/admin;x", b"/nowhere", b"/", b""),
        *(b"/dav/eu/../us/b", b"/dav/eu/%2e%2e/us/b", b"/dav/eu/..%2fus/b", b"//dav/eu/b", b"\\dav\\eu\\b", b"b"),
        *(b"http:/dav/eu/b", b"http:///dav/eu/b", b"ftp://u/dav/eu/b", b"/dav/eu/b#c", b"/dav/eu/\xff", b"/dav/eu/b c"),
    ],
)
def test_a_path_of_another_role_or_of_none_is_not(there: bytes) -> None:
    assert not stays("/dav/eu/a", there)
    assert not stays("/dav/eu/a", b"/dav/eu/b", there)
    assert not stays("/dav/eu/a", there, b"/dav/eu/b")


def test_a_target_with_a_path_of_its_own_is_told_the_whole_path() -> None:
    assert stays("/below/a", b"/base/below/b")
    assert not stays("/below/a", b"/below/b")
    assert not stays("/below/a", b"/base2/below/b")
    assert not stays("/below/a", b"/base")
