"""How a process of the gateway runs."""

from __future__ import annotations

import asyncio

from fencegate.cli.loops import run


def test_the_work_is_run_to_its_end_and_gives_what_it_returns() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return type(asyncio.get_running_loop()).__module__.split(".")[0]

    assert run(work()) in ("uvloop", "asyncio")
