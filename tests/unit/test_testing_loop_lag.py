import asyncio
import time

from fencegate.testing.loop_lag import LoopLag


async def test_it_notices_a_blocked_loop() -> None:
    async with LoopLag() as lag:
        await asyncio.sleep(0.02)
        time.sleep(0.1)
        await asyncio.sleep(0.02)

    assert lag.worst >= 0.09
