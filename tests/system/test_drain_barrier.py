"""An upstream behind two gateways of a region (rule R12): a new term waits for the old writes of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencegate.client import lead
from fencegate.election.postgres import PostgresElection
from fencegate.lease import Candidate, LeaseTimings
from fencegate.testing.recording_upstream import RecordingUpstream
from system.regions import arguments, counted, hand, try_to_hand
from system.serving import Answer, Serving, until
from system.upstreams import SLOW, slow_upstream, token_of

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
Begin = Callable[..., AbstractAsyncContextManager["Scene"]]
"""Starts the scene with this ``timeout`` of the route, in seconds, and perhaps a ``hold_ms``."""
AMPLE, SHORT = 25.0, 4.0
"""The upstream's limit in seconds: never reached even on a busy machine, or waited for."""


@dataclass
class Scene:
    """Gateways ``a``, whose elector leads under ``token``, and ``b`` of region eu on one store; ``dr`` on another.

    The upstream is a :func:`slow_upstream`.
    """

    a: Serving
    b: Serving
    dr: Serving
    token: int
    upstream: RecordingUpstream
    let_go: asyncio.Event
    finished: list[int]
    folder: Path

    async def slow_write(self, gateway: Serving) -> asyncio.Task[Answer | None]:
        """A write under way in the upstream, through ``gateway``; ``None`` where the gateway dies of it."""
        count = len(self.upstream.requests)
        asking = asyncio.create_task(self.write(gateway, self.token, **SLOW))
        await self.upstream.arrived(count + 1, 30)
        return asking

    async def write(self, gateway: Serving, token: int, **headers: str) -> Answer | None:
        try:
            return await asyncio.to_thread(gateway.write, token, path="/v1/thing", **headers)
        except OSError:
            return None

    @property
    def arrived(self) -> list[int]:
        """The tokens of what reached the upstream, in order."""
        return [token_of(request) for request in self.upstream.requests]


@asynccontextmanager
async def three_gateways(
    serve: Serve, dsn: str, other_dsn: str, folder: Path, addresses: list[str], limit: float, hold_ms: int
) -> AsyncIterator[Scene]:
    upstream, let_go, finished = slow_upstream()
    async with upstream:
        election = f'source = "postgres"\ndsn = "{dsn}"\n'
        route = (
            f'[[route]]\npath = "/v1/*"\nrole = "ledger"\ntarget = "{upstream.url}"\n'
            f"timeout = {limit}\nhold_ms = {hold_ms}\n"
        )

        def start(region: str, node: str, address: str, store: str, data: str = "") -> Serving:
            options = arguments(region, address, store, election, folder, node=node, route=route, data=data)
            return serve(*options).listens()

        a = await asyncio.to_thread(start, "eu", "a", addresses[0], dsn)
        token = await asyncio.to_thread(a.leads)
        b = await asyncio.to_thread(start, "eu", "b", addresses[0], dsn, "127.0.0.1:0")
        dr = await asyncio.to_thread(start, "dr", "c", addresses[1], other_dsn)
        assert await asyncio.to_thread(b.discovered) == await asyncio.to_thread(dr.discovered) == token
        yield Scene(a, b, dr, token, upstream, let_go, finished, folder)
        let_go.set()


@pytest.fixture
def begin(serve: Serve, fresh_dsn: str, other_dsn: str, tmp_path: Path, unused_ports: list[int]) -> Begin:
    addresses = [f"127.0.0.1:{port}" for port in unused_ports]
    return lambda limit, hold_ms=0: three_gateways(serve, fresh_dsn, other_dsn, tmp_path, addresses, limit, hold_ms)


async def test_the_new_term_waits_for_a_write_that_another_gateway_has_under_way(begin: Begin) -> None:
    async with begin(AMPLE) as scene:
        asking = await scene.slow_write(scene.b)
        handing = asyncio.create_task(asyncio.to_thread(hand, scene.a, "dr", scene.folder))
        await asyncio.to_thread(until, "the handoff", lambda: scene.a.facts_of("handoff_began"))
        await asyncio.sleep(1)
        assert not handing.done()
        assert not scene.dr.facts_of("leadership_gained")
        for gateway in (scene.a, scene.b):
            refused = await scene.write(gateway, scene.token)
            assert refused is not None
            assert refused.outcome == "draining"

        scene.let_go.set()
        answer = await asking
        assert answer is not None
        assert (answer.status, answer.outcome) == (200, "accepted")
        done = await handing
        assert done["outcome"] == "done"
        next_token = int(str(done["token"]))
        after = await scene.write(scene.dr, next_token)
        assert after is not None
        assert after.outcome == "accepted"
        assert scene.arrived == scene.finished == [scene.token, next_token]


async def test_a_write_that_a_killed_gateway_left_behind_blocks_until_its_deadline_and_is_then_counted(
    begin: Begin,
) -> None:
    async with begin(SHORT) as scene:
        sent_at = time.monotonic()
        asking = await scene.slow_write(scene.b)
        limit = int(scene.upstream.requests[0].values("X-Fencing-Timeout-Ms")[0]) / 1000
        scene.b.process.kill()
        assert await asking is None

        done = await asyncio.to_thread(hand, scene.a, "dr", scene.folder, limit=15)
        assert done["outcome"] == "done"
        assert time.monotonic() - sent_at > limit, "the next term opened while the upstream could still apply the write"
        orphans = scene.a.facts_of("orphaned_mark_expired")
        assert [(fact["role"], fact["token"], fact["level"]) for fact in orphans] == [
            ("ledger", scene.token, "warning")
        ]
        unknown = await asyncio.to_thread(counted, scene.a, "fencing_outcome_unknown_total")
        assert unknown == {"orphaned": 1}


