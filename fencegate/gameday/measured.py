"""The times that are promised, measured one after the other with nothing else broken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from fencegate.fence import Entry
from fencegate.gameday.chaos_stage import TIMINGS, ChaosStage, wall
from fencegate.gameday.fault_proxy import Trouble
from fencegate.gameday.figures import Figures
from fencegate.gameday.plain_http import NoAnswer, NotSent
from fencegate.gameday.regions import Region

_SETTLED = 1.0
_LIMIT = 4 * TIMINGS.lease_duration


@dataclass(frozen=True, slots=True)
class Stopped:
    """The leader of term ``token`` was frozen or cut off, ``at`` by the machine's clock."""

    how: str
    region: str
    token: int
    at: float


@dataclass(slots=True)
class Measured:
    """What was seen; :meth:`figures` makes numbers of it once the ledgers can be read."""

    death: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list)

    def figures(self, ledgers: Mapping[str, Sequence[Entry]]) -> Figures:
        found = Figures(death=self.death, pauses=self.pauses)
        for one in self.stopped:
            written = [e.recorded_at for e in ledgers[one.region] if e.token == one.token]
            if written:
                lasted = datetime.fromisoformat(written[-1]).timestamp() - one.at
                (found.frozen if one.how == "frozen" else found.cut_off).append(lasted)
        return found


async def measure(stage: ChaosStage, seen: Measured, *, handoffs: int) -> None:
    """Kill, freeze and cut off the leader, each once, and hand over so many times; writes go on all the while."""
    for how in ("killed", "frozen", "cut off"):
        leading = stage.leading()
        if leading is None:
            return
        region, token = leading
        began, at = stage.clock(), wall()
        await _stopped(stage, region, how)
        if how == "killed":
            next_one = await _first_after(stage, token, began, _LIMIT)
            if next_one is not None:
                seen.death.append(next_one - began)
            await stage.parts[f"{region.name}-gateway"].start()
        else:
            # Its clock may be one that can be set, and then says nothing of when something was written.
            if not stage.clocks:
                seen.stopped.append(Stopped(how, region.name, token, at))
            await asyncio.sleep(TIMINGS.lease_duration + 1.0)
            await _on_again(stage, region, how)
            await _first_after(stage, token, began, _LIMIT)
        await asyncio.sleep(_SETTLED)
    for _ in range(handoffs):
        pause = await _handed_over(stage)
        if pause is not None:
            seen.pauses.append(pause)
        await asyncio.sleep(_SETTLED)


async def _stopped(stage: ChaosStage, region: Region, how: str) -> None:
    if how == "cut off":
        for proxy in stage.proxies[f"{region.name}-quorum-link"]:
            proxy.trouble = Trouble.SILENCE
    elif how == "killed":
        stage.parts[f"{region.name}-gateway"].kill()
    else:
        stage.parts[f"{region.name}-gateway"].freeze()


async def _on_again(stage: ChaosStage, region: Region, how: str) -> None:
    if how == "cut off":
        for proxy in stage.proxies[f"{region.name}-quorum-link"]:
            proxy.trouble = Trouble.NONE
    else:
        stage.parts[f"{region.name}-gateway"].thaw()


async def _handed_over(stage: ChaosStage) -> float | None:
    """The pause that clients saw; ``None`` where no handoff was done in time. The successor may be holding back."""
    until = stage.clock() + _LIMIT
    while (leading := stage.leading()) and stage.clock() < until:
        region, token = leading
        with suppress(NotSent, NoAnswer):
            answer = await region.hand_over(stage.other(region.name).name, limit=4.0)
            if answer.status == 200:
                first = await _first_after(stage, token, float("-inf"), _LIMIT)
                newest = stage.history.attempts[-20_000:]
                old = [a.ended for a in newest if a.answered == "accepted" and a.token == token]
                return first - max(old) if first is not None and old else None
        await asyncio.sleep(0.2)
    return None


async def _first_after(stage: ChaosStage, token: int, since: float, limit: float) -> float | None:
    """When the first write of a newer term was acknowledged."""
    until, looked = stage.clock() + limit, max(0, len(stage.history.attempts) - 2000)
    while stage.clock() < until:
        attempts = stage.history.attempts
        for attempt in attempts[looked:]:
            if attempt.answered == "accepted" and attempt.token > token and attempt.ended > since:
                return attempt.ended
        looked = len(attempts)
        await asyncio.sleep(0.02)
    return None
