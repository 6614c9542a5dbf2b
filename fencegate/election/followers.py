"""The followers of all roles of a gateway (``mode = "follow"``), looked at together.

Every gateway of a shared store runs them, every retry period and at each hint. One reading of the store's clock and
one question to the source serve many roles; what is due for a role after that (a claim, a seal) is its own, and one
that waits for its row in the store holds up no other role.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from fencegate.election.follower import Follower
from fencegate.election.role_rounds import Release, RoleRounds, read_roles
from fencegate.errors import Unavailable
from fencegate.fence import FenceStore, StoreClock
from fencegate.lease import LeadershipSource, LeaseTimings, Reading, Term
from fencegate.observations import Observer

_ERRANDS_AT_ONCE: Final = 16
"""Of one look at many roles: claims and seals under way. A store has a few sessions for them."""

Errand = tuple[Follower, Callable[[], Awaitable[None]]]


class Followers:
    """A :class:`Follower` for each of ``roles``, by role."""

    def __init__(
        self,
        roles: Sequence[str],
        source: LeadershipSource,
        store: FenceStore,
        timings: LeaseTimings,
        observe: Observer,
    ) -> None:
        self.by_role = {role: Follower(role, source, store, timings, observe) for role in roles}
        self._source = source
        self._store = store
        self._timings = timings
        self._rounds = RoleRounds(self.by_role, source, timings.retry_period, self._look)

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._rounds.run()

    async def _look(self, roles: Sequence[str], release: Release) -> None:
        limit = self._timings.renew_deadline
        good_until = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout(limit):
                # In this order (rules R3 and R9): see Follower.look.
                clock = await self._store.clock()
                terms = await read_roles(self._source, roles, limit / 2)
                errands = deque(await self._errands(roles, clock, terms, release))
        except (Unavailable, TimeoutError) as error:
            for role in roles:
                self.by_role[role].failed(_detail(error, limit))
            return

        async def work_off() -> None:
            while errands:
                follower, errand = errands.popleft()
                # What was read too long ago is nothing to act on: the role has its turn in the next round.
                if asyncio.get_running_loop().time() < good_until:
                    await self._do(follower, errand)
                release(follower.role)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(errands), _ERRANDS_AT_ONCE) - 1):
                group.create_task(work_off())
            await work_off()

    async def _errands(
        self,
        roles: Sequence[str],
        clock: StoreClock,
        terms: Mapping[str, Reading],
        release: Release,
    ) -> list[Errand]:
        """What is to be done for some of the roles. The others are released: nothing has changed for them."""
        errands: list[Errand] = []
        standing: list[tuple[Follower, Term]] = []
        for role in roles:
            follower, term = self.by_role[role], terms[role]
            if isinstance(term, Unavailable):
                follower.failed(str(term))
            elif term is None or not term.active:
                follower.succeeded()  # nobody's term is to be claimed
            elif not follower.stands(term, clock):
                errands.append((follower, partial(follower.follow, term, clock)))
                continue
            elif follower.is_to_be_compared():
                standing.append((follower, term))
                continue
            else:
                follower.succeeded()
            release(role)
        if standing:
            rows = {row.role: row for row in await self._store.read_some([f.role for f, _ in standing])}
            errands += [(f, partial(f.compare, term, clock, rows.get(f.role))) for f, term in standing]
        return errands

    async def _do(self, follower: Follower, errand: Callable[[], Awaitable[None]]) -> None:
        limit = self._timings.renew_deadline
        try:
            async with asyncio.timeout(limit):
                await errand()
        except (Unavailable, TimeoutError) as error:
            follower.failed(_detail(error, limit))
        else:
            follower.succeeded()


def _detail(error: Exception, limit: float) -> str:
    return str(error) or f"no answer within {limit:g} s"
