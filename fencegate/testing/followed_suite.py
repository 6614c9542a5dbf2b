"""The contract of a source that is only followed, as tests. Subclass it for your own source::

    class TestMySource(FollowedContract):
        @pytest.fixture
        def followed(self): return MyCluster()          # see Followed

        @pytest.fixture
        def hung_source(self, timings, silent_server): return MySource(silent_server, timings)

Needs pytest and pytest-asyncio, and a real system that elects.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from fencegate.election.follower import Follower
from fencegate.election.role_rounds import read_roles
from fencegate.errors import Unavailable
from fencegate.fence import Verdict
from fencegate.lease import LeadershipSource, LeaseTimings, Term
from fencegate.observations import Observation, TokenRegressed
from fencegate.testing.election_scene import WithSilentServer
from fencegate.testing.memory_store import MemoryStore
from fencegate.testing.tcp_link import TcpLink

__all__ = ["Followed", "FollowedContract"]

LIMIT = 10.0


class Followed(ABC):
    """A system that elects, seen from a test: somebody leads it already."""

    role = "ledger"
    can_fall = False
    """Whether :meth:`fall` can be had."""
    links: list[TcpLink] = []  # noqa: RUF012  # replaced, never changed
    """Every way from the sources to the system's servers."""

    @abstractmethod
    def source(self, timings: LeaseTimings) -> LeadershipSource:
        """A further reader, over :attr:`links`."""

    @abstractmethod
    async def change_holder(self) -> None:
        """Another holder is elected. It may take a moment until it is known."""

    async def fall(self) -> None:
        """The system is made anew, or restored: somebody leads, under a lower number than before."""
        raise NotImplementedError

    has_minority = False
    """Whether :meth:`lose_majority` is another thing than cutting every link."""

    def lose_majority(self) -> None:
        """Some servers still answer, but too few for anybody to know who leads. Undone by healing every link."""
        raise NotImplementedError


