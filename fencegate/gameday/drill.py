"""Drill 26: a failover, a failback, and a slice of clients with stale DNS that keeps writing to the wrong region."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from fencegate.errors import PROBLEMS, FencegateError
from fencegate.gameday.history import History
from fencegate.gameday.ledgers import LedgerReader
from fencegate.gameday.population import STALE, Names, Population, World
from fencegate.gameday.regions import DR, PATH, PRIMARY, ROLE, TIMINGS, TwoRegions
from fencegate.gameday.replica import Replicator
from fencegate.gameday.scene import Scene
from fencegate.gameday.verify import Verdict, verify
from fencegate.gameday.watch import Watch

SHORTEST = 30.0
_FIXED = 16.0
"""Seconds of a drill that no setting shortens: starting servers, waiting for a lease to end, judging."""


class DrillFailed(FencegateError):
    """Something that the drill waits for did not happen. The message says what, and where to look."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: in the first term, in dr's term, how long stale DNS records live on, and after the last one ended."""

    steady: float
    on_dr: float
    tail: float
    calm: float

    @classmethod
    def of(cls, seconds: float) -> Pace:
        """The pace of a drill that takes about so long in all."""
        play = max(SHORTEST, seconds) - _FIXED
        return cls(play * 0.2, play * 0.25, play * 0.48, play * 0.07)


@dataclass(frozen=True, slots=True)
class Report:
    """What a drill came to. Times are seconds."""

    verdict: Verdict
    accepted: dict[str, int]
    stale_clients: int
    stale_refused: Counter[str]
    stale_accepted: int
    leaderless: dict[str, float]
    pause: dict[str, float]
    most_leaders: int
    unfinished: int
    elapsed: float

    @property
    def ok(self) -> bool:
        return self.verdict.ok and self.most_leaders <= 1


