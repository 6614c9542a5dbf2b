"""Both faces of the client against scripted gates: real sockets, and answers that are wrong in every way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import aiohttp
import pytest

from fencegate import __version__
from fencegate.client import (
    DeadlineExceeded,
    FencedClient,
    FencedError,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Refused,
    RetriesExhausted,
    StaleToken,
)
from fencegate.client import sync as synchronous
from fencegate.errors import PROBLEMS, ConfigurationError
from fencegate.testing.scripted_gate import Accept, Foreign, Half, Raw, Recorded, Refuse, ScriptedGate, Slow, Step

DROPPED = Raw(b"")
YEAR = 31_536_000


ASYNC_ONLY = {
    "test_aiohttp_left_alone_does_send_twice_so_the_guard_has_something_to_guard",
    "test_a_session_of_the_callers_own_does_not_send_twice_either_and_stays_open",
    "test_a_wait_that_took_too_long_ends_without_another_send",
    "test_cancelling_a_write_leaves_nothing_behind",
    "test_cancelling_the_only_one_who_waits_for_discovery_ends_the_discovery",
    "test_cancelling_one_of_two_leaves_the_discovery_to_the_other",
    "test_a_session_that_was_closed_by_its_owner_is_an_error_that_says_so",
    "test_a_client_that_was_not_opened_says_how",
}
"""Tests of what a thread has not: a task that is cancelled, a session of its own loop."""


class InThreads:
    """The synchronous client, each call in a thread of its own, so that the tests of the async one can drive it."""

    threads: ThreadPoolExecutor

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = synchronous.FencedClient(*arguments, **options)

    async def _in_thread(self, call: Any, *arguments: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, lambda: call(*arguments, **options))

    async def __aenter__(self) -> Self:
        await self._in_thread(self._client.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._in_thread(self._client.__exit__, *error)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._in_thread(method, *arguments, **options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    faces = ["aio"] if metafunc.function.__name__ in ASYNC_ONLY else ["aio", "sync"]
    metafunc.parametrize("face", faces, indirect=True)


@pytest.fixture(autouse=True)
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs each test over both faces: in this module ``FencedClient`` is the one whose turn it is."""
    if request.param == "sync":
        with ThreadPoolExecutor(32) as threads:
            monkeypatch.setattr(InThreads, "threads", threads, raising=False)
            monkeypatch.setitem(globals(), "FencedClient", InThreads)
            yield "sync"
    else:
        yield "aio"


@pytest.fixture
async def gate() -> AsyncIterator[ScriptedGate]:
    async with ScriptedGate() as made:
        made.leads(token=42)
        yield made


@pytest.fixture
async def other() -> AsyncIterator[ScriptedGate]:
    async with ScriptedGate() as made:
        yield made


def client(*gates: ScriptedGate | str, **options: Any) -> FencedClient:
    urls = [gate if isinstance(gate, str) else gate.url for gate in gates]
    return FencedClient(urls, "ledger", **{"deadline": 20.0, "backoff_base": 0.01, "backoff_cap": 0.05, **options})


def tokens(gate: ScriptedGate) -> list[str | None]:
    return [write.header("X-Fencing-Token") for write in gate.writes]


def keys(*gates: ScriptedGate) -> list[str | None]:
    return [write.header("Idempotency-Key") for gate in gates for write in gate.writes]


# -- the plain course -----------------------------------------------------------------------------


async def test_a_write_discovers_the_leader_and_carries_all_that_the_contract_asks_for(gate: ScriptedGate) -> None:
    gate.play(Accept({"seq": 1}, max_seen=42))
    async with client(gate) as ledger:
        response = await ledger.post("/v1/entries", json={"a": 1}, params={"dry": "no"}, headers={"X-Trace": "t"})
    (write,) = gate.writes
    assert (write.method, write.path, write.body) == ("POST", "/v1/entries?dry=no", b'{"a":1}')
    assert write.header("X-Fencing-Token") == "42"
    assert 0 < int(write.header("X-Fencing-Timeout-Ms") or 0) <= 10_000
    assert write.header("User-Agent") == f"fencegate-python/{__version__}"
    assert write.header("X-Trace") == "t"
    assert write.header("Idempotency-Key") == response.idempotency_key
    assert (response.status, response.ok, response.json(), response.token) == (201, True, {"seq": 1}, 42)
    assert (response.max_token_seen, response.region, response.replayed, response.tries) == (42, "eu", False, 1)
    assert response.origin == gate.url
    assert [asked.header("X-Fencing-Token") for asked in gate.discoveries] == [None]


