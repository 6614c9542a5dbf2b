"""The external authorizer: the same contract, told to a proxy that forwards by itself, in the form that it can take."""

from __future__ import annotations

import asyncio
import json

import pytest

from fencegate.errors import PROBLEMS, Unavailable
from fencegate.observations import WouldRefuse, WriteAccepted, WriteRefused
from fencegate.testing.raw_http import Answer, assert_refusal, request
from fencegate.testing.wire_world import ELSEWHERE, HOME, World

ASK = "/-/authz/web"


async def test_the_leaders_write_may_pass_and_no_mark_of_it_is_left(world: World) -> None:
    answer = await world.ask(request("GET", ASK, body=b"", token=42))
    assert answer.status == 200
    assert answer.one("x-fencing-outcome") == "accepted"
    assert (answer.one("x-fencing-token"), answer.one("x-fencing-max-seen")) == ("42", "42")
    assert any(isinstance(fact, WriteAccepted) and fact.role == "web" for fact in world.seen)
    # A newer term would wait for a mark: there is none to wait for.
    await world.stage.open("web", 43)
    async with asyncio.timeout(4):
        assert (await world.ask(request("GET", ASK, body=b"", token=43))).status == 200
    assert not world.upstream.requests


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
async def test_whatever_the_method_of_the_question_it_is_about_a_write(world: World, method: str) -> None:
    answer = await world.ask(request(method, ASK, body=b"", token=None))
    assert answer.status == 428
    assert any(isinstance(fact, WriteRefused) and fact.code == "token_required" for fact in world.seen)


async def test_its_refusals_are_the_contracts(world: World) -> None:
    assert_refusal(await world.ask(request("GET", ASK, body=b"", token="07")), "token_malformed")
    assert_refusal(await world.ask(request("GET", "/-/authz/nobodys", body=b"", token=42)), "unknown_role")
    assert_refusal(await world.ask(request("GET", ASK, body=b"", token=99)), "token_not_issued")
    assert_refusal(await world.ask(request("GET", f"{ASK}?profile=apache", body=b"", token=42)), "request_malformed")
    document = assert_refusal(await world.ask(request("GET", ASK, body=b"", token=41)), "stale_token")
    assert document["leader"]["url"] == HOME
    await world.stage.seal("web")
    world.view.lead("web", 43, "us", ELSEWHERE)
    document = assert_refusal(await world.ask(request("GET", ASK, body=b"", token=42)), "not_leader")
    assert document["leader"]["url"] == ELSEWHERE
    world.store.failure = Unavailable("down")
    assert_refusal(await world.ask(request("GET", ASK, body=b"", token=42)), "fence_unavailable")


async def test_a_role_of_bytes_that_are_no_text_is_unknown_and_breaks_no_connection(world: World) -> None:
    answer = await world.ask(request("GET", "/-/authz/?", body=b"", token=42).replace(b"?", b"\xff"))
    # One of the edges takes no such bytes in a target.
    assert_refusal(answer, "request_malformed" if answer.status == 400 else "unknown_role")


async def test_where_a_write_raises_the_fence_the_question_does_too(world: World) -> None:
    world.view.lead("open", 50, "eu", HOME)
    assert (await world.ask(request("GET", "/-/authz/open", body=b"", token=50))).status == 200
    assert_refusal(await world.ask(request("GET", "/-/authz/open", body=b"", token=42)), "stale_token")
    assert_refusal(await world.ask(request("POST", "/open", token=42)), "stale_token")


def _in_headers(answer: Answer, code: str) -> None:
    problem = PROBLEMS[code]
    assert answer.one("x-fencing-outcome") == code
    assert answer.one("x-fencing-status") == str(problem.status)
    assert answer.one("x-fencing-applied") == "no"
    assert answer.one("x-fencing-retry") == problem.retry.value


async def test_for_nginx_each_refusal_is_a_403_that_says_in_headers_what_it_means(world: World) -> None:
    assert (await world.ask(request("GET", f"{ASK}?profile=nginx", body=b"", token=42))).status == 200
    for token, code in ((None, "token_required"), (41, "stale_token"), (99, "token_not_issued")):
        answer = await world.ask(request("GET", f"{ASK}?profile=nginx", body=b"", token=token))
        assert answer.status == 403
        _in_headers(answer, code)
        assert json.loads(answer.one("x-fencing-problem") or "") == answer.json()
    world.store.failure = Unavailable("down: nöt reachable")
    answer = await world.ask(request("GET", f"{ASK}?profile=nginx", body=b"", token=42))
    assert answer.status == 403
    _in_headers(answer, "fence_unavailable")
    assert json.loads(answer.one("x-fencing-problem") or "") == answer.json()


