"""A store without a session to spare: others hold all of them, and the gateway's own have just been ended."""

from __future__ import annotations

import asyncio

from fencegate.embedded.process import EmbeddedServerError
from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.strikes.contract import each, region_of
from fencegate.testing.postgres_owner import Crowd, hand

_END_THEIRS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name LIKE 'fencegate%'"""


class SessionsGone:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("sessions-gone", each("store"), 0.8)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        dsn = stage.regions[region_of(fault.part)].postgres.dsn
        crowd = Crowd(dsn)
        try:
            try:
                # A session of our own from before: where one is given back the gateway may be quicker to take it.
                async with hand(dsn) as do:
                    await crowd.gather(100)
                    await do(_END_THEIRS)
            except EmbeddedServerError as error:
                stage.leave_out(fault.strike, f"the gateway's own sessions were not ended: {error}")
            await crowd.gather(100)
            await asyncio.sleep(fault.lasts)
        finally:
            crowd.leave()
