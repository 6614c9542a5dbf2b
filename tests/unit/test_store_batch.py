"""Group commit without a store: when it flushes, what it bounds, and that nobody is left waiting or told too much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.store.batch import LONGEST_GATHERING, WORTH_HALVING, GroupCommit, half
from fencegate.testing.virtual_time import run_in_virtual_time


class Flushes:
    """A flush whose end the test decides."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gates: list[asyncio.Future[None]] = []

    async def __call__(self, items: list[str]) -> Sequence[str | FencegateError]:
        self.batches.append(items)
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return [item.upper() for item in items]

    def finish(self, error: BaseException | None = None) -> None:
        gate = self.gates[-1]
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def submit(group: GroupCommit[str, str], item: str, size: int = 1, limit: float = 60.0) -> asyncio.Task[str]:
    return asyncio.create_task(group.submit(item, size, limit))


async def test_it_flushes_at_once_when_idle_and_gathers_while_one_is_under_way() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    first = submit(group, "a")
    await turns()
    assert flushes.batches == [["a"]]
    rest = [submit(group, item) for item in "bcd"]
    await turns()
    assert flushes.batches == [["a"]]
    flushes.finish()
    assert await first == "A"
    await turns()
    assert flushes.batches == [["a"], ["b", "c", "d"]]
    flushes.finish()
    assert await asyncio.gather(*rest) == ["B", "C", "D"]
    again = submit(group, "e")
    await turns()
    flushes.finish()
    assert await again == "E"


async def test_a_batch_is_bounded_by_items_and_by_bytes() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes, max_items=3, max_bytes=10)
    tasks = [submit(group, item, size) for item, size in [("a", 1), ("b", 4), ("c", 4), ("d", 4), ("e", 99), ("f", 1)]]
    while not all(task.done() for task in tasks):
        await turns()
        if not flushes.gates[-1].done():
            flushes.finish()
    assert flushes.batches == [["a", "b", "c"], ["d"], ["e"], ["f"]]


async def test_a_batch_is_half_of_what_is_under_way_so_that_one_half_is_flushed_while_the_other_is_answered() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    tasks = [submit(group, "a")]
    await turns()
    tasks += [submit(group, "b") for _ in range(64)]
    await turns()
    flushes.finish()  # 64 wait, 1 was answered
    await turns()
    flushes.finish()  # 31 wait, 33 were answered
    await turns()
    tasks += [submit(group, "c") for _ in range(33)]
    await turns()
    flushes.finish()  # 33 wait, 31 were answered
    await turns()
    flushes.finish()  # the last one, and 32 that were answered and do not come again
    await turns()
    flushes.finish()
    await asyncio.gather(*tasks)
    assert [len(batch) for batch in flushes.batches] == [1, 33, 31, 32, 1]


async def test_a_few_are_never_halved() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    tasks = [submit(group, str(place)) for place in range(WORTH_HALVING)]
    await turns()
    flushes.finish()
    await asyncio.gather(*tasks)
    assert [len(batch) for batch in flushes.batches] == [WORTH_HALVING]


@given(st.integers(0, 10**6))
def test_whatever_is_under_way_two_halves_are_all_of_it(under_way: int) -> None:
    assert 2 * half(under_way) >= under_way


async def test_with_turns_it_lets_more_come_until_a_turn_brings_none() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes, turns=5)
    tasks = [submit(group, "a"), submit(group, "b")]
    for item in "cde":
        await asyncio.sleep(0)
        tasks.append(submit(group, item))
    assert not flushes.batches
    await turns()
    assert flushes.batches == [["a", "b", "c", "d", "e"]]
    flushes.finish()
    await asyncio.gather(*tasks)


