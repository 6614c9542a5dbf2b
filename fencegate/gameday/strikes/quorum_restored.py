"""The quorum is lost and comes back from an older snapshot: it has forgotten who led, and would issue numbers again.

As the runbook has it: the gateways meet the restored one only when it has been down for a lease and the role was
rebased above what both stores have accepted.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fencegate.embedded.process import EmbeddedServerError, clean_environment
from fencegate.gameday.chaos_stage import TIMINGS, ChaosStage, Shape
from fencegate.gameday.fault_proxy import Trouble
from fencegate.gameday.faults import QUORUM, Dish, Fault
from fencegate.gameday.regions import ROLE
from fencegate.gameday.strikes.contract import each
from fencegate.testing.etcd_snapshot import restore, save


class QuorumRestored:
    def dishes(self, shape: Shape) -> list[Dish]:
        return [Dish("quorum-restored", ("quorum-0",), 0.4, once=True, lasting=False)]

    async def strike(self, stage: ChaosStage, fault: Fault) -> None:
        others = set(QUORUM) - {fault.part} | set(each("quorum-link"))
        if others & stage.struck:
            stage.leave_out(fault.strike, "another member, or a link to one, is down")
            return
        stage.struck |= others
        try:
            await self._restored(stage, fault)
        finally:
            stage.struck -= others

    async def _restored(self, stage: ChaosStage, fault: Fault) -> None:
        snapshot = stage.directory / "snapshot.db"
        try:
            await asyncio.to_thread(save, stage.etcd, snapshot)
        except EmbeddedServerError as error:
            stage.leave_out(fault.strike, str(error))
            return
        await asyncio.sleep(2.0)
        links = [proxy for name in each("quorum-link") for proxy in stage.proxies[name]]
        for index in range(3):
            stage.etcd.kill(index)
        for link in links:
            link.trouble = Trouble.RESET
        await asyncio.sleep(TIMINGS.lease_duration + 0.5)
        await asyncio.to_thread(restore, stage.etcd, snapshot)
        for index in range(3):
            await stage.etcd.restart(index, wait=False)
        while said := await _rebased(stage):
            stage.say(f"          the role could not be rebased yet: {said}")
            await asyncio.sleep(0.5)
        for link in links:
            link.trouble = Trouble.NONE


async def _rebased(stage: ChaosStage) -> str:
    """Move the role's numbers above what either store has accepted; why that failed, or ``""``."""
    primary, dr = stage.regions.values()
    operators = stage.directory / "operator.toml"
    text = stage.configuration(primary, primary.postgres.dsn, stage.etcd.endpoints) + stage.route(primary)
    await asyncio.to_thread(operators.write_text, text, "utf-8")
    command = [sys.executable, "-P", "-m", "fencegate", "rebase", ROLE, "--confirm", ROLE]
    where: list[str | Path] = ["--config", operators, "--store", dr.postgres.dsn]
    process = await asyncio.create_subprocess_exec(
        *command,
        *where,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment("FENCEGATE_"),
    )
    _, said = await process.communicate()
    return "" if process.returncode == 0 else said.decode("utf-8", "replace").strip()
