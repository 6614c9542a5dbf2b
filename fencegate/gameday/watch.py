"""Looks at the stage many times a second and keeps the scene true, by the stores' own word and not a participant's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from fencegate.errors import Unavailable
from fencegate.gameday.history import History
from fencegate.gameday.ledgers import Standing
from fencegate.gameday.population import Names
from fencegate.gameday.scene import TAIL_SECONDS, Scene
from fencegate.gameday.stage import Stage
from fencegate.gameday.tail import stale_refusals
from fencegate.gameday.verify_order import Seal

_PERIOD = 0.05
_CLIENTS_EVERY = 0.2
_METERS_EVERY = 0.4
_LOOK_LIMIT = 1.5
"""Seconds after which a store that does not answer counts as one that says nothing."""
_RATE_WINDOW = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """A store was seen to open or to close the term of ``token``, at ``at`` on the drill's clock."""

    at: float
    region: str
    open: bool
    token: int


class Watch:
    """Fills the scene from the stores, the gateways' counters, the clients' answers and what copies between them."""

    def __init__(self, stage: Stage, scene: Scene, history: History, names: Names) -> None:
        self._stage = stage
        self._scene = scene
        self._history = history
        self._names = names
        self._read = 0
        self._refused: list[float] = []
        self._binned = 0
        self._seconds: list[int] = []
        self.changes: list[Change] = []
        self.seals: list[Seal] = []
        self.stale_since = float("inf")
        """When records became stale, because another region opened a term, on the drill's clock."""
        self.first_stale = float("inf")
        self.elsewhere = ""
        """The region that stale clients write to."""
        self.expected = ""
        """The region whose turn it is: another one that opens is told of."""
        self.newest = 0
        """The token of the term that made them stale."""

    def jobs(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What keeps looking, until cancelled. Each store by itself: one that stands still holds up no other."""
        return [
            *(self._every(_PERIOD, self._look_at(region)) for region in self._scene.regions),
            *(self._every(_METERS_EVERY, self._read_meter(region)) for region in self._scene.regions),
            self._every(_CLIENTS_EVERY, self._see_clients),
        ]

    async def look(self) -> None:
        """One look at everything."""
        regions = self._scene.regions
        await asyncio.gather(*(self._see_store(region) for region in regions))
        await asyncio.gather(*(self._read_meter(region)() for region in regions))
        await self._see_clients()

    def stale_from(self, region: str) -> None:
        """From now on ``region`` leads, and whoever still goes to ``elsewhere`` is stale."""
        self.stale_since, self.newest = self._scene.clock(), self._scene.regions[region].token
        self._scene.wrongly = 0
        self.first_stale = min(self.first_stale, self.stale_since)

    async def _every(self, period: float, work: Any) -> None:
        while True:
            await work()
            await asyncio.sleep(period)

    def _look_at(self, region: str) -> Any:
        async def look() -> None:
            await self._see_store(region)
            if self._scene.leaders > 1:
                # The two were not looked at in one instant: the first may have closed before the second opened.
                await asyncio.gather(*(self._see_store(other) for other in self._scene.regions))
            self._scene.most_leaders = max(self._scene.most_leaders, self._scene.leaders)

        return look

    async def _see_store(self, region: str) -> None:
        try:
            async with asyncio.timeout(_LOOK_LIMIT):
                standing = await self._stage.standing(region)
        except (Unavailable, TimeoutError):
            known = self._scene.regions[region]
            standing = Standing(region, False, known.max_token, 0, known.entries, b"")
        self._take(standing)

    def _take(self, standing: Standing) -> None:
        region = self._scene.regions[standing.region]
        if standing.sealed > max((s.token for s in self.seals if s.region == standing.region), default=0):
            self.seals.append(Seal(standing.region, standing.sealed, self._scene.clock()))
        if region.open != standing.open:
            self._note(standing)
            if standing.open and self.expected not in ("", region.name):
                self._scene.tell(
                    f"{region.name} took over unasked, token {standing.max_token_seen}: a renewal was late"
                )
        if region.open and standing.open and standing.max_token_seen > region.max_token:
            self._note(standing)
            newer = f"token {standing.max_token_seen} after {region.max_token}"
            self._scene.tell(f"{region.name} missed a renewal and won a new term: {newer}")
        region.open, region.max_token, region.entries = standing.open, standing.max_token_seen, standing.last_seq

    def _note(self, standing: Standing) -> None:
        self.changes.append(Change(self._scene.clock(), standing.region, standing.open, standing.max_token_seen))

    def _read_meter(self, region: str) -> Any:
        async def read() -> None:
            self._scene.regions[region].rejections = await self._stage.rejections(region)

        return read

    async def _see_clients(self) -> None:
        scene, now = self._scene, self._scene.clock()
        for name, region in scene.regions.items():
            region.accepted = self._history.totals[name]
            if region.process != "starting":
                region.process = "running" if self._stage.running(name) else "killed"
        if self.elsewhere:
            scene.elsewhere, scene.stale_left = self.elsewhere, self._names.stale()
            self._see_tail(now)
        fork = self._stage.fork()
        if fork and not scene.fork:
            scene.fork = f"FORK at sequence {fork.rpartition(' ')[2]}"
            scene.tell(f"replication stopped: {fork}", "bad")

    def _see_tail(self, now: float) -> None:
        """Looks only at what is new: a drill in real time has hundreds of thousands of answers."""
        scene, since = self._scene, self.first_stale
        fresh = self._history.attempts[self._read :]
        self._read += len(fresh)
        self._refused += (attempt.ended for attempt in stale_refusals(fresh, since))
        scene.stale_refused = len(self._refused)
        scene.refusals_per_second = self._since(now - _RATE_WINDOW) / _RATE_WINDOW
        scene.wrongly += History(fresh).accepted(self.elsewhere, self.stale_since, self.newest)
        if since <= now:
            second = int(now - since)
            self._seconds += [0] * (second + 1 - len(self._seconds))
            for at in self._refused[self._binned :]:
                self._seconds[min(int(at - since), second)] += 1
            self._binned = len(self._refused)
            scene.tail = self._seconds[-TAIL_SECONDS:]

    def _since(self, at: float) -> int:
        return sum(1 for _ in takewhile(lambda refused: refused > at, reversed(self._refused)))

    def leaderless(self, old: str, new: str, after: float) -> float:
        """Seconds for which no store was open between two terms; infinite if ``new`` never opened."""
        opened = self.first(True, new, after)
        closed = max((c.at for c in self.changes if not c.open and c.region == old and c.at <= opened), default=opened)
        return opened - closed

    def first(self, opened: bool, region: str, after: float) -> float:
        """When ``region`` was first seen to open or to close a term behind ``after``; infinite for never."""
        found = (c.at for c in self.changes if c.open == opened and c.region == region and c.at > after)
        return min(found, default=float("inf"))
