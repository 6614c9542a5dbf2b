"""A mark lingers behind the last write of its term, and not behind each of them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from fencegate.store.link import Link
from fencegate.store.marks import Marks
from fencegate.testing.virtual_time import run_in_virtual_time

TERM = ("ledger", 41)


class Removals:
    """A link that only notes when marks are removed over it, and under which names."""

    def __init__(self) -> None:
        self.at: list[tuple[float, str]] = []

    async def read(self, limit: float, query: str, role: str, token: int, name: str) -> list[Any]:
        self.at.append((round(asyncio.get_running_loop().time(), 3), name))
        return []


async def _written(marks: Marks, seconds: float) -> None:
    marks.enter(TERM)
    marks.name(TERM)  # as the admission makes it
    await asyncio.sleep(seconds)
    marks.leave(TERM)


def test_a_mark_outlasts_the_pauses_between_writes_that_come_one_by_one() -> None:
    async def scene() -> tuple[float, list[tuple[float, str]]]:
        link = Removals()
        marks = Marks(cast(Link, link), asyncio.Lock(), "gw", 5.0)
        for _ in range(50):  # Five in each linger: some would be in a pause whenever one looks.
            await _written(marks, 0.011)
            await asyncio.sleep(0.009)
        end = asyncio.get_running_loop().time() - 0.009
        assert not link.at
        await asyncio.sleep(1)
        return end, link.at

    end, removals = run_in_virtual_time(scene())
    assert removals == [(round(end + 0.1, 3), "gw.1")]


def test_a_write_that_begins_while_a_mark_lingers_keeps_it_and_its_end_begins_the_linger_anew() -> None:
    async def scene() -> list[tuple[float, str]]:
        link = Removals()
        marks = Marks(cast(Link, link), asyncio.Lock(), "gw", 5.0)
        start = asyncio.get_running_loop().time()
        await _written(marks, 0.0)
        await asyncio.sleep(0.09)
        await _written(marks, 3.0)
        await asyncio.sleep(0.05)
        assert not link.at
        assert marks.stands(TERM)
        await asyncio.sleep(1)
        assert not marks.stands(TERM)
        return [(round(at - start, 3), name) for at, name in link.at]

    assert run_in_virtual_time(scene()) == [(3.19, "gw.1")]


def test_each_life_of_a_mark_has_a_name_of_its_own() -> None:
    async def scene() -> list[str]:
        link = Removals()
        marks = Marks(cast(Link, link), asyncio.Lock(), "gw", 5.0)
        for _ in range(3):
            await _written(marks, 0.01)
            await asyncio.sleep(1)
        return [name for _, name in link.at]

    assert run_in_virtual_time(scene()) == ["gw.1", "gw.2", "gw.3"]


def test_a_term_whose_mark_was_never_made_leaves_nothing_behind() -> None:
    async def scene() -> list[tuple[float, str]]:
        link = Removals()
        marks = Marks(cast(Link, link), asyncio.Lock(), "gw", 5.0)
        marks.enter(TERM)
        marks.name(TERM)
        marks.was_not_made(TERM)
        marks.leave(TERM)
        await asyncio.sleep(1)
        return link.at

    assert run_in_virtual_time(scene()) == []
