"""Has many roles looked at by few tasks: each once a period, and at once where a hint names it.

An idle role costs a place in a tuple here, and no task. Looks are made at as many roles together as the source reads
at once, never twice at one role at a time. Hints are followed in waves: the first one at once, what comes within
:data:`WAVE_SPACING` of it together after that, so that a storm of hints is no storm of reads. Nor does it keep the
others from their turn, since a watch that has gone silent names nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from fencegate.election.strange_answers import asking
from fencegate.errors import Unavailable
from fencegate.lease import LeadershipSource, Reading

Release = Callable[[str], None]
Look = Callable[[Sequence[str], Release], Awaitable[None]]
"""Looks at these roles; must not raise. May release each as it is done with it, while others wait for something."""

LOOKS_AT_ONCE: Final = 8
WAVE_SPACING: Final = 0.02
"""Seconds between the beginnings of two waves of hinted roles."""


async def read_roles(source: LeadershipSource, roles: Sequence[str], deadline: float) -> Mapping[str, Reading]:
    """What ``source`` says of each of ``roles``: by one question where it can, else of all at the same time.

    Raises :class:`~fencegate.errors.Unavailable` where one question was asked and failed.
    """

    async def one(role: str) -> Reading:
        try:
            with asking(source.name):
                return await source.read(role, deadline)
        except Unavailable as error:
            return error

    try:
        with asking(source.name):
            found = await source.read_many(roles, deadline)
            return {role: found[role] for role in roles}
    except NotImplementedError:
        return dict(zip(roles, await asyncio.gather(*map(one, roles)), strict=True))


class RoleRounds:
    """``look`` is called for all ``roles`` every ``period`` seconds; ``hinted`` hears of every hint, by role."""

    def __init__(
        self,
        roles: Mapping[str, object],
        source: LeadershipSource,
        period: float,
        look: Look,
        hinted: Callable[[str], None] | None = None,
    ) -> None:
        self._known = roles
        self._order = tuple(roles)
        self._source = source
        self._period = period
        self._look = look
        self._tell = hinted
        self._wake = asyncio.Event()
        self._hinted: dict[str, None] = {}
        """For the next wave."""
        self._wave: dict[str, None] = {}
        """Of the wave under way: whose look has not begun."""
        self._next_wave = -math.inf
        self._busy: set[str] = set()
        self._under_way = 0
        self._place = len(self._order)
        """In the round under way: the first role that has not had its turn."""
        self._wave_was_first = False

    def wake(self, role: str) -> None:
        """Have a look at ``role`` that begins from now on, soon; after the one under way at it, if any."""
        if role in self._known:
            self._hinted[role] = None
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled; no look is under way after that."""
        async with asyncio.TaskGroup() as group:
            size = self._source.roles_a_watch
            for place in range(0, len(self._order), size):
                group.create_task(self._take_hints(self._order[place : place + size]))
            await self._make_rounds(group)

    # -- looking ------------------------------------------------------------------------------------

    async def _make_rounds(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        next_round = loop.time()
        while True:
            now = loop.time()
            if self._is_round and now >= next_round:
                self._place, next_round = 0, now + self._period
            if self._hinted and self._is_begun and now >= self._next_wave:
                self._wave |= self._hinted
                self._hinted, self._next_wave = {}, now + WAVE_SPACING
            while self._under_way < LOOKS_AT_ONCE and (batch := self._next_batch()):
                self._under_way += 1
                self._busy.update(batch)
                group.create_task(self._look_at(batch))
            self._wake.clear()
            due = min(
                next_round if self._is_round else math.inf,
                self._next_wave if self._hinted and self._is_begun else math.inf,
            )
            try:
                async with asyncio.timeout_at(due if due < math.inf else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    @property
    def _is_round(self) -> bool:
        """Every role has had its turn."""
        return self._place >= len(self._order)

    @property
    def _is_begun(self) -> bool:
        """Nobody in the wave waits for anything but the look that is under way at it: that may take long."""
        return self._busy.issuperset(self._wave)

    def _next_batch(self) -> list[str]:
        """Of the wave and of the round in turn, where both have any left."""
        self._wave_was_first = not self._wave_was_first
        if self._wave_was_first:
            return self._of_the_wave() or self._of_the_round()
        return self._of_the_round() or self._of_the_wave()

    def _of_the_wave(self) -> list[str]:
        idle = (role for role in self._wave if role not in self._busy)
        batch = list(islice(idle, self._source.roles_a_read))
        for role in batch:
            del self._wave[role]
        return batch

    def _of_the_round(self) -> list[str]:
        batch: list[str] = []
        while not batch and not self._is_round:
            part = self._order[self._place : self._place + self._source.roles_a_read]
            self._place += len(part)
            batch = [role for role in part if role not in self._busy]  # a busy one is having its turn
        for role in batch:
            self._wave.pop(role, None)
            self._hinted.pop(role, None)
        return batch

    async def _look_at(self, batch: list[str]) -> None:
        held = set(batch)

        def release(role: str) -> None:
            if role in held:
                held.discard(role)
                self._busy.discard(role)
                if role in self._wave:
                    self._wake.set()

        try:
            await self._look(batch, release)
        finally:
            self._busy -= held
            self._under_way -= 1
            self._wake.set()

    # -- hints --------------------------------------------------------------------------------------

    async def _take_hints(self, roles: Sequence[str]) -> None:
        while True:
            with suppress(Unavailable), asking(self._source.name):  # a hint is missing, nothing more
                async for role in self._source.changes_among(roles):
                    for named in roles if role is None else (role,):
                        if self._tell is not None and named in self._known:
                            self._tell(named)
                        self.wake(named)
            await asyncio.sleep(self._period)
