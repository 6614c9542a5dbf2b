from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fencegate.election.elector import Elector
from fencegate.election.shared_read import READ_SPACING, SharedRead
from fencegate.election.view import ElectionView
from fencegate.errors import Unavailable
from fencegate.lease import Candidate, LeaseTimings, SealRecord, Term
from fencegate.observations import LeaderObserved, Observation, SourceUnavailable
from fencegate.testing.background import in_background
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.virtual_time import run_in_virtual_time

TIMINGS = LeaseTimings()
ROLE = "ledger"
EU = Candidate("gw-eu", "eu", "https://eu.example")


def now() -> float:
    return asyncio.get_running_loop().time()


class Scene:
    def __init__(self, **options: object) -> None:
        self.quorum = MemoryQuorum(now)
        self.holder = MemoryElection(self.quorum, TIMINGS)
        self.backend = MemoryElection(self.quorum, TIMINGS)
        self.told: list[Observation] = []
        self.view = ElectionView([ROLE], self.backend, TIMINGS, self.told.append, clock=now, **options)  # type: ignore[arg-type]

    async def lead(self, *, active: bool = True) -> None:
        await self.holder.acquire(ROLE, EU, 1)
        await self.holder.renew(ROLE, 1, EU, active=active, deadline=1)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ElectionView]:
        async with in_background(self.view.run()):
            await asyncio.sleep(0.5)
            yield self.view


def test_before_its_first_answer_nothing_is_known() -> None:
    async def story() -> None:
        seen = Scene().view.observed(ROLE)
        assert (seen.known, seen.term, seen.candidacy) == (False, None, "")

    run_in_virtual_time(story())


def test_a_role_that_is_not_watched_is_unknown_and_cannot_be_read() -> None:
    async def story() -> None:
        view = Scene().view
        assert not view.observed("other").known
        with pytest.raises(Unavailable, match="not watched"):
            await view.issued("other", 1)

    run_in_virtual_time(story())


def test_it_shows_an_active_term_and_says_so_once() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead()
        async with scene.running() as view:
            await asyncio.sleep(9)
            seen = view.observed(ROLE)
            assert seen.known
            assert seen.term is not None
            assert (seen.term.token, seen.term.url) == (1, "https://eu.example")
            assert seen.age <= 2.0
        assert scene.told == [LeaderObserved(ROLE, 1, "eu", "gw-eu")]

    run_in_virtual_time(story())


def test_a_term_that_is_not_claimed_yet_is_shown_to_nobody() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead(active=False)
        async with scene.running() as view:
            assert view.observed(ROLE).known
            assert view.observed(ROLE).term is None
            assert await view.issued(ROLE, 1) is None

    run_in_virtual_time(story())


# Field case 73: superfly/litefs#76, superfly/litefs#386.
def test_a_hint_is_followed_by_a_look_at_once() -> None:
    async def story() -> None:
        scene = Scene()
        async with scene.running() as view:
            await asyncio.sleep(3.7)
            await scene.lead()
            await asyncio.sleep(0.2)
            assert view.observed(ROLE).term is not None

    run_in_virtual_time(story())


# Field case 51: MagicStack/asyncpg#519, MagicStack/asyncpg#283, MagicStack/asyncpg#189, brianc/node-postgres#967,
#   launchbadge/sqlx#447.
def test_without_any_hint_it_still_sees_the_change_within_a_retry_period() -> None:
    async def story() -> None:
        scene = Scene()
        async with scene.running() as view:
            scene.quorum.listeners[ROLE].clear()  # the watch has gone silent, for ever
            await scene.lead()
            await asyncio.sleep(TIMINGS.retry_period + 0.1)
            assert view.observed(ROLE).term is not None

    run_in_virtual_time(story())


def test_without_an_answer_for_a_lease_nothing_is_known_any_more_and_it_is_said_once() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead()
        async with scene.running() as view:
            scene.backend.cut = True
            await asyncio.sleep(TIMINGS.lease_duration - 2)
            assert view.observed(ROLE).known
            await asyncio.sleep(2)
            assert not view.observed(ROLE).known
            assert view.observed(ROLE).term is None
            scene.backend.cut = False
            await asyncio.sleep(3)
            assert view.observed(ROLE).known
        assert sum(isinstance(fact, SourceUnavailable) for fact in scene.told) == 1

    run_in_virtual_time(story())


def test_issued_is_a_read_begun_after_the_call() -> None:
    async def story() -> None:
        scene = Scene()
        began: list[float] = []
        terms = iter(range(1, 100))

        async def read(role: str, deadline: float) -> Term | None:
            began.append(now())
            token = next(terms)
            await asyncio.sleep(1)
            return Term(role, token, "n", "eu", "", True, 15)

        scene.backend.read = read  # type: ignore[method-assign]
        first = asyncio.create_task(scene.view.issued(ROLE, 5))
        await asyncio.sleep(0.5)
        called_at = now()
        late = await asyncio.gather(*(scene.view.issued(ROLE, 5) for _ in range(500)))

        assert (await first or late[0]) is not None
        assert {term.token for term in late if term} == {2}
        assert began[1] >= called_at
        assert len(began) == 2, "500 forged tokens cost one read"

    run_in_virtual_time(story())


