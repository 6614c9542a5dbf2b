"""The lane without a store: grouping, order, and how a refused batch is narrowed down to its culprit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import Write
from fencegate.store.lane import CommittedTooLate, Lane, check_commit_time, group, in_order
from fencegate.store.link import Link


def refusal(sqlstate: str) -> asyncpg.PostgresError:
    error = asyncpg.PostgresError(f"refused with {sqlstate}")
    error.sqlstate = sqlstate
    return error


class Scripted:
    """A lane whose ``send`` raises what ``judge`` finds wrong with a batch. Items are "role/name"."""

    def __init__(
        self,
        judge: Callable[[list[str]], BaseException | None],
        *,
        alone: bool = False,
        patience: float = 60.0,
        takes: float = 0.0,
    ) -> None:
        self.sent: list[list[str]] = []
        self._judge = judge
        self._takes = takes
        link = Link("postgresql://nowhere", "unit", limit=1.0, statement_timeout=1.0)
        self.lane: Lane[str, str] = Lane(
            link,
            self._send,
            lambda item: item.endswith("!"),
            role=lambda item: item.split("/")[0],
            max_items=100,
            alone=alone,
            patience=patience,
        )

    async def _send(self, _: Link, items: list[str]) -> Sequence[str | FencegateError]:
        self.sent.append(items)
        await asyncio.sleep(self._takes)
        if error := self._judge(items):
            raise error
        return [item.upper() for item in items]

    async def submit(self, items: Sequence[str]) -> list[str | BaseException]:
        # The first one occupies the lane, so that the others travel together.
        first = asyncio.create_task(self.lane.submit("warm/up", 1, 60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        results = await asyncio.gather(*(self.lane.submit(i, 1, 60.0) for i in items), return_exceptions=True)
        await asyncio.gather(first, return_exceptions=True)
        self.sent = self.sent[1:]
        return list(results)


@given(st.sets(st.integers(0, 30), max_size=4), st.integers(1, 31))
def test_bisecting_isolates_the_culprits_and_everybody_else_gets_through(bad: set[int], count: int) -> None:
    async def run() -> None:
        culprits = {f"r/{n}" for n in bad}
        lane = Scripted(lambda items: refusal("22P02") if culprits & set(items) else None)
        items = [f"r/{n}" for n in range(count)]
        for item, result in zip(items, await lane.submit(items), strict=True):
            if item in culprits:
                assert isinstance(result, Unavailable)
                assert "22P02" in str(result)
            else:
                assert result == item.upper()
        landed = [item for batch in lane.sent if not culprits & set(batch) for item in batch]
        assert sorted(landed) == sorted(set(items) - culprits), "each lands in exactly one transaction"

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(run())


async def test_an_unknown_outcome_is_never_sent_again() -> None:
    lane = Scripted(lambda items: OutcomeUnknown("lost") if "r/1" in items else None)
    results = await lane.submit(["r/1", "r/2"])
    assert [type(r) for r in results] == [OutcomeUnknown, OutcomeUnknown]
    assert lane.sent == [["r/1", "r/2"]]


# Field case 57: opensearch-project/OpenSearch#22774.
@pytest.mark.parametrize("sqlstate", ["ZF001", "40001", "40P01", "55P03"])
async def test_a_conflict_is_tried_again_as_it_was(sqlstate: str) -> None:
    left = 2

    def judge(items: list[str]) -> BaseException | None:
        nonlocal left
        if items == ["warm/up"] or left == 0:
            return None
        left -= 1
        return refusal(sqlstate)

    lane = Scripted(judge)
    assert await lane.submit(["r/1", "r/2"]) == ["R/1", "R/2"]
    assert lane.sent == [["r/1", "r/2"]] * 3


@pytest.mark.parametrize("sqlstate", ["ZF501", "ZF404", "25006", "42P01", "53100"])
async def test_a_fault_of_the_store_is_not_looked_for_among_the_writes(sqlstate: str) -> None:
    lane = Scripted(lambda items: None if items == ["warm/up"] else refusal(sqlstate))
    results = await lane.submit([f"r/{n}" for n in range(8)])
    assert [type(r) for r in results] == [Unavailable] * 8
    assert len(lane.sent) == 1


async def test_a_time_out_is_narrowed_down_to_the_role_that_waits() -> None:
    lane = Scripted(lambda items: refusal("57014") if any(i.startswith("stuck/") for i in items) else None)
    results = await lane.submit(["stuck/1", "free/1", "stuck/2"])
    assert [type(r) for r in results] == [Unavailable, str, Unavailable]
    assert lane.sent == [["stuck/1", "free/1", "stuck/2"], ["stuck/1", "stuck/2"], ["free/1"]]


async def test_where_one_may_be_slow_by_itself_a_time_out_is_narrowed_down_one_by_one() -> None:
    lane = Scripted(lambda items: refusal("57014") if "r/slow" in items else None, alone=True)
    results = await lane.submit(["r/1", "r/slow", "r/2"])
    assert [type(r) for r in results] == [str, Unavailable, str]
    assert lane.sent[1:] == [["r/1"], ["r/slow"], ["r/2"]]


async def test_what_the_store_takes_one_by_one_is_sent_one_by_one_at_once() -> None:
    lane = Scripted(lambda items: refusal("ZF504") if len(items) > 1 else None)
    assert await lane.submit(["a/1", "a/2", "b/1"]) == ["A/1", "A/2", "B/1"]
    assert lane.sent == [["a/1", "a/2", "b/1"], ["a/1"], ["a/2"], ["b/1"]]


async def test_after_its_patience_the_rest_is_refused_and_not_sent() -> None:
    lane = Scripted(lambda items: None if items == ["warm/up"] else refusal("57014"), alone=True, patience=0.0)
    results = await lane.submit([f"r/{n}" for n in range(16)])
    assert [type(r) for r in results] == [Unavailable] * 16
    assert len(lane.sent) == 1


async def test_a_part_whose_turn_comes_after_the_lanes_patience_is_not_sent_again() -> None:
    """32 calls that each run into the server's time limit would otherwise hold up all others for two minutes."""
    stuck = Scripted(lambda items: refusal("57014"), alone=True, patience=0.2, takes=0.15)
    results = await stuck.submit(["r/1", "r/2", "r/3", "r/4", "r/5", "r/6"])
    assert [type(r) for r in results] == [Unavailable] * 6
    assert [len(batch) for batch in stuck.sent] in ([6], [6, 1])


