"""The usual exchange with an upstream, over real sockets: without a task, and given up at each of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fencegate.fence import Admission, Forward, StoredAnswer
from fencegate.gateway import last_look
from fencegate.gateway.app import Gateway
from fencegate.gateway.exchange import Pending
from fencegate.gateway.replies import lines_of
from fencegate.gateway.request import BufferedBody, Reply, Request
from fencegate.gateway.request_bytes import read_head
from fencegate.gateway.routes import Route
from fencegate.steady_clock import steady_clock
from fencegate.telling import Tell
from fencegate.testing import recording_upstream as upstreams
from fencegate.testing.memory_write_path import MemoryWritePath
from fencegate.testing.recording_upstream import RecordingUpstream
from fencegate.testing.scripted_view import ScriptedView

ROLE, TOKEN = "ledger", 42


class Store(MemoryWritePath):
    """Answers questions when it is let, and settlements as well."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Callable[[], None]] = []
        self.waits = False
        self.settling: asyncio.Event | None = None
        self.settled: list[tuple[StoredAnswer | None, bool]] = []
        self.settles = asyncio.Event()
        self.open(ROLE, TOKEN)

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        if self.waits:
            self.asked.append(lambda: super(Store, self).ask(forward, time_limit, tell))
        else:
            super().ask(forward, time_limit, tell)

    async def settle(self, ticket: int, answer: StoredAnswer | None, *, sent: bool = True) -> None:
        self.settled.append((answer, sent))
        self.settles.set()
        if self.settling is not None:
            await self.settling.wait()
        await super().settle(ticket, answer, sent=sent)


class Stage:
    def __init__(self, upstream: RecordingUpstream) -> None:
        self.upstream, self.store, view = upstream, Store(), ScriptedView()
        view.lead(ROLE, TOKEN, "eu", "https://eu.example")
        self.gate = Gateway([Route("/web/*", ROLE, "http", upstream.url)], self.store, view, region="eu")

    def begin(self, method: str = "POST", key: str = "") -> Pending:
        lines = f"Host: x\r\nX-Fencing-Token: {TOKEN}\r\nContent-Length: 2\r\n"
        lines += f"Idempotency-Key: {key}\r\n" if key else ""
        head, value = read_head(f"{method} /web/x HTTP/1.1\r\n{lines}\r\n".encode())
        body = BufferedBody(b"{}" if method != "GET" else b"")
        request = Request(
            method, "/web/x", "", head.headers, body, 2 if method != "GET" else 0, "::1", steady_clock(), "http",
            fields=head.fields, key=value,
        )  # fmt: skip
        begun = self.gate.begin(request)
        assert isinstance(begun, Pending)
        return begun

    async def end(self, pending: Pending, *, give_up: bool = False) -> tuple[str, bool]:
        """The outcome told, and whether it took no task."""
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        pending.wait(told.set_result)
        if give_up:
            pending.give_up()
            pending.give_up()
        await told
        begun = self.gate.go_on(pending)
        reply = begun if isinstance(begun, Reply) else await begun
        if not isinstance(reply.body, bytes):
            assert sum([len(chunk) async for chunk in reply.body]) == 300_000
        lines = dict(lines_of(reply))
        return lines.get("X-Fencing-Outcome", "none"), begun is reply


@asynccontextmanager
async def stage_with_an_idle_connection() -> AsyncIterator[Stage]:
    async with RecordingUpstream() as upstream:
        stage = Stage(upstream)
        head, _ = read_head(b"GET /web/x HTTP/1.1\r\nHost: x\r\n\r\n")
        first = Request("GET", "/web/x", "", head.headers, BufferedBody(), 0, "::1", steady_clock(), fields=head.fields)
        assert (await stage.gate.handle(first)).status == 200
        upstream.requests.clear()
        yield stage
        await stage.gate.close(1.0)
        assert stage.gate.in_flight == 0


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with stage_with_an_idle_connection() as started:
        yield started


