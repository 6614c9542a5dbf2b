"""The usual ledger write waits without a task, and whatever is not usual takes the whole way, with the same answer."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import Write, WriteResult
from fencegate.gateway.app import Gateway
from fencegate.gateway.exchange import Pending
from fencegate.gateway.replies import lines_of
from fencegate.gateway.request import BufferedBody, Reply, Request
from fencegate.gateway.request_bytes import read_head
from fencegate.gateway.routes import Route
from fencegate.lease import Term
from fencegate.observations import Observation, Observer, WriteAccepted, ignore
from fencegate.steady_clock import steady_clock
from fencegate.telling import Tell
from fencegate.testing.memory_write_path import MemoryWritePath
from fencegate.testing.scripted_view import ScriptedView

TOKEN = 42


def gateway(
    store: MemoryWritePath, route: Route | None = None, view: ScriptedView | None = None, observe: Observer = ignore
) -> Gateway:
    view = view or ScriptedView()
    view.lead("ledger", TOKEN, "eu", "https://eu.example")
    store.open("ledger", TOKEN)
    return Gateway([route or Route("/v1/entries", "ledger", "ledger")], store, view, region="eu", observe=observe)


def request(token: int = TOKEN, *, body: bytes = b"{}", expects: bool = False) -> Request:
    head, _ = read_head(b"POST /v1/entries HTTP/1.1\r\nHost: x\r\nX-Fencing-Token: %d\r\n\r\n" % token)
    content = BufferedBody(body)
    return Request(
        "POST", "/v1/entries", "", head.headers, content, len(body), "::1", steady_clock(), "http", expects,
        fields=head.fields,
    )  # fmt: skip


async def called(pending: Pending) -> None:
    call: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    pending.wait(call.set_result)
    await call


async def told(gate: Gateway, asked: Request) -> tuple[bool, Reply]:
    """The reply, and whether it was there without a task."""
    pending = gate.begin(asked)
    assert isinstance(pending, Pending)
    assert gate.in_flight == 1
    await called(pending)
    begun = gate.go_on(pending)
    at_once = isinstance(begun, Reply)
    reply = begun if isinstance(begun, Reply) else await begun
    assert gate.in_flight == 0
    return at_once, reply


async def test_an_accepted_write_is_answered_without_a_task() -> None:
    store = MemoryWritePath()
    at_once, reply = await told(gateway(store), request())
    assert (at_once, reply.status, len(store.ledger["ledger"])) == (True, 201, 1)


@pytest.mark.parametrize(
    ("failure", "status", "landed"),
    [
        (Unavailable("down"), 503, 0),
        (OutcomeUnknown("the answer was lost", "connection"), 502, 0),
        (OutcomeUnknown("no answer in time", "timeout"), 504, 0),
        (RuntimeError("a defect"), 502, 0),
    ],
)
async def test_a_write_that_failed_is_told_as_it_ended(failure: FencegateError, status: int, landed: int) -> None:
    store = MemoryWritePath()
    gate = gateway(store)
    store.failure = failure
    at_once, reply = await told(gate, request())
    assert (at_once, reply.status, len(store.ledger.get("ledger", []))) == (False, status, landed)


async def test_a_refused_write_is_refused_by_the_whole_way() -> None:
    store = MemoryWritePath()
    at_once, reply = await told(gateway(store), request(TOKEN - 1))
    assert (at_once, reply.status) == (False, 409)
    assert b"stale_token" in (reply.body if isinstance(reply.body, bytes) else b"")
    assert not store.ledger.get("ledger")


async def test_a_write_that_the_store_takes_not_at_all_is_refused_at_once() -> None:
    class Full(MemoryWritePath):
        def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
            raise Unavailable("too many writes wait")

    gate = gateway(Full())
    reply = gate.begin(request())
    assert isinstance(reply, Reply)
    assert (reply.status, gate.in_flight) == (503, 0)


async def test_a_malformed_body_is_refused_before_the_store_is_asked() -> None:
    store = MemoryWritePath()
    reply = gateway(store).begin(request(body=b"{"))
    assert isinstance(reply, Reply)
    assert reply.status == 422
    assert not store.ledger.get("ledger")


async def test_observing_routes_and_bodies_that_are_not_here_take_the_whole_way() -> None:
    observing = gateway(MemoryWritePath(), Route("/v1/entries", "ledger", "ledger", mode="observe"))
    for gate, asked in ((observing, request()), (gateway(MemoryWritePath()), request(expects=True))):
        begun = gate.begin(asked)
        assert not isinstance(begun, Reply | Pending)
        assert (await begun).status == 201
        assert gate.in_flight == 0


async def test_an_edge_that_only_waits_gets_the_same_reply() -> None:
    store = MemoryWritePath()
    gate = gateway(store)
    assert (await gate.handle(request())).status == 201
    assert gate.in_flight == 0


async def test_a_waiting_edge_that_is_cancelled_leaves_nothing_in_flight() -> None:
    store = MemoryWritePath()
    gate = gateway(store)
    waiting = asyncio.create_task(gate.handle(request()))
    await asyncio.sleep(0)
    assert gate.in_flight == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.in_flight == 0


async def test_a_write_that_is_in_the_store_is_never_told_as_not_applied() -> None:
    """Observe mode asks the election store about a write after it was applied; the process ends meanwhile."""
    asked = asyncio.Event()

    class Waiting(ScriptedView):
        async def issued(self, role: str, time_limit: float) -> Term | None:
            asked.set()
            await asyncio.sleep(60)
            return None

    store = MemoryWritePath()
    gate = gateway(store, Route("/v1/entries", "ledger", "ledger", mode="observe"), Waiting())
    waiting = asyncio.create_task(gate.handle(request(TOKEN + 1)))
    await asked.wait()
    assert len(store.ledger["ledger"]) == 1
    gate.ending.begin()
    waiting.cancel()
    reply = await waiting
    assert dict(lines_of(reply))["X-Fencing-Outcome"] == "outcome_unknown"


async def test_a_fault_of_ours_after_a_write_was_applied_is_not_told_as_not_applied() -> None:
    def fails(observation: Observation) -> None:
        if isinstance(observation, WriteAccepted):
            raise RuntimeError("a defect")

    modes: tuple[Literal["enforce", "observe"], ...] = ("enforce", "observe")
    for mode in modes:
        store = MemoryWritePath()
        gate = gateway(store, Route("/v1/entries", "ledger", "ledger", mode=mode), observe=fails)
        reply = await gate.handle(request())
        assert len(store.ledger["ledger"]) == 1
        assert dict(lines_of(reply))["X-Fencing-Outcome"] == "outcome_unknown"


async def test_a_write_of_which_nothing_can_be_told_keeps_no_place(caplog: pytest.LogCaptureFixture) -> None:
    def fails(fact: Observation) -> None:
        raise RuntimeError("out of order")

    gate = gateway(MemoryWritePath(), observe=fails)
    pending = gate.begin(request())
    assert isinstance(pending, Pending)
    await called(pending)
    with pytest.raises(RuntimeError, match="out of order"):
        gate.go_on(pending)
    assert gate.in_flight == 0
    assert "failing closed" in caplog.text
