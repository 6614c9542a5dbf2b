"""Two regions with a store each and a real quorum: the leader is frozen, killed, restarted, and resigns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import astuple
from pathlib import Path

import asyncpg
import pytest

from fencegate.election.elector import Elector
from fencegate.election.etcd import EtcdElection
from fencegate.election.view import ElectionView
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.fence import Verdict, Write
from fencegate.lease import Candidate, LeaseTimings
from fencegate.observations import Observation
from fencegate.store import migrate
from fencegate.store.postgres import PostgresStore

ROLE = "ledger"
TIMINGS = LeaseTimings(6.0, 4.0, 0.4, 0.3)
BRIEF = LeaseTimings(3.0, 2.0, 0.4, 0.3)
"""Where no term has to last."""
LIMIT = 60.0
SCRIPT = Path(__file__).with_name("elector_process.py")

_OPEN = """
SELECT count(*) FROM fencegate.fence
 WHERE role = $1 AND sealed < max_token_seen AND NOT draining AND clock_timestamp() < valid_until
"""


class Scene:
    def __init__(self, dsns: dict[str, str], etcd: EmbeddedEtcd, prefix: str) -> None:
        self.dsns = dsns
        self.etcd = etcd
        self.prefix = prefix
        self.timings = TIMINGS
        self.stack = contextlib.AsyncExitStack()
        self.stores: dict[str, PostgresStore] = {}
        self.told: list[Observation] = []
        self.both_open = 0
        self.looks = 0

    async def __aenter__(self) -> Scene:
        for region, dsn in self.dsns.items():
            await migrate.apply(dsn)
            self.stores[region] = store = await PostgresStore.open(dsn, gateway=f"gw-{region}", monitor_period=60.0)
            self.stack.push_async_callback(store.close)
            await store.ensure_roles({ROLE: "lease"})
        watching = asyncio.create_task(self._watch())
        self.stack.push_async_callback(_end, watching)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()
        assert self.looks > 10
        assert self.both_open == 0, "two open stores"

    async def _watch(self) -> None:
        """Both stores by their own word, all the time: on one server, whose one clock makes the answers comparable."""
        links = [await asyncpg.connect(dsn) for dsn in self.dsns.values()]
        try:
            while True:
                opened = [await link.fetchval(_OPEN, ROLE) for link in links]
                # Asked one after the other: a handover between the two questions is seen by asking the first again.
                if all(opened) and await links[0].fetchval(_OPEN, ROLE):
                    self.both_open += 1
                self.looks += 1
                await asyncio.sleep(0.01)
        finally:
            for link in links:
                link.terminate()

    async def is_open(self, region: str) -> bool:
        link = await asyncpg.connect(self.dsns[region])
        try:
            return bool(await link.fetchval(_OPEN, ROLE))
        finally:
            link.terminate()

    def backend(self) -> EtcdElection:
        backend = EtcdElection(self.etcd.endpoints, self.timings, prefix=self.prefix)
        self.stack.push_async_callback(backend.close)
        return backend

    def start(self, region: str, backend: EtcdElection | None = None) -> Elector:
        who = Candidate(f"gw-{region}", region, f"https://{region}.example")
        elector = Elector(ROLE, who, backend or self.backend(), self.stores[region], self.timings, self.told.append)
        running = asyncio.create_task(elector.run())
        self.stack.push_async_callback(_end, running)
        return elector

    async def start_process(self, region: str) -> Process:
        numbers = ",".join(map(str, astuple(self.timings)))
        arguments = [ROLE, numbers, f"gw-{region}", region, self.dsns[region], self.prefix, *self.etcd.endpoints]
        child = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), *arguments, stdout=asyncio.subprocess.PIPE
        )
        process = Process(child)
        self.stack.push_async_callback(process.end)
        return process

    async def write(self, region: str, token: int) -> Verdict:
        return (await self.stores[region].append(Write(ROLE, token, b"{}"), LIMIT)).verdict


class Process:
    """A child elector and what it has said so far."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.said: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stdout
        async for line in self.child.stdout:
            self.said.append(line.decode().strip())

    async def until(self, start: str, within: float = LIMIT, after: int = 0) -> str:
        async with asyncio.timeout(within):
            while True:
                for line in self.said[after:]:
                    if line.startswith(start):
                        return line
                await asyncio.sleep(0.02)

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)

    async def end(self) -> None:
        if self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.kill()
        await self.child.wait()
        await self._reading


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(reached: Callable[[], object], within: float) -> float:
    """Seconds until ``reached()``."""
    began = time.monotonic()
    async with asyncio.timeout(within):
        while not reached():  # noqa: ASYNC110 - a condition of plain values
            await asyncio.sleep(0.01)
    return time.monotonic() - began