async def test_a_write_that_comes_too_late_to_be_sent_calls_once_whatever_becomes_of_its_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_look, "TOLD_GOOD_FOR", -1.0)
    pending, calls = stage.begin(), asyncio.Queue[object]()
    pending.wait(calls.put_nowait)
    assert await calls.get() is pending
    begun = stage.gate.go_on(pending)
    assert not isinstance(begun, Reply)
    assert dict(lines_of(await begun))["X-Fencing-Outcome"] == "fence_unavailable"
    await stage.gate.close(1.0)
    await asyncio.sleep(0.05)
    assert calls.empty()
    assert (stage.store.settled, len(stage.upstream.requests)) == ([(None, False)], 0)


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_write_takes_no_task_and_the_same_connection(stage: Stage, key: str) -> None:
    for number in range(3):
        assert await stage.end(stage.begin(key=key and f"{key}{number}")) == ("accepted", True)
    assert (len(stage.upstream.requests), stage.upstream.connections) == (3, 1)
    assert [sent for _, sent in stage.store.settled] == [True] * 3
    assert stage.store.marks(ROLE) == 0


async def test_a_read_takes_no_task(stage: Stage) -> None:
    assert await stage.end(stage.begin("GET")) == ("none", True)
    assert len(stage.upstream.requests) == 1


async def test_an_answer_in_pieces_is_waited_for_and_told_alike(stage: Stage) -> None:
    stage.upstream.behaviour = upstreams.huge(300_000)
    assert await stage.end(stage.begin()) == ("accepted", False)
    assert stage.store.marks(ROLE) == 0


async def test_given_up_before_the_store_has_answered_nothing_is_sent_and_its_mark_is_taken_back(stage: Stage) -> None:
    stage.store.waits = True
    stage.gate.ending.begin()
    pending = stage.begin(key="k")
    assert await stage.end(pending, give_up=True) == ("fence_unavailable", False)
    (answer,) = stage.store.asked
    answer()
    await stage.store.settles.wait()
    assert stage.store.settled == [(None, False)]
    assert not stage.upstream.requests
    assert stage.store.marks(ROLE) == 0


async def test_given_up_while_the_upstream_is_about_it_nothing_is_known_and_the_mark_stands(stage: Stage) -> None:
    release = asyncio.Event()
    stage.upstream.behaviour = upstreams.waits_for(release)
    stage.gate.ending.begin()
    pending = stage.begin(key="k")
    await stage.upstream.arrived()
    assert await stage.end(pending, give_up=True) == ("outcome_unknown", False)
    assert stage.store.settled == [(None, True)]
    assert stage.store.marks(ROLE) == 1
    release.set()


async def test_given_up_while_its_answer_is_being_kept_nothing_is_told_of_it(stage: Stage) -> None:
    stage.store.settling = asyncio.Event()
    stage.gate.ending.begin()
    pending = stage.begin(key="k")
    await stage.store.settles.wait()
    assert await stage.end(pending, give_up=True) == ("outcome_unknown", False)
    stage.store.settling.set()


async def test_a_read_that_is_given_up_leaves_no_connection_that_its_answer_may_come_on(stage: Stage) -> None:
    release = asyncio.Event()
    stage.upstream.behaviour = upstreams.waits_for(release)
    pending = stage.begin("GET")
    await stage.upstream.arrived()
    assert (await stage.end(pending, give_up=True))[0] == "upstream_unavailable"
    release.set()
    stage.upstream.behaviour = upstreams.well_behaved
    assert await stage.end(stage.begin()) == ("accepted", False)
    assert stage.upstream.connections == 2


async def test_a_waiting_edge_that_is_cancelled_leaves_nothing_behind(stage: Stage) -> None:
    """Its client has gone: the write goes on at the upstream, and what became of it is not known here."""
    release = asyncio.Event()
    stage.upstream.behaviour = upstreams.waits_for(release)
    head, _ = read_head(b"POST /web/x HTTP/1.1\r\nHost: x\r\nX-Fencing-Token: 42\r\nContent-Length: 0\r\n\r\n")
    request = Request("POST", "/web/x", "", head.headers, BufferedBody(), 0, "::1", steady_clock(), fields=head.fields)
    waiting = asyncio.create_task(stage.gate.handle(request))
    await stage.upstream.arrived()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert stage.gate.in_flight == 0
    assert stage.store.settled == [(None, True)]
    release.set()
