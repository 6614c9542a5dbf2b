"""Who calls, by the word of a trusted proxy: in the scope of keys, in refusals and observations, towards upstreams."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import Any

import pytest

from fencegate.gateway.caller import Allowed, Callers
from fencegate.observations import WouldRefuse, WriteRefused
from fencegate.testing.raw_http import assert_accepted, assert_refusal, request
from fencegate.testing.wire_world import HTTP, LEDGER, TARGETS, Target, World, WorldFactory, routes

every_target = pytest.mark.parametrize("target", TARGETS, ids=str)

NAME = "X-Forwarded-User"
TRUSTED = partial(Callers, header=NAME, proxies=[ip_network("127.0.0.0/8")])
UNTRUSTED = partial(Callers, header=NAME, proxies=[ip_network("10.0.0.0/8")])


def write(target: Target, caller: str = "", *more: tuple[str, str], **options: Any) -> bytes:
    return request("POST", target.path, *([(NAME, caller)] if caller else []), *more, **options)


def only(world: World, callers: Iterable[str]) -> None:
    """From now on every route takes writes of these callers alone."""
    allowed = Allowed(callers)
    world.gateway.use_routes(replace(route, callers=allowed) for route in routes(world.upstream.url))


def refusals(world: World) -> list[tuple[str, str]]:
    return [(fact.code, fact.caller) for fact in world.seen if isinstance(fact, WriteRefused)]


async def test_an_entry_of_the_ledger_says_who_wrote_it(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        for caller in ("alice", ""):
            answer = await world.ask(write(LEDGER, caller))
            assert_accepted(answer)
            assert "caller" not in json.loads(answer.body)
        page = json.loads((await world.ask(request("GET", LEDGER.path, token=None, body=None))).body)
        assert [entry.get("caller") for entry in page["entries"]] == ["alice", None]
        one = json.loads((await world.ask(request("GET", f"{LEDGER.path}/1", token=None, body=None))).body)
        assert one["caller"] == "alice"


# Field case A17.
@every_target
async def test_two_callers_with_one_key_are_two_operations_and_each_gets_its_own_answer(
    new_world: WorldFactory, target: Target
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        callers = ["alice", "bob", ""]
        first = [
            await world.ask(write(target, who, key="k-1", body=b'{"of":"%d"}' % n)) for n, who in enumerate(callers)
        ]
        for answer in first:
            assert_accepted(answer)
        again = [
            await world.ask(write(target, who, key="k-1", body=b'{"of":"%d"}' % n)) for n, who in enumerate(callers)
        ]
        for one, other in zip(first, again, strict=True):
            assert_accepted(other, replayed=True)
            assert other.body == one.body
        assert await world.effects(target) == len(callers)
        assert_refusal(await world.ask(write(target, "alice", key="k-1", body=b'{"of":"1"}')), "idempotency_key_reused")


@every_target
async def test_a_stale_write_whose_answer_is_stored_is_answered_to_its_own_caller_alone(
    new_world: WorldFactory, target: Target
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        assert_accepted(await world.ask(write(target, "alice", key="k-1")))
        await world.stage.open(target.role, 43)
        world.view.lead(target.role, 43, "eu", "https://ledger.eu.example")
        assert_accepted(await world.ask(write(target, "alice", key="new", token=43)))
        assert_accepted(await world.ask(write(target, "alice", key="k-1")), replayed=True)
        assert_refusal(await world.ask(write(target, "bob", key="k-1")), "stale_token")
        assert refusals(world) == [("stale_token", "bob")]


@every_target
async def test_a_caller_that_is_not_on_the_list_is_refused_before_anything_is_said_of_its_token(
    new_world: WorldFactory, target: Target
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        only(world, ["alice", "batch/*"])
        for token in (42, 41, None, "nonsense"):
            document = assert_refusal(await world.ask(write(target, "mallory", token=token)), "caller_not_allowed")
            assert "max_token_seen" not in document
            assert "leader" not in document
            assert_refusal(await world.ask(write(target, token=token)), "caller_required")
        assert await world.effects(target) == 0
        assert refusals(world) == [("caller_not_allowed", "mallory"), ("caller_required", "")] * 4
        assert_accepted(await world.ask(write(target, "alice")))
        assert_accepted(await world.ask(write(target, "batch/7")))
        assert await world.effects(target) == 2


@every_target
async def test_a_header_of_anybody_else_is_no_identity(new_world: WorldFactory, target: Target) -> None:
    async with new_world(callers=UNTRUSTED()) as world:
        assert_accepted(await world.ask(write(target, "alice", key="k")))
        assert_accepted(await world.ask(write(target, "bob", key="k")), replayed=True)
        only(world, ["alice"])
        assert_refusal(await world.ask(write(target, "alice")), "caller_required")
        assert refusals(world) == [("caller_required", "")]
        assert await world.effects(target) == 1


@every_target
async def test_where_an_identity_is_required_no_write_is_taken_without_one_and_reads_are(
    new_world: WorldFactory, target: Target
) -> None:
    async with new_world(callers=TRUSTED(required=True)) as world:
        assert_refusal(await world.ask(write(target)), "caller_required")
        assert_accepted(await world.ask(write(target, "anybody")))
        assert (await world.ask(request("OPTIONS", target.path, body=None, token=None))).status < 300
        assert await world.effects(target) == 1


@every_target
async def test_a_list_of_callers_without_any_way_to_know_one_takes_no_write(
    new_world: WorldFactory, target: Target
) -> None:
    """Routes can be loaded anew while the process runs, and what knows callers cannot."""
    async with new_world() as world:
        only(world, ["*"])
        assert_refusal(await world.ask(write(target, "alice")), "caller_required")


UNCLEAR = [
    [(NAME, "alice"), (NAME, "alice")],
    [(NAME, "mallory"), (NAME.lower(), "alice")],
    [(NAME, "alice"), ("X_Forwarded_User", "mallory")],
    [(NAME, "al\tice")],
    [(NAME, "al\xffice")],
    [(NAME, "a" * 513)],
]


async def test_a_caller_who_is_named_unclearly_is_refused_and_writes_nothing(new_world: WorldFactory) -> None:
    async with new_world(callers=TRUSTED()) as world:
        for target in TARGETS:
            for lines in UNCLEAR:
                assert_refusal(await world.ask(write(target, "", *lines)), "request_malformed")
            assert await world.effects(target) == 0
        assert_refusal(await world.ask(request("GET", HTTP.path, *UNCLEAR[0], body=None)), "request_malformed")


async def test_an_upstream_hears_of_the_caller_from_the_gateway_alone(new_world: WorldFactory) -> None:
    forged = [("X-Fencing-Caller", "mallory"), ("X_Fencing_Caller", "mallory")]
    async with new_world(callers=TRUSTED()) as world:
        assert_accepted(await world.ask(write(HTTP, "alice", ("Connection", f"close, {NAME}"), *forged)))
        assert (await world.ask(request("GET", HTTP.path, (NAME, "alice"), *forged, body=None))).status == 200
        assert_accepted(await world.ask(write(HTTP, "", *forged)))
        sent = [(r.values(NAME), r.values("X-Fencing-Caller")) for r in world.upstream.requests]
        assert sent == [(["alice"], ["alice"])] * 2 + [([], [])]
        assert not any("mallory" in value for r in world.upstream.requests for _, value in r.headers)


async def test_a_header_of_anybody_else_never_reaches_an_upstream(new_world: WorldFactory) -> None:
    forged = [(NAME.upper(), "mallory"), ("X_Forwarded-User", "mallory"), ("X-Fencing-Caller", "mallory")]
    async with new_world(callers=UNTRUSTED()) as world:
        assert_accepted(await world.ask(write(HTTP, "", *forged, ("X-Other", "kept"))))
        assert (await world.ask(request("GET", HTTP.path, *forged, ("X-Other", "kept"), body=None))).status == 200
        for sent in world.upstream.requests:
            assert not any("mallory" in value for _, value in sent.headers)
            assert sent.values("X-Other") == ["kept"]


@pytest.mark.parametrize("path", ["/watched", "/watched-fn", "/watched-web/x"])
async def test_in_observe_mode_a_strangers_write_goes_through_and_is_told_of(
    new_world: WorldFactory, path: str
) -> None:
    async with new_world(callers=TRUSTED()) as world:
        only(world, ["alice"])
        for caller, token in (("mallory", 42), ("", None), ("alice", 42)):
            headers = [(NAME, caller)] if caller else []
            assert (await world.ask(request("POST", path, *headers, token=token))).status < 300
        told = [(fact.code, fact.caller) for fact in world.seen if isinstance(fact, WouldRefuse)]
        assert told == [("caller_not_allowed", "mallory"), ("caller_required", "")]


async def test_a_function_is_told_who_calls(new_world: WorldFactory) -> None:
    contexts = []
    async with new_world(callers=TRUSTED()) as world:
        inner = world.store.call

        async def call(function: str, write: Any, time_limit: float) -> Any:
            contexts.append(write.context["caller"])
            return await inner(function, write, time_limit)

        world.store.call = call  # type: ignore[method-assign]
        assert_accepted(await world.ask(request("POST", "/fn/echo", (NAME, "alice"))))
        assert_accepted(await world.ask(request("POST", "/fn/echo")))
    assert contexts == ["alice", None]


async def test_the_authorizer_judges_the_caller_that_its_proxy_names(new_world: WorldFactory) -> None:
    ask = partial(request, "GET", "/-/authz/web", body=b"")
    async with new_world(callers=TRUSTED()) as world:
        only(world, ["alice"])
        assert_accepted(await world.ask(ask((NAME, "alice"))))
        assert_refusal(await world.ask(ask((NAME, "mallory"))), "caller_not_allowed")
        assert_refusal(await world.ask(ask()), "caller_required")
        assert_refusal(await world.ask(ask((NAME, "alice"), (NAME, "alice"))), "request_malformed")
        nginx = await world.ask(request("GET", "/-/authz/web?profile=nginx", (NAME, "mallory"), body=b""))
        assert (nginx.status, nginx.one("X-Fencing-Outcome")) == (403, "caller_not_allowed")
    async with new_world(callers=UNTRUSTED(required=True)) as world:
        assert_refusal(await world.ask(ask((NAME, "alice"))), "caller_required")