async def test_each_write_has_its_own_key_and_the_leader_is_asked_for_once(gate: ScriptedGate) -> None:
    gate.otherwise = Accept()
    async with client(gate) as ledger:
        await asyncio.gather(*(ledger.post("/v1/entries", json=number) for number in range(20)))
        await ledger.put("/v1/entries/1", json=1)
        await ledger.patch("/v1/entries/1", json=1)
        await ledger.delete("/v1/entries/1")
    assert len(set(keys(gate))) == len(gate.writes) == 23
    assert len(gate.discoveries) == 1


async def test_the_leader_is_asked_for_again_when_the_answer_is_too_old(gate: ScriptedGate) -> None:
    gate.otherwise = Accept()
    async with client(gate, leader_max_age=0.05) as ledger:
        await ledger.post("/v1/entries")
        await asyncio.sleep(0.1)
        await ledger.post("/v1/entries")
    assert len(gate.discoveries) == 2


async def test_a_role_of_a_family_is_asked_for_by_its_whole_name(gate: ScriptedGate) -> None:
    gate.otherwise = Accept()
    async with FencedClient([gate.url], "ledger/eu-7") as ledger:
        await ledger.post("/shards/eu-7/x")
    assert gate.discoveries[0].path == "/.well-known/fencegate/leader/ledger/eu-7"


async def test_the_targets_own_error_is_an_answer_and_not_an_exception(gate: ScriptedGate) -> None:
    gate.play(Accept({"why": "no"}, status=500), Accept(status=301))
    async with client(gate) as ledger:
        first, second = await ledger.post("/v1/entries"), await ledger.post("/v1/entries")
    assert (first.status, first.ok, second.status, len(gate.writes)) == (500, False, 301, 2)


async def test_a_replayed_answer_says_so(gate: ScriptedGate) -> None:
    gate.play(Accept({"seq": 1}, replayed=True))
    async with client(gate) as ledger:
        assert (await ledger.post("/v1/entries", idempotency_key="order-7")).replayed
    assert keys(gate) == ["order-7"]


async def test_a_read_carries_neither_token_nor_key_and_takes_an_upstreams_answer(gate: ScriptedGate) -> None:
    gate.play(Foreign(200, body=b"[]"), DROPPED, Foreign(200, body=b"{}"))
    async with client(gate) as ledger:
        assert (await ledger.get("/v1/entries")).json() == []
        assert (await ledger.get("/v1/entries")).json() == {}
    assert tokens(gate) == keys(gate) == [None, None, None]


async def test_a_read_is_answered_although_nobody_leads(gate: ScriptedGate) -> None:
    gate.nobody_leads()
    gate.play(Foreign(200, body=b"[]"))
    async with client(gate) as ledger:
        assert (await ledger.get("/v1/entries")).status == 200


# -- moving to the leader -------------------------------------------------------------------------


@pytest.mark.parametrize("with_body", [True, False])
async def test_a_stale_token_follows_the_hint_with_the_same_key_and_the_next_write_goes_there_at_once(
    gate: ScriptedGate, other: ScriptedGate, with_body: bool
) -> None:
    gate.play(Refuse("stale_token", max_seen=43, leader=other.url, leader_token=43 if with_body else None))
    other.otherwise = Accept()
    async with client(gate, other) as ledger:
        response = await ledger.post("/v1/entries", json=1)
        await ledger.post("/v1/entries", json=2)
    assert (response.origin, response.token, response.tries) == (other.url, 43, 2)
    assert (tokens(gate), tokens(other)) == (["42"], ["43", "43"])
    assert len(set(keys(gate, other)[:2])) == 1


