"""More than a gateway can take: it stays small, says no early, and comes back by itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.gameday.loiterers import Loiterers
from fencegate.gameday.plain_client import Said, write
from fencegate.gameday.plain_http import NoAnswer, NotSent, ask
from fencegate.testing.raw_http import Line, request
from system.serving import Serving, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
Configuration = Callable[[str], str]
IN_FLIGHT = 40


@pytest.fixture
def store(make_postgres: Callable[..., EmbeddedPostgres]) -> EmbeddedPostgres:
    """A store that may be frozen."""
    server = make_postgres(port=0)
    server.start_sync()
    return server


@pytest.fixture
def times() -> str:
    """How long a gateway waits for its clients, as lines of its configuration."""
    return "header_timeout = 3\nbody_timeout = 3\nidle_timeout = 6\n"


@pytest.fixture
def gateway(store: EmbeddedPostgres, serve: Serve, configuration: Configuration, times: str) -> Serving:
    path = configuration(
        'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
        f'[store]\ndsn = "{store.dsn}"\n'
        '[election]\nsource = "postgres"\n'
        f"[limits]\nin_flight = {IN_FLIGHT}\n{times}"
        '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
    )
    return serve("--config", path, "--migrate").listens()


def taken(gateway: Serving) -> tuple[float, int]:
    """Memory in MB and open files of the gateway's process."""
    folder = Path(f"/proc/{gateway.process.pid}")
    [pages] = [line.split()[1] for line in (folder / "status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(pages) / 1024, len(list((folder / "fd").iterdir()))


async def files_at_most(gateway: Serving, count: int, limit: float) -> None:
    await asyncio.to_thread(until, f"no more than {count} open files", lambda: taken(gateway)[1] <= count, limit)


def line_to(gateway: Serving) -> int:
    return int(gateway.data.rpartition(":")[2])


@dataclass(frozen=True)
class Tried:
    """One write by its key: its answer (``None``: none came), and after how many seconds."""

    key: str
    said: Said | None
    took: float

    @property
    def outcome(self) -> str:
        if self.said is None:
            return "no answer"
        return self.said.answered if self.said.answered == "accepted" else self.said.reason


async def attempt(gateway: Serving, token: int, key: str) -> Tried:
    began = time.monotonic()
    try:
        said = await write(f"http://{gateway.data}/v1/entries", token, key, {"case": key}, limit=15.0)
    except (NotSent, NoAnswer):
        said = None
    return Tried(key, said, time.monotonic() - began)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("times", ["header_timeout = 15\nidle_timeout = 15\n"])
async def test_two_thousand_idle_connections_cost_little_and_end_at_their_time(gateway: Serving) -> None:
    token = await asyncio.to_thread(gateway.leads)
    memory, files = taken(gateway)
    lines = [Line.to(line_to(gateway)) for _ in range(2000)]
    question = request("GET", "/v1/entries?after=0&limit=1", token=None, body=None)
    opened = []
    try:
        for line in lines:
            opened.append(await line.__aenter__())
        answers = [await line.ask(question) for line in opened[::50]]
        assert {answer.status for answer in answers} == {200}
        grown, held = taken(gateway)
        assert held > files + 1900
        assert grown < memory + 60, "30 kB each are too much"
        # They are in nobody's way.
        for n in range(20):
            tried = await attempt(gateway, token, f"beside-{n}")
            assert tried.outcome == "accepted"
            assert tried.took < 8
        await files_at_most(gateway, files + 30, 60)
        assert await opened[0].is_closed()
        assert await opened[-1].is_closed()
    finally:
        for line in lines[: len(opened)]:
            await line.__aexit__(None, None, None)


@pytest.mark.timeout(180)
async def test_slow_senders_and_slow_readers_are_cut_off_and_hold_up_nobody(gateway: Serving) -> None:
    token = await asyncio.to_thread(gateway.leads)
    # Long entries, so that a page of them does not fit between a gateway and a client that does not read.
    for n in range(40):
        async with Line.to(line_to(gateway)) as line:
            long = request("POST", "/v1/entries", token=token, key=f"long-{n}", body=b'"' + b"x" * 200_000 + b'"')
            assert (await line.ask(long)).status == 201
    memory, files = taken(gateway)
    loiterers = Loiterers(f"http://{gateway.data}", "/v1/entries")
    loiterers.start(slow_heads=150, slow_bodies=IN_FLIGHT // 2, slow_readers=10)
    said = Counter[str]()
    slowest = 0.0
    kinds = {"slow head", "slow body", "slow reader"}
    began = time.monotonic()
    try:
        while (so_far := time.monotonic() - began) < 15 or (so_far < 90 and set(loiterers.cut) != kinds):
            tried = await attempt(gateway, token, f"beside-{said.total()}")
            said[tried.outcome] += 1
            slowest = max(slowest, tried.took)
            await asyncio.sleep(0.1)
        assert set(said) == {"accepted"}, said
        assert slowest < 10
        assert set(loiterers.cut) == kinds, loiterers.cut
        # Of a page of 4 MB only a part waits for each slow reader.
        assert taken(gateway)[0] < memory + 40
    finally:
        await loiterers.stop()
    await files_at_most(gateway, files + 10, 60)


@pytest.mark.timeout(180)
async def test_overload_is_refused_early_and_is_over_within_seconds_of_its_cause(
    gateway: Serving, store: EmbeddedPostgres
) -> None:
    token = await asyncio.to_thread(gateway.leads)
    assert (await attempt(gateway, token, "before")).outcome == "accepted"
    memory, files = taken(gateway)
    store.freeze()
    try:
        waiting = [asyncio.create_task(attempt(gateway, token, f"waits-{n}")) for n in range(IN_FLIGHT)]
        await asyncio.sleep(1.0)
        refused: list[Tried] = []
        for wave in range(6):
            refused += await asyncio.gather(*(attempt(gateway, token, f"{wave}-{n}") for n in range(100)))
    finally:
        store.thaw()
    thawed = time.monotonic()
    early = [tried for tried in refused if tried.outcome == "overloaded"]
    assert len(early) > 500, Counter(tried.outcome for tried in refused)
    assert {(tried.said.answered, tried.said.status) for tried in early if tried.said} == {("refused", 503)}
    assert sorted(tried.took for tried in early)[len(early) // 2] < 3
    while (after := await attempt(gateway, token, f"after-{time.monotonic()}")).outcome != "accepted":
        assert time.monotonic() < thawed + 15, after
        await asyncio.sleep(0.1)
    print(f"\n{len(early)} refused early; accepting again {time.monotonic() - thawed:.1f} s after the store")
    held = await asyncio.gather(*waiting)
    assert gateway.process.poll() is None
    assert taken(gateway)[0] < memory + 40
    await files_at_most(gateway, files + 10, 60)
    # What was called not applied is not there, and what was acknowledged is there once.
    page = json.loads((await ask("GET", f"http://{gateway.data}/v1/entries?after=0&limit=1000")).body)
    landed = [entry["body"]["case"] for entry in page["entries"]]
    assert len(landed) == len(set(landed))
    for tried in (*held, *refused):
        if tried.said is not None and tried.said.answered != "unknown":
            assert (tried.key in landed) == (tried.said.answered == "accepted"), tried