async def test_one_turn_that_brings_none_does_not_end_the_waiting_two_do() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes, turns=9)
    heard: list[str | Exception] = []
    group.put("a", 1, 60.0, heard.append)
    for item in "bcd":
        group.put(item, 1, 60.0, heard.append)
        await turns(2)
        assert not flushes.batches
    await turns(2)
    assert flushes.batches == [["a", "b", "c", "d"]]
    flushes.finish()
    await turns()
    assert heard == ["A", "B", "C", "D"]


async def test_those_that_join_an_item_count_as_what_comes() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes, turns=9)
    only = submit(group, "a")
    await asyncio.sleep(0)
    group.joined()
    for _ in range(3):
        await asyncio.sleep(0)
        group.joined()
    assert not flushes.batches
    await turns()
    assert flushes.batches == [["a"]]
    flushes.finish()
    assert await only == "A"


async def test_with_turns_it_waits_for_so_many_at_most() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes, turns=3)
    tasks = [submit(group, "first"), submit(group, "second")]
    while not flushes.batches:
        await asyncio.sleep(0)
        tasks.append(submit(group, "one a turn"))
    assert 2 <= len(flushes.batches[0]) <= 6
    while not all(task.done() for task in tasks):
        await turns()
        if not flushes.gates[-1].done():
            flushes.finish()


async def test_with_turns_an_item_on_its_own_does_not_wait() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes, turns=1000)
    alone = submit(group, "a")
    for _ in range(4):
        await asyncio.sleep(0)
    assert flushes.batches == [["a"]]
    flushes.finish()
    assert await alone == "A"


async def test_over_the_bound_of_waiting_items_it_refuses_at_once() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes, max_waiting=2)
    taken = submit(group, "a")
    await turns()
    waiting = [submit(group, item) for item in "bc"]
    await turns()
    with pytest.raises(Unavailable, match="too many"):
        await group.submit("d", 1, 60.0)
    flushes.finish()
    await turns()
    flushes.finish()
    assert await asyncio.gather(taken, *waiting) == ["A", "B", "C"]


async def test_out_of_time_before_it_was_sent_is_unavailable_and_it_is_never_sent() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    first = submit(group, "a")
    await turns()
    late = submit(group, "b", limit=0.0)
    with pytest.raises(Unavailable):
        await late
    flushes.finish()
    await first
    await turns()
    assert flushes.batches == [["a"]]


async def test_out_of_time_after_it_was_sent_is_unknown() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    sent = submit(group, "a", limit=0.001)
    with pytest.raises(OutcomeUnknown) as unknown:
        await sent
    assert unknown.value.cause == "timeout"
    flushes.finish()
    await group.close()


async def test_a_caller_that_goes_before_it_was_sent_is_left_out_and_one_that_goes_after_changes_nothing() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    sent, beside = submit(group, "a"), submit(group, "b")
    await turns()
    gone, stays = submit(group, "c"), submit(group, "d")
    await turns()
    sent.cancel()
    gone.cancel()
    await turns()
    flushes.finish()
    await turns()
    flushes.finish()
    assert await asyncio.gather(beside, stays) == ["B", "D"]
    assert [item for batch in flushes.batches for item in batch] == ["a", "b", "d"]


async def test_an_error_for_one_item_is_its_callers_alone() -> None:
    async def flush(items: list[str]) -> Sequence[str | FencegateError]:
        return [Unavailable("no") if item == "b" else item for item in items]

    group: GroupCommit[str, str] = GroupCommit(flush)
    results = await asyncio.gather(*(group.submit(item, 1, 60.0) for item in "abc"), return_exceptions=True)
    assert results[0::2] == ["a", "c"]
    assert isinstance(results[1], Unavailable)


async def test_a_flush_that_raises_leaves_its_batch_unknown_and_the_next_is_sent() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    broken = submit(group, "a")
    await turns()
    following = submit(group, "b")
    await turns()
    flushes.finish(RuntimeError("broken"))
    with pytest.raises(OutcomeUnknown, match="broken"):
        await broken
    await turns()
    flushes.finish()
    assert await following == "B"


