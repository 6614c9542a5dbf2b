"""Faults that a rehearsal holds on for as long as it wants, each with the way back.

A part is named as in :mod:`fencegate.gameday.faults`: ``primary-gateway``, ``dr-store``, ``quorum-0``,
``primary-quorum-link``. Processes are frozen or killed, links are troubled.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import Final

from fencegate.gameday.breakable import BreakableRegions
from fencegate.gameday.fault_proxy import Trouble
from fencegate.gameday.faults import QUORUM, REGIONS
from fencegate.gameday.regions import Region

Lift = Callable[[], Awaitable[None]]

PROCESSES: Final = (*(f"{region}-{part}" for region in REGIONS for part in ("gateway", "store")), *QUORUM)
LINKS: Final = tuple(f"{region}-{end}" for region in REGIONS for end in ("store-link", "quorum-link"))
_OF_PROCESSES: Final = ("freeze", "kill")
_OF_LINKS: Final = tuple(trouble.value for trouble in Trouble if trouble is not Trouble.NONE)
STRIKES: Final = (*_OF_PROCESSES, *_OF_LINKS)


def unfit(strike: str, part: str) -> str:
    """Why ``part`` cannot be struck so, as what was expected instead; ``""`` where it can."""
    if strike not in STRIKES:
        return f"expected one of {', '.join(STRIKES)}; there is no {strike!r}"
    if part not in (*PROCESSES, *LINKS):
        return f"expected a part: one of {', '.join((*PROCESSES, *LINKS))}; there is no {part!r}"
    fitting = _OF_PROCESSES if part in PROCESSES else _OF_LINKS
    if strike not in fitting:
        return f"expected {', '.join(fitting)} for {part}, which cannot be struck by {strike}"
    return ""


async def strike(stage: BreakableRegions, how: str, part: str) -> Lift:
    """Strikes ``part``; the way to lift it. Raises ``ValueError`` where :func:`unfit` has something to say."""
    if fault := unfit(how, part):
        raise ValueError(fault)
    name, _, end = part.partition("-")
    if part in LINKS:
        return _trouble(stage, part, Trouble(how))
    if part in QUORUM:
        return _member(stage, int(end), how)
    return (_store if end == "store" else _gateway)(stage.regions[name], how)


def _trouble(stage: BreakableRegions, part: str, trouble: Trouble) -> Lift:
    def put(trouble: Trouble) -> None:
        for proxy in stage.proxies[part]:
            proxy.trouble = trouble

    async def lift() -> None:
        put(Trouble.NONE)

    put(trouble)
    return lift


def _member(stage: BreakableRegions, index: int, how: str) -> Lift:
    async def thaw() -> None:
        stage.etcd.thaw(index)

    async def restart() -> None:
        await stage.etcd.restart(index, wait=False)

    if how == "freeze":
        stage.etcd.freeze(index)
        return thaw
    stage.etcd.kill(index)
    return restart


def _store(region: Region, how: str) -> Lift:
    async def thaw() -> None:
        region.postgres.thaw()

    if how == "freeze":
        region.postgres.freeze()
        return thaw
    region.postgres.kill()
    return region.postgres.start


def _gateway(region: Region, how: str) -> Lift:
    async def thaw() -> None:
        if region.running:
            region.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]

    if how == "freeze":
        if region.running:
            region.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        return thaw
    region.kill()
    return region.start
