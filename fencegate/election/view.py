"""What this process believes about leadership: one poller per role, and the read behind ``issued()``.

A watch is only a hint: it wakes the poller, and the poller asks again at its own pace when no hint
comes. Nothing here admits a write; it feeds hints, refusals and the console.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fencegate.election.elector import Elector
from fencegate.election.shared_read import PROOF_LIMIT, READ_SPACING, SharedRead
from fencegate.election.steady_clock import steady_clock
from fencegate.election.strange_answers import asking
from fencegate.errors import Unavailable
from fencegate.leadership.words import State
from fencegate.lease import LeadershipSource, LeaseTimings, Observed, Term
from fencegate.observations import LeaderObserved, Observer, SourceUnavailable

_CANDIDACY: Final = {
    State.STARTING: "campaigning",
    State.CANDIDATE: "campaigning",
    State.SETTLING: "claiming",
    State.CLAIMING: "claiming",
    State.ANNOUNCING: "handing over",
    State.YIELDING: "handing over",
    State.UNDOING: "handing over",
    State.DRAINING: "resigning",
    State.SEALING: "resigning",
    State.RELEASING: "resigning",
    State.STOPPED: "",
}


@dataclass(slots=True)
class _Belief:
    term: Term | None = None
    answered_at: float = float("-inf")
    answered_wall: float = 0.0
    failing: bool = False


class ElectionView:
    """A :class:`fencegate.lease.LeadershipView` over ``roles``. ``electors`` are the local ones, by role.

    ``origins`` is the advertised origin of each region; the view adds that of a handoff's successor, by its own
    configuration as it stands in the election's records.
    """

    def __init__(
        self,
        roles: Sequence[str],
        source: LeadershipSource,
        timings: LeaseTimings,
        observe: Observer,
        *,
        electors: Mapping[str, Elector] | None = None,
        origins: dict[str, str] | None = None,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self._source = source
        self._timings = timings
        self._observe = observe
        self._electors = dict(electors or {})
        self._origins = {} if origins is None else origins
        self._clock = clock
        self._beliefs = {role: _Belief() for role in roles}
        self._reads = {role: SharedRead(self._reader(role, timings.renew_deadline / 2), READ_SPACING) for role in roles}
        # Each batch of a validated role waits for one of these, and brings its own pace.
        self._proofs = {role: SharedRead(self._reader(role, PROOF_LIMIT), 0.0) for role in roles}
        self._wakes = {role: asyncio.Event() for role in roles}
        self._listeners: list[Callable[[str], None]] = []

    def observed(self, role: str) -> Observed:
        """The latest observation, from memory. A role that is not watched is not known."""
        belief = self._beliefs.get(role)
        if belief is None:
            return Observed(False, None, 0.0, float("inf"))
        age = self._clock() - belief.answered_at
        known = age < self._timings.lease_duration
        return Observed(known, belief.term if known else None, belief.answered_wall, age, self._candidacy(role))

    async def issued(self, role: str, time_limit: float) -> Term | None:
        """The current active term, by a linearizable read begun after this call. See :class:`LeadershipView`."""
        return await self._shared(self._reads, role, time_limit)

    async def still_leads(self, role: str, token: int, time_limit: float) -> bool:
        """Whether ``token`` is the active term, by such a read: :data:`fencegate.fence.StillLeads`, rule R15."""
        term = await self._shared(self._proofs, role, time_limit)
        return term is not None and term.token == token

    async def _shared(self, reads: Mapping[str, SharedRead], role: str, time_limit: float) -> Term | None:
        read = reads.get(role)
        if read is None:
            raise Unavailable(f"the election of role {role!r} is not watched by this process")
        try:
            async with asyncio.timeout(time_limit):
                return await read.next()
        except asyncio.CancelledError:
            # Our own cancellation goes on; that of the shared read, when the view ends, is no answer.
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            raise Unavailable("the view of the election has ended") from None
        except TimeoutError:
            raise Unavailable(f"the election did not answer within {time_limit:g} s") from None

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    def hint(self, role: str) -> None:
        """Something may have changed: ask the election now. A role that is not watched is nobody's business here."""
        if role in self._wakes:
            self._wakes[role].set()

    async def run(self) -> None:
        """Poll every role until cancelled; no read is under way after that."""
        try:
            async with asyncio.TaskGroup() as group:
                for role in self._beliefs:
                    group.create_task(self._poll(role))
                    group.create_task(self._take_hints(role))
                    if role in self._electors:
                        group.create_task(self._follow_elector(role, self._electors[role]))
        finally:
            for read in (*self._reads.values(), *self._proofs.values()):
                read.cancel()

    # -- pollers ------------------------------------------------------------------------------------

    async def _poll(self, role: str) -> None:
        wake = self._wakes[role]
        while True:
            wake.clear()
            try:
                await self._reads[role].next()
            except Unavailable as error:
                if not self._beliefs[role].failing:
                    self._observe(SourceUnavailable(role, self._source.name, str(error)))
                self._beliefs[role].failing = True
            try:
                async with asyncio.timeout(self._timings.retry_period):
                    await wake.wait()
            except TimeoutError:
                continue

    async def _take_hints(self, role: str) -> None:
        while True:
            with contextlib.suppress(Unavailable), asking(self._source.name):  # a hint is missing, nothing more
                async for _ in self._source.changes(role):
                    self._wakes[role].set()
                    if role in self._electors:
                        self._electors[role].hint()
            await asyncio.sleep(self._timings.retry_period)

    async def _follow_elector(self, role: str, elector: Elector) -> None:
        while True:
            await elector.changed()
            self._wakes[role].set()

    # -- reading ------------------------------------------------------------------------------------

    def _reader(self, role: str, deadline: float) -> Callable[[], Awaitable[Term | None]]:
        async def read() -> Term | None:
            with asking(self._source.name):
                term = await self._source.read(role, deadline)
            # Before its claim a term is nobody's business (rule R5).
            active = term if term and term.active else None
            self._take(role, active)
            if active and active.draining_to and active.draining_to not in self._origins:
                await self._learn_origins(role)
            return active

        return read

    async def _learn_origins(self, role: str) -> None:
        """Those who wait in line. Without them a hint is missing, nothing more."""
        with contextlib.suppress(Unavailable, NotImplementedError), asking(self._source.name):
            for candidate in await self._source.candidates(role, self._timings.retry_period):
                self._origins.setdefault(candidate.region, candidate.url)

    def _take(self, role: str, term: Term | None) -> None:
        belief = self._beliefs[role]
        if _who(term) != _who(belief.term) or belief.answered_at == float("-inf"):
            token, region, node = _who(term)
            self._observe(LeaderObserved(role, token, region, node))
        changed = (_who(term), _successor(term)) != (_who(belief.term), _successor(belief.term))
        belief.term, belief.failing = term, False
        belief.answered_at, belief.answered_wall = self._clock(), time.time()
        if changed:
            for tell in self._listeners:
                tell(role)

    def _candidacy(self, role: str) -> str:
        elector = self._electors.get(role)
        if elector is None:
            return ""
        if elector.state is State.LEADING:
            return "leading" if elector.token is not None else "campaigning"
        return _CANDIDACY[elector.state]


def _who(term: Term | None) -> tuple[int, str, str]:
    return (term.token, term.region, term.node) if term else (0, "", "")


def _successor(term: Term | None) -> str | None:
    return term.draining_to if term else None