async def test_a_flush_that_answers_for_too_few_or_too_many_tells_nobody_anything() -> None:
    for wrong in ([], ["x"], ["x", "y", "z"]):

        async def flush(items: list[str], answers: list[str] = wrong) -> Sequence[str]:
            return answers

        group: GroupCommit[str, str] = GroupCommit(flush)
        results = await asyncio.gather(submit(group, "a"), submit(group, "b"), return_exceptions=True)
        assert all(isinstance(r, OutcomeUnknown) for r in results), results


async def test_closing_takes_no_more_and_waits_for_what_was_taken() -> None:
    flushes = Flushes()
    group: GroupCommit[str, str] = GroupCommit(flushes)
    taken = submit(group, "a")
    await turns()
    closing = asyncio.create_task(group.close())
    await turns()
    assert not closing.done()
    with pytest.raises(Unavailable, match="being closed"):
        await group.submit("b", 1, 60.0)
    flushes.finish()
    await closing
    assert await taken == "A"
    await group.close()


TOOK = 0.01
"""Seconds of virtual time that a flush takes."""


class Slow:
    """A flush that takes :data:`TOOK`, and notes when it began and how many it took."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, int]] = []
        self.began = asyncio.get_running_loop().time()

    async def __call__(self, items: list[str]) -> Sequence[str | FencegateError]:
        self.batches.append((round(asyncio.get_running_loop().time() - self.began, 4), len(items)))
        await asyncio.sleep(TOOK)
        return items


async def _answered(group: GroupCommit[str, str], count: int) -> None:
    await asyncio.gather(*(group.submit("x", 1, 60.0) for _ in range(count)))


@pytest.mark.parametrize("count", [WORTH_HALVING, 40])
def test_where_others_flush_too_those_that_were_answered_are_waited_for_and_go_together(count: int) -> None:
    async def scene() -> list[tuple[float, int]]:
        flush = Slow()
        group: GroupCommit[str, str] = GroupCommit(flush, shared=lambda: True)
        await _answered(group, count)
        early = [asyncio.create_task(_answered(group, 1)) for _ in range(count - 1)]
        await asyncio.sleep(LONGEST_GATHERING / 2)
        await asyncio.gather(*early, _answered(group, 1))
        return flush.batches

    assert run_in_virtual_time(scene()) == [(0, count), (TOOK + LONGEST_GATHERING / 2, count)]


def test_where_others_flush_too_nobody_is_waited_for_longer_than_a_moment() -> None:
    async def scene() -> list[tuple[float, int]]:
        flush = Slow()
        group: GroupCommit[str, str] = GroupCommit(flush, shared=lambda: True)
        await _answered(group, 40)
        await _answered(group, 3)
        await _answered(group, 1)
        return flush.batches

    second = TOOK + LONGEST_GATHERING
    assert run_in_virtual_time(scene()) == [(0, 40), (second, 3), (second + TOOK, 1)]


def test_where_others_flush_too_a_batch_is_all_that_waits() -> None:
    async def scene() -> list[tuple[float, int]]:
        flush = Slow()
        group: GroupCommit[str, str] = GroupCommit(flush, shared=lambda: True)
        first = asyncio.create_task(_answered(group, 10))
        await asyncio.sleep(TOOK / 2)
        await asyncio.gather(first, _answered(group, 90))
        return flush.batches

    assert run_in_virtual_time(scene()) == [(0, 10), (TOOK + LONGEST_GATHERING, 90)]


def test_alone_nobody_is_waited_for() -> None:
    async def scene() -> list[tuple[float, int]]:
        flush = Slow()
        group: GroupCommit[str, str] = GroupCommit(flush)
        await _answered(group, 40)
        await _answered(group, 3)
        return flush.batches

    assert run_in_virtual_time(scene()) == [(0, 20), (TOOK, 20), (2 * TOOK, 3)]