@pytest.mark.asyncio
class FollowedContract(WithSilentServer):
    """Every source keeps every sentence below."""

    known_within = 30.0
    """Seconds in which a change of the holder is known to every reader."""
    gives_hints = True

    @pytest.fixture
    def followed(self) -> Followed:
        raise NotImplementedError("override the fixture followed")

    @pytest.fixture
    def hung_source(self, timings: LeaseTimings, silent_server: str) -> LeadershipSource:
        """A source whose server takes connections and never answers: ``silent_server`` is such a host:port."""
        raise NotImplementedError("override the fixture hung_source with a source of silent_server")

    @pytest.fixture
    def timings(self) -> LeaseTimings:
        return LeaseTimings(10.0, 8.0, 1.0, 0.5)

    @pytest_asyncio.fixture
    async def read_by(self, followed: Followed, timings: LeaseTimings) -> AsyncIterator[Callable[[], LeadershipSource]]:
        made: list[LeadershipSource] = []

        def make() -> LeadershipSource:
            made.append(followed.source(timings))
            return made[-1]

        yield make
        for source in made:
            await source.close()

    # -- steps --------------------------------------------------------------------------------------

    async def term_of(self, source: LeadershipSource, role: str, *, above: int = 0) -> Term:
        """The first active term whose token is higher than ``above``."""
        async with asyncio.timeout(self.known_within):
            while True:
                with contextlib.suppress(Unavailable):
                    term = await source.read(role, LIMIT)
                    if term is not None and term.active and term.token > above:
                        return term
                await asyncio.sleep(0.05)

    # -- the term -----------------------------------------------------------------------------------

    async def test_every_reader_names_the_same_holder_and_token(
        self, followed: Followed, read_by: Callable[[], LeadershipSource]
    ) -> None:
        term = await self.term_of(read_by(), followed.role)
        again = [await self.term_of(read_by(), followed.role) for _ in range(2)]

        assert term.role == followed.role
        assert term.token > 0
        assert term.node
        assert {(each.token, each.node) for each in again} == {(term.token, term.node)}

    async def test_the_token_grows_with_each_change_of_the_holder_and_names_one_holder(
        self, followed: Followed, read_by: Callable[[], LeadershipSource]
    ) -> None:
        """Two readers look on all the time: what one has seen is never taken back, and no number is two holders'.

        And a hint comes, where the system gives any.
        """
        readers = [read_by(), read_by()]
        seen: list[list[tuple[int, str]]] = [[], []]

        async def look_on(number: int) -> None:
            while True:
                with contextlib.suppress(Unavailable):
                    term = await readers[number].read(followed.role, LIMIT)
                    if term is not None and term.active:
                        seen[number].append((term.token, term.node))
                await asyncio.sleep(0.02)

        source = read_by()
        terms = [await self.term_of(source, followed.role)]
        async with asyncio.TaskGroup() as group:
            hint = group.create_task(_first(source.changes_among([followed.role])))
            watching = [group.create_task(look_on(number)) for number in range(2)]
            await asyncio.sleep(0.3)
            # On a busy machine the watch may begin after the first changes: it shows by the hint alone.
            while len(terms) < 3 or (self.gives_hints and not hint.done() and len(terms) < 6):
                await followed.change_holder()
                terms.append(await self.term_of(source, followed.role, above=terms[-1].token))
                await asyncio.wait([hint], timeout=0.3)
            async with asyncio.timeout(self.known_within):
                while not all(sights and sights[-1][0] == terms[-1].token for sights in seen):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                if self.gives_hints:
                    await hint
            for task in (hint, *watching):
                task.cancel()

        assert terms[0].token < terms[1].token < terms[2].token
        assert terms[0].node != terms[1].node
        for sights in seen:
            assert [token for token, _ in sights] == sorted(token for token, _ in sights)
        holders = {pair for sights in seen for pair in sights}
        assert len({token for token, _ in holders}) == len(holders)

    # -- the fence ----------------------------------------------------------------------------------

    async def test_a_number_below_the_fences_closes_it_until_a_higher_one_comes(
        self, followed: Followed, read_by: Callable[[], LeadershipSource], timings: LeaseTimings
    ) -> None:
        """What a restore of the system to before its present term looks like to a store that remembers it."""
        source, told = read_by(), list[Observation]()
        store = MemoryStore([followed.role], time.monotonic, mode="token")
        low = (await self.term_of(source, followed.role)).token
        await store.claim(followed.role, low + 10**6, "eu/later", await store.clock(), float("inf"))

        await self._follow(followed, source, store, timings, told)

        assert TokenRegressed(followed.role, low, low + 10**6) in told
        assert store.write(followed.role, low, issued=low) is Verdict.NOT_LEADING
        assert store.write(followed.role, low + 10**6) is Verdict.NOT_LEADING

    async def test_a_number_that_falls_is_never_accepted(
        self, followed: Followed, read_by: Callable[[], LeadershipSource], timings: LeaseTimings
    ) -> None:
        if not followed.can_fall:
            return
        source, told = read_by(), list[Observation]()
        store = MemoryStore([followed.role], time.monotonic, mode="token")
        await followed.change_holder()
        await self.term_of(source, followed.role)
        follower = await self._follow(followed, source, store, timings, told)
        high = follower.token
        assert store.write(followed.role, high) is Verdict.ADMIT

        await followed.fall()
        async with asyncio.timeout(self.known_within):
            while not any(isinstance(fact, TokenRegressed) for fact in told):
                with contextlib.suppress(Unavailable):
                    await follower.look()
                await asyncio.sleep(0.05)

        low = (await self.term_of(source, followed.role)).token
        assert low < high
        assert store.write(followed.role, low, issued=low) is Verdict.NOT_LEADING
        assert store.write(followed.role, high, issued=low) is Verdict.NOT_LEADING

    async def _follow(
        self,
        followed: Followed,
        source: LeadershipSource,
        store: MemoryStore,
        timings: LeaseTimings,
        told: list[Observation],
    ) -> Follower:
        follower = Follower(followed.role, source, store, timings, told.append)
        async with asyncio.timeout(self.known_within):
            while True:
                with contextlib.suppress(Unavailable):
                    await follower.look()
                    return follower
                await asyncio.sleep(0.05)

    async def test_many_roles_are_read_as_each_by_itself(
        self, followed: Followed, read_by: Callable[[], LeadershipSource]
    ) -> None:
        source = read_by()
        await self.term_of(source, followed.role)

        found = await read_roles(source, [followed.role, "nobody/1"], LIMIT)

        for role, term in found.items():
            alone = await source.read(role, LIMIT)
            assert (term is None) == (alone is None)
            if isinstance(term, Term) and alone is not None:
                assert (term.role, term.token, term.holder) == (role, alone.token, alone.holder)

    # -- out of reach -------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ["cut", "frozen"])
    async def test_out_of_reach_nobody_leads_and_it_is_found_again(
        self, followed: Followed, read_by: Callable[[], LeadershipSource], how: str
    ) -> None:
        """The last known leader is not given as the present one."""
        source = read_by()
        term = await self.term_of(source, followed.role)

        for link in followed.links:
            link.cut() if how == "cut" else link.freeze()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await source.read(followed.role, 0.5)
        assert time.monotonic() - began < 2.5

        for link in followed.links:
            link.heal()
        again = await self.term_of(source, followed.role)
        # It may have elected anew meanwhile: on a busy machine a primary that is only slow is taken for gone.
        assert again.token > term.token or (again.token, again.node) == (term.token, term.node)

    async def test_without_a_majority_nobody_leads(
        self, followed: Followed, read_by: Callable[[], LeadershipSource]
    ) -> None:
        if not followed.has_minority:
            return
        source = read_by()
        await self.term_of(source, followed.role)

        followed.lose_majority()

        try:
            found = await source.read(followed.role, 1.5)
        except Unavailable:
            found = None
        assert found is None

    async def test_every_read_of_a_hung_server_ends_at_its_deadline_and_they_do_not_add_up(
        self, hung_source: LeadershipSource, followed: Followed
    ) -> None:
        limit, began = 0.5, time.monotonic()

        outcomes = await asyncio.gather(
            *(hung_source.read(followed.role, limit) for _ in range(20)), return_exceptions=True
        )

        assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
        assert time.monotonic() - began < limit + 2.0
        await hung_source.close()

    # -- resources ----------------------------------------------------------------------------------

    async def test_a_closed_source_is_closed_for_good_and_leaves_nothing_behind(
        self, followed: Followed, timings: LeaseTimings
    ) -> None:
        before = len(asyncio.all_tasks())
        source = followed.source(timings)
        await self.term_of(source, followed.role)
        watching = asyncio.create_task(_first(source.changes(followed.role)))
        await asyncio.sleep(0.2)
        watching.cancel()
        await asyncio.wait([watching])

        await source.close()

        with pytest.raises(Unavailable):
            await source.read(followed.role, LIMIT)
        for _ in range(500):
            if len(asyncio.all_tasks()) <= before:
                break
            await asyncio.sleep(0.02)  # the servers' side of each connection ends a moment later
        assert len(asyncio.all_tasks()) <= before


async def _first(hints: AsyncIterator[object]) -> None:
    async for _ in hints:
        return
