"""What this process believes about leadership, by looking at every role in turn; and the read behind ``issued()``.

A watch is only a hint: a role that it names is looked at once more, and every one is at its pace when no hint
comes. Nothing here admits a write; it feeds hints, refusals and the console.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from fencegate.election.elector import Elector
from fencegate.election.role_rounds import Release, RoleRounds, read_roles
from fencegate.election.shared_read import PROOF_LIMIT, READ_SPACING, SharedRead
from fencegate.election.strange_answers import asking
from fencegate.errors import Unavailable
from fencegate.leadership.words import State
from fencegate.lease import LeadershipSource, LeaseTimings, Observed, Term
from fencegate.observations import LeaderObserved, Observer, SourceUnavailable
from fencegate.steady_clock import steady_clock

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


@dataclass(frozen=True, slots=True)
class _Answer:
    """When a read ``began`` and ``ended``, and what the time was on the wall: one for all the roles that it told of."""

    began: float = float("-inf")
    ended: float = float("-inf")
    wall: float = 0.0


_NONE_YET: Final = _Answer()


@dataclass(slots=True)
class _Belief:
    term: Term | None = None
    answer: _Answer = _NONE_YET
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
        self._configured = frozenset(self._origins)
        self._learned: dict[str, float] = {}
        """When the origin of each other region was learned last."""
        self._clock = clock
        self._beliefs = {role: _Belief() for role in roles}
        self._reads: dict[str, SharedRead] = {}
        """Of the roles about which :meth:`issued` was asked lately."""
        self._proofs: dict[str, SharedRead] = {}
        """The same of :meth:`still_leads`. Each batch of a validated role waits for one, and brings its own pace."""
        self._rounds = RoleRounds(self._beliefs, source, timings.retry_period, self._look, self._pass_hint_on)
        self._listeners: list[Callable[[str], None]] = []

    def observed(self, role: str) -> Observed:
        """The latest observation, from memory. A role that is not watched is not known."""
        belief = self._beliefs.get(role)
        if belief is None:
            return Observed(False, None, 0.0, float("inf"))
        age = self._clock() - belief.answer.ended
        known = age < self._timings.lease_duration
        return Observed(known, belief.term if known else None, belief.answer.wall, age, self._candidacy(role))

    async def issued(self, role: str, time_limit: float) -> Term | None:
        """The current active term, by a linearizable read begun after this call. See :class:`LeadershipView`."""
        if role not in self._reads:
            limit = self._timings.renew_deadline / 2
            self._reads[role] = SharedRead(partial(self._read, self._watched(role), limit), READ_SPACING)
        return await self._shared(self._reads[role], time_limit)

    async def still_leads(self, role: str, token: int, time_limit: float) -> bool:
        """Whether ``token`` is the active term, by such a read: :data:`fencegate.fence.StillLeads`, rule R15."""
        if role not in self._proofs:
            self._proofs[role] = SharedRead(partial(self._read, self._watched(role), PROOF_LIMIT), 0.0)
        term = await self._shared(self._proofs[role], time_limit)
        return term is not None and term.token == token

    def _watched(self, role: str) -> str:
        if role not in self._beliefs:
            raise Unavailable(f"the election of role {role!r} is not watched by this process")
        return role

    @staticmethod
    async def _shared(read: SharedRead, time_limit: float) -> Term | None:
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
        self._rounds.wake(role)

    async def run(self) -> None:
        """Watch every role until cancelled; no read is under way after that."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rounds.run())
                for role, elector in self._electors.items():
                    group.create_task(self._follow_elector(role, elector))
        finally:
            for read in (*self._reads.values(), *self._proofs.values()):
                read.cancel()

    def _pass_hint_on(self, role: str) -> None:
        if role in self._electors:
            self._electors[role].hint()

    async def _follow_elector(self, role: str, elector: Elector) -> None:
        while True:
            await elector.changed()
            self._rounds.wake(role)

    # -- reading ------------------------------------------------------------------------------------

    async def _look(self, roles: Sequence[str], release: Release) -> None:
        """A look at many roles, for what this process believes."""
        self._forget_reads()
        began = self._clock()
        try:
            terms = await read_roles(self._source, roles, self._timings.renew_deadline / 2)
        except Unavailable as error:
            terms = dict.fromkeys(roles, error)
        answer = _Answer(began, self._clock(), time.time())
        unknown: dict[str, str] = {}
        for role in roles:
            term = terms[role]
            if isinstance(term, Unavailable):
                self._failed(role, term)
            elif (region := self._believe(role, term, answer)) is not None:
                unknown[region] = role
            release(role)
        for role in unknown.values():
            await self._learn_origins(role)

    async def _read(self, role: str, deadline: float) -> Term | None:
        """A read of one role, that somebody waits for."""
        began = self._clock()
        with asking(self._source.name):
            term = await self._source.read(role, deadline)
        if self._believe(role, term, _Answer(began, self._clock(), time.time())) is not None:
            await self._learn_origins(role)
        return term if term and term.active else None

    def _forget_reads(self) -> None:
        """What was kept of the reads of roles about which nobody has asked lately."""
        for reads in (self._reads, self._proofs):
            for role in [role for role, read in reads.items() if read.is_rested]:
                del reads[role]

    async def _learn_origins(self, role: str) -> None:
        """Those who wait in line. Without them a hint is missing, nothing more."""
        with contextlib.suppress(Unavailable, NotImplementedError), asking(self._source.name):
            waiting = await self._source.candidates(role, self._timings.retry_period)
            # The first of a region is the one that will lead.
            found = {each.region: each.url for each in reversed(waiting) if each.region not in self._configured}
            self._origins.update(found)
            self._learned.update(dict.fromkeys(found, self._clock()))

    def _failed(self, role: str, error: Unavailable) -> None:
        if not self._beliefs[role].failing:
            self._observe(SourceUnavailable(role, self._source.name, str(error)))
        self._beliefs[role].failing = True

    def _believe(self, role: str, read: Term | None, answer: _Answer) -> str | None:
        """Take in what was ``read``; gives the region that the role is being handed to, if its origin is to be learned:
        one that was learned long ago may be another by now."""
        belief = self._beliefs[role]
        if answer.began < belief.answer.began:
            return None  # Overtaken: what is believed comes from a later read.
        # Before its claim a term is nobody's business (rule R5).
        term = read if read and read.active else None
        if _who(term) != _who(belief.term) or belief.answer is _NONE_YET:
            token, region, node = _who(term)
            self._observe(LeaderObserved(role, token, region, node))
        changed = (_who(term), _successor(term)) != (_who(belief.term), _successor(belief.term))
        belief.term, belief.answer, belief.failing = term, answer, False
        if changed:
            for tell in self._listeners:
                tell(role)
        successor = _successor(term)
        if successor is None or successor in self._configured:
            return None
        learned = self._learned.get(successor, -math.inf)
        return successor if self._clock() - learned >= self._timings.lease_duration else None

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