# Field case 90: prisma-risk/tsoracle#237, prisma-risk/tsoracle#713.
async def test_a_hint_outside_the_clients_list_is_never_followed(gate: ScriptedGate, other: ScriptedGate) -> None:
    gate.otherwise = Refuse("not_leader", max_seen=42, leader=other.url, leader_token=43)
    async with client(gate, max_tries=4) as ledger:
        with pytest.raises(NotLeader) as caught:
            await ledger.post("/v1/entries")
    assert caught.value.leader == other.url
    assert (other.writes, other.discoveries, len(gate.writes)) == ([], [], 4)


async def test_a_discovered_leader_outside_the_list_is_reached_through_the_gateway_that_told(
    gate: ScriptedGate, other: ScriptedGate
) -> None:
    gate.leads(token=42, url=other.url)
    gate.play(Accept())
    async with client(gate) as ledger:
        assert (await ledger.post("/v1/entries")).origin == gate.url
    assert other.connections == 0


# Field case A13: hashicorp/vault#7784.
async def test_two_gateways_that_point_at_each_other_end_after_two_hops(
    gate: ScriptedGate, other: ScriptedGate
) -> None:
    gate.otherwise = Refuse("not_leader", max_seen=42, leader=other.url, leader_token=42)
    other.otherwise = Refuse("not_leader", max_seen=42, leader=gate.url, leader_token=42)
    other.leads(token=42, url=gate.url)
    async with client(gate, other, retry_burst=0.0) as ledger:
        with pytest.raises(NotLeader):
            await ledger.post("/v1/entries")
    assert (len(gate.writes), len(other.writes)) == (2, 1)
    assert len(set(keys(gate, other))) == 1


async def test_a_redirect_loop_of_ever_newer_tokens_ends_too(gate: ScriptedGate, other: ScriptedGate) -> None:
    def newer(target: ScriptedGate) -> Any:
        def step(request: Recorded) -> Step:
            token = int(request.header("X-Fencing-Token") or 0) + 1
            return Refuse("stale_token", max_seen=token, leader=target.url, leader_token=token)

        return step

    gate.otherwise, other.otherwise = newer(other), newer(gate)
    async with client(gate, other, deadline=2.0) as ledger:
        with pytest.raises(StaleToken) as caught:
            await ledger.post("/v1/entries")
    assert caught.value.tries == len(gate.writes) + len(other.writes) == 3


async def test_without_a_leader_nothing_is_sent_and_the_write_lands_when_one_appears(gate: ScriptedGate) -> None:
    gate.nobody_leads(retry_after=0)
    gate.otherwise = Accept()
    async with client(gate) as ledger:
        waiting = [asyncio.create_task(ledger.post("/v1/entries", json=number)) for number in range(10)]
        await asyncio.sleep(0.3)
        assert gate.writes == []
        gate.leads(token=43)
        await asyncio.gather(*waiting)
    assert tokens(gate) == ["43"] * 10


async def test_nobody_leading_till_the_deadline_is_no_leader(gate: ScriptedGate) -> None:
    gate.nobody_leads(retry_after=1)
    async with client(gate, deadline=2.0) as ledger:
        with pytest.raises(NoLeader):
            await ledger.post("/v1/entries")


async def test_a_failover_in_the_middle_of_a_write_costs_no_retry_budget(gate: ScriptedGate) -> None:
    def over(request: Recorded) -> Step:
        gate.leads(token=43)
        return Refuse("no_leader", retry_after=0)

    gate.play(over, Accept())
    async with client(gate, retry_burst=0.0, retry_ratio=0.0) as ledger:
        await ledger.post("/v1/entries")
    assert tokens(gate) == ["42", "43"]