def test_reads_of_a_role_keep_their_distance() -> None:
    async def story() -> None:
        scene = Scene()
        for _ in range(20):
            await scene.view.issued(ROLE, 5)
        assert now() - 1000 == pytest.approx(19 * READ_SPACING)

    run_in_virtual_time(story())


def test_what_a_later_read_has_said_is_not_taken_back_by_an_earlier_one_that_took_longer() -> None:
    async def story() -> None:
        scene = Scene()
        answers = iter([(2.0, 1), (0.1, 2)])

        async def read(role: str, deadline: float) -> Term | None:
            takes, token = next(answers)
            await asyncio.sleep(takes)
            return Term(role, token, f"n{token}", "eu", "", True, 15)

        scene.backend.read = read  # type: ignore[method-assign]
        looking = asyncio.create_task(scene.view.run())
        await asyncio.sleep(0.01)
        assert (await scene.view.issued(ROLE, 5)) == Term(ROLE, 2, "n2", "eu", "", True, 15)
        await asyncio.sleep(1.95)
        looking.cancel()

        assert scene.told == [LeaderObserved(ROLE, 2, "eu", "n2")]

    run_in_virtual_time(story())


def test_nothing_is_kept_of_a_role_about_which_nobody_asks_any_more() -> None:
    async def story() -> None:
        scene = Scene()
        async with scene.running() as view:
            await view.issued(ROLE, 5)
            assert len(view._reads) == 1
            await asyncio.sleep(2 * TIMINGS.retry_period)
            assert view._reads == {}

    run_in_virtual_time(story())


def test_issued_without_an_election_is_unavailable() -> None:
    async def story() -> None:
        scene = Scene()
        scene.backend.cut = True
        with pytest.raises(Unavailable):
            await scene.view.issued(ROLE, 1)
        scene.backend.hanging = True
        began = now()
        with pytest.raises(Unavailable, match="within 1 s"):
            await scene.view.issued(ROLE, 1)
        assert now() - began == pytest.approx(1)

    run_in_virtual_time(story())


def test_when_the_view_ends_no_read_goes_on_and_whoever_waits_is_told() -> None:
    async def story() -> None:
        scene = Scene()
        async with scene.running() as view:
            scene.backend.hanging = True
            await asyncio.sleep(3)
            waiting = asyncio.create_task(view.issued(ROLE, 100))
            await asyncio.sleep(0.1)
        with pytest.raises(Unavailable, match="ended"):
            await waiting
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        scene.backend.hanging = False
        assert await scene.view.issued(ROLE, 1) is None

    run_in_virtual_time(story())


def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    async def story() -> None:
        scene = Scene()
        scene.backend.hanging = True
        waiting = asyncio.create_task(scene.view.issued(ROLE, 100))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run_in_virtual_time(story())