@pytest.fixture
async def scene(
    postgres: EmbeddedPostgres, fresh_dsn: str, etcd: EmbeddedEtcd, fresh_prefix: str
) -> AsyncIterator[Scene]:
    name = f"{fresh_dsn.rsplit('/', 1)[-1].split('?')[0]}_dr"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template1')
    try:
        async with Scene({"eu": fresh_dsn, "dr": postgres.dsn_of(name)}, etcd, fresh_prefix) as scene:
            yield scene
    finally:
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        await admin.close()


async def test_a_leader_frozen_past_its_lease_loses_it_and_none_of_its_writes_lands(scene: Scene) -> None:
    frozen = await scene.start_process("eu")
    old = int((await frozen.until("state leading")).split()[-1])
    assert await scene.write("eu", old) is Verdict.ADMIT
    other = scene.start("dr")
    await asyncio.sleep(1)

    frozen.signal(signal.SIGSTOP)
    took = await until(lambda: other.token, within=LIMIT)
    new = other.token or 0
    said = len(frozen.said)

    assert took < TIMINGS.lease_duration + 10
    assert new > old
    assert await scene.write("eu", old) is Verdict.NOT_LEADING
    assert await scene.write("dr", old) is Verdict.STALE
    assert await scene.write("dr", new) is Verdict.ADMIT

    frozen.signal(signal.SIGCONT)
    await frozen.until("LeadershipLost", after=said)
    assert not any("Renewed" in line or "Gained" in line for line in frozen.said[said:])
    for _ in range(10):
        assert await scene.write("eu", old) is Verdict.NOT_LEADING
        await asyncio.sleep(0.1)
    assert other.token == new


async def test_a_leader_frozen_for_less_than_its_deadline_keeps_its_term(scene: Scene) -> None:
    leader = await scene.start_process("eu")
    token = int((await leader.until("state leading")).split()[-1])
    await leader.until("LeaseRenewed")
    other = scene.start("dr")

    leader.signal(signal.SIGSTOP)
    await asyncio.sleep(1)
    leader.signal(signal.SIGCONT)
    await asyncio.sleep(TIMINGS.lease_duration)

    assert await scene.write("eu", token) is Verdict.ADMIT
    assert other.token is None


async def test_a_killed_leader_is_succeeded_after_its_lease(scene: Scene) -> None:
    leader = await scene.start_process("eu")
    old = int((await leader.until("state leading")).split()[-1])
    other = scene.start("dr")
    await asyncio.sleep(1)

    leader.signal(signal.SIGKILL)
    await until(lambda: other.token, within=LIMIT)

    assert (other.token or 0) > old
    assert not await scene.is_open("eu")
    assert await scene.is_open("dr")


async def test_a_leader_that_restarts_takes_up_again_without_waiting_for_its_lease(scene: Scene) -> None:
    first = await scene.start_process("eu")
    old = int((await first.until("state leading")).split()[-1])
    first.signal(signal.SIGKILL)
    await first.child.wait()

    again = scene.start("eu")
    took = await until(lambda: again.token, within=LIMIT)

    assert took < TIMINGS.lease_duration / 2
    assert (again.token or 0) > old


async def test_resigning_hands_over_well_before_the_lease_ends(scene: Scene) -> None:
    backend = scene.backend()
    first = scene.start("eu")
    await until(lambda: first.token, within=LIMIT)
    second = scene.start("dr", backend)
    view = ElectionView([ROLE], backend, TIMINGS, scene.told.append, electors={ROLE: second})
    viewing = asyncio.create_task(view.run())
    await asyncio.sleep(1)

    assert await first.resign("operator", LIMIT)
    took = await until(lambda: second.token, within=LIMIT)
    await until(lambda: (seen := view.observed(ROLE).term) and seen.region == "dr", within=LIMIT)
    await _end(viewing)

    assert took < TIMINGS.lease_duration / 2
    assert first.last_end is not None
    assert (first.last_end.sealed, first.last_end.released) == (True, True)
    assert not await scene.is_open("eu")


# Field case 65: EnterpriseDB/repmgr#766, EnterpriseDB/repmgr#496, EnterpriseDB/repmgr#434, EnterpriseDB/repmgr#42,
#   bitnami/charts#6555, bitnami/charts#5418.
async def test_failing_over_and_back_ten_times_never_opens_both_stores(scene: Scene) -> None:
    scene.timings = BRIEF
    electors = {region: scene.start(region) for region in scene.dsns}
    tokens: list[int] = []
    for _ in range(10):
        await until(lambda: any(elector.token for elector in electors.values()), within=LIMIT)
        leader = next(elector for elector in electors.values() if elector.token)
        tokens.append(leader.token or 0)
        await leader.resign("drill", LIMIT)

    assert tokens == sorted(set(tokens))
