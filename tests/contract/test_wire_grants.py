"""Grants on the wire: no number is guessed, none is borrowed, and nothing of it shows anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import Any

import pytest

import fencegate.grant
from fencegate.gateway import header_lines, request_bytes
from fencegate.gateway.caller import Allowed, Callers
from fencegate.gateway.granting import Granting
from fencegate.grant import LIFETIME, SKEW, Grant, grant_for, sign, verify
from fencegate.key_ring import SharedKey
from fencegate.observations import WouldRefuse, WriteRefused
from fencegate.testing.raw_http import Answer, assert_accepted, assert_refusal, request
from fencegate.testing.wire_world import ELSEWHERE, HTTP, TARGETS, Target, World, WorldFactory, routes

every_target = pytest.mark.parametrize("target", TARGETS, ids=str)

NAME, GRANT = "X-Forwarded-User", "X-Fencing-Grant"
TRUSTED = partial(Callers, header=NAME, proxies=[ip_network("127.0.0.0/8")])
KEY, NEXT, FOREIGN = (SharedKey(name, name[0].encode() * 32) for name in ("key-1", "next-1", "foreign"))


def requiring(world: World, callers: Iterable[str] = ("*",), **granting: Any) -> None:
    """From now on every route needs a grant."""
    asked = Granting(**{"keys": (KEY,), "required": True, **granting})
    allowed = Allowed(callers)
    world.gateway.use_routes(replace(r, granting=asked, callers=allowed) for r in routes(world.upstream.url))


def granted(role: str, caller: str = "alice", token: int = 42, *, key: SharedKey = KEY, age: float = 0.0) -> str:
    return sign(key, grant_for(role, token, caller, time.time() - age))


def write(target: Target, grant: str | None, caller: str = "alice", *more: tuple[str, str], **options: Any) -> bytes:
    lines = [(NAME, caller)] if caller else []
    return request("POST", target.path, *lines, *([] if grant is None else [(GRANT, grant)]), *more, **options)


def discovery(role: str, caller: str = "alice") -> bytes:
    path = f"/.well-known/fencegate/leader/{role}"
    return request("GET", path, *([(NAME, caller)] if caller else []), token=None, body=None)


@every_target
async def test_a_write_under_the_grant_that_discovery_gave_is_taken(new_world: WorldFactory, target: Target) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        answer = await world.ask(discovery(target.role))
        document = answer.json()
        assert answer.one("Cache-Control") == "private, no-store"
        assert document["grant_expires_in_ms"] == LIFETIME * 1000
        found = verify([KEY], document["grant"].encode(), target.role, 42, "alice", time.time())
        assert (found.role, found.token, found.subject) == (target.role, 42, "alice")
        assert_accepted(await world.ask(write(target, document["grant"])))
        assert await world.effects(target) == 1


@every_target
async def test_a_guessed_number_is_refused_and_nothing_is_said_of_the_fence(
    new_world: WorldFactory, target: Target
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        for token in (41, 42, 43, 2**63 - 1):
            document = assert_refusal(await world.ask(write(target, None, token=token)), "grant_required")
            assert document["required_header"] == GRANT
            assert not {"max_token_seen", "leader"} & document.keys()
        assert await world.effects(target) == 0
        assert_refusal(await world.ask(write(target, None, token=None)), "token_required")
        assert_refusal(await world.ask(write(target, None, token="+1")), "token_malformed")
        assert_refusal(await world.ask(write(target, None, "")), "caller_required")


def _changed(grant: str) -> str:
    return grant[:-1] + ("B" if grant.endswith("A") else "A")


def _borrowed(target: Target) -> dict[str, tuple[str, str, int]]:
    """Grants that are good for something else, with the caller and the token that they are presented with."""
    return {
        "another caller's": (granted(target.role), "mallory", 42),
        "another caller's name in other case": (granted(target.role), "Alice", 42),
        "for another role": (granted("other"), "alice", 42),
        "for an older token": (granted(target.role, token=41), "alice", 42),
        "for a token that is yet to come": (granted(target.role, token=43), "alice", 42),
        "of another key under our key's name": (
            granted(target.role, key=SharedKey(KEY.id, FOREIGN.secret)),
            "alice",
            42,
        ),
        "changed": (_changed(granted(target.role)), "alice", 42),
        "none at all": ("nonsense", "alice", 42),
        "empty": ("", "alice", 42),
        "two in one line": (f"{granted(target.role)}, {granted(target.role)}", "alice", 42),
    }


@every_target
@pytest.mark.parametrize("case", list(_borrowed(HTTP)))
async def test_a_borrowed_or_forged_grant_is_refused_and_writes_nothing(
    new_world: WorldFactory, target: Target, case: str
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        grant, caller, token = _borrowed(target)[case]
        answer = await world.ask(write(target, grant, caller, token=token))
        document = assert_refusal(answer, "grant_invalid")
        assert not {"max_token_seen", "leader"} & document.keys()
        assert not grant or grant not in answer.body.decode()
        assert await world.effects(target) == 0
        told = [(fact.code, fact.caller) for fact in world.seen if isinstance(fact, WriteRefused)]
        assert told == [("grant_invalid", caller)]


@every_target
@pytest.mark.parametrize("spelling", ["x-fencing-grant", "X_Fencing_Grant", "X-Fencing_Grant"])
async def test_two_grants_or_one_under_another_name_are_malformed(
    new_world: WorldFactory, target: Target, spelling: str
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        good = granted(target.role)
        assert_refusal(await world.ask(write(target, good, "alice", (spelling, good))), "grant_invalid")
        if "_" in spelling:
            assert_refusal(await world.ask(write(target, None, "alice", (spelling, good))), "grant_invalid")
        assert_refusal(await world.ask(write(target, good, "alice", ("Connection", GRANT))), "request_malformed")
        assert await world.effects(target) == 0


@every_target
async def test_a_grant_that_has_run_out_is_one_to_replace(new_world: WorldFactory, target: Target) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        for grant in (
            granted(target.role, age=LIFETIME + SKEW + 1),
            granted(target.role, age=-SKEW - 60),
            granted(target.role, key=FOREIGN),
        ):
            document = assert_refusal(await world.ask(write(target, grant)), "grant_expired")
            assert not {"max_token_seen", "leader"} & document.keys()
        assert_accepted(await world.ask(write(target, granted(target.role, age=LIFETIME))))
        assert await world.effects(target) == 1


@every_target
async def test_a_grant_never_makes_a_stale_token_good(new_world: WorldFactory, target: Target) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        answer = await world.ask(write(target, granted(target.role, token=41), token=41))
        document = assert_refusal(answer, "stale_token")
        assert document["max_token_seen"] == 42
        forged = write(target, granted(target.role, token=2**63 - 1), token=2**63 - 1)
        assert_refusal(await world.ask(forged), "token_not_issued")
        # A hint carries no grant: it is for the one who asks discovery.
        assert "grant" not in document
        assert not any("grant" in name.lower() for name, _ in answer.headers)


@every_target
async def test_a_stored_answer_is_given_again_to_its_caller_under_the_newer_terms_grant(
    new_world: WorldFactory, target: Target
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        first = await world.ask(write(target, granted(target.role), key="k"))
        assert_accepted(first)
        await world.stage.open(target.role, 43)
        world.view.lead(target.role, 43, "eu", "https://ledger.eu.example")
        newer = granted(target.role, token=43)
        again = await world.ask(write(target, newer, key="k", token=43))
        assert_accepted(again, replayed=True)
        assert again.body == first.body
        assert_refusal(await world.ask(write(target, newer, "bob", key="k", token=43)), "grant_invalid")


async def test_every_key_of_the_ring_verifies_and_the_first_signs(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        old = granted("web")
        requiring(world, keys=(KEY, NEXT))
        assert (await world.ask(discovery("web"))).json()["grant"].startswith("fg1.key-1.")
        assert_accepted(await world.ask(write(HTTP, granted("web", key=NEXT))))
        requiring(world, keys=(NEXT, KEY))
        assert (await world.ask(discovery("web"))).json()["grant"].startswith("fg1.next-1.")
        assert_accepted(await world.ask(write(HTTP, old)))
        requiring(world, keys=(NEXT,))
        assert_refusal(await world.ask(write(HTTP, old)), "grant_expired")


async def test_discovery_gives_no_grant_to_whom_no_route_would_take_a_write_of(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world, callers=["alice"])
        for caller in ("", "mallory"):
            answer = await world.ask(discovery("web", caller))
            assert (answer.status, answer.json()["token"]) == (200, 42)
            assert "grant" not in answer.json()
            # Nor may a cache give the answer to one who would get a grant.
            assert answer.one("Cache-Control") == "private, no-store"
        twice = request("GET", "/.well-known/fencegate/leader/web", (NAME, "a"), (NAME, "alice"), token=None, body=None)
        assert_refusal(await world.ask(twice), "request_malformed")
        world.view.lead("web", 43, "us", ELSEWHERE, active=False)
        assert b"fg1." not in (await world.ask(discovery("web"))).body


async def test_where_applications_lead_discovery_gives_no_grant_and_theirs_is_taken(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world, hands_out=False)
        assert "grant" not in (await world.ask(discovery("open"))).json()
        asked = partial(request, "POST", "/open", (NAME, "node-1"))
        assert_refusal(await world.ask(asked()), "grant_required")
        assert_accepted(await world.ask(asked((GRANT, granted("open", "node-1")))))
        # A newer term's leader writes before its term is known here: the grant does not stand in its way.
        world.view.lead("open", 50, "eu", "https://ledger.eu.example")
        assert_accepted(await world.ask(asked((GRANT, granted("open", "node-1", token=50)), token=50)))


async def test_before_it_is_required_a_grant_is_given_out_and_never_looked_at(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world, required=False)
        assert "grant" in (await world.ask(discovery("web"))).json()
        for grant in (None, "nonsense", granted("web", "mallory")):
            assert_accepted(await world.ask(write(HTTP, grant)))


async def test_a_role_without_grants_has_the_discovery_that_it_had(world: World) -> None:
    answer = await world.ask(discovery("web"))
    assert answer.one("Cache-Control") == "max-age=1"
    assert "grant" not in answer.json()


async def test_no_grant_ever_reaches_an_upstream(new_world: WorldFactory) -> None:
    good = granted("web")
    async with new_world(callers=TRUSTED()) as world:
        for _ in range(2):  # whether or not grants are known here
            assert_accepted(await world.ask(write(HTTP, good)))
            read = request("GET", HTTP.path, (NAME, "alice"), (GRANT, good), ("x_fencing_grant", good), body=None)
            assert (await world.ask(read)).status == 200
            requiring(world)
        assert len(world.upstream.requests) == 4
        assert not any(good in value for sent in world.upstream.requests for _, value in sent.headers)


async def test_in_observe_mode_a_write_without_a_grant_goes_through_and_is_told_of(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        for lines in ([], [(GRANT, "nonsense")], [(GRANT, granted("watched"))]):
            answer = await world.ask(request("POST", "/watched", (NAME, "alice"), *lines))
            assert answer.status < 300
        told = [fact.code for fact in world.seen if isinstance(fact, WouldRefuse)]
        assert told == ["grant_required", "grant_invalid"]


async def test_a_refused_upload_is_told_so_before_its_body_is_asked_for(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        lines = (NAME, "alice"), ("Expect", "100-continue"), ("Content-Length", "5")
        answer = await world.ask(request("POST", HTTP.path, *lines, body=None))
        assert_refusal(answer, "grant_required")
        assert answer.interim == []


@pytest.mark.parametrize("declared", ["web", "watched-authz", "method"])
async def test_the_authorizer_asks_for_the_grant_too(new_world: WorldFactory, declared: str) -> None:
    """Also for a role without a route of its own for it."""

    async def asked(*lines: tuple[str, str], profile: str = "") -> Answer:
        return await world.ask(request("GET", f"/-/authz/{declared}{profile}", (NAME, "alice"), *lines, body=b""))

    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        if declared == "watched-authz":
            assert_accepted(await asked())
            return
        assert_refusal(await asked(), "grant_required")
        assert_refusal(await asked((GRANT, granted(declared, "bob"))), "grant_invalid")
        assert_accepted(await asked((GRANT, granted(declared))))
        nginx = await asked(profile="?profile=nginx")
        assert (nginx.status, nginx.one("X-Fencing-Status")) == (403, "428")
        envoy = await asked((GRANT, granted(declared, key=FOREIGN)), profile="?profile=envoy")
        assert (envoy.status, envoy.one("X-Fencing-Outcome")) == (403, "grant_expired")


async def test_a_member_of_a_family_needs_a_grant_of_its_own(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        asked = partial(request, "POST", "/shards/eu-1/x", (NAME, "alice"))
        grant = (await world.ask(discovery("shard/eu-1"))).json()["grant"]
        assert_refusal(await world.ask(asked((GRANT, granted("shard/{shard}")))), "grant_invalid")
        assert_refusal(await world.ask(asked((GRANT, granted("shard/eu-2")))), "grant_invalid")
        assert_accepted(await world.ask(asked((GRANT, grant))))


@pytest.mark.parametrize("make", [lambda g: replace(g, expires=g.issued + 86_400_001), lambda g: replace(g, token=0)])
async def test_nonsense_under_the_right_key_is_refused(new_world: WorldFactory, make: Callable[[Grant], Grant]) -> None:
    unsound = make(grant_for("web", 42, "alice", time.time()))
    payload = fencegate.grant._payload(unsound)
    forged = b"fg1.%b.%b.%b" % (KEY.id.encode(), payload, fencegate.grant._mac(KEY, payload))
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        assert_refusal(await world.ask(write(HTTP, forged.decode())), "grant_invalid")


async def test_the_same_head_from_another_caller_is_judged_for_that_caller(new_world: WorldFactory) -> None:
    """Heads that recur are remembered: one with a grant never is, nor is its line."""
    good = granted("web")
    async with new_world(callers=TRUSTED()) as world:
        requiring(world)
        answers = [await world.ask(write(HTTP, good, caller)) for caller in ("alice", "bob", "alice")]
        outcomes = [answer.one("X-Fencing-Outcome") for answer in answers]
        assert outcomes == ["accepted", "grant_invalid", "accepted"]
    remembered = [*header_lines.remembered_lines, *request_bytes._blocks]
    assert not any(good.encode() in raw for raw in remembered)