async def test_a_gateway_that_is_down_or_frozen_does_not_keep_the_client_from_the_leader(gate: ScriptedGate) -> None:
    async with ScriptedGate() as down:
        dead = down.url
    async with ScriptedGate() as frozen:
        frozen.discovery = Slow(30.0, Accept())
        gate.play(Accept())
        started = time.monotonic()
        async with client(dead, frozen, gate) as ledger:
            await ledger.post("/v1/entries")
        assert time.monotonic() - started < 10.0


async def test_a_leader_that_cannot_be_connected_is_looked_for_elsewhere_even_without_a_key(
    gate: ScriptedGate,
) -> None:
    async with ScriptedGate() as down:
        dead = down.url
    gate.leads(token=42, url=dead)
    gate.play(Accept())
    async with client(dead, gate) as ledger:
        task = asyncio.create_task(ledger.post("/v1/entries", idempotency_key=False))
        await asyncio.sleep(0.1)
        gate.leads(token=43)
        assert (await task).origin == gate.url
    assert tokens(gate) == ["43"]


async def test_no_gateway_at_all_ends_at_the_deadline_and_says_so() -> None:
    async with ScriptedGate() as down:
        dead = down.url
    async with client(dead, deadline=1.0) as ledger:
        with pytest.raises(DeadlineExceeded, match=f"unreachable; {dead}: Cannot connect") as caught:
            await ledger.post("/v1/entries")
    assert (caught.value.code, caught.value.applied) == ("unreachable", "no")


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [code for code, problem in PROBLEMS.items() if not problem.retryable])
async def test_a_refusal_for_good_is_raised_at_once(gate: ScriptedGate, code: str) -> None:
    gate.play(Refuse(code, retry_after=1))
    async with client(gate) as ledger:
        with pytest.raises(Refused, match="scripted") as caught:
            await ledger.post("/v1/entries")
    assert (caught.value.code, caught.value.tries, len(gate.writes)) == (code, 1, 1)


async def test_a_token_that_was_never_issued_is_not_used_for_the_next_write(gate: ScriptedGate) -> None:
    gate.play(Accept(), Refuse("token_not_issued"), Accept())
    async with client(gate) as ledger:
        await ledger.post("/v1/entries")
        with pytest.raises(Refused):
            await ledger.post("/v1/entries")
        gate.leads(token=41)
        await ledger.post("/v1/entries")
    assert tokens(gate) == ["42", "42", "41"]


async def test_early_data_is_sent_again_after_its_delay(gate: ScriptedGate) -> None:
    gate.play(Refuse("too_early", retry_after=1), Accept())
    async with client(gate) as ledger:
        await ledger.post("/v1/entries")
    assert gate.writes[1].at - gate.writes[0].at >= 1.0
    assert len(set(keys(gate))) == 1


async def test_a_retry_after_of_a_year_ends_in_time(gate: ScriptedGate) -> None:
    gate.otherwise = Refuse("overloaded", retry_after=YEAR)
    started = time.monotonic()
    async with client(gate, deadline=10.0) as ledger:
        with pytest.raises(DeadlineExceeded) as caught:
            await ledger.post("/v1/entries")
    assert caught.value.code == "overloaded"
    assert time.monotonic() - started < 10.0
    assert len(gate.writes) == 1


async def test_the_retry_budget_is_shared_by_all_writes_of_a_client(gate: ScriptedGate) -> None:
    gate.otherwise = Refuse("overloaded")
    async with client(gate, retry_burst=3.0, retry_ratio=0.0) as ledger:
        outcomes = await asyncio.gather(
            *(ledger.post("/v1/entries", json=number) for number in range(20)), return_exceptions=True
        )
    assert all(isinstance(outcome, RetriesExhausted) for outcome in outcomes)
    assert len(gate.writes) == 23


async def test_a_handover_is_waited_for(gate: ScriptedGate, other: ScriptedGate) -> None:
    gate.play(Refuse("draining", leader=other.url, leader_token=43, retry_after=0))
    other.play(Accept())
    async with client(gate, other) as ledger:
        task = asyncio.create_task(ledger.post("/v1/entries"))
        await gate.received(writes=1)
        gate.discovery = Foreign(404)
        other.leads(token=43)
        assert (await task).origin == other.url
    assert tokens(other) == ["43"]


