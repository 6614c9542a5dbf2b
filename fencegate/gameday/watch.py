"""Looks at the stage many times a second and keeps the scene true, by the stores' own word and not a participant's."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from fencegate.errors import PROBLEMS, Unavailable
from fencegate.gameday.history import History
from fencegate.gameday.ledgers import LedgerReader, Standing
from fencegate.gameday.meters import Meter
from fencegate.gameday.population import STALE, Names
from fencegate.gameday.regions import TwoRegions
from fencegate.gameday.replica import Replicator
from fencegate.gameday.scene import Scene

_PERIOD = 0.05
_CLIENTS_EVERY = 4
_METERS_EVERY = 8
_RATE_WINDOW = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """A store was seen to open or to close a term, at ``at`` on the drill's clock."""

    at: float
    region: str
    open: bool


class Watch:
    """Fills the scene from both stores, both gateways' counters, the clients' answers and the replicator."""

    def __init__(
        self, stage: TwoRegions, scene: Scene, readers: dict[str, LedgerReader], history: History, names: Names
    ) -> None:
        self._stage = stage
        self._scene = scene
        self._readers = readers
        self._history = history
        self._names = names
        self._meters = {name: Meter(region.admin_url) for name, region in stage.regions.items()}
        self.changes: list[Change] = []
        self.stale_since = float("inf")
        """When the failback made cached records stale, on the drill's clock."""
        self.elsewhere = ""
        """The region that stale clients write to."""
        self.expected = ""
        """The region whose turn it is: another one that opens is told of."""
        self.newest = 0
        """The token of the term that made them stale."""

    async def run(self, replicator: Replicator) -> None:
        """Looks until cancelled."""
        turn = 0
        while True:
            await self.look(clients=turn % _CLIENTS_EVERY == 0, meters=turn % _METERS_EVERY == 0)
            self._see_fork(replicator)
            turn += 1
            await asyncio.sleep(_PERIOD)

    async def look(self, *, clients: bool = True, meters: bool = True) -> None:
        """One look; the counts of answers and of the gateways cost more, and may be left out."""
        await self._look_at_stores()
        if self._scene.leaders > 1:
            # The two were not looked at in one instant: the first may have closed before the second opened.
            await self._look_at_stores()
        self._scene.most_leaders = max(self._scene.most_leaders, self._scene.leaders)
        if meters:
            await asyncio.gather(*(meter.read() for meter in self._meters.values()))
        if clients:
            self._see_clients()

    async def _look_at_stores(self) -> None:
        for reader in self._readers.values():
            with suppress(Unavailable):
                self._see_store(await reader.standing())

    def _see_store(self, standing: Standing) -> None:
        region = self._scene.regions[standing.region]
        if region.open != standing.open:
            self.changes.append(Change(self._scene.clock(), standing.region, standing.open))
            if standing.open and self.expected not in ("", region.name):
                self._scene.tell(
                    f"{region.name} took over unasked, token {standing.max_token_seen}: a renewal was late"
                )
        if region.open and standing.open and standing.max_token_seen > region.max_token:
            newer = f"token {standing.max_token_seen} after {region.max_token}"
            self._scene.tell(f"{region.name} missed a renewal and won a new term: {newer}")
        region.open, region.max_token, region.entries = standing.open, standing.max_token_seen, standing.last_seq

    def _see_clients(self) -> None:
        scene, now = self._scene, self._scene.clock()
        for name, region in scene.regions.items():
            region.accepted = self._history.accepted(name)
            region.rejections = self._meters[name].rejections
            if region.process != "starting":
                region.process = "running" if self._stage.regions[name].running else "killed"
        if self.elsewhere:
            scene.stale_left = self._names.stale()
            scene.stale_refused = self._refused(self.stale_since)
            scene.refusals_per_second = self._refused(max(self.stale_since, now - _RATE_WINDOW)) / _RATE_WINDOW
            scene.wrongly = self._history.accepted(self.elsewhere, self.stale_since, self.newest)

    def _refused(self, since: float) -> int:
        refused = self._history.refused(self.elsewhere, STALE, since)
        return sum(count for reason, count in refused.items() if reason in PROBLEMS)

    def _see_fork(self, replicator: Replicator) -> None:
        fork = replicator.fork
        if fork is not None and not self._scene.fork:
            self._scene.fork = f"FORK at sequence {fork.seq}"
            self._scene.tell(
                f"replication stopped: {fork.source} and {fork.target} hold different entries at sequence {fork.seq}",
                "bad",
            )

    def leaderless(self, old: str, new: str, after: float) -> float:
        """Seconds for which no store was open between two terms; infinite if ``new`` never opened."""
        opened = min((c.at for c in self.changes if c.open and c.region == new and c.at > after), default=float("inf"))
        closed = max((c.at for c in self.changes if not c.open and c.region == old and c.at <= opened), default=opened)
        return opened - closed
