"""Many deadlines on one timer: each is met or passes at its own time, once."""

from __future__ import annotations

import asyncio

from fencegate.gateway.targets.deadlines import Deadlines
from fencegate.testing.virtual_time import run_in_virtual_time


class Noted:
    def __init__(self, late: list[tuple[str, float]], name: str, began: float) -> None:
        self._late, self._name, self._began = late, name, began

    def time_out(self) -> None:
        self._late.append((self._name, asyncio.get_running_loop().time() - self._began))


def test_deadlines_pass_in_their_order_and_met_ones_do_not() -> None:
    async def scene() -> list[tuple[str, float]]:
        late: list[tuple[str, float]] = []
        deadlines, now = Deadlines(), asyncio.get_running_loop().time()
        each = {name: Noted(late, name, now) for name in "abcd"}
        for name, seconds in (("a", 30), ("b", 5), ("c", 5), ("d", 1)):
            deadlines.add(each[name], seconds)
        await asyncio.sleep(2)
        deadlines.discard(each["c"])
        deadlines.discard(each["d"])
        await asyncio.sleep(100)
        assert deadlines._timer is None
        return late

    assert run_in_virtual_time(scene()) == [("d", 1), ("b", 5), ("a", 30)]


def test_one_that_is_used_again_has_a_new_deadline() -> None:
    async def scene() -> list[tuple[str, float]]:
        late: list[tuple[str, float]] = []
        deadlines, now = Deadlines(), asyncio.get_running_loop().time()
        one = Noted(late, "one", now)
        for n in range(5):
            deadlines.add(one, n + 10)
            await asyncio.sleep(1)
            deadlines.discard(one)
        deadlines.add(one, 45)
        await asyncio.sleep(100)
        return late

    assert run_in_virtual_time(scene()) == [("one", 50)]


def test_closed_ones_never_pass() -> None:
    async def scene() -> list[tuple[str, float]]:
        late: list[tuple[str, float]] = []
        deadlines = Deadlines()
        deadlines.add(Noted(late, "one", 0), 1)
        deadlines.close()
        await asyncio.sleep(5)
        return late

    assert run_in_virtual_time(scene()) == []