# -- unknown outcomes -----------------------------------------------------------------------------

UNKNOWN: list[Step] = [
    DROPPED,
    Raw(b"HTTP/1.1 201 Cre"),
    Raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    Half(Accept({"seq": 1}, max_seen=42), missing=3),
    Refuse("outcome_unknown"),
    Refuse("outcome_unknown", status=504),
    Foreign(502),
    Foreign(409, {"Content-Type": "application/problem+json"}, b'{"code": "stale_token", "status": 409}'),
    Foreign(200, body=b'{"ok": true}'),
    Foreign(301, {"Location": "http://127.0.0.1:1/elsewhere"}),
    Foreign(307, {"Location": "http://127.0.0.1:1/elsewhere"}),
    Refuse("stale_token", status=200),
    Refuse("overloaded", headers={"X-Fencing-Applied": "unknown"}),
    Refuse("overloaded", headers={"X-Fencing-Outcome": "overloaded, accepted"}),
    Refuse("overloaded", headers={"X-Fencing-Applied": None}),
]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("step", UNKNOWN, ids=repr)
async def test_a_lost_or_doubtful_answer_without_a_key_is_sent_once_and_is_an_unknown_outcome(
    gate: ScriptedGate, step: Step, method: str
) -> None:
    gate.play(Accept(), step)
    async with client(gate) as ledger:
        await ledger.post("/warm/up")  # so that the write goes over a kept-alive connection
        with pytest.raises(OutcomeUnknown) as caught:
            await ledger.request(method, "/v1/entries", json=1, idempotency_key=False)
    assert len(gate.writes) == 2
    assert (gate.writes[1].method, gate.writes[1].connection) == (method, gate.writes[0].connection)
    assert (caught.value.tries, caught.value.idempotency_key, caught.value.applied) == (1, None, "unknown")


# Field case 97: apache/fineract#5674.
@pytest.mark.parametrize("step", UNKNOWN, ids=repr)
async def test_a_lost_or_doubtful_answer_with_a_key_is_asked_for_again_with_the_same_key(
    gate: ScriptedGate, step: Step
) -> None:
    gate.play(step, Accept({"seq": 1}, replayed=True))
    async with client(gate) as ledger:
        response = await ledger.post("/v1/entries", json={"a": 1})
    assert (response.replayed, response.tries) == (True, 2)
    assert len(gate.writes) == 2
    assert len({(write.header("Idempotency-Key"), write.body) for write in gate.writes}) == 1


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_aiohttp_left_alone_does_send_twice_so_the_guard_has_something_to_guard(
    gate: ScriptedGate, method: str
) -> None:
    gate.play(Accept(), DROPPED, Accept())
    async with aiohttp.ClientSession() as session:
        async with session.post(gate.url + "/warm/up") as first:
            await first.read()
        async with session.request(method, gate.url + "/v1/entries") as second:
            await second.read()
    assert [write.method for write in gate.writes] == ["POST", method, method]


async def test_a_session_of_the_callers_own_does_not_send_twice_either_and_stays_open(gate: ScriptedGate) -> None:
    gate.play(Accept(), DROPPED)
    async with aiohttp.ClientSession() as session:
        async with client(gate, session=session) as ledger:
            await ledger.post("/warm/up")
            with pytest.raises(OutcomeUnknown):
                await ledger.delete("/v1/entries/1", idempotency_key=False)
        assert not session.closed
    assert len(gate.writes) == 2


async def test_an_unknown_outcome_gives_its_key_and_asking_again_with_it_brings_the_answer(
    gate: ScriptedGate,
) -> None:
    gate.otherwise = DROPPED
    async with client(gate, retry_burst=2.0, retry_ratio=0.0) as ledger:
        with pytest.raises(OutcomeUnknown) as caught:
            await ledger.post("/v1/entries", json=1)
        gate.otherwise = Accept({"seq": 1}, replayed=True)
        response = await ledger.post("/v1/entries", json=1, idempotency_key=caught.value.idempotency_key)
    assert response.replayed
    assert len(set(keys(gate))) == 1
    assert (caught.value.tries, len(gate.writes)) == (3, 4)


