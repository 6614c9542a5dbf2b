"""The elector: runs the pure machine of :mod:`fencegate.leadership` against an election and the region's store.

It holds no rule of its own. It waits for the next event, hands it to the machine together with the
time, and carries out what the machine asks for; each request ends by its limit, whatever hangs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from fencegate.election.errands import Attempt, Errands
from fencegate.election.strange_answers import asking
from fencegate.errors import Unavailable
from fencegate.fence import FenceStore
from fencegate.leadership.handing import Handing, HandingEnded
from fencegate.leadership.machine import Leadership
from fencegate.leadership.words import (
    Acquire,
    Answer,
    Claim,
    Done,
    Drain,
    Ended,
    Event,
    Failed,
    Handoff,
    Hint,
    Keep,
    Lost,
    Renew,
    Request,
    Resign,
    State,
    Tell,
    Tick,
)
from fencegate.lease import Candidate, Cause, ElectionBackend, ElectionUnavailable, LeaseLost, LeaseTimings
from fencegate.observations import LeaseRenewalFailed, LeaseRenewed, Observer, SourceUnavailable
from fencegate.steady_clock import steady_clock

_STOPS_WRITES: Final = frozenset({State.YIELDING, State.DRAINING, State.SEALING, State.RELEASING})


class Elector:
    """Campaigns for ``role`` on behalf of ``candidate`` and holds its term in ``store``.

    Raises ``ValueError`` for timings that do not hold together.
    """

    def __init__(
        self,
        role: str,
        candidate: Candidate,
        backend: ElectionBackend,
        store: FenceStore,
        timings: LeaseTimings,
        observe: Observer,
        *,
        strict_wait: bool = False,
        clock: Callable[[], float] = steady_clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        if faults := timings.faults():
            raise ValueError("; ".join(faults))
        self.role = role
        self.candidate = candidate
        self._backend = backend
        self._store = store
        self._timings = timings
        self._observe = observe
        self._clock = clock
        self._jitter = jitter
        self._machine = Leadership(role, timings, strict_wait=strict_wait)
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._work: asyncio.Task[None] | None = None
        self._work_id = 0
        self._writes_are_stopped = False
        self._drained_since: float | None = None
        self._cancelled: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._errands = Errands(role, candidate, backend, store, timings, observe)
        self._drain_forgotten: asyncio.TimerHandle | None = None
        self._running = False
        self._stopped_writes_at = 0.0
        self._handoffs = 0
        self._handoffs_taken = 0
        self._told_refusal = False
        self._resignations = 0
        self._resignations_taken = 0

    # -- asking it ----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def token(self) -> int | None:
        """The token of our term while we lead, by our own clock; ``None`` otherwise."""
        return self._machine.token if self._machine.leads(self._clock()) else None

    @property
    def remaining(self) -> float:
        """Seconds for which we go on believing without a further renewal; 0 when not leading."""
        now = self._clock()
        return self._machine.deadline - now if self._machine.leads(now) else 0.0

    @property
    def last_end(self) -> Ended | None:
        """How our last term ended."""
        return self._machine.last_end

    async def changed(self) -> None:
        """Returns when the state or the token next changes."""
        await self._changed.wait()

    def hint(self) -> None:
        """Something may have changed in the election: a candidate looks at once instead of at its next turn."""
        if self._running:  # it begins with a look anyway
            self._inbox.put_nowait(Hint())

    @property
    def handing(self) -> Handing | None:
        """The handoff under way, the sealing and the release included."""
        return self._machine.handing

    @property
    def stopped_writes_at(self) -> float:
        """When, by :meth:`now`, the latest handoff or resignation began to stop writes, or a drain before it."""
        return self._stopped_writes_at

    def now(self) -> float:
        """Seconds on this elector's own clock."""
        return self._clock()

    # -- commanding it ------------------------------------------------------------------------------

    async def resign(self, reason: str, limit: float) -> bool:
        """Stop admitting, seal, give the lease back; then hold off for a lease, so that another region can win.

        True if no term of ours is open when this returns: it was sealed and released, or there was none.
        False after ``limit`` seconds, or where the seal is not known: the lease lapses by itself.
        """
        return await self._leave(Resign(reason), limit)

    async def stop(self, limit: float) -> bool:
        """As :meth:`resign`, and never campaign again: :meth:`run` returns."""
        return await self._leave(Resign("shutdown", stop=True), limit)

    async def hand_over(self, to: str, limit: float) -> HandingEnded | None:
        """Hand our term to region ``to``, and wait until that has ended: released, undone, lapsing or abandoned.

        Within ``limit`` seconds it comes to the seal or is undone. ``None`` where we do not lead. While one is
        under way, asking again waits for that one, whatever its region (see :attr:`handing`). Whoever asks may
        go away: the handoff goes on.
        """
        if self._machine.handing is None and not (self._running and self._machine.leads(self._clock())):
            return None
        before = self._machine.last_handing
        self._handoffs += 1
        number = self._handoffs
        self._inbox.put_nowait(Handoff(to, limit))
        while self._running and (self._handoffs_taken < number or self._machine.handing is not None):
            await self._changed.wait()
        end = self._machine.last_handing
        return end if end is not before else None

    def keep_drained(self, drained: bool) -> None:
        """An operator's drain begins, or ends: see :attr:`fencegate.election.errands.Errands.kept_drained`."""
        self._errands.kept_drained = drained
        if not drained:
            self._drained_since = None
        elif self._drained_since is None:
            self._drained_since = self._clock()
        if self._drain_forgotten is not None:
            self._drain_forgotten.cancel()
        loop = asyncio.get_running_loop()
        lease = self._timings.lease_duration
        self._drain_forgotten = None if drained else loop.call_later(lease, self._forget_drain)

    async def stop_writes(self, token: int) -> bool:
        """See :meth:`fencegate.election.errands.Errands.stop_writes`, for an operator's drain."""
        return await self._errands.stop_writes(token)

    async def take_writes(self, token: int) -> None:
        """See :meth:`fencegate.election.errands.Errands.take_writes`, at its end."""
        await self._errands.take_writes(token)

    def _forget_drain(self) -> None:
        self._errands.kept_drained = None

    async def _leave(self, event: Resign, limit: float) -> bool:
        before, holding = self._machine.last_end, self._machine.token
        self._resignations += 1
        number = self._resignations
        self._inbox.put_nowait(event)
        if not self._running:
            return not holding
        settled = (State.STOPPED,) if event.stop else (State.STOPPED, State.CANDIDATE)
        try:
            async with asyncio.timeout(limit):
                while self._resignations_taken < number or self.state not in settled:
                    await self._changed.wait()
        except TimeoutError:
            return False
        end = self._machine.last_end
        return end.released if end is not None and end is not before else not holding

    # -- the loop -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Campaign until :meth:`stop`, or until cancelled: then a lease that is held lapses by itself."""
        if self._running:
            raise RuntimeError("this elector is running already")
        self._running = True
        try:
            self._handle(Tick())
            while self._machine.state is not State.STOPPED:
                self._handle(await self._next_event())
        finally:
            self._cancel_work()
            if self._cancelled:
                await asyncio.wait(self._cancelled, timeout=self._timings.retry_period)
            await self._leave_the_line()
            self._running = False
            self._signal()

    async def _next_event(self) -> Event:
        now = self._clock()
        try:
            async with asyncio.timeout(max(0.0, self._machine.wakeup(now) - now)):
                return await self._inbox.get()
        except TimeoutError:
            return Tick()

    def _handle(self, event: Event) -> None:
        before = (self._machine.state, self._machine.token)
        if isinstance(event, Resign):
            self._resignations_taken += 1
        elif isinstance(event, Handoff):
            self._handoffs_taken += 1
        effects = self._machine.handle(event, self._clock(), self._jitter())
        if self._work and self._work_id != self._machine.pending_id:
            self._cancel_work()
        for effect in effects:
            if isinstance(effect, Tell):
                self._observe(effect.observation)
            else:
                self._begin(effect)
        if (self._machine.state, self._machine.token) != before or isinstance(event, Resign | Handoff):
            self._signal()

    def _signal(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _begin(self, request: Request) -> None:
        self._cancel_work()
        if isinstance(request, Drain) and not self._writes_are_stopped:
            self._stopped_writes_at = self._clock() if self._drained_since is None else self._drained_since
        self._writes_are_stopped = self.state in _STOPS_WRITES  # also over the renewals in between
        self._work_id = request.id
        self._work = asyncio.create_task(self._answer(request), name=f"elector {self.role}: {type(request).__name__}")

    def _cancel_work(self) -> None:
        if self._work and not self._work.done():
            self._work.cancel()
            self._cancelled.add(self._work)
            self._work.add_done_callback(self._cancelled.discard)
        self._work = None

    async def _leave_the_line(self) -> None:
        """A candidate that goes away must not have its turn; a term that was won is left to lapse."""
        limit = self._timings.retry_period
        try:
            async with asyncio.timeout(limit):
                with asking(self._backend.name):
                    await self._backend.withdraw(self.role, limit)
        except (Unavailable, TimeoutError):
            return

    # -- carrying out -------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> None:
        """Carry ``request`` out; whatever happens, one answer goes to the machine."""
        started = self._clock()
        attempt = Attempt(request.limit, self._clock)
        answer: Answer
        try:
            async with asyncio.timeout(request.limit):
                answer = await self._errands.carry_out(request, attempt)
        except asyncio.CancelledError:
            # The machine's own limit may end a request a moment before ours does; that is a failure to be told of.
            if self._clock() - started >= request.limit:
                self._failed(
                    request, "store" if attempt.in_store else "timeout", f"cut off after {request.limit:.3g} s"
                )
            raise
        except LeaseLost as error:
            self._failed(request, "lost", str(error))
            answer = Lost(request.id)
        except TimeoutError:
            cause: Cause = "store" if attempt.in_store else "timeout"
            answer = self._failed(request, cause, f"no answer within {request.limit:.3g} s")
        except ElectionUnavailable as error:
            answer = self._failed(request, error.cause, str(error))
        except Unavailable as error:
            answer = self._failed(request, "store" if attempt.in_store else "connection", str(error))
        except Exception as error:
            # A backend that breaks its contract must not end the campaign, nor do so unseen.
            if not isinstance(request, Acquire):
                self._observe(SourceUnavailable(self.role, self._backend.name, repr(error)))
            answer = self._failed(request, "store" if attempt.in_store else "refused", repr(error))
        if isinstance(request, Acquire) and not isinstance(answer, Failed):
            self._told_refusal = False
        if isinstance(request, Keep | Claim | Renew) and isinstance(answer, Done):
            duration = self._clock() - started
            expires_at = time.time() - duration + self._timings.lease_duration
            self._observe(LeaseRenewed(self.role, self._backend.name, duration, expires_at))
        self._inbox.put_nowait(answer)

    def _failed(self, request: Request, cause: Cause, detail: str) -> Failed:
        if isinstance(request, Keep | Claim | Renew):
            self._observe(LeaseRenewalFailed(self.role, self._backend.name, cause, detail))
        if isinstance(request, Acquire) and cause == "refused" and not self._told_refusal:
            # Whoever only looks at the election may see nothing wrong: nobody else would tell why we never win.
            self._told_refusal = True
            self._observe(SourceUnavailable(self.role, self._backend.name, detail))
        return Failed(request.id, cause)