class Drill:
    """One run on ``stage``, told on ``scene``. The stage is started by :meth:`run` and left running."""

    def __init__(self, stage: TwoRegions, scene: Scene, pace: Pace, *, sdk_clients: int, stale_clients: int) -> None:
        self._stage = stage
        self._scene = scene
        self._pace = pace
        self._counts = (sdk_clients, stale_clients)
        self._clock = scene.clock
        self._history = History()
        self._names = Names(scene.clock, PRIMARY)
        self._population: Population | None = None
        self._background: list[asyncio.Task[None]] = []

    async def run(self) -> Report:
        """Plays all acts. Raises :class:`DrillFailed`, or what an embedded server raises."""
        await self._open_the_stage()
        async with AsyncExitStack() as stack:
            self._readers = {n: LedgerReader(n, r.postgres.dsn, ROLE) for n, r in self._stage.regions.items()}
            dsns = {name: region.postgres.dsn for name, region in self._stage.regions.items()}
            self._replicator = Replicator(self._readers, dsns, ROLE)
            for reader in self._readers.values():
                stack.push_async_callback(reader.close)
            stack.push_async_callback(self._replicator.close)
            stack.push_async_callback(self._end_background)
            self._watch = Watch(self._stage, self._scene, self._readers, self._history, self._names)
            self._spawn(self._watch.run(self._replicator))
            self._spawn(self._replicator.run())
            await self._raise_regions()
            await self._steady()
            killed = await self._failover()
            resigned = await self._failback()
            return await self._judge(killed, resigned)

    # -- the acts -------------------------------------------------------------------------------

    async def _open_the_stage(self) -> None:
        self._scene.tell("starting a three-node etcd and one Postgres per region")
        await self._stage.start_servers()

    async def _raise_regions(self) -> None:
        scene = self._scene
        scene.tell("starting one `fencegate serve` per region: gateway and elector in one process")
        await self._start(PRIMARY)
        await self._until(lambda: scene.regions[PRIMARY].open, 15, "primary to win its first term")
        await self._start(DR)

    async def _steady(self) -> None:
        scene = self._scene
        scene.act = "Act 1 of 4: steady state on primary"
        scene.tell(f"primary leads under token {scene.regions[PRIMARY].token}", "good")
        sdk, stale = self._counts
        scene.tell(f"{sdk} clients with the SDK and {stale} with a cached DNS record begin to write", "act")
        self._let_clients_write()
        await self._play(self._pace.steady)

    async def _failover(self) -> float:
        scene = self._scene
        scene.act = "Act 2 of 4: failover to dr"
        at = self._clock()
        self._watch.expected = DR
        self._stage.primary.kill()
        lease = TIMINGS.lease_duration
        scene.tell(f"primary's gateway and elector killed (kill -9); its lease of {lease:g} s runs out", "act")
        await self._until(lambda: not scene.regions[PRIMARY].open, 15, "primary's store to close by its own clock")
        scene.tell("primary's store closed itself: nobody renewed its lease")
        await self._until(lambda: scene.regions[DR].open, 20, "dr to take over")
        scene.tell(f"dr leads under token {scene.regions[DR].token}; DNS now names dr", "good")
        self._names.point(DR, 0.0)
        await self._play(self._pace.on_dr / 2)
        await self._start(PRIMARY)
        scene.tell("primary is running again, and stays closed: the term is dr's", "act")
        await self._play(self._pace.on_dr / 2)
        return at

    async def _failback(self) -> float:
        scene, watch = self._scene, self._watch
        scene.act = "Act 3 of 4: failback to primary, with stale DNS"
        at = self._clock()
        stale = self._counts[1]
        scene.tell(f"planned failback: DNS points back at primary; {stale} cached records still name dr", "act")
        watch.elsewhere = DR
        self._names.point(PRIMARY, self._pace.tail)
        scene.stale_left = self._names.stale()
        watch.expected = PRIMARY
        # dr drains, seals its store and gives the lease back; primary opens once it holds every entry.
        if await self._stage.dr.resign():
            scene.tell("dr sealed its store and gave the lease back")
        await self._until(lambda: scene.regions[PRIMARY].open, 15, "primary to take over")
        watch.stale_since, watch.newest = self._clock(), scene.regions[PRIMARY].token
        scene.tell(f"primary leads under token {scene.regions[PRIMARY].token}: dr's seal named the term before", "good")
        await self._tail()
        return at

    async def _tail(self) -> None:
        """Until the last stale record has expired, and a moment more to see that nothing is refused any longer."""
        scene, told = self._scene, 0
        deadline = self._clock() + self._pace.tail + 10
        while self._names.stale() and self._clock() < deadline:
            await self._play(0.1)
            told = self._tell_tail(told)
        scene.tell("the last stale record has expired: nobody writes to dr any more", "good")
        await self._play(self._pace.calm)

    def _tell_tail(self, told: int) -> int:
        scene = self._scene
        if told == 0 and scene.stale_refused >= 3:
            reasons = self._history.refused(DR, STALE, self._watch.stale_since)
            scene.tell(f"dr refuses the stale writes ({', '.join(sorted(reasons))}): a 409, nothing applied", "act")
            return 1
        if told == 0 and scene.wrongly >= 3:
            scene.tell("dr accepts the stale writes, and nothing errors: two regions now own one ledger", "bad")
            return 1
        if told == 1 and scene.stale_left <= scene.stale_total // 2:
            scene.tell(f"{scene.stale_left} of {scene.stale_total} stale records left")
            return 2
        return told

    async def _judge(self, killed: float, resigned: float) -> Report:
        scene, history = self._scene, self._history
        scene.act = "Act 4 of 4: the verdict"
        scene.tell("clients finish what they are at; both ledgers are read and compared", "act")
        unfinished = await self._population.stop(10.0) if self._population else 0
        await self._replicator.caught_up(5.0)
        await self._watch.look()
        ledgers = {name: await reader.entries() for name, reader in self._readers.items()}
        since = self._watch.stale_since
        refused = {r: n for r, n in history.refused(DR, STALE, since).items() if r in PROBLEMS}
        return Report(
            verdict=verify(history.attempts, ledgers, role=ROLE, leader=self._leader()),
            accepted={name: history.accepted(name) for name in ledgers},
            stale_clients=self._counts[1],
            stale_refused=Counter(refused),
            stale_accepted=history.accepted(DR, since, self._watch.newest),
            leaderless={
                "failover": self._watch.leaderless(PRIMARY, DR, killed),
                "failback": self._watch.leaderless(DR, PRIMARY, resigned),
            },
            pause={
                "failover": history.handover(PRIMARY, DR, killed),
                "failback": history.handover(DR, PRIMARY, resigned),
            },
            most_leaders=scene.most_leaders,
            unfinished=unfinished,
            elapsed=scene.elapsed,
        )

    def _let_clients_write(self) -> None:
        origins = {name: region.url for name, region in self._stage.regions.items()}
        world = World(origins, PATH, ROLE, self._names, self._history, self._clock)
        self._population = Population(world, sdk=self._counts[0], stale=self._counts[1])
        self._population.start()
        self._scene.stale_total = self._counts[1]

    def _leader(self) -> str:
        """The region that leads now, or did last."""
        regions = self._scene.regions.values()
        return max(regions, key=lambda region: (region.open, region.max_token)).name

    # -- playing --------------------------------------------------------------------------------

    async def _start(self, name: str) -> None:
        await self._stage.regions[name].start()
        self._scene.regions[name].process = "running"

    async def _play(self, seconds: float) -> None:
        """Lets time pass; what broke in the background is raised here."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._check()
            await asyncio.sleep(min(left, 0.1))

    async def _until(self, happened: Callable[[], bool], limit: float, what: str) -> None:
        until = self._clock() + limit
        while not happened():
            if self._clock() >= until:
                raise DrillFailed(f"waited {limit:g} s for {what}; see the logs in {self._stage.directory}")
            await self._play(0.02)

    def _check(self) -> None:
        if self._population is not None:
            self._population.check()
        for task in self._background:
            if task.done() and not task.cancelled():
                task.result()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.append(task)
        return task

    async def _end_background(self) -> None:
        if self._population is not None:
            await self._population.abandon()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
