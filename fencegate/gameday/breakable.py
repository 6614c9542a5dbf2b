"""Two regions whose ways to their stores and to the quorum lead through proxies, which a rehearsal may trouble."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from fencegate.gameday.fault_proxy import FaultProxy
from fencegate.gameday.regions import Mode, Region, TwoRegions


class BreakableRegions(TwoRegions):
    """``proxies`` are by the name of the link: ``primary-store-link``, ``dr-quorum-link`` (one for each member)."""

    def __init__(self, directory: Path, mode: Mode) -> None:
        super().__init__(directory, mode, over_tcp=True)
        self.proxies: dict[str, list[FaultProxy]] = {}

    async def links(self, region: Region) -> tuple[str, list[str]]:
        store = urlsplit(region.postgres.dsn)
        [port] = await self._through(f"{region.name}-store-link", [region.postgres.dsn])
        quorum = await self._through(f"{region.name}-quorum-link", self.etcd.endpoints)
        dsn = store._replace(netloc=f"{store.username}:{store.password}@127.0.0.1:{port}").geturl()
        return dsn, [f"http://127.0.0.1:{member}" for member in quorum]

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*(proxy.close() for proxies in self.proxies.values() for proxy in proxies))

    async def _through(self, link: str, urls: list[str]) -> list[int]:
        """The ports of new proxies before ``urls``."""
        made = self.proxies[link] = [FaultProxy(_address(url)) for url in urls]
        for proxy in made:
            await proxy.start()
        return [proxy.port for proxy in made]


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
