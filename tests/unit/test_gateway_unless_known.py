"""A stale write with a key waits for the store's word on it without a task, and goes on where the store knows it."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.errors import Unavailable
from fencegate.gateway.app import Gateway
from fencegate.gateway.exchange import Pending
from fencegate.gateway.replies import lines_of
from fencegate.gateway.request import BufferedBody, Reply, Request
from fencegate.gateway.request_bytes import read_head
from fencegate.gateway.routes import Route
from fencegate.observations import Observation, WriteRefused
from fencegate.steady_clock import steady_clock
from fencegate.telling import Tell
from fencegate.testing.memory_write_path import MemoryWritePath
from fencegate.testing.scripted_view import ScriptedView

OLD, NEW = 42, 43


class Store(MemoryWritePath):
    """``answer``: what it says of a key, in place of what it knows; ``tell``: who is to hear what it never said."""

    answer: bool | Exception | None = None
    refuses = False
    tell: Tell[bool] | None = None

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        if self.refuses:
            raise Unavailable("too many wait")
        if self.answer is None:
            super().knows(role, key_digest, time_limit, tell)
        elif self.tell is None:
            asyncio.get_running_loop().call_soon(tell, self.answer)
        else:
            self.tell = tell


def request(token: int, key: str = "k", path: str = "/v1/entries") -> Request:
    text = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Fencing-Token: {token}\r\nIdempotency-Key: {key}\r\n\r\n"
    head, value = read_head(text.encode())
    return Request(
        "POST", path, "", head.headers, BufferedBody(b"{}"), 2, "::1", steady_clock(), fields=head.fields, key=value
    )


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def told() -> list[Observation]:
    return []


@pytest.fixture
async def gate(store: Store, told: list[Observation]) -> Gateway:
    """A gateway that has applied a write under the key ``done`` in the old term, and knows of the new one."""
    view = ScriptedView()
    view.lead("ledger", OLD, "eu", "https://eu.example")
    store.open("ledger", OLD)
    gate = Gateway([Route("/v1/entries", "ledger", "ledger")], store, view, region="eu", observe=told.append)
    assert (await gate.handle(request(OLD, "done"))).status == 201
    view.lead("ledger", NEW, "eu", "https://eu.example")
    store.open("ledger", NEW)
    assert (await gate.handle(request(NEW, "other"))).status == 201
    return gate


def body_of(reply: Reply) -> bytes:
    return reply.body if isinstance(reply.body, bytes) else b""


async def answered(gate: Gateway, asked: Request) -> tuple[bool, Reply]:
    """The reply, and whether it was there without a task."""
    pending = gate.begin(asked)
    assert isinstance(pending, Pending)
    call: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    pending.wait(call.set_result)
    await call
    begun = gate.go_on(pending)
    reply = begun if isinstance(begun, Reply) else await begun
    assert gate.in_flight == 0
    return isinstance(begun, Reply), reply


async def test_a_key_that_the_store_does_not_know_is_refused_without_a_task(
    gate: Gateway, told: list[Observation]
) -> None:
    at_once, reply = await answered(gate, request(OLD))
    assert (at_once, reply.status) == (True, 409)
    assert b"stale_token" in body_of(reply)
    assert [seen.code for seen in told if isinstance(seen, WriteRefused)] == ["stale_token"]


async def test_a_key_that_it_knows_is_answered_again(gate: Gateway) -> None:
    at_once, reply = await answered(gate, request(OLD, "done"))
    assert (at_once, reply.status) == (False, 201)
    assert ("Idempotent-Replayed", "true") in lines_of(reply)


@pytest.mark.parametrize("failure", [Unavailable("down"), RuntimeError("a defect")])
async def test_where_the_store_does_not_say_it_fails_closed(gate: Gateway, store: Store, failure: Exception) -> None:
    store.answer = failure
    at_once, reply = await answered(gate, request(OLD))
    assert (at_once, reply.status) == (True, 503)


async def test_where_it_is_not_even_asked_too(gate: Gateway, store: Store) -> None:
    store.refuses = True
    reply = gate.begin(request(OLD))
    assert isinstance(reply, Reply)
    assert (reply.status, gate.in_flight) == (503, 0)


@pytest.mark.parametrize("answer", [True, False, Unavailable("down")])
async def test_given_up_it_ends_and_what_the_store_says_later_changes_nothing(
    gate: Gateway, store: Store, answer: bool | Exception
) -> None:
    store.answer, store.tell = answer, lambda _: None
    waiting = asyncio.create_task(gate.handle(request(OLD)))
    await asyncio.sleep(0)
    assert gate.in_flight == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.in_flight == 0
    store.tell(answer)


@pytest.mark.parametrize("key", ["k", "done"])
async def test_an_authorizer_that_waits_gets_the_fences_word(gate: Gateway, key: str) -> None:
    begun = gate.begin(request(OLD, key, "/-/authz/ledger"))
    assert not isinstance(begun, Reply | Pending)
    assert b"stale_token" in body_of(await begun)
    assert gate.in_flight == 0
