"""An upstream behind two gateways of a region (rule R12): a new term waits for the old writes of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencegate.testing.recording_upstream import Recorded, RecordingUpstream, Wire
from system.regions import arguments, counted, hand, try_to_hand
from system.serving import Answer, Serving, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
SLOW = {"X-Slow": "yes"}
UPSTREAM_LIMIT = 4.0


@dataclass
class Scene:
    """Gateways ``a``, whose elector leads under ``token``, and ``b`` of region eu on one store; ``dr`` on another.

    The upstream answers at once, and a write marked as slow only when it is let go.
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
        await self.upstream.arrived(count + 1, 10)
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


def token_of(request: Recorded) -> int:
    return int(request.values("X-Fencing-Token")[0])


@asynccontextmanager
async def three_gateways(
    serve: Serve, dsn: str, other_dsn: str, folder: Path, addresses: list[str], hold_ms: int
) -> AsyncIterator[Scene]:
    let_go, finished = asyncio.Event(), []

    async def behave(wire: Wire) -> None:
        await wire.read_body()
        if wire.request.values("X-Slow"):
            await let_go.wait()
        finished.append(token_of(wire.request))
        await wire.answer()

    async with RecordingUpstream(behave) as upstream:
        election = f'source = "postgres"\ndsn = "{dsn}"\n'
        route = (
            f'[[route]]\npath = "/v1/*"\nrole = "ledger"\ntarget = "{upstream.url}"\n'
            f"timeout = {UPSTREAM_LIMIT}\nhold_ms = {hold_ms}\n"
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
def begin(
    serve: Serve, fresh_dsn: str, other_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> Callable[[int], object]:
    addresses = [f"127.0.0.1:{port}" for port in unused_ports]
    return lambda hold_ms: three_gateways(serve, fresh_dsn, other_dsn, tmp_path, addresses, hold_ms)


async def test_the_new_term_waits_for_a_write_that_another_gateway_has_under_way(begin) -> None:
    async with begin(0) as scene:
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


async def test_a_write_that_a_killed_gateway_left_behind_blocks_until_its_deadline_and_is_then_counted(begin) -> None:
    async with begin(0) as scene:
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


async def test_a_handoff_that_is_undone_for_a_slow_write_is_only_a_pause_where_writes_are_held(begin) -> None:
    async with begin(3500) as scene:
        asking = await scene.slow_write(scene.b)
        handing = asyncio.create_task(asyncio.to_thread(try_to_hand, scene.a, "dr", scene.folder, limit=1))
        await asyncio.to_thread(until, "the handoff", lambda: scene.a.facts_of("handoff_began"))
        await asyncio.sleep(0.3)
        held = [asyncio.create_task(scene.write(gateway, scene.token)) for gateway in (scene.a, scene.b) for _ in "123"]
        code, document = await handing
        assert (code, document["outcome"]) == (75, "undone")
        for answer in await asyncio.gather(*held):
            assert answer is not None
            assert answer.outcome == "accepted", answer.headers
        for gateway in (scene.a, scene.b):
            assert (await asyncio.to_thread(counted, gateway, "fencing_holds_total")).keys() <= {"news"}
            assert await asyncio.to_thread(counted, gateway, "fencing_rejections_total") == {}
        scene.let_go.set()
        last = await asking
        assert last is not None
        assert last.outcome == "accepted"
        assert scene.arrived == [scene.token] * 7
