"""Uploads that wait to be asked for (``Expect: 100-continue``): the fence has its say before the body."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.errors import Unavailable
from fencegate.gateway.cut_off import cut_off
from fencegate.gateway.targets.http import READ_FIRST
from fencegate.observations import WriteRefused
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, eventually, request
from fencegate.testing.wire_world import ELSEWHERE, HOME, HTTP, TARGETS, Target, World

BODY = b'{"amount":1}'


def waiting(target: Target, *, key: str | None = None, size: int = len(BODY), token: int = 42) -> bytes:
    """The head of an upload that waits to be asked for."""
    fields = (("Expect", "100-continue"), ("Content-Length", str(size)))
    return request("POST", target.path, *fields, token=token, key=key, body=None)


async def fail_over(world: World, target: Target) -> None:
    await world.stage.seal(target.role)
    world.view.lead(target.role, 43, "us", ELSEWHERE)


# Field case A21.
@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_refused_upload_is_never_asked_for(world: World, target: Target) -> None:
    message = request(
        "POST", target.path, ("Expect", "100-continue"), ("Content-Length", "500000"), token=41, body=None
    )
    async with Line.to(world.port) as line:
        answer = await line.ask(message)
        assert_refusal(answer, "stale_token")
        assert answer.interim == []
        assert await line.is_closed()


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_an_admitted_upload_is_asked_for_once(world: World, target: Target) -> None:
    body = b'{"a":1}'
    head = request("POST", target.path, ("Expect", "100-continue"), ("Content-Length", str(len(body))), body=None)
    async with Line.to(world.port) as line:
        await line.send(head)
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await line.send(body)
        answer = await line.answer()
    assert_accepted(answer)
    assert answer.interim == []
    assert await world.effects(target) == 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_connection_goes_on_behind_an_upload_that_was_asked_for(world: World, target: Target) -> None:
    async with Line.to(world.port) as line:
        for _ in range(2):
            await line.send(waiting(target))
            assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            answer = await line.ask(BODY)
            assert_accepted(answer)
            assert answer.one("Connection") is None


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_stored_answer_is_replayed_to_a_waiting_upload_even_after_a_failover(
    world: World, target: Target
) -> None:
    first = await world.ask(request("POST", target.path, key="k", body=BODY))
    await fail_over(world, target)
    async with Line.to(world.port) as line:
        await line.send(waiting(target, key="k"))
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await line.send(BODY)
        again = await line.answer()
    assert_accepted(again, replayed=True)
    assert (again.status, again.body) == (first.status, first.body)
    assert await world.effects(target) == 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_waiting_upload_with_another_payload_under_a_known_key_gets_no_stored_answer(
    world: World, target: Target
) -> None:
    assert_accepted(await world.ask(request("POST", target.path, key="k", body=BODY)))
    await fail_over(world, target)
    other = BODY.replace(b"1", b"2")
    async with Line.to(world.port) as line:
        await line.send(waiting(target, key="k"))
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await line.send(other)
        assert_refusal(await line.answer(), "idempotency_key_reused")
    assert await world.effects(target) == 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_refused_upload_with_a_key_that_nobody_used_is_never_asked_for(world: World, target: Target) -> None:
    assert_accepted(await world.ask(request("POST", target.path, key="k", body=BODY)))
    await fail_over(world, target)
    async with Line.to(world.port) as line:
        answer = await line.ask(waiting(target, key="another", size=500_000))
        assert_refusal(answer, "not_leader")
        assert answer.interim == []
        assert await line.is_closed()
    assert await world.effects(target) == 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_an_upload_is_never_asked_for_while_the_store_is_down(world: World, target: Target) -> None:
    world.store.failure = Unavailable("the store is away")
    async with Line.to(world.port) as line:
        answer = await line.ask(waiting(target, key="k", size=500_000))
        assert_refusal(answer, "fence_unavailable")
        assert answer.interim == []
        assert await line.is_closed()


@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_a_client_that_leaves_before_it_is_asked_is_no_fault_of_the_store(world: World, target: Target) -> None:
    world.store.hold = asyncio.Event()
    async with Line.to(world.port) as line:
        await line.send(waiting(target, key="k"))
        await eventually(lambda: world.store.waiting == 1)
        cut_off(line.writer.transport)  # type: ignore[arg-type]
    await eventually(lambda: world.edge.connections == 0)
    world.store.hold.set()
    await eventually(lambda: world.gateway.in_flight == 0)
    assert [seen.code for seen in world.seen if isinstance(seen, WriteRefused)] == ["request_malformed"]
    world.store.hold = None
    assert_accepted(await world.ask(request("POST", target.path, key="k", body=BODY)))


async def test_an_admitted_upload_whose_body_does_not_begin_ends_with_the_time_of_its_mark(world: World) -> None:
    """Its mark in the store stands for the caller's or the route's time; a body may take longer to be late."""
    fields = (("Content-Length", str(READ_FIRST + 1)), ("X-Fencing-Timeout-Ms", "3000"))
    async with Line.to(world.port) as unasked, Line.to(world.port) as asked:
        await unasked.send(request("POST", HTTP.path, *fields, body=None))
        await asked.send(request("POST", HTTP.path, *fields, ("Expect", "100-continue"), body=None))
        for line, interim in ((unasked, []), (asked, [100])):
            refused = await line.answer(limit=20.0)
            assert_refusal(refused, "deadline_exceeded")
            assert refused.interim == interim
            assert await line.is_closed()
    assert not world.upstream.requests
    await world.stage.open(HTTP.role, 43)
    world.view.lead(HTTP.role, 43, "eu", HOME)
    assert_accepted(await world.ask(request("POST", HTTP.path, token=43)))
