"""A drill's own two regions: real servers in one directory, which may be broken in any way and end with us."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from fencegate.errors import Unavailable
from fencegate.fence import Entry
from fencegate.gameday import held_faults
from fencegate.gameday.breakable import BreakableRegions
from fencegate.gameday.history import Attempt
from fencegate.gameday.ledgers import LedgerReader, Standing
from fencegate.gameday.meters import Meter
from fencegate.gameday.plain_http import NoAnswer, NotSent
from fencegate.gameday.regions import DR, PATH, PRIMARY, ROLE, TIMINGS, Mode
from fencegate.gameday.replica import Replicator
from fencegate.gameday.stage import Kind, Tell, Until
from fencegate.gameday.standby import LaggingStandby
from fencegate.gameday.verify import Verdict, verify


class EmbeddedStage:
    """``servers`` are started by :meth:`prepare` and :meth:`begin`, and left running until :meth:`stop`.

    ``mode`` "observe" takes the fence off.
    """

    kind: Kind = "embedded"
    role, path, lease = ROLE, PATH, TIMINGS.lease_duration
    apart, run = False, ""
    called: Mapping[str, str] = {PRIMARY: PRIMARY, DR: DR}

    def __init__(self, directory: Path, mode: Mode = "enforce") -> None:
        self.servers = BreakableRegions(directory, mode)
        self._readers: dict[str, LedgerReader] = {}
        self._meters: dict[str, Meter] = {}
        self._standbys: dict[str, LaggingStandby] = {}
        self._replicator: Replicator | None = None

    @property
    def origins(self) -> Mapping[str, str]:
        return {name: region.url for name, region in self.servers.regions.items()}

    # -- from start to end ------------------------------------------------------------------------

    async def prepare(self, tell: Tell) -> None:
        tell("starting a three-node etcd and one Postgres per region")
        await self.servers.start_servers()
        regions = self.servers.regions
        dsns = {name: region.postgres.dsn for name, region in regions.items()}
        self._readers = {name: LedgerReader(name, dsn, ROLE) for name, dsn in dsns.items()}
        self._meters = {name: Meter(region.admin_url) for name, region in regions.items()}
        self._replicator = Replicator(self._readers, dsns, ROLE)

    async def begin(self, tell: Tell, until: Until, is_open: Callable[[str], bool]) -> None:
        tell("starting one `fencegate serve` per region: gateway and elector in one process")
        await self.servers.primary.start()
        await until(lambda: is_open(PRIMARY), 15, "primary to win its first term")
        await self.servers.dr.start()

    def jobs(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._copies.run()]

    async def settle(self, limit: float) -> None:
        await self._copies.caught_up(limit)

    async def restore(self, tell: Tell) -> str:
        """Nothing: the servers are this drill's own."""
        return ""

    async def stop(self) -> None:
        """Everything, whatever state it is in. Idempotent."""
        for reader in self._readers.values():
            await reader.close()
        if self._replicator is not None:
            await self._replicator.close()
        for region in self.servers.regions.values():
            if region.process is not None and region.running:
                region.process.send_signal(signal.SIGCONT)  # a frozen process does not end by being asked to
        await self.servers.stop()

    # -- looking ----------------------------------------------------------------------------------

    async def standing(self, region: str) -> Standing:
        return await self._readers[region].standing()

    async def rejections(self, region: str) -> Counter[str]:
        await self._meters[region].read()
        return self._meters[region].rejections

    def running(self, region: str) -> bool:
        return self.servers.regions[region].running

    async def answers(self, region: str) -> bool:
        return await self.servers.regions[region].answers()

    def fork(self) -> str:
        found = self._copies.fork
        return f"{found.source} and {found.target} hold different entries at sequence {found.seq}" if found else ""

    async def ledgers(self) -> dict[str, list[Entry]]:
        return {name: await reader.entries() for name, reader in self._readers.items()}

    def judge(self, attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]], leader: str) -> Verdict:
        return verify(attempts, ledgers, role=ROLE, leader=leader)

    # -- doing ------------------------------------------------------------------------------------

    async def strike(self, how: str, part: str) -> held_faults.Lift:
        return await held_faults.strike(self.servers, how, part)

    async def resign(self, region: str) -> bool:
        return await self.servers.regions[region].resign()

    async def hand_over(self, to: str, limit: float) -> str:
        if (await self._standing_or_closed(to)).open:
            return ""  # done by an attempt whose answer was lost
        for name in self.servers.regions:
            if name != to and (await self._standing_or_closed(name)).open:
                return await self._hand_over(name, to, limit)
        return "nobody leads at the moment"

    async def _hand_over(self, name: str, to: str, limit: float) -> str:
        try:
            answer = await self.servers.regions[name].hand_over(to, limit)
        except (NotSent, NoAnswer) as error:
            return f"{name} gave no answer: {error}"
        return refusal(answer.body)

    async def _standing_or_closed(self, name: str) -> Standing:
        try:
            return await self.standing(name)
        except Unavailable:
            return Standing(name, False, 0, 0, 0, b"")

    async def make_standby(self, region: str) -> None:
        standby = LaggingStandby(self.servers.regions[region].postgres)
        await standby.take()
        self._standbys[region] = standby

    async def promote_standby(self, region: str) -> None:
        await asyncio.shield(self._standbys.pop(region).promote())

    @property
    def _copies(self) -> Replicator:
        assert self._replicator is not None, "prepare it first"
        return self._replicator


def refusal(body: bytes) -> str:
    """Why a handoff was not made, by the admin listener's answer; ``""`` where it was, or was begun."""
    document = _outcome(body)
    if document.get("outcome") in ("done", "already", "pending"):
        return ""
    return str(document.get("detail") or document.get("error") or "the answer was no handoff's")


def is_pending(body: bytes) -> bool:
    """Whether a handoff was begun and has not come to its end yet."""
    return _outcome(body).get("outcome") == "pending"


def _outcome(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