async def test_for_envoy_nothing_is_a_5xx_and_what_it_appends_is_not_looked_at(world: World) -> None:
    path = f"{ASK}?profile=envoy&path=/v1/entries?profile=pass"
    stale = await world.ask(request("POST", path, body=b"", token=41))
    assert stale.status == 409
    world.store.failure = Unavailable("down")
    closed = await world.ask(request("POST", path, body=b"", token=42))
    assert closed.status == 409
    _in_headers(closed, "fence_unavailable")


async def test_only_the_header_that_the_configuration_names_makes_a_read(world: World) -> None:
    get = {"X-Original-Method": "GET"}
    read = await world.ask(request("GET", "/-/authz/method", *get.items(), body=b"", token=None))
    assert (read.status, read.one("x-fencing-outcome")) == (200, None)
    twice = [*get.items(), ("X-Original-Method", "POST")]
    for headers in (twice, [("X-Original-Method", "DELETE")], [("X-Original-Method", "get")], []):
        answer = await world.ask(request("GET", "/-/authz/method", *headers, body=b"", token=None))
        assert_refusal(answer, "token_required")
    assert_refusal(await world.ask(request("GET", ASK, *get.items(), body=b"", token=None)), "token_required")


async def test_a_read_that_hides_another_method_is_judged_as_a_write(world: World) -> None:
    path, read = "/-/authz/method", ("X-Original-Method", "GET")
    for override in ("X-HTTP-Method-Override", "X_HTTP_Method", "X-Method-Override"):
        answer = await world.ask(request("GET", path, read, (override, "DELETE"), body=b"", token=None))
        assert answer.status == 400
    form = ("Content-Type", "application/x-www-form-urlencoded")
    appended = f"{path}?profile=envoy&path=/x?_method=DELETE"
    for target, more in ((f"{path}?profile=pass&_method=DELETE", ()), (appended, ()), (path, (form,))):
        answer = await world.ask(request("GET", target, read, *more, body=b"", token=None))
        assert_refusal(answer, "token_required")
    for told in ("X-Forwarded-Uri", "X-Original-URI", "x-original-url", "X-Envoy-Original-Path"):
        answer = await world.ask(request("GET", path, read, (told, "/x?a=1&%5Fmethod=DELETE"), body=b"", token=None))
        assert_refusal(answer, "token_required")
        answer = await world.ask(request("GET", path, read, (told, "/_method?method=card"), body=b"", token=None))
        assert answer.status == 200


async def test_a_read_that_asks_for_another_protocol_is_refused(world: World) -> None:
    asks = (("X-Original-Method", "GET"), ("Connection", "Upgrade"), ("Upgrade", "websocket"))
    assert_refusal(await world.ask(request("GET", "/-/authz/method", *asks, body=b"", token=None)), "upgrade_refused")


async def test_an_authorizer_that_only_observes_lets_all_pass_and_says_what_it_would_have_refused(world: World) -> None:
    answer = await world.ask(request("GET", "/-/authz/watched-authz", body=b"", token=41))
    assert answer.status == 200
    assert any(isinstance(fact, WouldRefuse) and fact.code == "stale_token" for fact in world.seen)


async def test_an_authorizer_that_only_observes_needs_no_store(world: World) -> None:
    world.store.failure = Unavailable("the store is away")
    assert (await world.ask(request("GET", "/-/authz/watched-authz", body=b"", token=42))).status == 200
    assert any(isinstance(fact, WouldRefuse) and fact.code == "fence_unavailable" for fact in world.seen)


async def test_a_key_is_looked_at_for_its_form_and_kept_nowhere(world: World) -> None:
    for _ in range(2):
        assert (await world.ask(request("GET", ASK, body=b"", token=42, key="k-1"))).status == 200
    assert_refusal(await world.ask(request("GET", ASK, body=b"", token=42, key='"open')), "idempotency_key_malformed")