async def test_patience_with_one_part_never_costs_another_its_first_try() -> None:
    lane = Scripted(lambda items: refusal("57014") if "r/1" in items else None, patience=0.0)
    assert [type(r) for r in await lane.submit(["r/1", "r/2!"])] == [Unavailable, str]


async def test_parts_travel_in_transactions_of_their_own_and_answers_find_their_way_back() -> None:
    lane = Scripted(lambda items: None)
    assert await lane.submit(["r/1", "r/2!", "r/3", "r/4!"]) == ["R/1", "R/2!", "R/3", "R/4!"]
    assert lane.sent == [["r/1", "r/3"], ["r/2!", "r/4!"]]


writes = st.builds(
    Write,
    role=st.sampled_from(["a", "b", "c"]),
    token=st.integers(1, 3),
    body=st.just(b""),
    issued=st.integers(0, 3),
    enforce=st.booleans(),
)


@given(st.lists(writes, max_size=40))
def test_groups_are_sorted_share_one_verdict_and_lose_nobody(batch: list[Write]) -> None:
    groups = group(batch)
    keys = [(g.role, g.token, g.enforce) for g in groups]
    assert keys == sorted(set(keys)), "roles in one order everywhere, older tokens first"
    for g in groups:
        assert [batch[place] for place in g.at] == list(g.items)
        assert list(g.at) == sorted(g.at)
        assert {(w.role, w.token, w.enforce) for w in g.items} == {(g.role, g.token, g.enforce)}  # type: ignore[union-attr]
        assert g.issued == max(w.issued for w in g.items)
    assert in_order(groups, [[id(w) for w in g.items] for g in groups]) == [id(w) for w in batch]


def test_a_commit_within_the_lease_is_vouched_for_and_a_later_one_is_not() -> None:
    check_commit_time(float("inf"), 1e9)
    check_commit_time(1.0, 0.999)
    with pytest.raises(CommittedTooLate):
        check_commit_time(1.0, 1.0)
