"""A store's fences in memory, by the rules of :func:`fencegate.fence.decide`: for tests of an elector or a follower.

It is a fake with the faults that matter: it can be down, hang, answer slowly, and be failed over.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fencegate.errors import Unavailable
from fencegate.fence import ClaimRefused, Fence, Mode, StoreClock, Verdict, decide


class MemoryStore:
    """Implements :class:`fencegate.fence.FenceStore`. ``clock`` is the *store's* clock, in seconds.

    ``down``, ``hanging`` (methods by name) and ``delay`` (seconds before each answer) may be set at any time.
    ``calls`` records every method that was called, in order. ``under_way`` is what ``in_flight`` answers, by role.
    """

    def __init__(self, roles: list[str], clock: Callable[[], float], *, mode: Mode = "lease") -> None:
        self._clock = clock
        self._fences = {role: Fence(role, mode, 0, 0, -math.inf, "", "") for role in roles}
        self.incarnation, self.started = "1/1", ""
        self.down = False
        self.delay = 0.0
        self.hanging: set[str] = set()
        self.calls: list[str] = []
        self.under_way: dict[str, int] = {}
        self.accepted: list[tuple[str, int]] = []

    # -- faults and writes ------------------------------------------------------------------------

    def fail_over(self, *, forget: int = 0, same_timeline: bool = False) -> None:
        """Promote another server; ``forget``: how much of each ``max_token_seen`` its replica lacked.

        ``same_timeline``: it and the one before it were standbys of one primary, and pass for one server.
        """
        self.started = f"{int(self.started or 0) + 1}"
        if not same_timeline:
            self.incarnation = f"{self.incarnation.split('/')[0]}/{int(self.incarnation.split('/')[1]) + 1}"
        for role, fence in self._fences.items():
            claimed_on = "1/0" if same_timeline else fence.incarnation
            seen = max(0, fence.max_token_seen - forget)
            self._fences[role] = replace(fence, max_token_seen=seen, incarnation=claimed_on)

    def write(self, role: str, token: int, issued: int = 0) -> Verdict:
        """One write, as the store would take it. An admitted one is in ``accepted``."""
        fence = self._fences.get(role)
        verdict = decide(fence, token, issued=issued, now=self._clock(), incarnation=self.incarnation)
        if verdict is Verdict.ADMIT and fence is not None:
            # A term that a write brought in: its holder is not known until it is claimed.
            holder = "" if token > fence.max_token_seen else fence.holder
            self._fences[role] = replace(fence, max_token_seen=max(token, fence.max_token_seen), holder=holder)
            self.accepted.append((role, token))
        return verdict

    def is_open(self, role: str) -> bool:
        """Whether the current term of ``role`` would be admitted now."""
        fence = self._fences[role]
        now = self._clock()
        return decide(fence, fence.max_token_seen, issued=0, now=now, incarnation=self.incarnation) is Verdict.ADMIT

    # -- FenceStore -------------------------------------------------------------------------------

    async def clock(self) -> StoreClock:
        await self._answer("clock")
        return StoreClock(self._clock(), self.incarnation, self.started)

    async def claim(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        await self._answer("claim")
        fence = self._fences.get(role)
        if fence is None:
            return ClaimRefused.NO_FENCE
        if clock.incarnation != self.incarnation:
            return ClaimRefused.INCARNATION
        same_term = token == fence.max_token_seen
        if token <= fence.sealed:
            return ClaimRefused.SEALED
        not_named = fence.mode == "token" and not fence.holder
        if token < fence.max_token_seen or (same_term and holder != fence.holder and not not_named):
            return ClaimRefused.SUPERSEDED
        if same_term and fence.mode == "lease" and fence.incarnation != self.incarnation:
            return ClaimRefused.INCARNATION
        until = max(clock.now + valid_for, fence.valid_until) if same_term else clock.now + valid_for
        if self._clock() >= until:
            return ClaimRefused.EXPIRED
        self._fences[role] = replace(
            fence,
            max_token_seen=token,
            holder=holder,
            valid_until=until,
            incarnation=self.incarnation,
            draining=fence.draining and same_term,
        )
        return None

    async def extend(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        await self._answer("extend")
        fence = self._fences.get(role)
        if fence is None:
            return ClaimRefused.NO_FENCE
        if token <= fence.sealed:
            return ClaimRefused.SEALED
        if token != fence.max_token_seen or holder != fence.holder:
            return ClaimRefused.SUPERSEDED
        if not clock.incarnation == self.incarnation == fence.incarnation:
            return ClaimRefused.INCARNATION
        until = max(clock.now + valid_for, fence.valid_until)
        if self._clock() >= until:
            return ClaimRefused.EXPIRED
        self._fences[role] = replace(fence, valid_until=until)
        return None

    async def seal(self, role: str, token: int, incarnation: str) -> bool:
        await self._answer("seal")
        fence = self._fences.get(role)
        if fence is None:
            return False
        sealed = replace(fence, sealed=max(token, fence.sealed))
        closes = token >= fence.max_token_seen
        self._fences[role] = replace(sealed, valid_until=-math.inf, draining=False) if closes else sealed
        return incarnation == self.incarnation == fence.incarnation and fence.max_token_seen >= token

    async def set_draining(self, role: str, token: int, draining: bool) -> bool:
        await self._answer("set_draining")
        fence = self._fences.get(role)
        if fence is None or fence.max_token_seen != token or fence.sealed >= token:
            return False
        self._fences[role] = replace(fence, draining=draining)
        return True

    async def in_flight(self, role: str, token: int) -> int:
        await self._answer("in_flight")
        return self.under_way.get(role, 0)

    async def read(self, role: str) -> Fence | None:
        await self._answer("read")
        return self._fences.get(role)

    async def read_some(self, roles: Sequence[str]) -> list[Fence]:
        await self._answer("read_some")
        return [self._fences[role] for role in roles if role in self._fences]

    async def read_all(self) -> list[Fence]:
        await self._answer("read_all")
        return list(self._fences.values())

    async def _answer(self, method: str) -> None:
        self.calls.append(method)
        if method in self.hanging:
            await asyncio.Event().wait()
        await asyncio.sleep(self.delay)
        if self.down:
            raise Unavailable("the store is down")
