"""An elector's errands: how each request of the machine is carried out against the election and the store.

The order of the steps is the point (rules R3, R5 and R8); when to take them is the machine's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

from fencegate.fence import ClaimRefused, Fence, FenceStore, StoreClock
from fencegate.leadership.words import (
    Acquire,
    Acquired,
    Answer,
    Claim,
    Done,
    Drain,
    Failed,
    Keep,
    Reclaim,
    Refused,
    Release,
    Released,
    Renew,
    Request,
    Seal,
    Sealed,
    Undrained,
    Withdraw,
)
from fencegate.lease import Candidate, ElectionBackend, Held, LeaseTimings, SealRecord, Won
from fencegate.observations import EarlierTermEnded, NodeNameShared, Observer, TokenRegressed

T = TypeVar("T")

DRAIN_PACE: Final = 0.02
"""Seconds between two looks at the writes under way."""


class Attempt:
    """One try at one request: what is left of its time, and whether the store is being asked.

    ``left`` is looked at before every step, so that a thawed process takes no step too many.
    """

    def __init__(self, limit: float, clock: Callable[[], float]) -> None:
        self.in_store = False
        self._clock = clock
        self._ends = clock() + limit

    @property
    def left(self) -> float:
        """Seconds. Raises ``TimeoutError`` when there are none."""
        left = self._ends - self._clock()
        if left <= 0:
            raise TimeoutError
        return left

    async def ask(self, answer: Awaitable[T]) -> T:
        """Await the store; a failure meanwhile is the store's."""
        self.in_store = True
        result = await answer
        self.in_store = False
        return result