async def test_a_refusal_after_a_lost_answer_is_still_an_unknown_outcome(gate: ScriptedGate) -> None:
    gate.play(DROPPED, Refuse("body_too_large"))
    async with client(gate) as ledger:
        with pytest.raises(OutcomeUnknown) as caught:
            await ledger.post("/v1/entries", json=1)
    assert caught.value.code == "body_too_large"


async def test_a_key_that_is_still_running_is_waited_for(gate: ScriptedGate) -> None:
    gate.play(DROPPED, *[Refuse("idempotency_in_progress", retry_after=0)] * 3, Accept({"seq": 1}, replayed=True))
    async with client(gate) as ledger:
        assert (await ledger.post("/v1/entries")).replayed
    assert len(set(keys(gate))) == 1


@pytest.mark.parametrize("key", [None, False])
async def test_a_slow_gateway_ends_at_the_deadline_as_an_unknown_outcome(
    gate: ScriptedGate, key: str | bool | None
) -> None:
    gate.otherwise = Slow(30.0, Accept())
    started = time.monotonic()
    async with client(gate, deadline=1.5) as ledger:
        with pytest.raises(OutcomeUnknown) as caught:
            await ledger.post("/v1/entries", idempotency_key=key)
    assert 1.4 < time.monotonic() - started < 10.0
    assert caught.value.cause == "timeout"
    assert len(gate.writes) == 1


async def test_one_try_has_a_limit_of_its_own_and_tells_the_gateway_what_is_left(gate: ScriptedGate) -> None:
    gate.play(Slow(30.0, Accept()), Accept())
    async with client(gate, try_timeout=1.0) as ledger:
        assert (await ledger.post("/v1/entries")).tries == 2
    first, second = (int(write.header("X-Fencing-Timeout-Ms") or 0) for write in gate.writes)
    assert first == 1000
    assert second <= 1000


async def test_a_refusal_whose_body_never_ends_is_acted_on_by_its_headers(
    gate: ScriptedGate, other: ScriptedGate
) -> None:
    whole = Refuse("stale_token", max_seen=43, leader=other.url).render()
    head, _, body = whole.partition(b"\r\n\r\n")
    cut = head.replace(f"Content-Length: {len(body)}".encode(), b"Content-Length: 100000") + b"\r\n\r\n"
    gate.play(Raw(cut))
    other.play(Accept())
    async with client(gate, other) as ledger:
        assert (await ledger.post("/v1/entries", idempotency_key=False)).origin == other.url


async def test_a_refusal_whose_body_hangs_is_acted_on_long_before_the_tries_limit(
    gate: ScriptedGate, other: ScriptedGate
) -> None:
    gate.play(Half(Refuse("stale_token", max_seen=43, leader=other.url), missing=5, hang=True))
    other.play(Accept())
    started = time.monotonic()
    async with client(gate, other, try_timeout=15.0) as ledger:
        assert (await ledger.post("/v1/entries", idempotency_key=False)).origin == other.url
    assert time.monotonic() - started < 10.0


# Field case 95: node-fetch/node-fetch#1880, parnurzeal/gorequest#298.
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_no_header_reaches_its_target(
    gate: ScriptedGate, other: ScriptedGate, status: int
) -> None:
    gate.play(Foreign(status, {"Location": f"{other.url}/v1/entries"}))
    async with client(gate) as ledger:
        with pytest.raises(OutcomeUnknown) as caught:
            await ledger.post("/v1/entries", idempotency_key=False)
    assert caught.value.code == "not_the_gateway"
    assert (len(gate.writes), other.connections) == (1, 0)