async def test_a_handoff_that_is_undone_for_a_slow_write_is_only_a_pause_where_writes_are_held(begin: Begin) -> None:
    async with begin(AMPLE, 12_000) as scene:
        asking = await scene.slow_write(scene.b)
        handing = asyncio.create_task(asyncio.to_thread(try_to_hand, scene.a, "dr", scene.folder, limit=5))
        await asyncio.to_thread(until, "the handoff", lambda: scene.a.facts_of("handoff_began"))
        await asyncio.sleep(0.3)
        held = [asyncio.create_task(scene.write(gateway, scene.token)) for gateway in (scene.a, scene.b) for _ in "123"]
        code, document = await handing
        assert (code, document["outcome"]) == (75, "undone")
        for answer in await asyncio.gather(*held):
            assert answer is not None
            assert answer.outcome == "accepted", answer.headers
        ends: set[str] = set()
        for gateway in (scene.a, scene.b):
            ends |= (await asyncio.to_thread(counted, gateway, "fencing_holds_total")).keys()
            assert await asyncio.to_thread(counted, gateway, "fencing_rejections_total") == {}
        assert ends == {"news"}
        scene.let_go.set()
        last = await asking
        assert last is not None
        assert last.outcome == "accepted"
        assert scene.arrived == [scene.token] * 7


# -- token mode: one store, and applications that lead -------------------------------------------------


FOLLOWS = """\
node = "{node}"
region = "eu"
advertise = "http://127.0.0.1:1"
[store]
dsn = "{dsn}"
[election]
source = "postgres"
mode = "follow"
lease_duration = 6
renew_deadline = 4
retry_period = 0.5
margin = 0.5
[[route]]
path = "/v1/*"
role = "ledger"
target = "{url}"
timeout = {limit}
"""
TIMINGS = LeaseTimings(6.0, 4.0, 0.5, 0.5)


@pytest.mark.parametrize("killed", [False, True], ids=["it ends", "its gateway is killed"])
async def test_a_new_leaders_write_waits_for_an_older_terms_write_at_the_other_gateway(
    serve: Serve, fresh_dsn: str, configuration: Callable[..., str], killed: bool
) -> None:
    upstream, let_go, finished = slow_upstream()

    def start(node: str) -> Serving:
        text = FOLLOWS.format(node=node, dsn=fresh_dsn, url=upstream.url, limit=SHORT if killed else AMPLE)
        return serve("--migrate", "--config", configuration(text, f"{node}.toml")).listens()

    async def write(gateway: Serving, token: int, **headers: str) -> Answer | None:
        try:
            return await asyncio.to_thread(gateway.write, token, path="/v1/thing", **headers)
        except OSError:
            return None

    @asynccontextmanager
    async def term(name: str) -> AsyncIterator[int]:
        backend = PostgresElection(fresh_dsn, TIMINGS)
        me = Candidate(name, "eu", "http://127.0.0.1:1")
        async with lead("ledger", backend=backend, candidate=me, timings=TIMINGS, shared_store=True) as term:
            yield term.token
        await backend.close()

    async with upstream:
        a, b = await asyncio.to_thread(start, "a"), await asyncio.to_thread(start, "b")
        async with term("first") as first:
            while not upstream.requests:
                # The first term of all: until b is prepared and has claimed it there is no fence, and it says so.
                sent_at = time.monotonic()
                asking = asyncio.create_task(write(b, first, **SLOW))
                arriving = asyncio.create_task(upstream.arrived(1, 30))
                await asyncio.wait({asking, arriving}, return_when=asyncio.FIRST_COMPLETED)
                if not upstream.requests:
                    arriving.cancel()
                    early = await asking
                    assert early is not None
                    assert (early.status, early.headers["x-fencing-applied"]) == (503, "no"), early.body
                    await asyncio.sleep(0.1)
        limit = int(upstream.requests[0].values("X-Fencing-Timeout-Ms")[0]) / 1000
        async with term("second") as second:
            waiting = asyncio.create_task(write(a, second))
            await asyncio.sleep(1)
            assert not waiting.done()
            assert len(upstream.requests) == 1
            if killed:
                b.process.kill()
                assert await asking is None
            else:
                let_go.set()
                older = await asking
                assert older is not None
                assert older.outcome == "accepted"
            answer = await waiting
            while killed and answer is not None and answer.outcome == "draining":
                answer = await write(a, second)
            assert answer is not None
            assert answer.outcome == "accepted", answer.body
            assert [token_of(request) for request in upstream.requests] == [first, second]
        if killed:
            assert time.monotonic() - sent_at > limit
            assert [fact["token"] for fact in a.facts_of("orphaned_mark_expired")] == [second]
            unknown = await asyncio.to_thread(counted, a, "fencing_outcome_unknown_total")
            assert unknown == {"orphaned": 1}
        else:
            assert finished == [first, second]
        let_go.set()
