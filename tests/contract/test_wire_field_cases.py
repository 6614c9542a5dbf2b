"""What other gateways, proxies and their clients got wrong, held against this one over raw sockets.

Which report is held by which test: ``tests/field_cases.toml``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.error
import urllib.request
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict

from fencegate.gateway.app import Gateway
from fencegate.gateway.targets.pool import UpstreamPool
from fencegate.observations import WriteRefused
from fencegate.testing.raw_http import TOKEN, Line, assert_accepted, assert_refusal, eventually, request
from fencegate.testing.recording_upstream import never_answers, waits_for, well_behaved
from fencegate.testing.wire_world import FUNCTION, HOME, HTTP, LEDGER, TARGETS, Target, World, WorldFactory, routes

every_target = pytest.mark.parametrize("target", TARGETS, ids=str)

BEYOND_DOUBLES = 2**53 + 1
"""The first whole number that a reader with 64-bit floats gets wrong."""


# -- nothing passes beside the fence ------------------------------------------------------------------


# Field case 32: kubestellar/kubestellar#1844.
# Field case 48: apache/kafka#5101, slatedb/slatedb#608.
# Field case A16: superfly/litefs#312, slatedb/slatedb#608.
async def test_no_method_of_any_route_takes_a_write_past_the_fence(world: World) -> None:
    stale = {"token": TOKEN - 1}
    for route in routes("http://unused"):
        if route.mode == "observe":
            continue  # The operator's own word that this path is only watched.
        path = route.path.replace("{shard}", "eu-1").replace("/*", "/x")
        for method in ("POST", "PUT", "PATCH", "DELETE", "PURGE", "LOCK", "MKCOL", "QUERY", "TRACE", "CONNECT"):
            for options in ({"token": None}, stale, {**stale, "key": "k"}):
                answer = await world.ask(request(method, path, **options))
                assert answer.status >= 400, (method, path)
        for method in ("GET", "HEAD", "OPTIONS", "POST"):
            for header in ("X-HTTP-Method-Override", "X_HTTP_Method_Override", "X-HTTP-Method", "X-Method-Override"):
                answer = await world.ask(request(method, path, (header, "DELETE")))
                assert answer.status >= 400, (method, path, header)
            answer = await world.ask(request(method, path, ("Connection", "Upgrade"), ("Upgrade", "websocket")))
            assert answer.status >= 400, (method, path, "upgrade")
    assert not world.upstream.requests
    for target in TARGETS:
        assert await world.effects(target) == 0


@pytest.mark.parametrize("method", ["COPY", "MOVE"])
async def test_no_write_reaches_the_path_of_another_route_by_naming_it_as_its_destination(
    world: World, method: str
) -> None:
    for there in ("/web-strict/x", "http://gate.example/shards/eu-1/x", "/shards/us-9/x", "/nowhere", "/web/../big/x"):
        answer = await world.ask(request(method, "/web/x", ("Destination", there)))
        assert_refusal(answer, "request_malformed")
    twice = (("Destination", "/web/y"), ("Destination", "/big/y"))
    assert_refusal(await world.ask(request(method, "/web/x", *twice)), "request_malformed")
    assert_refusal(await world.ask(request(method, "/proved/x", ("destination", "/proved/y"))), "request_malformed")
    assert not world.upstream.requests
    stale = await world.ask(request(method, "/web/x", ("Destination", "/web/y"), token=TOKEN - 1))
    assert_refusal(stale, "stale_token")
    for path, there in (("/web/x", "/web/y/z"), ("/web/x", "https://h:1/web/y?a"), ("/proved/x", "/base/proved/y")):
        assert_accepted(await world.ask(request(method, path, ("Destination", there))))
    assert_accepted(await world.ask(request(method, "/web/x")))


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_no_read_hides_a_method_from_which_its_upstream_would_make_a_write(world: World, method: str) -> None:
    for query in ("_method=DELETE", "a=1&%5Fmethod=DELETE", "_HttpMethod=PATCH", "X-HTTP-Method-Override=PUT"):
        answer = await world.ask(request(method, f"/web/x?{query}", token=None, body=b""))
        assert answer.status == 400, query
    for form in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await world.ask(request(method, "/web/x", ("Content-Type", form), token=None, body=b"_method=DELETE"))
        assert answer.status == 400, form
    assert not world.upstream.requests
    answer = await world.ask(request(method, "/web/x?method=card&a=_method", token=None, body=b""))
    assert answer.status == 200
    assert len(world.upstream.requests) == 1


async def test_a_write_whose_upstream_takes_its_method_from_elsewhere_is_fenced_all_the_same(
    world: World,
) -> None:
    form = ("Content-Type", "application/x-www-form-urlencoded")
    stale = await world.ask(request("POST", "/web/x?_method=DELETE", form, token=TOKEN - 1, body=b"_method=DELETE"))
    assert_refusal(stale, "stale_token")
    assert not world.upstream.requests
    assert_accepted(await world.ask(request("POST", "/web/x?_method=DELETE", form, body=b"_method=DELETE")))


@pytest.mark.parametrize("host", ["EU.Example", "eu.example.", "dr.example", "eu.example:80", "127.0.0.1", "[::1]"])
async def test_no_host_and_no_absolute_target_takes_a_write_to_another_route(world: World, host: str) -> None:
    for path in ("/web/x", f"http://{host}/web/x", f"HTTP://{host}/web/x"):
        stale = await world.ask(request("POST", path, ("Host", host), token=TOKEN - 1, host=False))
        assert_refusal(stale, "stale_token")
    for path in ("/nothing", f"http://{host}/nothing", f"http://{host}//web/x", f"http://{host}/web/../web/x"):
        assert_refusal(await world.ask(request("POST", path, ("Host", host), host=False)), "unknown_route")
    assert not world.upstream.requests
    # The upstream is called by its own name; what the client called us is told it elsewhere.
    assert_accepted(await world.ask(request("POST", "http://other.example/web/x", ("Host", host), host=False)))
    (received,) = world.upstream.requests
    assert received.target == "/web/x"
    assert received.values("Host")[0].startswith("127.0.0.1:")
    assert received.values("X-Forwarded-Host") == [host]


# -- an idempotency key stands for one operation ------------------------------------------------------


# Field case A17: koala73/worldmonitor#4792.
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/fn/echo", "/fn/reject"),
        ("/fn/echo?account=1", "/fn/echo?account=2"),
        ("/web/charge", "/web/refund"),
        ("/web/charge?account=1", "/web/charge?account=2"),
    ],
)
async def test_a_key_that_was_used_for_another_operation_replays_nothing(world: World, first: str, second: str) -> None:
    assert_accepted(await world.ask(request("POST", first, key="k")))
    assert_refusal(await world.ask(request("POST", second, key="k")), "idempotency_key_reused")
    assert_accepted(await world.ask(request("POST", first, key="k")), replayed=True)


async def test_a_write_without_a_key_is_given_none_on_its_way(world: World) -> None:
    for _ in range(2):
        assert_accepted(await world.ask(request("POST", HTTP.path)))
    assert [sent.values("Idempotency-Key") for sent in world.upstream.requests] == [[], []]


# -- one role's trouble is its own --------------------------------------------------------------------


# Field case 62: vitessio/vitess#9071, vitessio/vitess#13854.
async def test_a_role_that_is_handed_over_or_drains_delays_no_other(world: World) -> None:
    release = asyncio.Event()
    world.upstream.behaviour = waits_for(release)
    async with Line.to(world.port) as old, Line.to(world.port) as new:
        await old.send(request("POST", "/open-web/x"))
        await world.upstream.arrived()
        world.view.lead("open-web", TOKEN + 1, "eu", HOME)
        await new.send(request("POST", "/open-web/x", token=TOKEN + 1))  # Waits for the write of the older term.
        await world.stage.set_draining(LEDGER.role, True)
        world.upstream.behaviour = well_behaved
        for target in (FUNCTION, HTTP):
            assert_accepted(await world.ask(request("POST", target.path)))
        for path in ("/strict", "/open"):
            assert_accepted(await world.ask(request("POST", path, key="k")))
        release.set()
        assert_accepted(await old.answer())
        assert_accepted(await new.answer())


# Field case A9.
@pytest.mark.parametrize("path", ["/open", "/open-fn", "/open-web/x"])
async def test_a_client_that_stalls_in_its_body_holds_up_no_newer_term(world: World, path: str) -> None:
    role = {"/open": "open", "/open-fn": "open-fn", "/open-web/x": "open-web"}[path]
    length = ("Content-Length", "12")
    async with Line.to(world.port) as stalled, Line.to(world.port) as asked:
        await stalled.send(request("POST", path, length, body=b'{"amo'))
        await eventually(lambda: world.gateway.in_flight == 1)
        await asked.send(request("POST", path, length, ("Expect", "100-continue"), body=None))
        assert await asked.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await asked.send(b'{"amo')
        world.view.lead(role, TOKEN + 1, "eu", HOME)
        assert_accepted(await world.ask(request("POST", path, token=TOKEN + 1)))
        for line in (stalled, asked):
            await line.send(b'unt":1}')
            assert_refusal(await line.answer(), "stale_token")


# -- the end of a gateway -----------------------------------------------------------------------------


# Field case 81: aio-libs/aiohttp#1369, aio-libs/aiohttp#3638, aio-libs/aiohttp#8611, davidbrochart/anycorn#88.
@every_target
async def test_two_hundred_writes_under_way_are_all_answered_when_the_gateway_stops(
    new_world: WorldFactory, target: Target
) -> None:
    # Two hundred connections at once, to an upstream in this very process, take their time on a busy machine.
    patient = partial(Gateway, pool=partial(UpstreamPool, connect_timeout=25.0))
    path = "/big/x" if target is HTTP else target.path  # A route with time enough for them.
    async with new_world(make=patient) as world, AsyncExitStack() as stack:
        world.store.hold = asyncio.Event()
        lines = [await stack.enter_async_context(Line.to(world.port)) for _ in range(200)]
        for line in lines:
            await line.send(request("POST", path))
        await eventually(lambda: world.store.waiting == 200, limit=20.0)
        stopping = asyncio.create_task(world.edge.stop(25.0))
        await asyncio.sleep(0)
        world.store.hold.set()
        for line in lines:
            assert_accepted(await line.answer(limit=25.0))
            assert await line.is_closed()
        assert await stopping == 0
        assert await world.effects(target) == 200


# -- what a refusal and a hint say --------------------------------------------------------------------


# Field case A12: opengovsg/plumber#2200, node-fetch/node-fetch#1880.
@every_target
async def test_nothing_in_a_request_moves_the_hint(world: World, target: Target) -> None:
    evil = [("X-Forwarded-Host", "evil.example"), ("Forwarded", "host=evil.example"), ("X-Fencing-Leader", "evil")]
    message = request("POST", target.path, ("Host", "evil.example"), *evil, token=TOKEN - 1, host=False)
    document = assert_refusal(await world.ask(message), "stale_token")
    assert document["leader"]["url"] == HOME
    path = f"/.well-known/fencegate/leader/{target.role}"
    found = await world.ask(request("GET", path, ("Host", "evil.example"), *evil, token=None, body=None, host=False))
    assert found.json()["leader"]["url"] == HOME
    assert b"evil" not in found.body


# Field case 96: etcd-io/etcd#14294, microsoft/api-guidelines#174.
@every_target
async def test_a_token_that_no_float_can_hold_survives_digit_for_digit(world: World, target: Target) -> None:
    await world.stage.open(target.role, BEYOND_DOUBLES)
    world.view.lead(target.role, BEYOND_DOUBLES, "eu", HOME)
    answer = await world.ask(request("POST", target.path, token=BEYOND_DOUBLES))
    assert_accepted(answer)
    assert answer.one("X-Fencing-Max-Seen") == str(BEYOND_DOUBLES)
    refusal = await world.ask(request("POST", target.path, token=BEYOND_DOUBLES - 1))
    assert_refusal(refusal, "stale_token")
    assert refusal.one("X-Fencing-Max-Seen") == str(BEYOND_DOUBLES)
    assert b'"max_token_seen":%d' % BEYOND_DOUBLES in refusal.body
    found = await world.ask(request("GET", f"/.well-known/fencegate/leader/{target.role}", token=None, body=None))
    for document in (refusal.json()["leader"], found.json(), found.json()["leader"]):
        assert (document["token"], document["token_text"]) == (BEYOND_DOUBLES, str(BEYOND_DOUBLES))
    if target is HTTP:
        assert world.upstream.requests[0].values("X-Fencing-Token") == [str(BEYOND_DOUBLES)]


# Field case 96.
async def test_a_plain_client_in_javascript_stamps_the_token_that_it_was_told(world: World) -> None:
    await world.stage.open(LEDGER.role, BEYOND_DOUBLES)
    world.view.lead(LEDGER.role, BEYOND_DOUBLES, "eu", HOME)
    stamped = (
        "const [base, role, path] = JSON.parse(process.argv[1]);"
        "const found = await (await fetch(`${base}/.well-known/fencegate/leader/${role}`)).json();"
        "for (const token of [found.token, found.token_text, found.leader.token_text]) {"
        " const headers = {'X-Fencing-Token': token, 'Content-Type': 'application/json'};"
        " const answer = await fetch(base + path, {method: 'POST', body: '{}', headers});"
        " console.log(answer.headers.get('X-Fencing-Outcome')) }"
    )
    said = await _node(stamped, [f"http://127.0.0.1:{world.port}", LEDGER.role, LEDGER.path])
    assert said.split() == ["stale_token", "accepted", "accepted"]


async def _node(script: str, given: object) -> str:
    """What a module says in Node that is ``given`` something as JSON."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed (Debian: nodejs)")
    process = await asyncio.create_subprocess_exec(
        *("node", "--input-type=module", "-e", script, "--", json.dumps(given)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return said.decode()


async def _plain_urllib(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    def ask() -> tuple[int, Any]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(urllib.request.Request(url, b"{}", headers, method="POST"), timeout=5) as answer:
                return answer.status, answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers

    return await asyncio.to_thread(ask)


async def _plain_aiohttp(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, data=b"{}", headers=headers) as answer:
        return answer.status, answer.headers


async def _plain_fetch(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    """The fetch that is built into Node."""
    script = (
        "const [url, headers] = JSON.parse(process.argv[1]);"
        "fetch(url, {method: 'POST', body: '{}', headers}).then(async answer => {"
        " await answer.arrayBuffer(); console.log(JSON.stringify([answer.status, [...answer.headers]])) })"
    )
    status, lines = json.loads(await _node(script, [url, headers]))
    return status, CIMultiDict(lines)


# Field case 93: fern-api/fern#5636, Azure/azure-sdk-for-js#23298, hashicorp/go-retryablehttp#257,
#   aws/aws-sdk-js-v3#3822.
@pytest.mark.parametrize("client", [_plain_urllib, _plain_aiohttp, _plain_fetch])
async def test_a_refusal_is_inert_for_a_client_that_knows_nothing_of_it(world: World, client: Any) -> None:
    await world.stage.seal(LEDGER.role)
    world.view.nobody(LEDGER.role)
    base, headers = f"http://127.0.0.1:{world.port}", {"Content-Type": "application/json"}
    for path, token, status, hint in ((LEDGER.path, TOKEN, 503, None), (FUNCTION.path, TOKEN - 1, 409, HOME)):
        world.seen.clear()
        told, lines = await client(base + path, {**headers, "X-Fencing-Token": str(token)})
        assert (told, lines.get("X-Fencing-Leader"), lines.get("Location")) == (status, hint, None)
        assert len([seen for seen in world.seen if isinstance(seen, WriteRefused)]) == 1, "sent once, and not again"


# Field case 17: leapmux/leapmux#403.
async def test_a_write_that_slept_through_its_time_with_the_machine_is_not_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timers of the event loop stand still while a machine is suspended; the clock of deadlines does not."""
    world.store.hold = asyncio.Event()
    async with Line.to(world.port) as line:
        await line.send(request("POST", HTTP.path))
        await eventually(lambda: world.store.waiting == 1)
        awake = time.clock_gettime
        monkeypatch.setattr(time, "clock_gettime", lambda which: awake(which) + 3600)
        world.store.hold.set()
        assert_refusal(await line.answer(), "deadline_exceeded")
    assert not world.upstream.requests


# Field case 81: aio-libs/aiohttp#1369.
@every_target
async def test_a_write_that_the_end_of_the_gateway_cuts_off_is_told_that_its_outcome_is_unknown(
    world: World, target: Target
) -> None:
    world.upstream.behaviour = never_answers
    async with Line.to(world.port) as line:
        if target is HTTP:
            await line.send(request("POST", "/big/x", key="k"))
            await world.upstream.arrived()
        else:
            world.store.hold = asyncio.Event()
            await line.send(request("POST", target.path, key="k"))
            await eventually(lambda: world.store.waiting == 1)
        assert await world.edge.stop(0.1) == 1
        assert_refusal(await line.answer(), "outcome_unknown")
        assert await line.is_closed()
    assert await world.gateway.close(0.1) == 0
    assert len(world.upstream.requests) == (target is HTTP)


async def test_a_write_that_the_end_of_the_gateway_finds_before_its_first_byte_was_not_applied(world: World) -> None:
    world.store.hold = asyncio.Event()
    async with Line.to(world.port) as line:
        await line.send(request("POST", HTTP.path))
        await eventually(lambda: world.store.waiting == 1)
        assert await world.edge.stop(0.1) == 1
        assert_refusal(await line.answer(), "fence_unavailable")
    assert not world.upstream.requests
