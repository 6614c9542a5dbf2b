"""A deadline that is moved with every request needs one timer, and passes once."""

from __future__ import annotations

import asyncio

from fencegate.gateway.due_time import DueTime
from fencegate.testing.virtual_time import run_in_virtual_time


def test_a_deadline_that_is_moved_passes_at_its_last_place_and_once() -> None:
    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        passed: list[float] = []
        due = DueTime(loop, lambda: passed.append(loop.time() - start))
        start = loop.time()
        for _ in range(5):
            due.set(10)
            await asyncio.sleep(6)
        await asyncio.sleep(100)
        return passed

    assert run_in_virtual_time(scene()) == [34]


def test_a_nearer_deadline_is_met() -> None:
    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        passed: list[float] = []
        due = DueTime(loop, lambda: passed.append(loop.time() - start))
        start = loop.time()
        due.set(75)
        due.set(1)
        await asyncio.sleep(200)
        return passed

    assert run_in_virtual_time(scene()) == [1]


def test_a_deadline_that_was_taken_away_does_not_pass() -> None:
    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        passed: list[float] = []
        cleared, ended = (DueTime(loop, lambda: passed.append(loop.time())) for _ in range(2))
        cleared.set(1)
        cleared.clear()
        ended.set(1)
        ended.end()
        await asyncio.sleep(10)
        return passed

    assert run_in_virtual_time(scene()) == []
