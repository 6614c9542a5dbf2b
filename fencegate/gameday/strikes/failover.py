"""The store of a region fails over to its standby, which may lack the last writes and the last raise (rule R9).

The old primary is killed, or goes on running where nobody but itself can see it. The promoted server has no standby.
"""

from __future__ import annotations

import random
from urllib.parse import urlsplit

from fencegate.embedded.process import EmbeddedServerError
from fencegate.gameday.chaos_stage import ChaosStage, Shape, wall
from fencegate.gameday.faults import Dish, Fault
from fencegate.gameday.regions import ROLE
from fencegate.gameday.strikes.contract import each, region_of
from fencegate.gameday.verify_promotions import Promotion
from fencegate.testing.postgres_owner import by_hand
from fencegate.testing.standby import promote

_LAST = f"SELECT coalesce(max(last_seq), 0) FROM fencegate.fence WHERE role = '{ROLE}'"


class Failover:
    def dishes(self, shape: Shape) -> list[Dish]:
        if shape.replication == "none":
            return []
        return [Dish("failover", each("store"), 1.5, once=True, lasting=False)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        region = stage.regions[region_of(fault.part)]
        standby = stage.standbys[region.name]
        if standby.promoted or f"{region.name}-standby" in stage.struck:
            stage.leave_out(fault.strike, "the standby is down, or promoted already")
            return
        [link] = stage.proxies[f"{region.name}-store-link"]
        dead = ("127.0.0.1", 1)
        link.target = dead
        if random.random() < 0.7:
            region.postgres.kill()
        try:
            await promote(standby.server)
            last = await by_hand(standby.server.dsn, _LAST)
        except EmbeddedServerError as error:
            stage.leave_out(fault.strike, str(error))
            await stage.parts[fault.part].start()
        else:
            standby.promoted = True
            stage.retired.append(region.postgres)
            region.postgres = standby.server
            clock = stage.clock()
            stage.book.promotions.append(
                Promotion(region.name, clock, last, exact=stage.shape.replication == "synchronous")
            )
            stage.say(f"          {region.name}'s standby is promoted; its ledger ends with {last}, at {wall():.1f}")
        port = urlsplit(region.postgres.dsn).port
        assert port is not None
        link.target = ("127.0.0.1", port)