def test_a_read_whose_callers_have_all_gone_fails_in_silence() -> None:
    async def story() -> None:
        async def read() -> Term | None:
            await asyncio.sleep(1)
            raise Unavailable("too late")

        shared = SharedRead(read, 0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(shared.next(), 0.5)
        await asyncio.sleep(2)

    run_in_virtual_time(story())


def test_it_tells_what_the_local_elector_does_and_hints_to_it() -> None:
    async def story() -> None:
        quorum = MemoryQuorum(now)
        backend = MemoryElection(quorum, TIMINGS)
        store = MemoryStore([ROLE], now)
        elector = Elector(ROLE, EU, backend, store, TIMINGS, lambda _: None, clock=now)
        view = ElectionView([ROLE], backend, TIMINGS, lambda _: None, electors={ROLE: elector}, clock=now)
        async with asyncio.TaskGroup() as group:
            viewing = group.create_task(view.run())
            group.create_task(elector.run())
            await asyncio.sleep(0.5)
            assert view.observed(ROLE).candidacy == "leading"
            seen = view.observed(ROLE).term
            assert seen is not None
            assert seen.token == elector.token
            store.hanging = {"seal"}
            leaving = group.create_task(elector.stop(5))
            await asyncio.sleep(0.1)
            assert view.observed(ROLE).candidacy == "resigning"
            store.hanging = set()
            await leaving
            await asyncio.sleep(30)
            assert view.observed(ROLE).candidacy == ""
            viewing.cancel()

    run_in_virtual_time(story())


def test_a_handoffs_successor_is_looked_up_so_that_refusals_can_name_its_origin() -> None:
    async def story() -> None:
        origins = {"eu": "https://eu.example"}
        scene = Scene(origins=origins)
        await scene.lead()
        waiting = MemoryElection(scene.quorum, TIMINGS)
        await waiting.acquire(ROLE, Candidate("gw-dr", "dr", "https://dr.example"), 1)
        async with scene.running() as view:
            assert "candidates" not in scene.backend.calls
            await scene.holder.renew(ROLE, 1, replace(EU, draining_to="dr"), active=True, deadline=1)
            await asyncio.sleep(0.5)

            term = view.observed(ROLE).term
            assert term is not None
            assert term.draining_to == "dr"
            assert origins == {"eu": "https://eu.example", "dr": "https://dr.example"}

    run_in_virtual_time(story())


def test_a_region_that_advertises_another_origin_by_its_next_handoff_is_not_named_by_the_old_one() -> None:
    async def story() -> None:
        origins = {"eu": "https://eu.example"}
        scene = Scene(origins=origins)
        await scene.lead()
        waiting, beside = MemoryElection(scene.quorum, TIMINGS), MemoryElection(scene.quorum, TIMINGS)
        async with scene.running():
            for url in ("https://dr.example", "https://new-dr.example"):
                await waiting.acquire(ROLE, Candidate("gw-dr", "dr", url), 1)
                await beside.acquire(ROLE, Candidate("gw-eu-2", "eu", "https://elsewhere.example"), 1)
                for successor in ("dr", None):  # begun, and taken back
                    await scene.holder.renew(ROLE, 1, replace(EU, draining_to=successor), active=True, deadline=1)
                    await asyncio.sleep(TIMINGS.retry_period * 2)
                assert origins == {"eu": "https://eu.example", "dr": url}, "our own is as configured"
                await waiting.withdraw(ROLE, 1)
                for _ in range(10):
                    await asyncio.sleep(TIMINGS.lease_duration / 8)
                    await scene.holder.renew(ROLE, 1, EU, active=True, deadline=1)

    run_in_virtual_time(story())


def test_a_listener_is_told_of_every_other_term_and_of_a_handoff_and_of_nothing_else() -> None:
    async def story() -> None:
        scene = Scene()
        told: list[tuple[int, str | None] | None] = []

        def listen(role: str) -> None:
            term = scene.view.observed(role).term
            told.append((term.token, term.draining_to) if term else None)

        scene.view.listen(listen)
        async with scene.running():
            await asyncio.sleep(5)
            assert told == [], "that nobody leads is what was believed before"
            await scene.lead()
            await asyncio.sleep(5)
            for successor in ("dr", None):
                candidate = replace(EU, draining_to=successor)
                await scene.holder.renew(ROLE, 1, candidate, active=True, deadline=1)
                await asyncio.sleep(5)
            await scene.holder.release(ROLE, 1, SealRecord(1, "eu"), 1)
            await asyncio.sleep(5)
        assert told == [(1, None), (1, "dr"), (1, None), None]

    run_in_virtual_time(story())


def test_a_term_is_proved_by_a_read_of_its_own_begun_after_the_question() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead()
        async with scene.running() as view:
            assert await view.still_leads(ROLE, 1, 1.0)
            assert not await view.still_leads(ROLE, 2, 1.0)
            await scene.holder.release(ROLE, 1, SealRecord(1, "eu"), 1)
            assert not await view.still_leads(ROLE, 1, 1.0)
            seen = view.observed(ROLE)
            assert (seen.known, seen.term) == (True, None), "what a proof finds is believed as well"

    run_in_virtual_time(story())


def test_an_unclaimed_term_proves_nothing() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead(active=False)
        async with scene.running() as view:
            assert not await view.still_leads(ROLE, 1, 1.0)

    run_in_virtual_time(story())


def test_proofs_are_not_paced_and_those_that_wait_share_one() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead()
        reads = 0
        read = scene.backend.read

        async def counted(role: str, deadline: float) -> Term | None:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.001)
            return await read(role, deadline)

        scene.backend.read = counted  # type: ignore[method-assign]
        async with scene.running() as view:
            began, reads = now(), 0
            for _ in range(20):
                assert await view.still_leads(ROLE, 1, 1.0)
            assert now() - began < 20 * READ_SPACING / 2
            assert reads == 20
            reads = 0
            assert all(await asyncio.gather(*(view.still_leads(ROLE, 1, 1.0) for _ in range(50))))
            assert reads == 1

    run_in_virtual_time(story())


def test_an_election_that_does_not_answer_in_time_proves_nothing() -> None:
    async def story() -> None:
        scene = Scene()
        await scene.lead()
        async with scene.running() as view:

            async def silent(role: str, deadline: float) -> Term | None:
                await asyncio.sleep(deadline)
                raise Unavailable("no answer")

            scene.backend.read = silent  # type: ignore[method-assign]
            with pytest.raises(Unavailable, match=r"within 0\.3 s"):
                await view.still_leads(ROLE, 1, 0.3)
            with pytest.raises(Unavailable):
                await view.still_leads("other", 1, 0.3)

    run_in_virtual_time(story())
