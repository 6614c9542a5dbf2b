"""The part of the election contract that a handoff rests on: the successor's turn, and who waits in line."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from fencegate.lease import Held, LeaseTimings, SealRecord
from fencegate.testing.election_scene import LIMIT, ElectionScene, Join, candidate


@pytest.mark.asyncio
class HandoffContract(ElectionScene):
    """A term that is handed over goes to its successor, and to somebody else within a lease if that one fails."""

    async def test_a_renewal_writes_and_clears_the_region_that_the_term_goes_to(self, join: Join, role: str) -> None:
        holder, reader = join(), join()
        token = await self.lead(holder, role)
        seen = []
        for to in ("region-b", None):
            leaving = replace(candidate("a"), draining_to=to)
            await holder.renew(role, token, leaving, active=True, deadline=LIMIT)
            term = await reader.read(role, LIMIT)
            assert term is not None
            assert (term.token, term.active) == (token, True)
            seen.append(term.draining_to)

        assert seen == ["region-b", None]

    async def test_who_waits_in_line_is_told_and_the_holder_and_those_who_left_are_not(
        self, join: Join, role: str
    ) -> None:
        holder, waiting, leaver = join(), join(), join()
        await self.lead(holder, role)
        await leaver.acquire(role, candidate("c"), LIMIT)
        await waiting.acquire(role, candidate("b"), LIMIT)
        if not self.tells_who_waits:
            with pytest.raises(NotImplementedError):
                await holder.candidates(role, LIMIT)
            return
        both = await holder.candidates(role, LIMIT)
        await leaver.withdraw(role, LIMIT)

        assert sorted(who.holder for who in both) == ["region-b/b", "region-c/c"]
        assert await holder.candidates(role, LIMIT) == [candidate("b")]

    async def test_a_candidate_that_died_is_shown_no_longer_than_its_lease_allows(
        self, join: Join, join_briefly: Join, role: str
    ) -> None:
        if not self.tells_who_waits:
            return
        holder, waiting = join(), join_briefly()
        token = await self.lead(holder, role)
        await waiting.acquire(role, candidate("b"), LIMIT)
        await waiting.close()
        ends = time.monotonic() + self.lease_duration + self.lapses_within
        while await holder.candidates(role, LIMIT):
            assert time.monotonic() < ends
            await holder.renew(role, token, candidate("a"), active=True, deadline=LIMIT)
            await asyncio.sleep(0.2)

    # Field case 63: vitessio/vitess#14637, vitessio/vitess#16373, vitessio/vitess#20078.
    async def test_a_term_that_was_handed_over_is_won_by_its_successor_whoever_stood_first(
        self, join: Join, role: str
    ) -> None:
        holder, first, successor = join(), join(), join()
        token = await self.lead(holder, role)
        await first.acquire(role, candidate("c"), LIMIT)
        await successor.acquire(role, candidate("b"), LIMIT)
        assert await holder.release(role, token, SealRecord(token, "region-a", "region-b"), LIMIT)

        for _ in range(3):
            assert isinstance(await first.acquire(role, candidate("c"), LIMIT), Held)
            assert isinstance(await holder.acquire(role, candidate("a"), LIMIT), Held)
        won = await self.win(successor, role, "b")
        await successor.renew(role, won.token, candidate("b"), active=True, deadline=LIMIT)

        assert won.token > token
        assert won.predecessor_sealed == SealRecord(token, "region-a", "region-b")
        outcome = await first.acquire(role, candidate("c"), LIMIT)
        assert isinstance(outcome, Held)

    async def test_a_successor_that_never_comes_keeps_the_role_from_the_others_for_less_than_a_lease(
        self, join: Join, role: str, long_timings: LeaseTimings
    ) -> None:
        brief = replace(long_timings, renew_deadline=2.0, retry_period=0.5)  # For so long a role is held back.
        holder, other = join(brief), join(brief)
        token = await self.lead(holder, role)
        await other.acquire(role, candidate("c"), LIMIT)
        assert await holder.release(role, token, SealRecord(token, "region-a", "region-b"), LIMIT)
        released = time.monotonic()
        assert isinstance(await other.acquire(role, candidate("c"), LIMIT), Held)

        won = await self.win(other, role, "c")

        assert won.token > token
        assert time.monotonic() - released < brief.lease_duration
