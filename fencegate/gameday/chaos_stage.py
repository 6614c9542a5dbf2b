"""The stage of a fault run: two regions whose ways to everything lead through proxies, in one of several shapes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import time
from typing import Final, Literal
from urllib.parse import urlsplit

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.gameday.clocks import Clocks
from fencegate.gameday.effects_upstream import EffectsUpstream
from fencegate.gameday.fault_proxy import FaultProxy
from fencegate.gameday.faults import REGIONS
from fencegate.gameday.history import History
from fencegate.gameday.parts import Gateway, Member, Part, Standby, Store
from fencegate.gameday.regions import PATH, ROLE, Mode, Region, TwoRegions
from fencegate.gameday.small_disk import SmallDisk
from fencegate.gameday.steps import Trap, watching
from fencegate.gameday.verify_promotions import Promotion
from fencegate.lease import LeaseTimings
from fencegate.testing.standby import follower

TIMINGS: Final = LeaseTimings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.4, margin=0.5)
"""Short, so that a run holds many terms."""

_SETTINGS: Final = {"max_connections": "60", "max_wal_size": "64MB", "min_wal_size": "32MB", "shared_buffers": "16MB"}

Replication = Literal["none", "lagging", "synchronous"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What there is to break. ``small_disk``: each store's files lie where little fits; ``clocks``: each can be set;
    ``packets``: the kernel can be told to lose some; ``upstream``: the seconds for which a write may be under way at an
    upstream that both regions share, 0 for the built-in ledger.
    """

    replication: Replication = "none"
    small_disk: bool = False
    clocks: bool = False
    packets: bool = False
    upstream: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.replication} standbys" if self.replication != "none" else "no standbys"]
        words += ["small disks"] if self.small_disk else []
        words += ["clocks that can be set"] if self.clocks else []
        words += ["packets that get lost"] if self.packets else []
        words += ["one upstream"] if self.upstream else []
        return ", ".join(words)


def shape_of(seed: int, *, packets: bool = False) -> Shape:
    """The shape that belongs to a seed, where packets can be lost or not."""
    dice = random.Random(f"shape {seed}")
    replication: Replication = dice.choice(("none", "lagging", "synchronous"))
    return Shape(replication, small_disk=dice.random() < 0.4, clocks=dice.random() < 0.4, packets=packets)


@dataclass(slots=True)
class Book:
    """What a run writes down beside the answers that clients got."""

    played: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    """By the reason: a fault that was due and could not be played."""
    promotions: list[Promotion] = field(default_factory=list)


