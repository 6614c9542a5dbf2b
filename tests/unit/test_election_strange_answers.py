"""A source that breaks its contract has not answered: whoever asks it goes on, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencegate.election.etcd_txn import TxnAnswer
from fencegate.election.followers import Followers
from fencegate.election.strange_answers import asking, reading
from fencegate.election.view import ElectionView
from fencegate.errors import Unavailable
from fencegate.lease import ElectionUnavailable, LeaseLost, LeaseTimings, Term
from fencegate.observations import Observation, SourceUnavailable
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import run_in_virtual_time

TIMINGS = LeaseTimings()
ROLE = "ledger"


class Broken(MemoryElection):
    """Raises what no contract knows, from each of its ways, and goes on to do so."""

    def __init__(self, quorum: MemoryQuorum) -> None:
        super().__init__(quorum, TIMINGS)
        self.reads = self.watches = 0

    async def read(self, role: str, deadline: float) -> Term | None:
        self.reads += 1
        raise KeyError("header")

    async def changes(self, role: str) -> AsyncIterator[None]:
        self.watches += 1
        yield
        raise RecursionError


@pytest.mark.parametrize("error", [KeyError("kvs"), TypeError(), ValueError(), RecursionError(), OverflowError()])
def test_what_taking_an_answer_apart_raises_is_unavailable_with_its_cause(error: Exception) -> None:
    with pytest.raises(ElectionUnavailable, match="not as etcd answers") as raised, reading("etcd"):
        raise error
    assert raised.value.__cause__ is error
    assert raised.value.cause == "refused"


@pytest.mark.parametrize("error", [LeaseLost(), Unavailable(), NotImplementedError(), asyncio.CancelledError()])
def test_what_the_contract_knows_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, asking("etcd"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"header": 1},
        {"header": {"revision": "x"}},
        {"header": {"revision": "1"}, "responses": 5},
        {"header": {"revision": "1"}, "responses": [{"response_range": {"kvs": ["k"]}}]},
        {"header": {"revision": "1"}, "responses": [{"response_range": {"kvs": [{"key": "a"}]}}]},
    ],
)
def test_what_is_no_answer_to_a_transaction_of_etcd_is_unavailable(raw: dict[str, Any]) -> None:
    with pytest.raises(ElectionUnavailable):
        TxnAnswer(raw)


def test_only_true_says_that_a_transaction_of_etcd_succeeded() -> None:
    for said in ("false", "true", 1, [0], None):
        assert not TxnAnswer({"header": {"revision": "1"}, "succeeded": said}).succeeded
    with pytest.raises(ElectionUnavailable, match="2 reads"):
        TxnAnswer({"header": {"revision": "1"}}).found(2)


def test_the_view_of_a_source_that_breaks_its_contract_goes_on_and_knows_nothing() -> None:
    told: list[Observation] = []

    async def story() -> None:
        source = Broken(MemoryQuorum(lambda: asyncio.get_running_loop().time()))
        view = ElectionView([ROLE], source, TIMINGS, told.append)
        task = asyncio.create_task(view.run())
        await asyncio.sleep(60)
        assert not task.done()
        assert not view.observed(ROLE).known
        with pytest.raises(Unavailable, match="KeyError"):
            await view.issued(ROLE, 1)
        assert source.reads > 10
        assert source.watches > 10
        task.cancel()
        await asyncio.wait([task])

    run_in_virtual_time(story())
    assert [type(fact) for fact in told] == [SourceUnavailable]


def test_the_follower_of_a_source_that_breaks_its_contract_goes_on_and_opens_nothing() -> None:
    told: list[Observation] = []

    async def story() -> None:
        def now() -> float:
            return asyncio.get_running_loop().time()

        source = Broken(MemoryQuorum(now))
        store = MemoryStore([ROLE], now, mode="token")
        task = asyncio.create_task(Followers([ROLE], source, store, TIMINGS, told.append).run())
        await asyncio.sleep(60)
        assert not task.done()
        assert source.reads > 10
        assert source.watches > 10
        task.cancel()
        await asyncio.wait([task])

    run_in_virtual_time(story())
    assert [type(fact) for fact in told] == [SourceUnavailable]