async def test_a_wait_that_took_too_long_ends_without_another_send(gate: ScriptedGate) -> None:
    gate.otherwise = Refuse("overloaded", retry_after=1)
    async with client(gate, deadline=2.5) as ledger:
        task = asyncio.create_task(ledger.post("/v1/entries"))
        await gate.received(writes=1)
        asyncio.get_running_loop().call_later(0.8, time.sleep, 2.0)  # the process is stopped over its deadline
        with pytest.raises(DeadlineExceeded):
            await task
    assert len(gate.writes) == 1


async def test_an_answer_over_the_limit_is_not_read_into_memory(gate: ScriptedGate) -> None:
    gate.play(Accept("x" * 100_000))
    async with client(gate, max_answer_bytes=1000) as ledger:
        with pytest.raises(OutcomeUnknown):
            await ledger.post("/v1/entries", idempotency_key=False)


async def test_garbled_headers_never_crash_the_client(gate: ScriptedGate) -> None:
    garbled = {
        "Retry-After": "soon",
        "X-Fencing-Leader": "javascript:alert(1)",
        "X-Fencing-Max-Seen": "9" * 300,
        "X-Fencing-Retry": "perhaps",
    }
    gate.play(Refuse("overloaded", headers=garbled), Refuse("not_leader", headers=garbled), Accept())
    async with client(gate) as ledger:
        assert (await ledger.post("/v1/entries")).tries == 3


@pytest.mark.parametrize(
    "discovery",
    [Foreign(200, body=b"not json"), Foreign(301, {"Location": "/x"}), Raw(b"HTTP/1.1 200 OK\r\n"), Accept([], 200)],
    ids=repr,
)
async def test_a_discovery_that_makes_no_sense_is_no_leader_to_send_to(gate: ScriptedGate, discovery: Step) -> None:
    gate.discovery = discovery
    async with client(gate, deadline=1.5) as ledger:
        with pytest.raises(DeadlineExceeded, match=f"unreachable; {gate.url}: "):
            await ledger.post("/v1/entries")
    assert gate.writes == []


async def test_a_role_that_no_gateway_knows_is_refused_at_once(gate: ScriptedGate, other: ScriptedGate) -> None:
    gate.discovery = other.discovery = Refuse("unknown_role")
    async with client(gate, other) as ledger:
        with pytest.raises(Refused, match="unknown_role") as caught:
            await ledger.post("/v1/entries")
    assert (caught.value.tries, len(gate.discoveries), gate.writes) == (0, 1, [])


async def test_a_role_that_one_gateway_does_not_know_yet_is_led_where_another_says(
    gate: ScriptedGate, other: ScriptedGate
) -> None:
    other.discovery = Refuse("unknown_role")
    gate.discovery = Slow(0.1, Accept({"leader": {"url": gate.url}, "token": 42}, 200))
    gate.play(Accept())
    async with client(other, gate) as ledger:
        assert (await ledger.post("/v1/entries")).origin == gate.url


async def test_a_discovery_that_fails_closed_is_asked_again_and_its_reason_is_kept(
    gate: ScriptedGate, other: ScriptedGate
) -> None:
    gate.discovery = Refuse("fence_unavailable", retry_after=0)
    other.discovery = Refuse("unknown_role")
    async with client(gate, other, deadline=2.0) as ledger:
        with pytest.raises(DeadlineExceeded, match="fence_unavailable") as caught:
            await ledger.post("/v1/entries")
    assert caught.value.code == "fence_unavailable"
    assert len(gate.discoveries) > 1


# -- a token of the caller's own ------------------------------------------------------------------


async def test_a_callers_own_token_is_presented_as_it_is_and_never_replaced(
    gate: ScriptedGate, other: ScriptedGate
) -> None:
    gate.play(Refuse("not_leader", leader=other.url, leader_token=7))
    other.play(Accept(), Refuse("stale_token", max_seen=8, leader=gate.url, leader_token=8))
    async with client(gate, other) as ledger:
        assert (await ledger.post("/v1/entries", token=7)).origin == other.url
        with pytest.raises(StaleToken) as caught:
            await ledger.post("/v1/entries", token=7)
    assert (tokens(gate), tokens(other)) == (["7"], ["7", "7"])
    assert caught.value.leader == gate.url
    assert gate.discoveries == other.discoveries == []


