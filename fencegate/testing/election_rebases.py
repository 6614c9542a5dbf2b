"""The part of the election contract that a rebase rests on: numbers that move up, and terms that keep theirs.

For backends that can (:meth:`fencegate.lease.ElectionBackend.rebase`); the contract of the others ends without it.
"""

from __future__ import annotations

import asyncio

import pytest

from fencegate.lease import Held, Rebased, Won
from fencegate.testing.election_scene import LIMIT, ElectionScene, Join, candidate

HIGH = 2**44
"""Above every number that a server counts to in a test; ZooKeeper counts from 2**32 on."""


@pytest.mark.asyncio
class RebaseContract(ElectionScene):
    """After a rebase every new token is above the number asked for; nothing else changes."""

    async def test_the_first_term_after_a_rebase_is_above_it(self, join_briefly: Join, role: str) -> None:
        backend = join_briefly()
        old = await self.lead(backend, role)
        await self.give_back(backend, role, old)

        rebased = await join_briefly().rebase(role, HIGH, "ops", LIMIT)
        new = await self.lead(join_briefly(), role, "b", within=self.lease_duration + self.lapses_within)

        assert old <= rebased.before < HIGH <= rebased.after < new

    async def test_it_works_for_a_role_that_nobody_ever_held(self, join_briefly: Join, role: str) -> None:
        await join_briefly().rebase(role, HIGH, "ops", LIMIT)
        first = await self.lead(join_briefly(), role, within=self.lease_duration + self.lapses_within)
        assert first > HIGH

    async def test_a_term_under_way_keeps_its_token_is_renewed_and_given_back(self, join: Join, role: str) -> None:
        holder, reader = join(), join()
        token = await self.lead(holder, role)

        await join().rebase(role, HIGH, "ops", LIMIT)
        await holder.renew(role, token, candidate("a"), active=True, deadline=LIMIT)
        term = await reader.read(role, LIMIT)
        again = await holder.acquire(role, candidate("a"), LIMIT)

        assert term is not None
        assert term.token == token
        assert isinstance(again, Won)
        assert again.token == token
        assert await self.give_back(holder, role, token)
        assert await self.lead(reader, role, "b") > HIGH

    async def test_who_stood_in_line_before_wins_above_it_too(self, join: Join, role: str) -> None:
        holder, waiting = join(), join()
        token = await self.lead(holder, role)
        assert isinstance(await waiting.acquire(role, candidate("b"), LIMIT), Held)

        await join().rebase(role, HIGH, "ops", LIMIT)
        await self.give_back(holder, role, token)
        won = await self.win(waiting, role, "b")

        assert won.token > HIGH

    async def test_every_reader_sees_the_winners_token(self, join_briefly: Join, role: str) -> None:
        for above in (HIGH, 2 * HIGH, 3 * HIGH):
            await join_briefly().rebase(role, above, "ops", LIMIT)
            holder = join_briefly()
            token = await self.lead(holder, role, within=self.lease_duration + self.lapses_within)
            seen = [await join_briefly().read(role, LIMIT) for _ in range(2)]
            assert [term and term.token for term in seen] == [token, token]
            assert above < token <= await join_briefly().issued_up_to(role, LIMIT)
            await self.give_back(holder, role, token)

    async def test_asking_again_or_for_less_moves_nothing(self, join: Join, role: str) -> None:
        backend = join()
        after = (await backend.rebase(role, HIGH, "ops", LIMIT)).after

        for above in (HIGH, HIGH - 1, 1):
            again = await backend.rebase(role, above, "ops", LIMIT)
            assert again.before == again.after >= after

    async def test_of_two_at_once_the_higher_one_stands(self, join_briefly: Join, role: str) -> None:
        done = await asyncio.gather(*(join_briefly().rebase(role, HIGH * n, "ops", LIMIT) for n in (1, 2, 1, 2)))

        assert all(isinstance(each, Rebased) for each in done)
        assert await join_briefly().issued_up_to(role, LIMIT) >= 2 * HIGH
        assert await self.lead(join_briefly(), role, within=self.lease_duration + self.lapses_within) > 2 * HIGH

    async def test_the_role_of_another_name_keeps_its_numbers(self, join: Join, role: str) -> None:
        await join().rebase(role, HIGH, "ops", LIMIT)
        assert await self.lead(join(), f"{role}/eu-7") < HIGH

    async def test_a_number_that_leaves_no_room_is_refused(self, join: Join, role: str) -> None:
        with pytest.raises(ValueError, match="at most"):
            await join().rebase(role, 2**63 - 1, "ops", LIMIT)