class ChaosStage(TwoRegions):
    """Two regions whose ways to their stores and to the quorum lead through proxies that misbehave."""

    def __init__(
        self,
        directory: Path,
        mode: Mode,
        shape: Shape,
        history: History,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(directory, mode, over_tcp=True, timings=TIMINGS)
        self.shape = shape
        self.history = history
        self.clock = clock
        self.say = say
        self.book = Book()
        self.proxies: dict[str, list[FaultProxy]] = {}
        self.struck: set[str] = set()
        """Parts that a fault has not let go of: one that is still starting cannot be killed again."""
        self.traps: list[Trap] = []
        self.upstream = EffectsUpstream(clock) if shape.upstream else None
        self.clocks = Clocks(directory) if shape.clocks else None
        self.standbys: dict[str, Standby] = {}
        self.retired: list[EmbeddedPostgres] = []
        """Old primaries, some of which still run where nobody can see them."""
        self.disks: dict[str, SmallDisk] = {}
        for region in self.regions.values():
            environment = self.clocks.environment(f"{region.name}-store") if self.clocks else {}
            files = region.directory / "postgres"
            region.postgres = EmbeddedPostgres(files, port=0, settings=_SETTINGS, environment=environment)
            if self.clocks:
                region.environment = self.clocks.environment(f"{region.name}-gateway")
            if shape.small_disk:
                self.disks[region.name] = SmallDisk(files)

    # -- what it is made of -----------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, Part]:
        """Everything that can be frozen and killed, by name."""
        found: dict[str, Part] = {f"quorum-{index}": Member(self.etcd, index) for index in range(3)}
        for name, region in self.regions.items():
            found |= {f"{name}-gateway": Gateway(region), f"{name}-store": Store(region)}
            if name in self.standbys:
                found[f"{name}-standby"] = self.standbys[name]
        return found

    def other(self, region: str) -> Region:
        return self.regions[next(name for name in REGIONS if name != region)]

    def leading(self) -> tuple[Region, int] | None:
        """Who acknowledged a write last, and under which token; ``None`` before the first."""
        for attempt in reversed(self.history.attempts):
            if attempt.answered == "accepted":
                return self.regions[attempt.region], attempt.token
        return None

    async def accepting(self, limit: float) -> float:
        """When the first write that is sent from now on was acknowledged; infinite where none is within ``limit``."""
        since = self.clock()
        while self.clock() < since + limit:
            for attempt in reversed(self.history.attempts):
                if attempt.ended < since:
                    break
                if attempt.answered == "accepted" and attempt.began >= since:
                    return attempt.ended
            await asyncio.sleep(0.05)
        return float("inf")

    def ports(self, part: str) -> list[int]:
        """The TCP ports by which a link, or a member of the quorum, is known to the other end."""
        if part in self.proxies:
            return [proxy.port for proxy in self.proxies[part]]
        return [self.etcd.peer_port(int(part.removeprefix("quorum-")))]

    def leave_out(self, strike: str, reason: str) -> None:
        """Say, and count, that a fault which was due could not be played."""
        self.say(f"          {strike} left out: {reason}")
        self.book.left_out[f"{strike}: {reason}"] += 1
        self.book.played[strike] = max(0, self.book.played[strike] - 1)

    # -- starting and stopping --------------------------------------------------------------------

    async def start_servers(self) -> None:
        if self.upstream is not None:
            await self.upstream.start()
        await super().start_servers()

    def route(self, region: Region) -> str:
        if self.upstream is None:
            return super().route(region)
        [link] = self.proxies[f"{region.name}-upstream-link"]
        return (
            f'[[route]]\npath = "{PATH}"\nrole = "{ROLE}"\ntarget = "http://127.0.0.1:{link.port}"\n'
            f"timeout = {self.shape.upstream}\n"
        )

    async def links(self, region: Region) -> tuple[str, list[str]]:
        parts = urlsplit(region.postgres.dsn)
        [store] = await self._proxies(f"{region.name}-store-link", [region.postgres.dsn], "store")
        quorum = await self._proxies(f"{region.name}-quorum-link", self.etcd.endpoints, "quorum")
        if self.upstream is not None:
            await self._proxies(f"{region.name}-upstream-link", [f"http://127.0.0.1:{self.upstream.port}"], "upstream")
        if self.shape.replication != "none":
            await self._follow(region)
        dsn = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{store.port}").geturl()
        return dsn, [f"http://127.0.0.1:{proxy.port}" for proxy in quorum]

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*(proxy.close() for proxies in self.proxies.values() for proxy in proxies))
        left = [standby.server for standby in self.standbys.values()] + self.retired
        await asyncio.gather(*(server.stop() for server in left), return_exceptions=True)
        if self.upstream is not None:
            await self.upstream.stop()
        for disk in self.disks.values():
            disk.remove()

    async def _start_store(self, region: Region) -> None:
        if region.name in self.disks:
            region.directory.mkdir(mode=0o700)
            reason = self.disks[region.name].make()
            if reason:
                del self.disks[region.name]
                self.leave_out("disk full", reason)
        await super()._start_store(region)

    async def _follow(self, region: Region) -> None:
        [link] = await self._proxies(f"{region.name}-replication-link", [region.postgres.dsn], "replication")
        synchronous = self.shape.replication == "synchronous"
        directory = region.directory / "standby"
        environment = self.clocks.environment(f"{region.name}-store") if self.clocks else {}
        server = await follower(region.postgres, directory, link.port, synchronous, _SETTINGS, environment)
        self.standbys[region.name] = Standby(server)

    async def _proxies(self, name: str, urls: list[str], end: str) -> list[FaultProxy]:
        made = []
        for url in urls:
            parts = urlsplit(url)
            assert parts.hostname is not None
            assert parts.port is not None
            tap = None if end in ("replication", "upstream") else partial(watching, self, name.partition("-")[0], end)
            made.append(FaultProxy((parts.hostname, parts.port), tap))
            await made[-1].start()
        self.proxies[name] = made
        return made


def wall() -> float:
    """The machine's clock, in seconds since 1970: by it the stores stamp their entries, where theirs is not set."""
    return time()
