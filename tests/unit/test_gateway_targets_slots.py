"""Places are given out in order, each is given back once, and nobody who gives up waiting keeps one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway.targets.slots import Slots
from fencegate.testing.virtual_time import run_in_virtual_time


async def test_who_waits_first_is_served_first_and_nobody_overtakes() -> None:
    slots, order = Slots(1), []
    assert slots.take()

    async def waits(name: str) -> None:
        await slots.wait(60.0)
        order.append(name)

    waiting = [asyncio.create_task(waits(name)) for name in "ab"]
    await asyncio.sleep(0)
    slots.give_back()
    assert not slots.take()
    await waiting[0]
    slots.give_back()
    await waiting[1]
    assert (order, slots.take()) == (["a", "b"], False)
    slots.give_back()
    assert slots.take()


def test_who_waits_in_vain_is_told_in_time_and_leaves_no_trace() -> None:
    async def vainly() -> int:
        slots = Slots(1)
        assert slots.take()
        with pytest.raises(TimeoutError):
            await slots.wait(5.0)
        slots.give_back()
        return slots.free

    assert run_in_virtual_time(vainly()) == 1


async def test_a_place_that_came_as_its_waiter_was_cancelled_goes_to_the_next() -> None:
    slots = Slots(1)
    assert slots.take()
    first, second = (asyncio.create_task(slots.wait(60.0)) for _ in range(2))
    await asyncio.sleep(0)
    slots.give_back()
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    slots.give_back()
    assert slots.free == 1


@given(st.integers(1, 3), st.lists(st.sampled_from(["take", "wait", "give", "cancel"]), max_size=40))
def test_there_are_never_more_out_than_there_are(most: int, steps: list[str]) -> None:
    async def run() -> None:
        slots, out, waiting = Slots(most), 0, []
        for step in steps:
            if step == "take":
                out += slots.take()
            elif step == "wait":
                waiting.append(asyncio.create_task(slots.wait(60.0)))
            elif step == "give" and out:
                slots.give_back()
                out -= 1
            elif step == "cancel" and waiting:
                waiting[-1].cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            for task in [task for task in waiting if task.done()]:
                waiting.remove(task)
                out += not task.cancelled()
            assert out + slots.free == most
            assert not waiting or not slots.free
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run_in_virtual_time(run())
