"""Somebody puts PgBouncer, pooling by transaction, between a gateway and its store. The gateway must refuse it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import each, region_of
from fencegate.testing.pgbouncer import Pgbouncer, program


class Pooler:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("pooler", each("store-link"), 0.5)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        if program() is None:
            stage.leave_out(fault.strike, "PgBouncer is not installed")
            return
        region = stage.regions[region_of(fault.part)]
        [link] = stage.proxies[fault.part]
        pooler = Pgbouncer(region.postgres.dsn, region.directory, pool_mode="transaction")
        port = urlsplit(pooler.dsn).port
        assert port is not None
        link.target = ("127.0.0.1", port)
        await asyncio.sleep(fault.lasts)
        direct = urlsplit(region.postgres.dsn).port
        assert direct is not None
        link.target = ("127.0.0.1", direct)
        pooler.stop()
