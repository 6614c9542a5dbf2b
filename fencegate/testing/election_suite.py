"""The contract of an election backend as tests. Subclass it for your own backend::

    class TestMyElection(ElectionContract):
        @pytest.fixture
        def servers(self): return ["127.0.0.1:7000"]

        @pytest.fixture
        def backend_at(self): return lambda servers, timings: MyElection(servers, timings)

        @pytest.fixture
        def wipe(self): return lambda role: delete_everything_of(role)

``backend_at`` makes a further process' backend each time it is called; nothing else may use that store's roles
meanwhile. Needs pytest and pytest-asyncio, and a real server. A lease that a test waits out lasts ``lease_duration``
seconds, any other three times as long: a machine that stands still for less than that fails no test.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from fencegate.election.role_rounds import read_roles
from fencegate.errors import Unavailable
from fencegate.lease import Held, LeaseLost, LeaseTimings, SealRecord, Term, Won
from fencegate.testing.election_endurance import EnduranceContract
from fencegate.testing.election_faults import FaultContract
from fencegate.testing.election_handoffs import HandoffContract
from fencegate.testing.election_scene import LIMIT, BackendAt, Join, Network, candidate

__all__ = ["BackendAt", "ElectionContract", "Network"]


@pytest.mark.asyncio
class ElectionContract(HandoffContract, FaultContract, EnduranceContract):
    """Every backend keeps every sentence below, and those of a handoff, of faults and of endurance."""

    # -- winning ------------------------------------------------------------------------------------

    async def test_the_first_candidate_wins_at_once(self, join: Join, role: str) -> None:
        outcome = await join().acquire(role, candidate("a"), LIMIT)

        assert isinstance(outcome, Won)
        assert outcome.token > 0
        assert outcome.predecessor_sealed is None

    async def test_acquiring_again_gives_the_same_token(self, join: Join, role: str) -> None:
        backend = join()
        first = await self.win(backend, role)
        await backend.renew(role, first.token, candidate("a"), active=True, deadline=LIMIT)

        assert (await self.win(backend, role)).token == first.token

    async def test_a_second_candidate_waits_and_is_told_who_holds(
        self, join: Join, role: str, long_timings: LeaseTimings
    ) -> None:
        token = await self.lead(join(), role)

        outcome = await join().acquire(role, candidate("b"), LIMIT)

        assert isinstance(outcome, Held)
        assert outcome.term is not None
        assert (outcome.term.token, outcome.term.node, outcome.term.region) == (token, "a", "region-a")
        assert outcome.term.lease_duration == long_timings.lease_duration

    async def test_of_many_at_once_one_wins(self, join: Join, role: str) -> None:
        backends = [join() for _ in range(8)]

        outcomes = await asyncio.gather(*(b.acquire(role, candidate(f"n{i}"), LIMIT) for i, b in enumerate(backends)))

        assert sum(isinstance(outcome, Won) for outcome in outcomes) <= 1
        again = [await b.acquire(role, candidate(f"n{i}"), LIMIT) for i, b in enumerate(backends)]
        assert sum(isinstance(outcome, Won) for outcome in again) == 1

    # -- reading ------------------------------------------------------------------------------------

    async def test_nobody_leads_a_role_that_nobody_ever_held(self, join: Join, role: str) -> None:
        assert await join().read(role, LIMIT) is None

    async def test_a_term_is_not_active_until_it_is_renewed_as_active(self, join: Join, role: str) -> None:
        backend, reader = join(), join()
        token = (await self.win(backend, role)).token

        before = await reader.read(role, LIMIT)
        await backend.renew(role, token, candidate("a"), active=False, deadline=LIMIT)
        claiming = await reader.read(role, LIMIT)
        await backend.renew(role, token, candidate("a"), active=True, deadline=LIMIT)
        announced = await reader.read(role, LIMIT)

        assert before is not None
        assert claiming is not None
        assert announced is not None
        assert (before.active, claiming.active, announced.active) == (False, False, True)
        assert (announced.token, announced.url) == (token, "https://a.example")

    async def test_a_role_does_not_leak_into_one_whose_name_it_begins(self, join: Join, role: str) -> None:
        backend = join()
        inner = await self.lead(backend, f"{role}/eu-7")
        odd = await self.lead(backend, f"{role}%2Feu-7")

        assert await backend.read(role, LIMIT) is None
        outer = await self.lead(backend, role)

        assert len({inner, odd, outer}) == 3 or self._numbers_per_role
        for name, token in ((role, outer), (f"{role}/eu-7", inner), (f"{role}%2Feu-7", odd)):
            term = await backend.read(name, LIMIT)
            assert term is not None
            assert (term.role, term.token) == (name, token)

    _numbers_per_role = False
    """Set it where each role counts its tokens for itself, so that two roles may show the same number."""

    # -- tokens and renewals ------------------------------------------------------------------------

    async def test_renewals_hold_the_role_past_its_first_lease(self, join_briefly: Join, role: str) -> None:
        backend, rival = join_briefly(), join_briefly()
        token = await self.lead(backend, role)

        ends = time.monotonic() + 2.2 * self.lease_duration
        while time.monotonic() < ends:
            await backend.renew(role, token, candidate("a"), active=True, deadline=LIMIT)
            assert isinstance(await rival.acquire(role, candidate("b"), LIMIT), Held)
            await asyncio.sleep(self.lease_duration / 5)

    async def test_each_holder_and_each_restart_has_a_higher_token(self, join: Join, role: str) -> None:
        tokens = []
        for node in ("a", "b", "a", "a", "b"):
            backend = join()
            tokens.append(await self.lead(backend, role, node))
            assert await self.give_back(backend, role, tokens[-1])

        assert tokens == sorted(set(tokens))

    async def test_a_lapsed_lease_lets_another_win_with_a_higher_token(self, join_briefly: Join, role: str) -> None:
        holder, rival = join_briefly(), join_briefly()
        token = (await self.win(holder, role)).token
        renewed_at = time.monotonic()
        await holder.renew(role, token, candidate("a"), active=True, deadline=LIMIT)
        assert isinstance(await rival.acquire(role, candidate("b"), LIMIT), Held)

        won = await self.win(rival, role, "b", within=self.lease_duration + self.lapses_within)

        assert won.token > token
        assert won.predecessor_sealed is None
        assert time.monotonic() - renewed_at >= self.lease_duration

    async def test_renewing_after_the_loss_says_lost(self, join_briefly: Join, role: str) -> None:
        holder, rival = join_briefly(), join_briefly()
        token = await self.lead(holder, role)
        await rival.acquire(role, candidate("b"), LIMIT)
        await self.win(rival, role, "b", within=self.lease_duration + self.lapses_within)

        with pytest.raises(LeaseLost):
            await holder.renew(role, token, candidate("a"), active=True, deadline=LIMIT)

    async def test_the_loser_can_win_again_with_a_new_token(self, join_briefly: Join, role: str) -> None:
        holder, rival = join_briefly(), join_briefly()
        first = await self.lead(holder, role)
        await holder.withdraw(role, LIMIT)
        await rival.acquire(role, candidate("b"), LIMIT)
        second = await self.lead(rival, role, "b", within=self.lease_duration + self.lapses_within)
        assert await self.give_back(rival, role, second)

        assert (await self.win(holder, role)).token > second > first

    # -- leaving ------------------------------------------------------------------------------------

    async def test_a_release_lets_another_win_at_once_and_know_of_the_seal(self, join: Join, role: str) -> None:
        holder, rival = join(), join()
        token = await self.lead(holder, role)
        await rival.acquire(role, candidate("b"), LIMIT)
        assert await self.give_back(holder, role, token)

        outcome = await rival.acquire(role, candidate("b"), LIMIT)

        assert isinstance(outcome, Won)
        assert outcome.token > token
        assert outcome.predecessor_sealed == SealRecord(token, "region-a")

    async def test_the_seal_of_an_older_term_is_not_taken_for_the_one_before(
        self, join_briefly: Join, role: str
    ) -> None:
        first, second, third = join_briefly(), join_briefly(), join_briefly()
        sealed = await self.lead(first, role)
        await self.give_back(first, role, sealed)
        await self.lead(second, role, "b")
        await third.acquire(role, candidate("c"), LIMIT)

        won = await self.win(third, role, "c", within=self.lease_duration + self.lapses_within)

        assert won.predecessor_sealed is None

    async def test_nor_is_it_by_one_who_comes_when_the_unsealed_term_is_over(
        self, join_briefly: Join, role: str
    ) -> None:
        first, second, reader = join_briefly(), join_briefly(), join_briefly()
        sealed = await self.lead(first, role)
        await self.give_back(first, role, sealed)
        await self.lead(second, role, "b")
        async with asyncio.timeout(self.lease_duration + self.lapses_within):
            term = await reader.read(role, LIMIT)
            while term is not None:
                await asyncio.sleep(0.1)
                term = await reader.read(role, LIMIT)

        won = await self.win(join_briefly(), role, "c", within=self.lease_duration + self.lapses_within)

        assert won.predecessor_sealed is None

    # Field case 12: etcd-io/etcd#22082.
    async def test_a_release_that_is_repeated_cannot_remove_a_newer_holder(self, join: Join, role: str) -> None:
        holder, rival = join(), join()
        token = await self.lead(holder, role)
        assert await self.give_back(holder, role, token)
        newer = await self.lead(rival, role, "b")

        await self.give_back(holder, role, token)

        term = await join().read(role, LIMIT)
        assert term is not None
        assert (term.token, term.node) == (newer, "b")
        await rival.renew(role, newer, candidate("b"), active=True, deadline=LIMIT)

    async def test_a_released_term_can_neither_be_renewed_nor_is_it_shown(self, join: Join, role: str) -> None:
        holder = join()
        token = await self.lead(holder, role)
        await self.give_back(holder, role, token)

        with pytest.raises(LeaseLost):
            await holder.renew(role, token, candidate("a"), active=True, deadline=LIMIT)
        assert await join().read(role, LIMIT) is None

    async def test_withdrawing_does_not_end_a_term_that_was_won(self, join: Join, role: str) -> None:
        holder = join()
        token = await self.lead(holder, role)

        await holder.withdraw(role, LIMIT)

        term = await join().read(role, LIMIT)
        assert term is not None
        assert term.token == token
        assert isinstance(await join().acquire(role, candidate("b"), LIMIT), Held)
        # Nor is it gone on with by the one who left it: lead() relies on that for a token of each block's own.
        assert isinstance(await holder.acquire(role, candidate("a"), LIMIT), Held)

    async def test_a_candidate_that_withdrew_does_not_get_its_turn(self, join: Join, role: str) -> None:
        holder, leaver, rival = join(), join(), join()
        token = await self.lead(holder, role)
        await leaver.acquire(role, candidate("b"), LIMIT)
        await rival.acquire(role, candidate("c"), LIMIT)
        await leaver.withdraw(role, LIMIT)
        await self.give_back(holder, role, token)

        assert isinstance(await rival.acquire(role, candidate("c"), LIMIT), Won)

    async def test_withdrawing_without_a_candidacy_does_nothing(self, join: Join, role: str) -> None:
        await join().withdraw(role, LIMIT)

    async def test_closing_leaves_a_held_lease_to_lapse(self, join: Join, role: str) -> None:
        holder = join()
        await self.lead(holder, role)

        await holder.close()

        assert isinstance(await join().acquire(role, candidate("b"), LIMIT), Held)

    async def test_a_closed_backend_is_closed_for_good(self, join: Join, role: str) -> None:
        """A call still under way somewhere must not open a link that nobody closes."""
        backend = join()
        await backend.read(role, LIMIT)
        await backend.close()

        with pytest.raises(Unavailable):
            await backend.read(role, LIMIT)

    # -- whose lease counts -------------------------------------------------------------------------

    # Field case 4: kubernetes/kubernetes#114872.
    async def test_the_holders_lease_counts_not_the_candidates(self, join: Join, join_briefly: Join, role: str) -> None:
        holder, rival = join(), join_briefly()
        await self.lead(holder, role)

        ends = time.monotonic() + self.lease_duration * 1.5
        while time.monotonic() < ends:
            assert isinstance(await rival.acquire(role, candidate("b"), LIMIT), Held)
            await asyncio.sleep(self.lease_duration / 5)

    # -- hints --------------------------------------------------------------------------------------

    async def test_hints_come_when_the_holder_changes(self, join: Join, role: str) -> None:
        """A watch is only a hint, but a backend that never gives one makes every failover slower."""
        holder, watcher = join(), join()

        await self.hinted(lambda: watcher.changes(role), holder, role)

    # -- many roles ---------------------------------------------------------------------------------

    async def test_many_roles_are_read_as_each_by_itself(self, join: Join, role: str) -> None:
        leader, reader = join(), join()
        led, nobodys = [f"{role}/{number}" for number in range(3)], [f"{role}/x", role]
        tokens = [await self.lead(leader, each) for each in led]

        found = await read_roles(reader, [*led, *nobodys], LIMIT)

        assert list(found) == [*led, *nobodys]
        assert [term.token for term in found.values() if isinstance(term, Term)] == tokens
        assert all(found[each] is None for each in nobodys)
        for each in led:
            alone = await reader.read(each, LIMIT)
            assert alone is not None
            assert replace(found[each], expires_in=None) == replace(alone, expires_in=None)  # type: ignore[type-var]

    async def test_where_no_read_gets_through_none_of_many_roles_has_a_term(self, join: Join, role: str) -> None:
        reader = join()
        await self.lead(reader, role)
        await reader.close()

        try:
            found = await read_roles(reader, [role, f"{role}/1"], LIMIT)
        except Unavailable:
            return
        assert all(isinstance(each, Unavailable) for each in found.values())

    async def test_a_watch_of_many_roles_names_the_one_that_changed(self, join: Join, role: str) -> None:
        holder, watcher = join(), join()
        changed = f"{role}/1"
        watched = [role, changed][-watcher.roles_a_watch :]

        assert await self.hinted(lambda: watcher.changes_among(watched), holder, changed) in (changed, None)
