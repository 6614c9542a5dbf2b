"""Discovery: what is asked, what is announced, and what never is."""

from __future__ import annotations

import orjson
import pytest

from fencegate.gateway.admission import Places
from fencegate.gateway.discovery import PREFIX, discover, role_asked
from fencegate.gateway.request import BufferedBody, Refused, Reply, Request
from fencegate.gateway.routes import Route, RouteTable
from fencegate.lease import Observed
from fencegate.testing.scripted_view import ScriptedView

ROUTES = RouteTable([Route("/e", "ledger", "ledger"), Route("/s/{s}", "shard/{s}", "ledger", members=frozenset({"a"}))])
PLACES = Places("eu", {})


class AgedView(ScriptedView):
    """A view whose observations were made ``age`` seconds ago."""

    age = 0.0

    def observed(self, role: str) -> Observed:
        found = super().observed(role)
        return Observed(found.known, found.term, found.observed_at, self.age)


def ask(view: ScriptedView, role: str = "ledger", method: str = "GET") -> Reply:
    return discover(Request(method, PREFIX + role, "", [], BufferedBody(), 0, "", 0.0), ROUTES, view, PLACES)


def code(view: ScriptedView, role: str = "ledger", method: str = "GET") -> str:
    with pytest.raises(Refused) as caught:
        ask(view, role, method)
    return caught.value.refusal.problem.code


def test_the_leader_is_named_with_its_token_for_a_second() -> None:
    view = ScriptedView()
    view.lead("ledger", 7, "us", "https://us.example")
    reply = ask(view)
    assert isinstance(reply.body, bytes)
    document = orjson.loads(reply.body)
    assert (reply.status, document["token"], document["leader"]["url"]) == (200, 7, "https://us.example")
    assert dict(reply.headers)[b"Cache-Control"] == b"max-age=1"


@pytest.mark.parametrize(("age", "left"), [(0.0, 11_800), (1.5, 10_300), (60.0, 0)])
def test_what_is_left_of_the_lease_shrinks_with_the_observations_age(age: float, left: int) -> None:
    view = AgedView()
    view.age = age
    view.lead("ledger", 7, "us", "https://us.example")
    body = ask(view).body
    assert isinstance(body, bytes)
    assert orjson.loads(body)["leader"]["lease_expires_in_ms"] == left


def test_an_unclaimed_term_an_unknown_one_and_an_unknown_role_are_told_apart() -> None:
    view = ScriptedView()
    assert code(view) == "fence_unavailable"
    view.lead("ledger", 7, "us", "https://us.example", active=False)
    assert code(view) == "no_leader"
    assert code(view, "other") == "unknown_role"
    assert code(view, "shard/b") == "unknown_role"
    assert code(view, method="POST") == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "role"), [("ledger", "ledger"), ("shard/a", "shard/a"), ("shard%2fa", "shard/a"), ("a%252f", "a%2f")]
)
def test_the_role_is_decoded_exactly_once(path: str, role: str) -> None:
    assert role_asked(PREFIX + path) == role


def test_bytes_that_are_no_text_are_no_role() -> None:
    assert code(ScriptedView(), "%ff%fe") == "unknown_role"
    assert code(ScriptedView(), "\udcff\udcfe") == "unknown_role"  # as an edge hands on raw bytes


@pytest.mark.parametrize("origins", [{"dr": "https://dr.example"}, {}])
def test_during_a_handoff_the_successor_is_announced_as_incoming_where_its_origin_is_known(
    origins: dict[str, str],
) -> None:
    view = ScriptedView()
    view.lead("ledger", 7, "us", "https://us.example", draining_to="dr")
    request = Request("GET", PREFIX + "ledger", "", [], BufferedBody(), 0, "", 0.0)
    body = discover(request, ROUTES, view, Places("eu", origins)).body
    assert isinstance(body, bytes)
    document = orjson.loads(body)

    assert (document["token"], document["leader"]["state"]) == (7, "active")
    incoming = document.get("incoming")
    assert (incoming and (incoming["url"], incoming["state"])) == (
        ("https://dr.example", "incoming") if origins else None
    )
