import asyncio
import time

from fencegate.testing.loop_lag import LoopLag


async def test_it_notices_a_blocked_loop() -> None:
    async with LoopLag() as lag:
        await asyncio.sleep(0.02)
        time.sleep(0.5)
        await asyncio.sleep(0.02)

    assert 0.1 < lag.worst < 0.6


async def test_a_loop_that_only_waits_is_not_blocked() -> None:
    async with LoopLag() as lag:
        await asyncio.sleep(0.3)

    assert lag.worst < 0.2