class Errands:
    """Remembers between requests: the terms it claimed and won, on which incarnation; a token gone back; a namesake."""

    def __init__(
        self,
        role: str,
        candidate: Candidate,
        backend: ElectionBackend,
        store: FenceStore,
        timings: LeaseTimings,
        observe: Observer,
    ) -> None:
        self._role = role
        self._candidate = candidate
        self._backend = backend
        self._store = store
        self._timings = timings
        self._observe = observe
        self._claimed = 0
        self._incarnation = ""
        self._started = ""
        """Of the server that was sent the claim: :attr:`fencegate.fence.StoreClock.started`."""
        self._won = 0
        self._namesake = 0
        self._regressed = 0
        """The highest number known to have been issued, where the issuer was found behind it (rule R10); else 0."""
        self._held = 0
        """The highest token under which anybody was seen to hold the role in this life."""
        self._marking = asyncio.Lock()
        """Held by whoever tells the store whether writes are taken, so that it hears last what was said last."""
        self.kept_drained: bool | None = None
        """An operator's drain: ``True`` while no renewal may take writes again, ``False`` while each of a leader does
        (its "stop writes" may be carried out late by the store), ``None`` without one."""

    async def carry_out(self, request: Request, attempt: Attempt) -> Answer:
        """The answer to ``request``. Raises ``LeaseLost``, ``Unavailable`` or ``TimeoutError``."""
        match request:
            case Reclaim(id=id_):
                await self._reclaim(attempt)
                return Done(id_)
            case Acquire(id=id_):
                await attempt.ask(self._store.clock())
                if self._regressed and (await self._issued_up_to(attempt) or 0) < self._regressed:
                    # To win a number that the own store refuses would only keep others from the role.
                    return Acquired(id_, Held(None))
                self._regressed = self._claimed = 0
                outcome = await self._backend.acquire(self._role, self._candidate, attempt.left)
                self._look_for_a_namesake(outcome)
                self._remember(outcome)
                return Acquired(id_, outcome)
            case Withdraw(id=id_):
                await self._backend.withdraw(self._role, attempt.left)
                return Done(id_)
            case Keep(id=id_, token=token):
                await self._renew_in_election(token, attempt, active=False)
                return Done(id_)
            case Claim(id=id_, token=token):
                return await self._claim(id_, token, attempt)
            case Renew():
                return await self._renew(request, attempt)
            case Drain(id=id_, token=token):
                return await self._drain(id_, token, attempt)
            case Seal(id=id_, token=token):
                return Sealed(id_, await self._seal(token, attempt))
            case Release():
                return await self._release(request, attempt)
        raise AssertionError(f"no way to carry out {request!r}")

    async def _renew_in_election(
        self, token: int, attempt: Attempt, *, active: bool, draining_to: str | None = None
    ) -> None:
        candidate = replace(self._candidate, draining_to=draining_to)
        await self._backend.renew(self._role, token, candidate, active=active, deadline=attempt.left)

    def _remember(self, outcome: Won | Held) -> None:
        if isinstance(outcome, Held) and outcome.term is not None:
            self._held = max(self._held, outcome.term.token)

    def _look_for_a_namesake(self, outcome: Won | Held) -> None:
        """Tokens grow: a term under our own name, above all that we won in this life, is no earlier life's.

        Once it is active: one that is not may be a win of ours whose answer was lost.
        """
        if isinstance(outcome, Won):
            self._won = max(self._won, outcome.token)
            return
        term = outcome.term
        if term is None or not term.active:
            return
        if (term.node, term.region) != (self._candidate.node, self._candidate.region):
            return
        if term.token > self._won > 0 and term.token != self._namesake:
            self._namesake = term.token
            self._observe(NodeNameShared(self._role, term.node, term.token))

    async def _claim(self, id_: int, token: int, attempt: Attempt) -> Answer:
        """Rules R3 and R5: the store's clock, then the quorum, then the claim. Not announced yet."""
        clock = await attempt.ask(self._store.clock())
        if token == self._claimed and (clock.incarnation, clock.started) != (self._incarnation, self._started):
            # The answer to an earlier try was lost: the term may be open on that other server (rule R9), which may be
            # of the same incarnation. One that was merely started again has it in its row: the seal after this counts.
            return Refused(id_, ClaimRefused.INCARNATION)
        if token != self._claimed:
            if token <= self._held:
                # Another region held the role under it, or under a higher one: our own store cannot know (rule R10).
                self._regressed = self._held if await self._issued_up_to(attempt) is not None else 0
                return Refused(id_, ClaimRefused.SUPERSEDED, self._held, regressed=True)
            row = await attempt.ask(self._store.read(self._role))
            if row is not None and row.max_token_seen == token:
                # Not claimed in this life, and accepted here before: it has been issued twice (rule R10).
                return Refused(id_, ClaimRefused.SUPERSEDED, token, regressed=True)
        await self._renew_in_election(token, attempt, active=False)
        self._claimed, self._incarnation, self._started = token, clock.incarnation, clock.started
        refused = await self._in_store(self._store.claim, token, clock, attempt)
        if refused is None:
            return Done(id_)
        seen, regressed = 0, False
        if refused in (ClaimRefused.SUPERSEDED, ClaimRefused.SEALED):
            row = await attempt.ask(self._store.read(self._role))
            seen = row.max_token_seen if row else 0
            term = await self._backend.read(self._role, attempt.left)
            regressed = term is not None and term.token == token < seen
            # A fence that is sealed says so first, also to a token that is below all it has seen.
            refused = ClaimRefused.SUPERSEDED if regressed else refused
            self._regressed = seen if regressed and await self._issued_up_to(attempt) is not None else 0
        return Refused(id_, refused, seen, regressed)

    async def _issued_up_to(self, attempt: Attempt) -> int | None:
        """``None`` where the election does not tell."""
        try:
            return await self._backend.issued_up_to(self._role, attempt.left)
        except NotImplementedError:
            return None

    async def _renew(self, request: Renew, attempt: Attempt) -> Answer:
        """Rule R3: the store's clock, then the quorum, then the extension."""
        id_, token = request.id, request.token
        clock = await attempt.ask(self._store.clock())
        if clock.incarnation != self._incarnation:
            return Refused(id_, ClaimRefused.INCARNATION)
        takes_writes = request.undrain or (self.kept_drained is False and request.draining_to is None)
        # Not behind a word that hangs: a renewal must not wait for it, and the next one says it again.
        if takes_writes and not self._marking.locked():
            await attempt.ask(self.take_writes(token))
        await self._renew_in_election(token, attempt, active=True, draining_to=request.draining_to)
        refused = await self._in_store(self._store.extend, token, clock, attempt)
        return Refused(id_, refused) if refused else Done(id_)

    async def _drain(self, id_: int, token: int, attempt: Attempt) -> Answer:
        """Rule R12: from the flag on no write begins; then every mark of one under way must go."""
        if not await attempt.ask(self._store.set_draining(self._role, token, True)):
            return Failed(id_, "store")  # the row is not this term's: the next renewal will tell why
        left = await self._still_under_way(token, attempt)
        return Undrained(id_, left) if left else Done(id_)

    async def stop_writes(self, token: int) -> bool:
        """For an operator's drain: no further write of the term. False where the store's row is not this term's."""
        async with self._marking:
            return await self._store.set_draining(self._role, token, True)

    async def take_writes(self, token: int) -> None:
        """Have the store take writes of the term again, unless an operator has asked for a drain."""
        async with self._marking:
            if not self.kept_drained:
                await self._store.set_draining(self._role, token, False)

    async def _still_under_way(self, token: int, attempt: Attempt) -> int:
        """Wait for the marks of the term to go; how many stand when the attempt's time is up."""
        while left := await attempt.ask(self._store.in_flight(self._role, token)):
            remaining = attempt.left
            await asyncio.sleep(min(DRAIN_PACE, remaining / 2))  # also before giving up: nobody is to ask in a spin
            if remaining < 2 * DRAIN_PACE:
                return left
        return 0

    async def _in_store(
        self,
        method: Callable[[str, int, str, StoreClock, float], Awaitable[ClaimRefused | None]],
        token: int,
        clock: StoreClock,
        attempt: Attempt,
    ) -> ClaimRefused | None:
        assert attempt.left > 0
        holder = self._candidate.holder
        return await attempt.ask(method(self._role, token, holder, clock, self._timings.store_lease))

    async def _seal(self, token: int, attempt: Attempt) -> bool:
        if not self._incarnation:
            return False
        return await attempt.ask(self._store.seal(self._role, token, self._incarnation))

    async def _release(self, request: Release, attempt: Attempt) -> Answer:
        """Rules R8 and R12: after the seal no write begins, so what is under way now is all there is to wait for.

        A look before the seal is no proof: a "take writes again" that the store carried out late may have let
        one in behind it, and a resignation goes on though its writes have not ended.
        """
        id_, token = request.id, request.token
        if left := await self._still_under_way(token, attempt):
            return Undrained(id_, left)
        record = SealRecord(token, self._candidate.region, request.successor)
        return Released(id_, await self._backend.release(self._role, token, record, attempt.left))

    async def _reclaim(self, attempt: Attempt) -> None:
        """End a term that an earlier life of this very node left behind: its lease need not run out first.

        Only where the own store shows that the term was claimed there by us: a seal counts only on the
        server where the term was open (rule R8).
        """
        term = await self._backend.read(self._role, attempt.left)
        row = await attempt.ask(self._store.read(self._role))
        issued, seen = await self._issued_up_to(attempt), row.max_token_seen if row else 0
        self._regressed = seen if issued is not None and issued < seen else 0
        below = [number for number in (term.token if term else None, issued) if number is not None and number < seen]
        if below:
            self._observe(TokenRegressed(self._role, below[0], seen))
        if term is None or row is None or not self._was_ours(term.node, term.region, term.token, row):
            return
        sealed = await attempt.ask(self._store.seal(self._role, term.token, row.incarnation))
        if sealed and not await self._still_under_way(term.token, attempt):
            record = SealRecord(term.token, self._candidate.region)
            if await self._backend.release(self._role, term.token, record, attempt.left):
                self._observe(EarlierTermEnded(self._role, term.token))

    def _was_ours(self, node: str, region: str, token: int, row: Fence) -> bool:
        same_node = (node, region) == (self._candidate.node, self._candidate.region)
        return same_node and row.max_token_seen == token and row.holder == self._candidate.holder
