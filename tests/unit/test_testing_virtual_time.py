import asyncio
import time

import pytest

from fencegate.testing.virtual_time import Stalled, VirtualTimeLoop, run_in_virtual_time


def test_hours_pass_in_no_time_and_to_the_second() -> None:
    async def sleeper() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - began

    before = time.monotonic()
    assert run_in_virtual_time(sleeper()) == pytest.approx(86_400)
    assert time.monotonic() - before < 5


def test_a_freeze_passes_time_for_everybody_at_once() -> None:
    async def frozen() -> list[str]:
        loop, order = asyncio.get_running_loop(), []
        assert isinstance(loop, VirtualTimeLoop)
        loop.call_later(5, order.append, "five")
        loop.freeze(30)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        order.append("woke")
        return order

    assert run_in_virtual_time(frozen()) == ["five", "woke"]


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stalled):
        run_in_virtual_time(waits())
