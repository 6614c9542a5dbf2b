"""A drain on request, in virtual time: it stops writes, ends by itself, and outlives neither its time nor its term."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fencegate.election.drain import Drains
from fencegate.election.elector import Elector
from fencegate.election.sealing import seal
from fencegate.errors import Unavailable
from fencegate.fence import Verdict
from fencegate.lease import Candidate, LeaseTimings
from fencegate.observations import DrainBegan, DrainEnded, LeadershipLost, Observation
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import run_in_virtual_time

TIMINGS = LeaseTimings()
ROLE = "ledger"


def now() -> float:
    return asyncio.get_running_loop().time()


class Region:
    """One region with its store, and its one node."""

    def __init__(self, quorum: MemoryQuorum, name: str = "eu") -> None:
        self.quorum = quorum
        self.told: list[Observation] = []
        self.store = MemoryStore([ROLE], now)
        who = Candidate(f"gw-{name}", name, f"https://{name}.example")
        self.elector = Elector(
            ROLE, who, MemoryElection(quorum, TIMINGS), self.store, TIMINGS, self.told.append, clock=now,
            jitter=lambda: 0.5,
        )  # fmt: skip
        self.drains = Drains(self.elector, self.store, TIMINGS, self.told.append)

    async def leads(self) -> int:
        async with asyncio.timeout(60):
            while self.elector.token is None:
                await self.elector.changed()
        return self.elector.token

    async def writes(self) -> Verdict:
        """What a write of the term that the store knows gets."""
        row = await self.store.read(ROLE)
        return self.store.write(ROLE, row.max_token_seen if row else 0)


def in_region(story: Callable[[Region, int], Awaitable[None]]) -> None:
    async def play() -> None:
        region = Region(MemoryQuorum(now))
        running = asyncio.create_task(region.elector.run())
        try:
            await story(region, await region.leads())
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    run_in_virtual_time(play())


def test_writes_stop_at_once_and_are_taken_again_when_the_time_is_over() -> None:
    async def story(region: Region, token: int) -> None:
        result = await region.drains.begin(60)
        assert (result.outcome, result.token) == ("drained", token)
        assert result.left == pytest.approx(60, abs=1)
        assert await region.writes() is Verdict.DRAINING
        await asyncio.sleep(58)  # several leases: the renewals take nothing back
        assert await region.writes() is Verdict.DRAINING
        await asyncio.sleep(3)
        assert await region.writes() is Verdict.ADMIT
        assert region.elector.token == token
        assert [fact for fact in region.told if isinstance(fact, DrainBegan | DrainEnded)] == [
            DrainBegan(ROLE, token, 60),
            DrainEnded(ROLE, token, "resumed"),
        ]

    in_region(story)


def test_writes_that_do_not_end_are_told_and_the_drain_goes_on() -> None:
    async def story(region: Region, _: int) -> None:
        region.store.under_way[ROLE] = 2
        begun = asyncio.create_task(region.drains.begin(60))
        await asyncio.sleep(5)
        region.store.down = True
        result = await begun
        assert (result.outcome, result.detail[:38]) == ("draining", "No write begins. Writes still under wa")
        assert result.left == pytest.approx(55, abs=1)

    in_region(story)


def test_a_drain_that_was_over_before_the_writes_had_ended_does_not_say_that_none_begins() -> None:
    async def story(region: Region, _: int) -> None:
        region.store.under_way[ROLE] = 2
        result = await region.drains.begin(5)
        assert result.outcome == "undone"
        assert result.detail == "It ended with 2 writes under way; writes are taken again."
        await asyncio.sleep(1)
        assert await region.writes() is Verdict.ADMIT

    in_region(story)


def test_whoever_drains_and_whoever_resumes_at_one_moment_are_told_what_became_of_it() -> None:
    async def story(region: Region, _: int) -> None:
        mark, free = region.store.set_draining, asyncio.Event()

        async def slowly(role: str, token: int, draining: bool) -> bool:
            await free.wait()
            return await mark(role, token, draining)

        region.store.set_draining = slowly  # type: ignore[method-assign]
        begun = asyncio.create_task(region.drains.begin(60))
        await asyncio.sleep(0.5)
        resumed = asyncio.create_task(region.drains.resume())
        await asyncio.sleep(0.5)
        free.set()
        assert (await begun).outcome == "resumed"
        assert (await resumed).outcome == "resumed"
        assert await region.writes() is Verdict.ADMIT

        await region.drains.begin(60)
        free.clear()
        resumed = asyncio.create_task(region.drains.resume())
        await asyncio.sleep(0.5)
        begun = asyncio.create_task(region.drains.begin(60))
        await asyncio.sleep(0.5)
        free.set()
        assert (await begun).outcome == "drained"
        told = await resumed
        assert (told.outcome, told.detail) == ("draining", "A drain was asked for meanwhile.")
        assert told.left is not None
        assert told.left > 40
        assert await region.writes() is Verdict.DRAINING

    in_region(story)


def test_whoever_resumes_a_term_that_ends_meanwhile_is_not_told_that_writes_are_taken() -> None:
    async def story(region: Region, _: int) -> None:
        await region.drains.begin(60)
        region.store.down = True
        await asyncio.sleep(5)
        told = await region.drains.resume()
        assert region.elector.token is None
        assert (told.outcome, told.detail) == ("not_here", "The term ended meanwhile.")

    in_region(story)


def test_asking_again_moves_the_end_and_resume_ends_it_now() -> None:
    async def story(region: Region, _: int) -> None:
        await region.drains.begin(5)
        await region.drains.begin(60)
        await asyncio.sleep(30)
        assert await region.writes() is Verdict.DRAINING
        assert (await region.drains.resume()).outcome == "resumed"
        assert await region.writes() is Verdict.ADMIT
        assert (await region.drains.resume()).outcome == "not_draining"
        assert sum(isinstance(fact, DrainBegan) for fact in region.told) == 1

    in_region(story)


def test_a_stop_that_the_store_carries_out_late_is_taken_back_by_the_next_renewal() -> None:
    async def story(region: Region, token: int) -> None:
        await region.drains.begin(60)
        await region.drains.resume()
        await region.store.set_draining(ROLE, token, True)  # an earlier call's, delayed on its way
        await asyncio.sleep(2 * TIMINGS.retry_period)
        assert await region.writes() is Verdict.ADMIT
        await asyncio.sleep(2 * TIMINGS.lease_duration)
        region.store.calls.clear()
        await asyncio.sleep(2 * TIMINGS.retry_period)
        assert "set_draining" not in region.store.calls, "not for ever"

    in_region(story)


def test_a_late_stop_of_the_second_drain_is_taken_back_however_shortly_it_came_after_the_first() -> None:
    async def story(region: Region, token: int) -> None:
        for pause in (TIMINGS.lease_duration - 1, 2):
            await region.drains.begin(60)
            await region.drains.resume()
            await asyncio.sleep(pause)
        await region.store.set_draining(ROLE, token, True)  # the second drain's, delayed on its way
        await asyncio.sleep(2 * TIMINGS.retry_period)
        assert await region.writes() is Verdict.ADMIT

    in_region(story)


def test_a_store_that_is_down_undoes_the_drain_and_writes_come_back_with_it() -> None:
    async def story(region: Region, token: int) -> None:
        region.store.down = True
        assert (await region.drains.begin(60)).outcome == "undone"
        region.store.down = False
        await asyncio.sleep(TIMINGS.retry_period * 2)
        assert region.elector.token == token
        assert await region.writes() is Verdict.ADMIT

        await region.drains.begin(5)
        region.store.down = True
        await asyncio.sleep(6)
        region.store.down = False
        await asyncio.sleep(TIMINGS.retry_period * 2)
        assert region.elector.token == token
        assert await region.writes() is Verdict.ADMIT

    in_region(story)


def test_a_drain_that_is_asked_for_while_an_earlier_one_is_still_being_ended_holds() -> None:
    async def story(region: Region, token: int) -> None:
        await region.drains.begin(5)
        region.store.down = True
        await asyncio.sleep(5.5)  # its time is over, and the store does not say that it takes writes again
        region.store.down = False
        result = await region.drains.begin(60)
        assert (result.outcome, result.left) == ("drained", pytest.approx(60, abs=1))
        for _ in range(50):
            await asyncio.sleep(1)
            assert await region.writes() is Verdict.DRAINING
        await asyncio.sleep(15)
        assert await region.writes() is Verdict.ADMIT
        assert region.elector.token == token

    in_region(story)


def test_a_drain_is_not_undone_by_a_renewal_that_is_just_taking_writes_again_after_the_last_one() -> None:
    async def story(region: Region, _: int) -> None:
        await region.drains.begin(5)
        await region.drains.resume()
        mark, late = region.store.set_draining, asyncio.Event()

        async def slowly(role: str, token: int, draining: bool) -> bool:
            if not draining:
                late.set()
                await asyncio.sleep(0.3)  # the statement is on its way
            return await mark(role, token, draining)

        region.store.set_draining = slowly  # type: ignore[method-assign]
        await late.wait()
        assert (await region.drains.begin(60)).outcome == "drained"
        for _second in range(50):
            assert await region.writes() is Verdict.DRAINING
            await asyncio.sleep(1)

    in_region(story)


def test_a_drain_of_the_next_term_is_its_own_while_the_last_terms_is_still_being_ended() -> None:
    async def story(region: Region, token: int) -> None:
        mark, stuck = region.store.set_draining, asyncio.Event()

        async def slowly(role: str, asked: int, draining: bool) -> bool:
            if asked == token and not draining and not stuck.is_set():
                stuck.set()
                await asyncio.sleep(9)
            return await mark(role, asked, draining)

        await region.drains.begin(5)
        region.store.set_draining = slowly  # type: ignore[method-assign]
        await stuck.wait()
        region.quorum.holders.clear()  # the election says that the term is lost, and the next one is ours again
        while region.elector.token == token:
            await region.elector.changed()
        assert await region.leads() > token
        result = await region.drains.begin(60)
        assert (result.outcome, result.left) == ("drained", pytest.approx(55, abs=5))
        await asyncio.sleep((result.left or 0) - 2)
        assert await region.writes() is Verdict.DRAINING
        await asyncio.sleep(4)
        assert await region.writes() is Verdict.ADMIT

    in_region(story)


def test_a_store_that_is_down_at_the_end_of_a_drain_is_asked_at_its_pace() -> None:
    async def story(region: Region, token: int) -> None:
        await region.drains.begin(60)
        region.store.down = True
        region.store.calls.clear()
        resuming = asyncio.create_task(region.drains.resume())
        await asyncio.sleep(2 * TIMINGS.retry_period)
        assert region.store.calls.count("set_draining") < 10
        region.store.down = False
        assert (await resuming).outcome == "resumed"
        assert await region.writes() is Verdict.ADMIT
        assert region.elector.token == token

    in_region(story)


def test_the_end_of_the_term_ends_the_drain_and_the_next_term_takes_writes() -> None:
    async def story(region: Region, token: int) -> None:
        await region.drains.begin(600)
        assert await region.elector.resign("resigned", 10)
        await asyncio.sleep(0.1)
        assert DrainEnded(ROLE, token, "term_over") in region.told
        assert await region.leads() > token
        assert await region.writes() is Verdict.ADMIT
        assert (await region.drains.resume()).outcome == "not_draining"

    in_region(story)


def test_what_cannot_be_drained_is_refused_before_anything_is_stopped() -> None:
    async def story(region: Region, token: int) -> None:
        assert (await region.drains.begin(5, token - 1)).outcome == "other_term"
        assert await region.elector.resign("resigned", 10)
        assert (await region.drains.begin(5)).outcome == "not_here"
        assert not [fact for fact in region.told if isinstance(fact, DrainBegan)]

    in_region(story)


def test_a_handoff_keeps_a_drain_out_and_its_undo_does_not_end_one_that_was_there() -> None:
    async def story(region: Region, token: int) -> None:
        await region.drains.begin(600)
        region.store.under_way[ROLE] = 1  # so that the handoff has to be undone
        asked = asyncio.create_task(region.elector.hand_over("dr", 5))
        await asyncio.sleep(1)
        assert (await region.drains.begin(5)).outcome == "busy"
        ended = await asked
        assert ended is not None
        assert ended.outcome == "undone"
        assert region.elector.token == token
        await asyncio.sleep(TIMINGS.lease_duration)
        assert await region.writes() is Verdict.DRAINING

    in_region(story)


def test_a_drain_that_ends_during_a_handoff_leaves_the_writes_stopped_until_the_handoff_has_ended() -> None:
    async def story(region: Region, token: int) -> None:
        await region.drains.begin(5)
        region.store.under_way[ROLE] = 1  # so that the handoff has to be undone
        asked = asyncio.create_task(region.elector.hand_over("dr", 10))
        await asyncio.sleep(4)
        for _ in range(40):
            assert region.elector.handing is not None
            assert await region.writes() is Verdict.DRAINING
            await asyncio.sleep(0.1)
        ended = await asked
        assert ended is not None
        assert ended.outcome == "undone"
        await asyncio.sleep(1)
        assert await region.writes() is Verdict.ADMIT
        assert DrainEnded(ROLE, token, "resumed") in region.told

    in_region(story)


# -- a seal -----------------------------------------------------------------------------------------


def test_a_seal_where_the_leader_runs_ends_its_term_in_order_and_is_final() -> None:
    async def story(region: Region, token: int) -> None:
        electors, store = {ROLE: region.elector}, region.store
        wrong = await seal(ROLE, token + 1, 10, electors=electors, store=store)
        assert wrong.outcome == "other_term"
        assert region.elector.token == token

        done = await seal(ROLE, token, 10, electors=electors, store=store)
        assert done.outcome == "sealed"
        assert LeadershipLost(ROLE, token, "resigned") in region.told
        row = await store.read(ROLE)
        assert row is not None
        assert row.sealed == token
        assert store.write(ROLE, token) is not Verdict.ADMIT
        assert (await seal(ROLE, token, 10, electors=electors, store=store)).outcome == "already"

    in_region(story)


def test_a_seal_from_another_gateway_closes_the_store_and_the_leader_steps_down() -> None:
    async def story(region: Region, token: int) -> None:
        assert (await seal(ROLE, token, 10, electors={}, store=region.store)).outcome == "sealed"
        assert await region.writes() is not Verdict.ADMIT
        await asyncio.sleep(2 * TIMINGS.retry_period)
        assert region.elector.token is None
        assert LeadershipLost(ROLE, token, "sealed") in region.told

    in_region(story)


def test_a_store_that_does_not_answer_has_not_been_sealed_and_that_is_said() -> None:
    async def story(region: Region, token: int) -> None:
        region.store.down = True
        with pytest.raises(Unavailable):
            await seal(ROLE, token, 1, electors={}, store=region.store)
        region.store.down = False
        real: Any = region.store.seal

        async def lost(*arguments: Any) -> bool:
            raise Unavailable("the answer was lost")

        region.store.seal = lost  # type: ignore[method-assign]
        assert (await seal(ROLE, token, 1, electors={}, store=region.store)).outcome == "lapsing"
        region.store.seal = real  # type: ignore[method-assign]
        assert (await seal("other", token, 1, electors={}, store=region.store)).outcome == "other_term"

    in_region(story)
