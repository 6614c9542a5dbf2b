"""A store that takes no writes: somebody set ``default_transaction_read_only``."""

from __future__ import annotations

import asyncio

from fencegate.embedded.process import EmbeddedServerError
from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import each, region_of
from fencegate.testing.postgres_owner import by_hand

_RELOAD = "SELECT pg_reload_conf()"
_SETTING = "default_transaction_read_only"


class ReadOnly:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("read-only", each("store"), 0.8)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        region = stage.regions[region_of(fault.part)]
        try:
            await by_hand(region.postgres.dsn, f"ALTER SYSTEM SET {_SETTING} = on", _RELOAD)
            await asyncio.sleep(fault.lasts)
        except EmbeddedServerError as error:
            stage.leave_out(fault.strike, str(error))
        await until_done(region.postgres.dsn, f"ALTER SYSTEM RESET {_SETTING}", _RELOAD)


async def until_done(dsn: str, *statements: str) -> None:
    """Mend a store that may be down or frozen at this moment: again and again, until it is done."""
    while True:
        try:
            await by_hand(dsn, *statements, limit=2.0)
        except EmbeddedServerError:
            await asyncio.sleep(0.2)
        else:
            return
