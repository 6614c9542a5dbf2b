"""Every row of the contract's table, for each target, against a started gateway over raw sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect
from fencegate.gateway.limits import Limits
from fencegate.observations import WriteOutcomeUnknown, WriteRefused
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, chunked, eventually, request
from fencegate.testing.recording_upstream import closes_after_reading, never_answers, waits_for
from fencegate.testing.wire_world import ELSEWHERE, FUNCTION, HOME, HTTP, LEDGER, TARGETS, Target, World, WorldFactory

every_target = pytest.mark.parametrize("target", TARGETS, ids=str)
stored_target = pytest.mark.parametrize("target", [LEDGER, FUNCTION], ids=str)

Prepare = Callable[[World, Target], Awaitable[bytes]]


async def _plain(world: World, target: Target, **options: Any) -> bytes:
    return request("POST", target.path, **options)


async def _missing(world: World, target: Target) -> bytes:
    return request("POST", target.path, token=None)


async def _malformed(world: World, target: Target) -> bytes:
    return request("POST", target.path, token="+42")


async def _stale(world: World, target: Target) -> bytes:
    return request("POST", target.path, token=41)


async def _not_leader(world: World, target: Target) -> bytes:
    await world.stage.seal(target.role)
    world.view.lead(target.role, 43, "us", ELSEWHERE)
    return request("POST", target.path)


async def _nobody(world: World, target: Target) -> bytes:
    await world.stage.seal(target.role)
    world.view.nobody(target.role)
    return request("POST", target.path)


async def _forged(world: World, target: Target) -> bytes:
    return request("POST", target.path, token=2**63 - 1)


async def _store_down(world: World, target: Target) -> bytes:
    world.store.failure = Unavailable("the store is away")
    return request("POST", target.path)


async def _no_row(world: World, target: Target) -> bytes:
    await world.stage.lose_row(target.role)
    return request("POST", target.path)


async def _other_server(world: World, target: Target) -> bytes:
    await world.stage.move_incarnation(target.role)
    return request("POST", target.path)


async def _election_silent(world: World, target: Target) -> bytes:
    await world.stage.seal(target.role)
    world.view.forget(target.role)
    return request("POST", target.path)


async def _election_down(world: World, target: Target) -> bytes:
    world.view.unavailable = True
    return request("POST", target.path, token=43)


async def _draining(world: World, target: Target) -> bytes:
    await world.stage.set_draining(target.role, True)
    world.view.lead(target.role, 42, "eu", HOME, draining_to="us")
    return request("POST", target.path)


async def _key_missing(world: World, target: Target) -> bytes:
    return request("POST", target.strict_path)


async def _key_malformed(world: World, target: Target) -> bytes:
    return request("POST", target.path, key='"open')


async def _early(world: World, target: Target) -> bytes:
    return request("POST", target.path, ("Early-Data", "1"))


async def _too_large(world: World, target: Target) -> bytes:
    return request("POST", target.strict_path, key="k", body=b'"' + b"x" * 1000 + b'"')


async def _too_large_chunked(world: World, target: Target) -> bytes:
    head = request("POST", target.strict_path, ("Transfer-Encoding", "chunked"), key="k", body=None)
    return head + chunked(b'"' + b"x" * 600, b"x" * 600 + b'"')


async def _no_time(world: World, target: Target) -> bytes:
    return request("POST", target.path, ("X-Fencing-Timeout-Ms", "0"))


async def _upgrade(world: World, target: Target) -> bytes:
    return request("POST", target.path, ("Connection", "Upgrade"), ("Upgrade", "websocket"))


async def _override(world: World, target: Target) -> bytes:
    return request("POST", target.path, ("X-HTTP-Method-Override", "DELETE"))


async def _nominated(world: World, target: Target) -> bytes:
    return request("POST", target.path, ("Connection", "close, X-Fencing-Token"))


ROWS: list[tuple[str, str, Prepare]] = [
    ("no token", "token_required", _missing),
    ("a malformed token", "token_malformed", _malformed),
    ("a stale token", "stale_token", _stale),
    ("another region leads", "not_leader", _not_leader),
    ("nobody leads", "no_leader", _nobody),
    ("a token never issued", "token_not_issued", _forged),
    ("the store is down", "fence_unavailable", _store_down),
    ("the fence's row is gone", "fence_unavailable", _no_row),
    ("another incarnation", "fence_unavailable", _other_server),
    ("closed and the election is silent", "fence_unavailable", _election_silent),
    ("above and the election is down", "fence_unavailable", _election_down),
    ("a handoff is running", "draining", _draining),
    ("no key where one is required", "idempotency_key_required", _key_missing),
    ("a malformed key", "idempotency_key_malformed", _key_malformed),
    ("TLS early data", "too_early", _early),
    ("a body over the limit", "body_too_large", _too_large),
    ("a chunked body over the limit", "body_too_large", _too_large_chunked),
    ("no time left", "deadline_exceeded", _no_time),
    ("an upgrade", "upgrade_refused", _upgrade),
    ("a method override", "request_malformed", _override),
    ("a nominated token header", "request_malformed", _nominated),
]


@every_target
@pytest.mark.parametrize(("code", "prepare"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_a_row_of_the_table_is_refused_and_writes_nothing(
    world: World, target: Target, code: str, prepare: Prepare
) -> None:
    message = await prepare(world, target)
    document = assert_refusal(await world.ask(message), code)
    assert document["applied"] == "no"
    world.store.failure = None
    assert await world.effects(target) == 0
    assert await world.effects(target, target.strict_role) == 0
    refusals = [seen for seen in world.seen if isinstance(seen, WriteRefused)]
    assert [refusal.code for refusal in refusals] == [code]


@every_target
async def test_the_right_token_is_accepted_once(world: World, target: Target) -> None:
    assert_accepted(await world.ask(request("POST", target.path)))
    assert await world.effects(target) == 1


@every_target
async def test_a_stale_refusal_names_the_fence_and_the_leader(world: World, target: Target) -> None:
    document = assert_refusal(await world.ask(request("POST", target.path, token=41)), "stale_token")
    assert document["presented_token"] == 41
    assert document["max_token_seen"] == 42
    assert document["role"] == target.role
    assert document["leader"]["url"] == HOME
    assert document["leader"]["token"] == 42
    assert document["leader"]["state"] == "active"


@every_target
async def test_a_stale_refusal_gives_no_hint_that_is_older_than_the_fence(world: World, target: Target) -> None:
    world.view.lead(target.role, 40, "us", ELSEWHERE)
    answer = await world.ask(request("POST", target.path, token=41))
    assert "leader" not in assert_refusal(answer, "stale_token")
    assert answer.one("Retry-After") == "1"


@every_target
async def test_not_leader_hints_at_the_region_that_leads(world: World, target: Target) -> None:
    document = assert_refusal(await world.ask(await _not_leader(world, target)), "not_leader")
    assert document["leader"]["url"] == ELSEWHERE
    assert document["leader"]["region"] == "us"


@every_target
async def test_a_newer_token_that_another_region_holds_is_told_where_it_leads(world: World, target: Target) -> None:
    world.view.lead(target.role, 43, "us", ELSEWHERE)
    document = assert_refusal(await world.ask(request("POST", target.path, token=43)), "not_leader")
    assert document["leader"]["url"] == ELSEWHERE
    assert await world.effects(target) == 0


@every_target
async def test_our_own_term_before_its_store_is_open_is_no_leader_for_a_second(world: World, target: Target) -> None:
    await world.stage.seal(target.role)
    answer = await world.ask(request("POST", target.path))
    assert_refusal(answer, "no_leader")
    assert answer.one("Retry-After") == "1"


@every_target
async def test_draining_names_the_successor_as_incoming(world: World, target: Target) -> None:
    answer = await world.ask(await _draining(world, target))
    document = assert_refusal(answer, "draining")
    assert document["leader"] == {
        "url": ELSEWHERE,
        "region": "us",
        "state": "incoming",
        "observed_at": document["leader"]["observed_at"],
    }


# Field case A1: hashicorp/raft#586, helium/erlang-dkg#18, mlswg/mls-protocol#784.
@every_target
async def test_a_forged_token_never_raises_the_fence(world: World, target: Target) -> None:
    assert_refusal(await world.ask(request("POST", target.path, token=2**63 - 1)), "token_not_issued")
    assert_accepted(await world.ask(request("POST", target.path, token=42)))


@pytest.mark.parametrize(
    ("path", "role"), [("/open", "open"), ("/open-fn", "open-fn"), ("/open-web/x", "open-web")], ids=str
)
async def test_in_token_mode_a_proven_newer_token_raises_the_fence(world: World, path: str, role: str) -> None:
    world.view.lead(role, 50, "eu", HOME)
    assert_accepted(await world.ask(request("POST", path, token=50)))
    document = assert_refusal(await world.ask(request("POST", path, token=42)), "stale_token")
    assert document["max_token_seen"] == 50


@pytest.mark.parametrize(
    ("path", "role"), [("/open", "open"), ("/open-fn", "open-fn"), ("/open-web/x", "open-web")], ids=str
)
async def test_in_token_mode_a_terms_first_write_meets_the_store_once_its_token_is_proved(
    world: World, path: str, role: str
) -> None:
    world.view.lead(role, 42, "eu", HOME)
    assert_accepted(await world.ask(request("POST", path, token=42)))
    world.view.lead(role, 50, "eu", HOME)
    before = world.store.questions
    assert_accepted(await world.ask(request("POST", path, token=50)))
    assert world.store.questions == before + 1


async def test_a_token_that_memory_takes_for_a_new_terms_is_refused_by_the_store_and_the_election(world: World) -> None:
    world.view.lead("open", 50, "eu", HOME)
    assert_accepted(await world.ask(request("POST", "/open", token=50)))
    assert_refusal(await world.ask(request("POST", "/open", token=51)), "token_not_issued")
    world.view.unavailable = True
    assert_refusal(await world.ask(request("POST", "/open", token=51)), "fence_unavailable")


async def test_in_token_mode_only_the_exact_token_of_the_term_is_proof(world: World) -> None:
    world.view.lead("open", 50, "eu", HOME)
    assert_refusal(await world.ask(request("POST", "/open", token=49)), "not_leader")
    assert_refusal(await world.ask(request("POST", "/open", token=51)), "token_not_issued")
    assert_accepted(await world.ask(request("POST", "/open", token=42)))


# Field case 85: Azure/azure-storage-java#35.
# Field case A10.
@every_target
async def test_the_same_key_and_payload_gets_the_first_answer_again(world: World, target: Target) -> None:
    first = await world.ask(request("POST", target.path, key="k-1"))
    again = await world.ask(request("POST", target.path, key='"k-1"'))
    assert_accepted(first)
    assert_accepted(again, replayed=True)
    assert (again.status, again.body) == (first.status, first.body)
    assert await world.effects(target) == 1


@every_target
async def test_a_stored_answer_is_replayed_even_after_a_failover(world: World, target: Target) -> None:
    first = await world.ask(request("POST", target.path, key="k-1"))
    await world.stage.seal(target.role)
    world.view.lead(target.role, 43, "us", ELSEWHERE)
    again = await world.ask(request("POST", target.path, key="k-1"))
    assert_accepted(again, replayed=True)
    assert again.body == first.body
    assert await world.effects(target) == 1


@every_target
async def test_the_same_key_with_another_payload_is_refused(world: World, target: Target) -> None:
    assert_accepted(await world.ask(request("POST", target.path, key="k-1")))
    assert_refusal(
        await world.ask(request("POST", target.path, key="k-1", body=b'{"amount":2}')), "idempotency_key_reused"
    )
    assert await world.effects(target) == 1


@every_target
async def test_a_refusal_is_not_stored_under_its_key(world: World, target: Target) -> None:
    assert_refusal(await world.ask(request("POST", target.path, key="k-1", token=41)), "stale_token")
    assert_accepted(await world.ask(request("POST", target.path, key="k-1")))


@stored_target
async def test_a_key_that_is_still_running_in_the_store_is_in_progress(world: World, target: Target) -> None:
    world.store.effect = Effect.IN_PROGRESS
    document = assert_refusal(await world.ask(request("POST", target.path, key="k")), "idempotency_in_progress")
    assert document["applied"] == "unknown"


async def test_a_key_that_is_still_running_upstream_is_in_progress(world: World) -> None:
    release = asyncio.Event()
    world.upstream.behaviour = waits_for(release)
    async with Line.to(world.port) as line:
        await line.send(request("POST", HTTP.path, key="k"))
        await world.upstream.arrived()
        answer = await world.ask(request("POST", HTTP.path, key="k"))
        assert_refusal(answer, "idempotency_in_progress")
        assert answer.one("Retry-After") == "1"
        release.set()
        assert_accepted(await line.answer())
    assert len(world.upstream.requests) == 1


@every_target
async def test_too_many_requests_are_refused_before_the_fence(new_world: WorldFactory, target: Target) -> None:
    async with new_world(limits=Limits(in_flight=1)) as world, Line.to(world.port) as line:
        world.store.hold = asyncio.Event()
        await line.send(request("POST", target.path))
        await eventually(lambda: world.store.waiting == 1)
        assert_refusal(await world.ask(request("POST", target.path)), "overloaded")
        assert world.store.waiting == 1
        world.store.hold.set()
        assert_accepted(await line.answer())


@stored_target
@pytest.mark.parametrize(("cause", "status"), [("connection", 502), ("timeout", 504)])
async def test_a_lost_answer_of_the_store_is_unknown(world: World, target: Target, cause: Any, status: int) -> None:
    world.store.failure = OutcomeUnknown("the answer to COMMIT was lost", cause)
    world.store.applies_first = True
    assert_refusal(await world.ask(request("POST", target.path, key="k")), "outcome_unknown", status=status)
    assert [seen.cause for seen in world.seen if isinstance(seen, WriteOutcomeUnknown)] == [cause]
    world.store.failure = None
    assert_accepted(await world.ask(request("POST", target.path, key="k")), replayed=True)
    assert await world.effects(target) == 1


# Field case 77: aio-libs/aiohttp#10790.
# Field case 78: varnishcache/varnish-cache#4413.
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
@pytest.mark.parametrize("body", [b'{"a":1}', b""], ids=["with body", "empty"])
async def test_an_upstream_that_closes_after_reading_is_sent_one_request(
    world: World, method: str, body: bytes
) -> None:
    assert_accepted(await world.ask(request("POST", HTTP.path)))  # leaves a connection in the pool
    world.upstream.behaviour = closes_after_reading
    assert_refusal(await world.ask(request(method, HTTP.path, body=body)), "outcome_unknown", status=502)
    assert len(world.upstream.requests) == 2
    first, second = (request.connection for request in world.upstream.requests)
    assert first == second


async def test_an_upstream_that_never_answers_is_unknown_by_time(world: World) -> None:
    world.upstream.behaviour = never_answers
    answer = await world.ask(request("POST", HTTP.path, ("X-Fencing-Timeout-Ms", "2500")))
    assert_refusal(answer, "outcome_unknown", status=504)
    assert len(world.upstream.requests) == 1


async def test_an_upstream_that_cannot_be_reached_applied_nothing_and_frees_the_key(world: World) -> None:
    await world.upstream.stop()
    document = assert_refusal(await world.ask(request("POST", HTTP.path, key="k")), "upstream_unavailable")
    assert document["applied"] == "no"
    assert_refusal(await world.ask(request("POST", HTTP.path, key="k")), "upstream_unavailable")


@every_target
async def test_an_unexpected_failure_never_claims_that_nothing_was_applied(world: World, target: Target) -> None:
    if target is HTTP:
        world.store.settle = _explode  # type: ignore[method-assign]
    else:
        world.store.append = world.store.call = _explode  # type: ignore[method-assign,assignment]
    assert_refusal(await world.ask(request("POST", target.path)), "outcome_unknown")


async def test_an_unexpected_failure_before_anything_was_sent_fails_closed(world: World) -> None:
    world.store.admit = _explode  # type: ignore[method-assign]
    assert_refusal(await world.ask(request("POST", HTTP.path)), "fence_unavailable")
    assert not world.upstream.requests


async def _explode(*args: object, **options: object) -> Any:
    raise ZeroDivisionError


UNROUTED = [
    *("/nothing", "/v1", "/v1/entries/", "//v1/entries", "/v1/./entries", "/v1/x/../entries", "/v1%2fentries"),
    *("/v1/%2e%2e/v1/entries", "/web/%2e%2e/admin", "/web/..%2fadmin", "/web/a%5cb", "/web/%252e%252e/x"),
    *("/web/..;/x", "/web//x", "/-/roles", "/%2d/roles", "/web/%00", "/web/%zz"),
]


async def test_what_is_not_routed_is_denied(world: World) -> None:
    for path in UNROUTED:
        assert_refusal(await world.ask(request("POST", path)), "unknown_route")
    assert not world.upstream.requests


# Field case 58: redisson/redisson#6510.
# Field case A18: redisson/redisson#6510.
async def test_a_member_that_was_never_declared_is_no_role(world: World) -> None:
    document = assert_refusal(await world.ask(request("POST", "/shards/us-9/x")), "unknown_role")
    assert "role" not in document
    assert_accepted(await world.ask(request("POST", "/shards/eu-1/x")))


async def test_the_route_decides_the_role_whatever_headers_say(world: World) -> None:
    answer = await world.ask(request("POST", "/v1/entries", ("X-Fencing-Role", "open"), token=41))
    assert assert_refusal(answer, "stale_token")["role"] == "ledger"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/entries", "GET, HEAD, OPTIONS, POST"),
        ("DELETE", "/v1/entries/1", "GET, HEAD, OPTIONS, POST"),
        ("GET", "/fn/echo", "OPTIONS, POST"),
    ],
)
async def test_other_methods_are_not_allowed(world: World, method: str, path: str, allow: str) -> None:
    answer = await world.ask(request(method, path))
    assert_refusal(answer, "method_not_allowed")
    assert answer.one("Allow") == allow


async def test_the_checks_come_in_the_contracts_order(world: World) -> None:
    """Each request breaks two rules; the earlier one answers."""
    await world.stage.set_draining("strict", True)
    await world.stage.set_draining("ledger", True)
    cases = [
        (request("POST", "/nothing", ("Early-Data", "1")), "too_early"),
        (request("POST", "/nothing", token=None), "unknown_route"),
        (request("POST", "/strict", token=None), "token_required"),
        (request("POST", "/strict", token="x"), "token_malformed"),
        (request("POST", "/strict", token=41), "idempotency_key_required"),
        (request("POST", "/shards/none/x", token="x"), "token_malformed"),
        (request("POST", "/shards/none/x", key='"'), "idempotency_key_malformed"),
        (request("POST", "/ledger-is-draining", token=41), "unknown_route"),
        (request("POST", "/v1/entries", token=41), "draining"),
    ]
    for message, code in cases:
        assert_refusal(await world.ask(message), code)
