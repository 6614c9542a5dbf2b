"""Gateways of one region are added, and ended by SIGTERM, under clients that write all the time through a balancer."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.testing.recording_upstream import RecordingUpstream, Wire
from fencegate.testing.tcp_link import pass_on
from fencegate.testing.tcp_server import TcpServer
from system.regions import LEDGER, Writers, arguments, entries_of
from system.serving import Serving

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]


class Balancer:
    """A stand-in for what stands before the gateways: each connection to the next of them that takes it.

    Nobody tells it that a gateway is about to end. One that is gone is found out by trying.
    """

    def __init__(self) -> None:
        self.gateways: dict[str, str] = {}
        self._turns = itertools.count()
        self.server = TcpServer(self._forward)

    async def _forward(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await pass_on((client, to_client), await self._taken())

    async def _taken(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(8):
            addresses = list(self.gateways.values())
            host, _, port = addresses[next(self._turns) % len(addresses)].rpartition(":")
            try:
                return await asyncio.open_connection(host, int(port))
            except OSError:
                continue
        raise ConnectionError("no gateway takes connections")


async def answers_after_a_moment(wire: Wire) -> None:
    await wire.read_body()
    await asyncio.sleep(0.02)  # so that a gateway which is told to end has writes under way
    await wire.answer(201)


@pytest.mark.timeout(240)
async def test_gateways_that_come_and_go_under_load_lose_no_acknowledged_write_and_leave_no_mark(
    serve: Serve, etcd: EmbeddedEtcd, fresh_prefix: str, fresh_dsn: str, tmp_path: Path
) -> None:
    election = f'source = "etcd"\nendpoints = {etcd.endpoints}\nprefix = "{fresh_prefix.rstrip("/")}"\n'
    upstream, balancer = RecordingUpstream(answers_after_a_moment), Balancer()
    await upstream.start()
    await balancer.server.start()
    routes = f'{LEDGER}[[route]]\npath = "/up"\nrole = "up"\ntarget = "{upstream.url}"\n'
    running: dict[str, Serving] = {}

    async def add(node: str) -> None:
        line = arguments("eu", balancer.server.address, fresh_dsn, election, tmp_path, node=node, route=routes,
                         data="127.0.0.1:0")  # fmt: skip
        running[node] = await asyncio.to_thread(serve(*line).listens)
        balancer.gateways[node] = running[node].data

    store: asyncpg.Connection | None = None

    async def marks(node: str) -> int:
        assert store is not None
        found = await store.fetchval("SELECT count(*) FROM fencegate.mark WHERE gateway LIKE $1", f"{node}-eu#%")
        return int(found)

    async def end(node: str) -> None:
        async with asyncio.timeout(60):
            while not await marks(node):  # noqa: ASYNC110 - else it ends without a write under way, and shows nothing
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(running.pop(node).stop) == 0
        assert await marks(node) == 0
        del balancer.gateways[node]

    await add("a")
    await asyncio.to_thread(running["a"].leads)
    await add("b")
    store = await asyncpg.connect(fresh_dsn)
    url = f"http://{balancer.server.address}"
    ledger, forwarded = Writers([url], 4), Writers([url], 4, role="up", path="/up")
    try:
        for node in ("c", "d"):
            await add(node)
            await end({"c": "a", "d": "b"}[node])  # the first of them leads, and hands its terms on
        await add("a")
        await end("c")
        await asyncio.sleep(0.5)
    finally:
        await ledger.end()
        await forwarded.end()
        await store.close()

    last = next(iter(running.values()))
    names = [name for _, name in await asyncio.to_thread(entries_of, last)]
    reached = Counter(json.loads(request.body)["name"] for request in upstream.requests if request.complete)
    assert not ledger.failures
    assert not forwarded.failures
    assert min(len(ledger.acknowledged), len(forwarded.acknowledged)) > 100
    assert Counter(names) == Counter(ledger.acknowledged), "each acknowledged write once, and no other"
    assert reached == Counter(forwarded.acknowledged)
    for serving in running.values():
        assert await asyncio.to_thread(serving.stop) == 0
    await balancer.server.close()
    await upstream.stop()
