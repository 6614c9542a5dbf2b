"""What other elections got wrong, held against the elector in virtual time.

Which report is held by which test: ``tests/field_cases.toml``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import random
import time
from dataclasses import dataclass, field, replace

import pytest

from fencegate.election.elector import Elector
from fencegate.election.view import ElectionView
from fencegate.fence import Verdict
from fencegate.lease import Candidate, LeaseTimings
from fencegate.observations import LeadershipGained, LeadershipLost, LeaseRenewed, Observation
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import run_in_virtual_time

TIMINGS = LeaseTimings()
ROLE = "ledger"
REGIONS = ("eu", "dr")


def now() -> float:
    return asyncio.get_running_loop().time()


class SlowElection(MemoryElection):
    """Each call takes a random time, now and then longer than its caller waits."""

    def __init__(self, quorum: MemoryQuorum, draw: random.Random) -> None:
        super().__init__(quorum, TIMINGS)
        self._draw = draw

    async def _reach(self, call: str, deadline: float) -> None:
        await asyncio.sleep(self._draw.expovariate(4.0))
        await super()._reach(call, deadline)


@dataclass
class Crowd:
    """Many candidates of two regions, one store each, and writers that try every token they ever saw everywhere."""

    size: int
    draw: random.Random
    told: list[Observation] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    async def live(self, terms: int) -> None:
        quorum = MemoryQuorum(now)
        stores = {region: MemoryStore([ROLE], now) for region in REGIONS}
        electors, running = [], []
        for n in range(self.size):
            region = REGIONS[n % 2]
            backend = SlowElection(quorum, self.draw)
            who = Candidate(f"gw-{n}", region, f"https://{region}.example")
            elector = Elector(ROLE, who, backend, stores[region], TIMINGS, self.told.append, clock=now)
            electors.append((elector, backend))
            running.append(asyncio.create_task(elector.run()))
        try:
            while len(self.accepted) < 10 or len(set(self.accepted)) < terms:
                await self.write(stores, quorum.next_token)
                if self.draw.random() < 0.02:
                    self.cut_the_leader_off_or_on(electors)
                await asyncio.sleep(0.2)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def write(self, stores: dict[str, MemoryStore], highest: int) -> None:
        assert sum(store.is_open(ROLE) for store in stores.values()) <= 1
        for token in self.draw.sample(range(1, highest + 2), highest + 1):
            for store in stores.values():
                if store.write(ROLE, token) is Verdict.ADMIT:
                    self.accepted.append(token)

    def cut_the_leader_off_or_on(self, electors: list[tuple[Elector, MemoryElection]]) -> None:
        for elector, backend in electors:
            backend.cut = elector.token is not None and not backend.cut


# Field case 2: kubernetes/kubernetes#67651.
@pytest.mark.parametrize("seed", [1, 2])
def test_of_a_crowd_of_candidates_each_term_has_its_own_token_and_no_write_goes_back(seed: int) -> None:
    crowd = Crowd(100, random.Random(seed))
    run_in_virtual_time(crowd.live(terms=8))
    gained = [fact.token for fact in crowd.told if isinstance(fact, LeadershipGained)]
    assert len(gained) == len(set(gained)), "no number stands for two terms"
    assert crowd.accepted == sorted(crowd.accepted), "no write of an older term after one of a newer"


# Field case 16: etcd-io/etcd#12291.
# Field case A19: etcd-io/etcd#12291, redis/redis-doc#2106.
def test_stepping_the_wall_clock_moves_no_lease_and_no_time_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    step = 0.0

    async def story() -> None:
        nonlocal step
        began = now()
        wall = 1_700_000_000.0
        monkeypatch.setattr(time, "time", lambda: wall + now() - began + step)
        told: list[Observation] = []
        quorum, store = MemoryQuorum(now), MemoryStore([ROLE], now)
        who = Candidate("gw-1", "eu", "https://eu.example")
        backend = MemoryElection(quorum, TIMINGS)

        def observe(fact: Observation) -> None:
            told.append(fact)
            if isinstance(fact, LeaseRenewed):
                assert 0 < fact.expires_at - time.time() <= TIMINGS.lease_duration

        elector = Elector(ROLE, who, backend, store, TIMINGS, observe, clock=now)
        view = ElectionView([ROLE], MemoryElection(quorum, TIMINGS), TIMINGS, observe, clock=now)
        running = [asyncio.create_task(elector.run()), asyncio.create_task(view.run())]
        try:
            for number in range(60):
                await asyncio.sleep(10)
                assert elector.token == 1
                seen = view.observed(ROLE)
                assert seen.known
                assert seen.term is not None
                assert seen.age <= TIMINGS.lease_duration
                # What is shown is the clock's time of the latest look, which came after the latest step.
                assert seen.observed_at == pytest.approx(time.time() - seen.age, abs=0.01)
                step = (-3600.0, 0.0, 3600.0)[number % 3]
        finally:
            for task in running:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        assert not [fact for fact in told if isinstance(fact, LeadershipLost)]
        assert sum(isinstance(fact, LeaseRenewed) for fact in told) > 250

    run_in_virtual_time(story())


# Field case 36: cloudnative-pg/cloudnative-pg#8701.
def test_a_promoted_server_that_lacks_several_raises_admits_none_of_those_terms() -> None:
    async def story() -> None:
        quorum, store = MemoryQuorum(now, next_token=5), MemoryStore([ROLE], now)
        for token in range(1, 5):
            assert await store.claim(ROLE, token, f"eu/gw-{token}", await store.clock(), 600) is None
        who = Candidate("gw-5", "eu", "https://eu.example")
        elector = Elector(ROLE, who, MemoryElection(quorum, TIMINGS), store, TIMINGS, lambda _: None, clock=now)
        running = asyncio.create_task(elector.run())
        try:
            while elector.token != 5:
                await elector.changed()
            store.fail_over(forget=3)
            fence = await store.read(ROLE)
            assert fence is not None
            assert fence.max_token_seen == 2
            while elector.token != 6:
                closed = {store.write(ROLE, token) for token in range(1, 6)}
                assert closed <= {Verdict.OTHER_INCARNATION, Verdict.NOT_LEADING}
                await asyncio.sleep(0.1)
            assert {store.write(ROLE, token) for token in range(1, 6)} == {Verdict.STALE}
            assert store.write(ROLE, 6) is Verdict.ADMIT
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    run_in_virtual_time(story())


# Field case 65.
def test_a_region_that_boots_on_old_data_is_closed_beside_the_leader_and_opens_under_a_newer_term_alone() -> None:
    async def story() -> None:
        quorum = MemoryQuorum(now)
        stores = {region: MemoryStore([ROLE], now) for region in REGIONS}
        running: dict[str, asyncio.Task[None]] = {}

        def boot(region: str) -> Elector:
            who = Candidate(f"gw-{region}", region, f"https://{region}.example")
            backend = MemoryElection(quorum, TIMINGS)
            elector = Elector(ROLE, who, backend, stores[region], TIMINGS, lambda fact: None, clock=now)
            running[region] = asyncio.create_task(elector.run())
            return elector

        async def led(elector: Elector) -> int:
            async with asyncio.timeout(120):
                while elector.token is None:
                    await elector.changed()
            return elector.token

        async def crash(region: str) -> None:
            running[region].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running[region]

        old = await led(boot("eu"))
        await crash("eu")
        backup = copy.deepcopy(stores["eu"]._fences)
        newer = await led(boot("dr"))
        assert newer > old
        for data in (backup, {ROLE: replace(backup[ROLE], max_token_seen=0, valid_until=-math.inf, holder="")}):
            stores["eu"]._fences = copy.deepcopy(data)
            back = boot("eu")
            for _ in range(100):
                assert back.token is None
                assert stores["dr"].write(ROLE, newer) is Verdict.ADMIT
                for token in (old, newer):
                    assert stores["eu"].write(ROLE, token) is not Verdict.ADMIT
                await asyncio.sleep(0.5)
            await crash("eu")
        last = boot("eu")
        await crash("dr")
        newest = await led(last)
        assert newest > newer
        assert stores["eu"].write(ROLE, newest) is Verdict.ADMIT
        for token in (old, newer):
            assert stores["eu"].write(ROLE, token) is Verdict.STALE
            assert stores["dr"].write(ROLE, token) is not Verdict.ADMIT
        await crash("eu")

    run_in_virtual_time(story())
