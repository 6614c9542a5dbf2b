"""Stale writes refused from memory: the same answers, no question to the store, and never an admission."""

from __future__ import annotations

import pytest

from fencegate.errors import Unavailable
from fencegate.gateway.routes import Route
from fencegate.observations import WriteRefused
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, chunked, request
from fencegate.testing.wire_world import ELSEWHERE, HOME, LEDGER, TARGETS, Target, World

every_target = pytest.mark.parametrize("target", TARGETS, ids=str)


@every_target
async def test_a_stale_write_is_refused_while_the_store_is_down_and_no_other_is(
    world: World, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencegate.gateway.stale.FRESH", 60.0)  # a second may pass between two requests
    assert_accepted(await world.ask(request("POST", target.path)))
    world.store.failure = Unavailable("down")
    document = assert_refusal(await world.ask(request("POST", target.path, token=41)), "stale_token")
    assert (document["presented_token"], document["max_token_seen"], document["role"]) == (41, 42, target.role)
    assert document["leader"]["url"] == HOME
    # Whether its key has a stored answer, only the store can tell.
    assert_refusal(await world.ask(request("POST", target.path, token=41, key="k")), "fence_unavailable")
    for token in (42, 43):
        assert_refusal(await world.ask(request("POST", target.path, token=token)), "fence_unavailable")
    assert await world.effects(target) == 1


@every_target
async def test_without_a_word_of_the_store_nothing_is_known(world: World, target: Target) -> None:
    world.store.failure = Unavailable("down")
    assert_refusal(await world.ask(request("POST", target.path, token=41)), "fence_unavailable")


@pytest.mark.parametrize(("path", "role"), [("/open", "open"), ("/open-fn", "open-fn"), ("/open-web/x", "open-web")])
async def test_a_stored_answer_comes_before_a_refusal_from_memory(world: World, path: str, role: str) -> None:
    first = await world.ask(request("POST", path, key="k-1", token=42))
    world.view.lead(role, 50, "eu", HOME)
    assert_accepted(await world.ask(request("POST", path, token=50)))
    again = await world.ask(request("POST", path, key="k-1", token=42))
    assert_accepted(again, replayed=True)
    assert again.body == first.body
    assert_refusal(
        await world.ask(request("POST", path, key="k-1", token=42, body=b'{"amount":2}')), "idempotency_key_reused"
    )
    assert_refusal(await world.ask(request("POST", path, key="k-2", token=42)), "stale_token")


@every_target
async def test_a_term_that_ended_is_told_as_such_even_to_stale_writes(world: World, target: Target) -> None:
    assert_accepted(await world.ask(request("POST", target.path)))
    await world.stage.seal(target.role)
    world.view.lead(target.role, 43, "us", ELSEWHERE)
    assert_refusal(await world.ask(request("POST", target.path)), "not_leader")  # The store's word ends the memory.
    assert_refusal(await world.ask(request("POST", target.path, token=41)), "not_leader")


async def test_refusals_and_writes_in_one_burst_are_answered_in_their_order(world: World) -> None:
    assert_accepted(await world.ask(request("POST", LEDGER.path)))
    stale, good = request("POST", LEDGER.path, token=41), request("POST", LEDGER.path)
    uploaded = request("POST", LEDGER.path, ("Transfer-Encoding", "chunked"), token=41, body=None) + chunked(b"{", b"x")
    async with Line.to(world.port) as line:
        await line.send((stale * 40 + good + uploaded + good) * 5 + stale)
        for round_ in range(5):
            for _ in range(40):
                assert_refusal(await line.answer(), "stale_token")
            assert (await line.answer()).json()["seq"] == 2 * round_ + 2
            assert_refusal(await line.answer(), "stale_token")
            assert (await line.answer()).json()["seq"] == 2 * round_ + 3
        assert_refusal(await line.answer(), "stale_token")


async def test_the_body_of_a_refused_write_is_no_request(world: World) -> None:
    assert_accepted(await world.ask(request("POST", LEDGER.path)))
    inner = request("POST", LEDGER.path)
    async with Line.to(world.port) as line:
        # Whole with its head, and arriving behind it.
        await line.send(request("POST", LEDGER.path, token=41, body=inner))
        assert_refusal(await line.answer(), "stale_token")
        head = request("POST", LEDGER.path, ("Content-Length", str(len(inner))), token=41, body=b"")
        await line.send(head)
        assert_refusal(await line.answer(), "stale_token")
        await line.send(inner)
        assert_accepted(await line.ask(request("POST", LEDGER.path)))
    assert await world.effects(LEDGER) == 2


async def test_refusals_from_memory_are_observed_like_all_others(world: World) -> None:
    assert_accepted(await world.ask(request("POST", LEDGER.path)))
    message = request("POST", LEDGER.path, ("User-Agent", "tail/1"), token=41)
    for _ in range(3):
        assert_refusal(await world.ask(message), "stale_token")
    seen = [fact for fact in world.seen if isinstance(fact, WriteRefused)]
    assert seen == [WriteRefused("ledger", "stale_token", 41, 42, "127.0.0.1", "tail/1")] * 3


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_write_by_a_method_that_is_safe_elsewhere_is_observed_like_all_others(
    world: World, method: str
) -> None:
    url = world.upstream.url
    world.gateway.use_routes([Route("/web/*", "web", "http", url, methods=frozenset({"GET", "POST"}))])
    assert_accepted(await world.ask(request("POST", "/web/x")))  # From now on stale ones are refused from memory.
    for token, code in ((41, "stale_token"), (None, "token_required")):
        answer = await world.ask(request(method, "/web/x", token=token, body=None if method != "POST" else b""))
        assert answer.one("X-Fencing-Outcome") == code
        assert [fact.code for fact in world.seen if isinstance(fact, WriteRefused)][-1:] == [code]
    world.seen.clear()
    await world.ask(request("OPTIONS", "/web/x?_method=DELETE", token=None, body=None))
    assert world.seen == []


async def test_observing_routes_refuse_nothing_from_memory(world: World) -> None:
    assert_accepted(await world.ask(request("POST", "/watched")))
    assert_accepted(await world.ask(request("POST", "/watched", token=41)))
