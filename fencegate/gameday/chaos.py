"""Breaks a two-region set in ways drawn from a seed, under clients that write all the time; a checker judges it.

Nothing copies between the two stores here: each ledger is judged by what its own clients were told, and both by who
wrote when. In the end every fault is lifted, and the set must open again by itself within a bounded time.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fencegate.gameday.fault_proxy import FaultProxy, Trouble
from fencegate.gameday.faults import QUORUM, Fault, Strike
from fencegate.gameday.hammer import Hammer
from fencegate.gameday.history import Attempt, History
from fencegate.gameday.ledgers import LedgerReader
from fencegate.gameday.plain_http import NoAnswer, NotSent
from fencegate.gameday.regions import PATH, ROLE, TIMINGS, Mode, Region, TwoRegions
from fencegate.gameday.verify import Verdict, verify_apart

RECOVERY_LIMIT: Final = 3 * TIMINGS.lease_duration + 10.0
"""Seconds for a term that nobody knows of to lapse, twice, and for processes to start on a busy machine."""


@dataclass(slots=True)
class Outcome:
    """One run. ``recovered_after`` is infinite where no write was accepted within the limit after the last fault."""

    verdict: Verdict
    attempts: Sequence[Attempt]
    terms: int
    recovered_after: float
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.verdict.ok and self.recovered_after != float("inf")

    def __str__(self) -> str:
        answers = Counter(f"{a.answered} {a.reason}".strip() for a in self.attempts)
        lines = [
            f"{len(self.attempts)} writes: " + ", ".join(f"{name} {n}" for name, n in answers.most_common()),
            f"{self.terms} terms wrote; accepting again {self.recovered_after:.1f} s after the last fault",
        ]
        lines += [f"VIOLATION: {v.kind} ({v.count}): {'; '.join(v.evidence)}" for v in self.verdict.violations]
        return "\n".join(lines)


class ChaosStage(TwoRegions):
    """Two regions whose ways to their stores and to the quorum lead through proxies that misbehave."""

    def __init__(self, directory: Path, mode: Mode) -> None:
        super().__init__(directory, mode, over_tcp=True)
        self.proxies: dict[str, list[FaultProxy]] = {}
        self.struck: set[str] = set()
        """Parts that a fault has not let go of: one that is still starting cannot be killed again."""

    async def links(self, region: Region) -> tuple[str, list[str]]:
        parts = urlsplit(region.postgres.dsn)
        [store] = await self._proxies(f"{region.name}-store-link", [region.postgres.dsn])
        quorum = await self._proxies(f"{region.name}-quorum-link", self.etcd.endpoints)
        dsn = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{store.port}").geturl()
        return dsn, [f"http://127.0.0.1:{proxy.port}" for proxy in quorum]

    async def stop(self) -> None:
        await super().stop()
        await asyncio.gather(*(proxy.close() for proxies in self.proxies.values() for proxy in proxies))

    async def _proxies(self, name: str, urls: list[str]) -> list[FaultProxy]:
        made = []
        for url in urls:
            parts = urlsplit(url)
            assert parts.hostname is not None
            assert parts.port is not None
            made.append(FaultProxy((parts.hostname, parts.port)))
            await made[-1].start()
        self.proxies[name] = made
        return made


async def run(
    directory: Path,
    faults: Sequence[Fault],
    *,
    seconds: float,
    mode: Mode = "enforce",
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Play ``faults`` over ``seconds`` in ``directory``, lift them all, wait for recovery, and judge.

    ``mode`` "observe" takes the fence off. Raises :class:`~fencegate.embedded.process.EmbeddedServerError` where the
    set does not start.
    """
    stage, history = ChaosStage(directory, mode), History()
    clock = asyncio.get_running_loop().time
    origins: dict[str, str] = {}
    try:
        await stage.start_servers()
        await asyncio.gather(*(region.start() for region in stage.regions.values()))
        origins = {name: region.url for name, region in stage.regions.items()}
        hammer = Hammer(origins, PATH, ROLE, history, clock)
        hammer.start()
        await _accepting(history, clock)
        started = clock()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                group.create_task(_strike(stage, fault, started, say))
            await asyncio.sleep(seconds)
        lifted = clock()
        recovered = await _accepting(history, clock)
        say(f"every fault is lifted; accepting after {recovered - lifted:.1f} s")
        await hammer.stop()
        readers = {name: LedgerReader(name, r.postgres.dsn, ROLE) for name, r in stage.regions.items()}
        ledgers = {name: await reader.entries() for name, reader in readers.items()}
        await asyncio.gather(*(reader.close() for reader in readers.values()))
    finally:
        await stage.stop()
    terms = {entry.token for entries in ledgers.values() for entry in entries}
    logs = {name: region.log.read_text("utf-8", "replace") for name, region in stage.regions.items()}
    verdict = verify_apart(history.attempts, ledgers, role=ROLE)
    return Outcome(verdict, history.attempts, len(terms), recovered - lifted, logs)


async def _accepting(history: History, clock: Callable[[], float]) -> float:
    """When the first write that was sent after now was acknowledged; infinite where none was in time."""
    since = clock()
    while clock() < since + RECOVERY_LIMIT:
        for attempt in reversed(history.attempts):
            if attempt.ended < since:
                break
            if attempt.answered == "accepted" and attempt.began >= since:
                return attempt.ended
        await asyncio.sleep(0.05)
    return float("inf")


async def _strike(stage: ChaosStage, fault: Fault, started: float, say: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, started + fault.at - loop.time()))
    if fault.part in stage.struck:
        say(f"{fault}: left out, it has not come back from the last one")
        return
    say(str(fault))
    stage.struck.add(fault.part)
    await _struck(stage, fault)
    stage.struck.discard(fault.part)


async def _struck(stage: ChaosStage, fault: Fault) -> None:
    name, _, part = fault.part.partition("-")
    if fault.part in stage.proxies:
        for proxy in stage.proxies[fault.part]:
            proxy.trouble = Trouble(fault.strike.value)
        await asyncio.sleep(fault.lasts)
        for proxy in stage.proxies[fault.part]:
            proxy.trouble = Trouble.NONE
    elif fault.part in QUORUM:
        await _strike_member(stage, fault, int(part))
    elif part == "store":
        await _strike_store(stage.regions[name], fault)
    else:
        await _strike_gateway(stage, stage.regions[name], fault)


async def _strike_member(stage: ChaosStage, fault: Fault, index: int) -> None:
    if fault.strike is Strike.FREEZE:
        stage.etcd.freeze(index)
        await asyncio.sleep(fault.lasts)
        stage.etcd.thaw(index)
    else:
        stage.etcd.kill(index)
        await asyncio.sleep(fault.lasts)
        await stage.etcd.restart(index, wait=False)


async def _strike_store(region: Region, fault: Fault) -> None:
    if fault.strike is Strike.FREEZE:
        region.postgres.freeze()
        await asyncio.sleep(fault.lasts)
        region.postgres.thaw()
    else:
        region.postgres.kill()
        await asyncio.sleep(fault.lasts)
        await region.postgres.start()


async def _strike_gateway(stage: ChaosStage, region: Region, fault: Fault) -> None:
    if fault.strike is Strike.HANDOFF:
        with suppress(NotSent, NoAnswer):
            await region.hand_over(next(name for name in stage.regions if name != region.name), limit=4.0)
    elif fault.strike is Strike.FREEZE:
        assert region.process is not None
        region.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(fault.lasts)
        region.process.send_signal(signal.SIGCONT)
    else:
        region.kill()
        await asyncio.sleep(fault.lasts)
        region.launch()
