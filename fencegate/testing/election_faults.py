"""The part of the election contract about what fails: servers, the network, clocks, records, and the process itself.

Where it takes an elector to keep a sentence, the real one runs here over the backend, with a store in memory.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import pytest

from fencegate.election.elector import Elector
from fencegate.errors import Unavailable
from fencegate.fence import Verdict
from fencegate.lease import ElectionBackend, Held, LeaseTimings, SealRecord, Won
from fencegate.observations import (
    EarlierTermEnded,
    LeadershipGained,
    LeadershipLost,
    LeaseRenewalFailed,
    LeaseRenewed,
    NodeNameShared,
    Observation,
    TokenRegressed,
)
from fencegate.steady_clock import steady_clock
from fencegate.testing.election_scene import LIMIT, ElectionScene, Join, Network, candidate
from fencegate.testing.memory_store import MemoryStore

_DEADLINE: Final = 3.0
_LATE: Final = 2.5
"""Seconds: of a call, and by how much it may be late on a busy machine. One that waits its deadline twice is later."""


class _Process:
    """What an elector's process has: a clock, which may leap while it is frozen, and a store of its region."""

    def __init__(
        self, role: str, backend: ElectionBackend, timings: LeaseTimings, store: MemoryStore | None = None
    ) -> None:
        self.leap = 0.0
        self.told: list[Observation] = []
        self.store = store or MemoryStore([role], self.clock)
        self.elector = Elector(
            role, candidate("a"), backend, self.store, timings, self.told.append, clock=self.clock, jitter=lambda: 0.0
        )

    def clock(self) -> float:
        return steady_clock() + self.leap

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The elector runs; it is gone afterwards, as if killed."""
        running = asyncio.ensure_future(self.elector.run())
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def until(self, reached: Callable[[], object], within: float) -> None:
        async with asyncio.timeout(within):
            while not reached():  # noqa: ASYNC110 - a condition of plain values
                await asyncio.sleep(0.01)

    def count(self, kind: type[Observation]) -> int:
        return sum(isinstance(fact, kind) for fact in self.told)


@pytest.mark.asyncio
class FaultContract(ElectionScene):
    """Whatever fails costs availability at most: never a second holder, never a call without an end."""

    # -- a server that hangs ------------------------------------------------------------------------

    async def test_every_call_to_a_hung_server_ends_at_its_deadline(
        self, hung_backend: ElectionBackend, role: str
    ) -> None:
        backend, limit = hung_backend, _DEADLINE
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "acquire": lambda: backend.acquire(role, candidate("a"), limit),
            "read": lambda: backend.read(role, limit),
            "release": lambda: backend.release(role, 1, SealRecord(1, "region-a"), limit),
        }

        async def ends(name: str, call: Callable[[], Awaitable[object]]) -> None:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await call()
            assert time.monotonic() - began < limit + _LATE, name

        await asyncio.gather(*(ends(name, call) for name, call in calls.items()))
        await backend.close()

    async def test_calls_that_wait_for_a_hung_server_do_not_add_up(
        self, hung_backend: ElectionBackend, role: str
    ) -> None:
        limit, began = _DEADLINE, time.monotonic()

        outcomes = await asyncio.gather(
            *(hung_backend.read(f"{role}-{i}", limit) for i in range(20)), return_exceptions=True
        )

        assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
        assert time.monotonic() - began < limit + _LATE
        await hung_backend.close()

    # -- a network that stalls ----------------------------------------------------------------------

    async def test_a_renewal_that_hangs_ends_at_its_deadline_and_one_such_failure_changes_nothing(
        self, network: tuple[ElectionBackend, Network], join: Join, role: str
    ) -> None:
        backend, way = network
        token = await self.lead(backend, role)
        way.stall()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await backend.renew(role, token, candidate("a"), active=True, deadline=_DEADLINE)
        assert time.monotonic() - began < _DEADLINE + _LATE
        way.resume()

        await backend.renew(role, token, candidate("a"), active=True, deadline=LIMIT)

        assert await self.win(backend, role) == Won(token)
        term = await join().read(role, LIMIT)
        assert term is not None
        assert (term.token, term.active) == (token, True)

    async def test_connections_that_lead_nowhere_any_more_are_left_for_new_ones(
        self, network: tuple[ElectionBackend, Network], role: str
    ) -> None:
        """As when a firewall has forgotten them: no packet comes back, not even a reset."""
        backend, way = network
        token = await self.lead(backend, role)
        way.strand()
        async with asyncio.timeout(self.lease_duration * 3 + self.lapses_within + LIMIT):
            while True:
                with suppress(Unavailable):
                    await backend.renew(role, token, candidate("a"), active=True, deadline=1.0)
                    break
                await asyncio.sleep(0.1)
        term = await backend.read(role, LIMIT)
        assert term is not None
        assert term.token == token

    async def test_a_renewal_that_arrives_late_takes_nothing_from_the_next_holder(
        self, network: tuple[ElectionBackend, Network], join: Join, role: str
    ) -> None:
        (holder, way), rival = network, join()
        token = await self.lead(holder, role)
        way.stall()
        with pytest.raises(Unavailable):
            await holder.renew(role, token, candidate("a"), active=True, deadline=0.3)
        assert await rival.release(role, token, SealRecord(token, "region-a"), LIMIT)
        newer = await self.lead(rival, role, "b", within=self.lease_duration * 3 + self.lapses_within)

        way.resume()
        await asyncio.sleep(0.3)

        term = await rival.read(role, LIMIT)
        assert term is not None
        assert (term.token, term.node, term.url) == (newer, "b", "https://b.example")
        await rival.renew(role, newer, candidate("b"), active=True, deadline=LIMIT)

    async def test_an_elector_whose_renewals_hang_is_no_leader_from_its_renew_deadline_on(
        self, network: tuple[ElectionBackend, Network], role: str
    ) -> None:
        backend, way = network
        timings = LeaseTimings(self.lease_duration * 3, _DEADLINE, 0.25, 0.25)
        process = _Process(role, backend, timings)
        async with process.running():
            await process.until(lambda: process.elector.token, LIMIT)
            way.stall()
            began, left = steady_clock(), process.elector.remaining
            await process.until(lambda: process.elector.token is None, LIMIT)
            took = steady_clock() - began
            await process.until(lambda: not process.store.is_open(role), LIMIT)
            way.resume()

        # By its own clock: it gave up no sooner than it had to, and had no more left than a renewal gives.
        assert process.count(LeaseRenewalFailed)
        assert left <= min(took, timings.renew_deadline)
        assert took < timings.renew_deadline + _LATE

    async def test_hints_come_again_after_the_link_of_a_watch_was_cut(
        self, network: tuple[ElectionBackend, Network], join: Join, role: str
    ) -> None:
        (watcher, way), holder = network, join()
        hints = 0

        async def watch() -> None:
            nonlocal hints
            while True:  # as whoever uses it does: a stream that ends is begun anew
                async for _ in watcher.changes(role):
                    hints += 1
                await asyncio.sleep(0.05)

        watching = asyncio.ensure_future(watch())
        try:
            await watcher.read(role, LIMIT)
            await asyncio.sleep(0.3)
            way.cut()
            await asyncio.sleep(0.5)
            before, ends = hints, time.monotonic() + 2 * LIMIT
            while hints == before:
                assert time.monotonic() < ends
                await self.give_back(holder, role, await self.lead(holder, role))
                await asyncio.sleep(0.2)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    # -- a process that is frozen, clocks that step ---------------------------------------------------

    async def test_a_process_frozen_for_twice_its_lease_is_no_leader_before_it_does_anything_else(
        self, join: Join, long_timings: LeaseTimings, role: str
    ) -> None:
        process = _Process(role, join(long_timings), long_timings)
        async with process.running():
            await process.until(lambda: process.elector.token, LIMIT)
            renewed = process.count(LeaseRenewed)
            await process.until(lambda: process.count(LeaseRenewed) > renewed, LIMIT)
            told = len(process.told)

            process.leap = 2 * long_timings.lease_duration

            assert process.elector.token is None
            assert not process.store.is_open(role)
            process.elector.hint()  # it wakes
            await process.until(lambda: process.count(LeadershipLost), LIMIT)
            first = next(fact for fact in process.told[told:] if isinstance(fact, LeadershipLost | LeaseRenewed))
            assert isinstance(first, LeadershipLost)

    async def test_clocks_that_step_by_an_hour_change_nothing(
        self, join: Join, long_timings: LeaseTimings, role: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        holder, rival, now = join(long_timings), join(long_timings), time.time
        token = await self.lead(holder, role)
        assert isinstance(await rival.acquire(role, candidate("b"), LIMIT), Held)
        for step in (3600.0, -3600.0):
            monkeypatch.setattr(time, "time", functools.partial(self._stepped, now, step))

            outcome = await rival.acquire(role, candidate("b"), LIMIT)

            assert isinstance(outcome, Held)
            assert outcome.term is not None
            assert outcome.term.token == token
            await holder.renew(role, token, candidate("a"), active=True, deadline=LIMIT)
            term = await rival.read(role, LIMIT)
            assert term is not None
            assert term.expires_in is None or 0 < term.expires_in <= long_timings.lease_duration

    def _stepped(self, now: Callable[[], float], step: float) -> float:
        asking = str(sys._getframe(1).f_globals.get("__name__"))
        return now() if asking.startswith(self.untouched_by_steps) else now() + step

    # -- two processes of one name --------------------------------------------------------------------

    async def test_a_second_process_of_one_name_ends_the_firsts_term_once_which_is_told(
        self, join: Join, role: str, long_timings: LeaseTimings
    ) -> None:
        first = _Process(role, join(), long_timings)
        second = _Process(role, join(), long_timings, first.store)

        def terms() -> tuple[int, int]:
            return first.count(LeadershipGained), second.count(LeadershipGained)

        async with first.running():
            await first.until(lambda: first.elector.token, LIMIT)
            older = first.elector.token or 0
            async with second.running():
                # It takes the first for its own earlier life. Which of the two wins then is up to the backend.
                await second.until(lambda: sum(terms()) == 2, 2 * LIMIT + self.lapses_within)
                assert second.count(EarlierTermEnded) == 1
                assert first.store.write(role, older) is not Verdict.ADMIT
                if terms() == (1, 1):
                    await first.until(lambda: first.count(NodeNameShared), LIMIT)
                await asyncio.sleep(3 * long_timings.retry_period)

                assert sum(terms()) == 2, "they end each other's terms"
                tokens = [process.elector.token for process in (first, second) if process.elector.token]
                assert len(tokens) == 1
                assert tokens[0] > older

    async def test_two_regions_by_one_name_are_never_both_open(
        self, join: Join, role: str, long_timings: LeaseTimings
    ) -> None:
        processes = [_Process(role, join(), long_timings) for _ in range(2)]
        async with processes[0].running():
            await processes[0].until(lambda: processes[0].elector.token, LIMIT)
            async with processes[1].running():
                ends = time.monotonic() + 1.0
                while time.monotonic() < ends:
                    assert not all(process.store.is_open(role) for process in processes)
                    await asyncio.sleep(0.01)
                assert processes[0].store.is_open(role)

    # -- a record that is gone ----------------------------------------------------------------------

    async def test_a_deleted_record_never_lets_a_lower_token_be_accepted(
        self, join: Join, role: str, timings: LeaseTimings, wipe: Callable[[str], Awaitable[None]]
    ) -> None:
        earlier = join()
        for _ in range(2):  # or a counter that begins again would come to the same number, which is another sentence
            await self.give_back(earlier, role, await self.lead(earlier, role))
        process = _Process(role, join(), timings)
        async with process.running():
            await process.until(lambda: process.elector.token, LIMIT)
            token = process.elector.token or 0

        await wipe(role)

        again = _Process(role, join(), timings, process.store)
        async with again.running():
            await again.until(lambda: again.elector.token or again.count(TokenRegressed), 2 * LIMIT)
            assert again.elector.token is None or again.elector.token > token
            assert again.store.write(role, token - 1) is not Verdict.ADMIT
