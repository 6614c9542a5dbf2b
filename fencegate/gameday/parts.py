"""What a run of faults can freeze, kill and start again, all by the same four verbs."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Protocol

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.gameday.regions import Region


class Part(Protocol):
    """One process, or one server with its children."""

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""

    def thaw(self) -> None:
        """SIGCONT."""

    def kill(self) -> None:
        """SIGKILL, whatever state it is in."""

    async def start(self) -> None:
        """Start it again where it was killed."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A region's gateway, which is its elector too."""

    region: Region

    def freeze(self) -> None:
        if self.region.running:
            assert self.region.process is not None
            self.region.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.region.running:
            assert self.region.process is not None
            self.region.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.region.kill()

    async def start(self) -> None:
        if not self.region.running:
            self.region.launch()


@dataclass(frozen=True, slots=True)
class Store:
    """The Postgres that a region writes to now; after a failover another one than before."""

    region: Region

    def freeze(self) -> None:
        if self.region.postgres.running:
            self.region.postgres.freeze()

    def thaw(self) -> None:
        self.region.postgres.thaw()

    def kill(self) -> None:
        self.region.postgres.kill()

    async def start(self) -> None:
        if not self.region.postgres.running:
            await self.region.postgres.start()


@dataclass(slots=True)
class Standby:
    """The Postgres that follows a region's store. Nobody's once it has been promoted."""

    server: EmbeddedPostgres
    promoted: bool = False

    def freeze(self) -> None:
        if not self.promoted and self.server.running:
            self.server.freeze()

    def thaw(self) -> None:
        if not self.promoted:
            self.server.thaw()

    def kill(self) -> None:
        if not self.promoted:
            self.server.kill()

    async def start(self) -> None:
        if not self.promoted and not self.server.running:
            await self.server.start()


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the quorum."""

    etcd: EmbeddedEtcd
    index: int

    def freeze(self) -> None:
        if self.etcd.running(self.index):
            self.etcd.freeze(self.index)

    def thaw(self) -> None:
        self.etcd.thaw(self.index)

    def kill(self) -> None:
        self.etcd.kill(self.index)

    async def start(self) -> None:
        if not self.etcd.running(self.index):
            await self.etcd.restart(self.index, wait=False)