# -- ends -----------------------------------------------------------------------------------------


async def test_cancelling_a_write_leaves_nothing_behind(gate: ScriptedGate) -> None:
    gate.otherwise = Slow(30.0, Accept())
    before = asyncio.all_tasks()
    async with client(gate) as ledger:
        task = asyncio.create_task(ledger.post("/v1/entries"))
        await gate.received(writes=1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ledger.in_flight == 0
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if "ScriptedGate" not in repr(task)} == set()


async def test_cancelling_the_only_one_who_waits_for_discovery_ends_the_discovery(gate: ScriptedGate) -> None:
    gate.discovery = Slow(30.0, Accept())
    async with client(gate) as ledger:
        task = asyncio.create_task(ledger.post("/v1/entries"))
        await gate.received(discoveries=1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert [task for task in asyncio.all_tasks() if "Leaders." in repr(task.get_coro())] == []
        gate.leads(token=42)
        gate.play(Accept())
        assert (await ledger.post("/v1/entries")).ok


async def test_cancelling_one_of_two_leaves_the_discovery_to_the_other(gate: ScriptedGate) -> None:
    answer = json.loads(gate.discovery.render().partition(b"\r\n\r\n")[2])  # type: ignore[union-attr]
    gate.discovery = Slow(0.3, Accept(answer, 200))
    gate.play(Accept())
    async with client(gate) as ledger:
        first, second = (asyncio.create_task(ledger.post("/v1/entries")) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second).ok
    assert len(gate.discoveries) == 1


async def test_closing_the_client_ends_what_is_under_way_with_an_honest_error(gate: ScriptedGate) -> None:
    gate.otherwise = Slow(30.0, Accept())
    async with client(gate) as ledger:
        task = asyncio.create_task(ledger.post("/v1/entries"))
        await gate.received(writes=1)
    with pytest.raises(OutcomeUnknown) as caught:
        await task
    assert (caught.value.code, caught.value.tries) == ("client_closed", 1)


async def test_a_session_that_was_closed_by_its_owner_is_an_error_that_says_so(gate: ScriptedGate) -> None:
    async with aiohttp.ClientSession() as session, client(gate, session=session, deadline=0.3) as ledger:
        await session.close()
        with pytest.raises(FencedError, match="session is closed"):
            await ledger.post("/v1/entries", token=7)
    assert gate.connections == 0


async def test_a_client_that_was_not_opened_says_how(gate: ScriptedGate) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await client(gate).post("/v1/entries", token=7)


def test_wrong_settings_are_named_all_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        FencedClient(["ledger.eu.example"], "ledger", deadline=-1)
    assert len(caught.value.faults) == 2


async def test_every_error_of_a_request_is_a_fenced_error(gate: ScriptedGate) -> None:
    gate.play(Refuse("token_required"))
    async with client(gate) as ledger:
        with pytest.raises(FencedError, match=r"token_required \(Fencing token required\)"):
            await ledger.post("/v1/entries")


async def test_many_writes_whose_grant_has_run_out_ask_for_one_new_grant_and_all_go_on() -> None:
    def judged(write: Recorded) -> Accept | Refuse:
        return Accept() if write.header("X-Fencing-Grant") == "new" else Refuse("grant_expired")

    async with ScriptedGate(otherwise=lambda _: Accept()) as gate:
        gate.leads(42, grant="old")
        async with FencedClient([gate.url], "ledger", retry_burst=1.0) as client:
            await client.post("/v1/entries", json={})
            gate.otherwise = judged
            gate.leads(42, grant="new")
            answers = await asyncio.gather(*(client.post("/v1/entries", json={}) for _ in range(40)))
            assert {answer.tries for answer in answers} <= {1, 2}
            # Who is refused between an answer and its being taken up asks again: a few, and not each of the forty.
            assert len(gate.discoveries) <= 12
            assert (await client.post("/v1/entries", json={})).tries == 1
