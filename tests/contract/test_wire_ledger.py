"""Targets ``ledger`` and ``function``, observe mode and discovery, over raw sockets."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.errors import Unavailable
from fencegate.fence import Entry
from fencegate.observations import WouldRefuse, WriteRefused
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, request
from fencegate.testing.wire_world import ELSEWHERE, HOME, LEDGER, World


async def test_an_entry_is_given_its_place_and_can_be_read_back(world: World) -> None:
    body = b'{"b": 1.10,  "a": "\\u00e9"}'
    written = await world.ask(request("POST", LEDGER.path, body=body))
    assert_accepted(written)
    assert written.status == 201
    assert set(written.json()) == {"role", "seq", "token", "recorded_at", "hash"}
    assert written.one("Location") == "/v1/entries/1"
    read = await world.ask(request("GET", "/v1/entries/1", token=None, body=None))
    assert read.status == 200
    assert {**written.json(), "body": {"b": 1.1, "a": "é"}} == read.json()
    assert body in read.body
    head = await world.ask(request("HEAD", "/v1/entries/1", token=None, body=None))
    assert (head.status, head.body, head.one("Content-Length")) == (200, b"", read.one("Content-Length"))


async def test_pages_follow_one_another_without_a_gap(world: World) -> None:
    for number in range(7):
        await world.ask(request("POST", LEDGER.path, body=b"%d" % number))
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = (await world.ask(request("GET", f"/v1/entries?after={after}&limit=3", token=None, body=None))).json()
        found += [entry["seq"] for entry in page["entries"]]
        after = page["next_after"]
    assert found == list(range(1, 8))


async def test_a_page_of_long_entries_goes_out_part_by_part_and_is_whole(world: World) -> None:
    for number in range(12):
        long = b'["%d","%b"]' % (number, b"x" * 100_000)
        assert_accepted(await world.ask(request("POST", LEDGER.path, body=long)))
    for limit, next_after in ((12, 12), (100, None), (7, 7)):
        answer = await world.ask(request("GET", f"/v1/entries?limit={limit}", token=None, body=None))
        assert (answer.status, answer.one("Transfer-Encoding")) == (200, "chunked")
        page = answer.json()
        assert [entry["body"][0] for entry in page["entries"]] == [str(n) for n in range(min(limit, 12))]
        assert page["next_after"] == next_after
    short = await world.ask(request("GET", "/v1/entries?limit=2", token=None, body=None))
    assert short.one("Content-Length") is not None


async def test_a_store_that_fails_within_a_page_breaks_the_answer_off(world: World) -> None:
    for number in range(6):
        await world.ask(request("POST", LEDGER.path, body=b'["%d","%b"]' % (number, b"x" * 200_000)))
    whole = world.store.entries

    async def fail_later(role: str, after: int, limit: int) -> list[Entry]:
        if after > 2:
            raise Unavailable("gone")
        return await whole(role, after, limit)

    world.store.entries = fail_later  # type: ignore[method-assign]
    async with Line.to(world.port) as line:
        with pytest.raises(asyncio.IncompleteReadError):
            await line.ask(request("GET", "/v1/entries?limit=10", token=None, body=None))


@pytest.mark.parametrize("seq", ["0", "2", "-1", "x", "9" * 40, "01"])
async def test_an_entry_that_is_not_there_is_unknown(world: World, seq: str) -> None:
    await world.ask(request("POST", LEDGER.path))
    assert_refusal(await world.ask(request("GET", f"/v1/entries/{seq}", token=None, body=None)), "unknown_entry")


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=1e3", "limit=", "after=" + "9" * 30])
async def test_a_malformed_page_is_refused(world: World, query: str) -> None:
    assert_refusal(await world.ask(request("GET", f"/v1/entries?{query}", token=None, body=None)), "request_malformed")


@pytest.mark.parametrize("body", [b"", b"{", b"{'a':1}", b"NaN", b"{}{}", b"\xff", b'"\xc3"', b"[1,]"])
@pytest.mark.parametrize("path", ["/v1/entries", "/fn/echo"])
async def test_a_body_that_is_no_json_is_refused(world: World, path: str, body: bytes) -> None:
    assert_refusal(await world.ask(request("POST", path, body=body)), "body_malformed")
    assert await world.stage.landed("ledger") == await world.stage.landed("fn") == 0


async def test_a_query_that_is_no_text_reaches_no_function_and_harms_no_other_write(world: World) -> None:
    bad = request("POST", "/fn/echo?a=\xff", token=99)
    answers = await asyncio.gather(*(world.ask(bad if n % 2 else request("POST", "/fn/echo?a=1")) for n in range(8)))
    for n, answer in enumerate(answers):
        if n % 2:
            assert_refusal(answer, "request_malformed")
        else:
            assert_accepted(answer)
    assert await world.stage.landed("fn") == 4


async def test_a_functions_exception_is_its_message_and_applies_nothing(world: World) -> None:
    document = assert_refusal(await world.ask(request("POST", "/fn/reject")), "rejected_by_function")
    assert (document["message"], document["sqlstate"]) == ("the books are closed", "P0001")


async def test_a_passing_trouble_of_the_store_is_no_verdict_on_the_write(world: World) -> None:
    assert_refusal(await world.ask(request("POST", "/fn/busy")), "fence_unavailable")


@pytest.mark.parametrize(
    ("token", "code"), [(None, "token_required"), ("x", "token_malformed"), (41, "stale_token"), (42, None)]
)
@pytest.mark.parametrize("path", ["/watched", "/watched-fn", "/watched-web/x"])
async def test_observe_mode_lets_through_and_says_what_it_would_have_refused(
    world: World, path: str, token: str | int | None, code: str | None
) -> None:
    headers = [("User-Agent", "billing/3.1"), ("X-Forwarded-For", "203.0.113.9")]
    assert_accepted(await world.ask(request("POST", path, *headers, token=token)))
    told = [(seen.code, seen.agent, seen.forwarded) for seen in world.seen if isinstance(seen, WouldRefuse)]
    assert told == ([(code, "billing/3.1", "203.0.113.9")] if code else [])
    assert not [seen for seen in world.seen if isinstance(seen, WriteRefused)]


@pytest.mark.parametrize("path", ["/watched", "/watched-fn", "/watched-web/x"])
async def test_observe_mode_lets_through_what_is_closed_or_led_elsewhere_or_above(world: World, path: str) -> None:
    assert_accepted(await world.ask(request("POST", path, token=99)))
    role = path.split("/")[1]
    world.view.lead(role, 43, "us", ELSEWHERE)
    await world.stage.seal(role)
    assert_accepted(await world.ask(request("POST", path, token=42)))
    told = [seen.code for seen in world.seen if isinstance(seen, WouldRefuse)]
    assert told == ["token_not_issued", "not_leader"]


async def test_observing_before_an_upstream_needs_no_store_but_for_a_keyed_write(world: World) -> None:
    world.store.failure = Unavailable("the store is away")
    answer = await world.ask(request("POST", "/watched-web/x"))
    assert (answer.status, answer.one("X-Fencing-Outcome")) == (200, "accepted")
    assert len(world.upstream.requests) == 1
    assert [seen.code for seen in world.seen if isinstance(seen, WouldRefuse)] == ["fence_unavailable"]
    # Whether it is a repetition only the store can tell.
    assert_refusal(await world.ask(request("POST", "/watched-web/x", key="k")), "fence_unavailable")


async def test_discovery_says_who_leads(world: World) -> None:
    for path in ("/.well-known/fencegate/leader/shard/eu-1", "/.well-known/fencegate/leader/shard%2Feu-1"):
        answer = await world.ask(request("GET", path, token=None, body=None))
        assert answer.status == 200
        assert answer.one("Cache-Control") == "max-age=1"
        assert answer.json()["role"] == "shard/eu-1"
        assert answer.json()["token"] == 42
        assert answer.json()["leader"]["url"] == HOME


async def test_discovery_says_where_another_region_leads_and_when_nobody_does(world: World) -> None:
    path = "/.well-known/fencegate/leader/ledger"
    world.view.lead("ledger", 43, "us", ELSEWHERE)
    answer = await world.ask(request("GET", path, token=None, body=None))
    assert answer.json()["leader"]["url"] == ELSEWHERE
    world.view.nobody("ledger")
    assert_refusal(await world.ask(request("GET", path, token=None, body=None)), "no_leader")
    world.view.forget("ledger")
    assert_refusal(await world.ask(request("GET", path, token=None, body=None)), "fence_unavailable")
    unknown = request("GET", "/.well-known/fencegate/leader/other", token=None, body=None)
    assert_refusal(await world.ask(unknown), "unknown_role")
    assert_refusal(await world.ask(request("POST", path)), "method_not_allowed")


async def test_discovery_never_announces_a_term_that_was_not_claimed(world: World) -> None:
    world.view.lead("ledger", 43, "us", ELSEWHERE, active=False)
    message = request("GET", "/.well-known/fencegate/leader/ledger", token=None, body=None)
    assert_refusal(await world.ask(message), "no_leader")
