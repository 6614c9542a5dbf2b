"""``lead()``: be the leader of a role, in a process of your own (token mode).

    async with lead("nightly-cron", backend=backend, candidate=me) as term:
        async with term.client(["https://ledger.eu.example"]) as client:
            while not term.lost.is_set():
                await client.post("/v1/entries", json=next_entry())

The block begins once the role is won. While it runs, the lease is renewed in the background; the term
is over ``renew_deadline`` seconds after the *start* of the last renewal that succeeded, by this
process' own clock, whatever a renewal that hangs may still come back with. A token is never replaced:
a process that wants to lead again enters ``lead()`` again and gets another one.

**At the end of the block** the lease is left to lapse, unless ``shared_store=True``. A lease may be given
back early only after the old holder is known to be unable to write (rule R8), and a process can't know
that of its own requests: one may still be on its way when it leaves. ``shared_store=True`` is your word that
every write of the role lands in one store which checks the token in the transaction of the write. There
the next leader's first write raises the one row that all of them pass, so that a write which is late is either
before it in the commit order or refused: no seal is needed for that. It is still your part that a
leader *writes before it trusts what it reads*, since a late write of the old term may land until then. Where stores
are separate, or the check and the write are not one transaction, the same early return lets two terms write
at once; hence the default. Even with ``shared_store=True`` the lease is left to lapse while a request of
the term's own clients is under way, or may be since it was cancelled or its outcome is not known, and after a block
that was left by an exception.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, TypeVar

from fencegate import observations
from fencegate.client.grants import Grants
from fencegate.client.term import Clock, LeaderTerm
from fencegate.errors import ConfigurationError, Unavailable
from fencegate.lease import (
    JITTER_FACTOR,
    Candidate,
    Cause,
    ElectionBackend,
    ElectionUnavailable,
    LeaseLost,
    LeaseTimings,
    SealRecord,
    Won,
)
from fencegate.steady_clock import steady_clock

_T = TypeVar("_T")

_OF_ITS_LIMIT: Final = 0.9
_WITHDRAW_LIMIT: Final = 2.0
_TRIES_PER_DEADLINE: Final = 3
_BACKEND_FAULTS: Final = (Unavailable, TimeoutError, OSError)


own_clock = steady_clock

_entered: Final[set[tuple[int, str]]] = set()
"""The backend (its ``id``) and the role of every block of this process: one candidacy is one leader's."""


class Leading:
    """What :func:`lead` returns: entering it campaigns, leaving it ends the term."""

    def __init__(
        self,
        role: str,
        backend: ElectionBackend,
        candidate: Candidate,
        timings: LeaseTimings,
        shared_store: bool,
        cancel_on_loss: bool,
        observer: observations.Observer,
        clock: Clock,
        grants: Grants | None = None,
    ) -> None:
        self._role = role
        self._backend = backend
        self._candidate = candidate
        self._timings = timings
        self._shared_store = shared_store
        self._cancel_on_loss = cancel_on_loss
        self._observe = observer
        self._clock = clock
        self._grants = grants
        self._candidacy = (id(backend), role)
        self._term: LeaderTerm | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._block: asyncio.Task[Any] | None = None
        self._cancels_before = 0
        self._may_cancel = self._cancelled_block = False

    async def __aenter__(self) -> LeaderTerm:
        if self._candidacy in _entered:
            raise RuntimeError(
                f"another lead() of this process stands for {self._role!r} over this very backend, and both would lead"
                " under one token: give each a backend of its own"
            )
        _entered.add(self._candidacy)
        self._may_cancel, self._cancelled_block = self._cancel_on_loss, False
        self._block = asyncio.current_task()
        self._cancels_before = self._block.cancelling() if self._block is not None else 0
        try:
            self._term = term = await self._campaign()
            term._when_lost = self._on_loss
            self._observe(observations.LeadershipGained(self._role, term.token))
        except BaseException:
            await self._forget_candidacy()
            raise
        self._keeper = asyncio.create_task(self._keep(term), name=f"fencegate-lead-{self._role}")
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        term, keeper = self._term, self._keeper
        if term is None or keeper is None:
            return
        self._may_cancel = False
        clean = error is None and not term.lost.is_set() and term.remaining() > 0
        ours = self._take_back_cancellation()
        try:
            # First nobody here believes in the term any more, then it is given back: never the other way round.
            term.end("resigned" if clean else "renew_deadline" if term.remaining() <= 0 else "block_failed")
            await _stopped(keeper)
            if clean and self._shared_store and term.idle():
                await self._give_back(term)
        finally:
            for task in (keeper, *self._abandoned):
                task.cancel()
            await self._forget_candidacy()
        if ours and isinstance(error, asyncio.CancelledError):
            raise term.loss() from error

    def _take_back_cancellation(self) -> bool:
        """As asyncio.timeout does: True where the block was cancelled by us, and by nobody else as well."""
        if not self._cancelled_block or self._block is None:
            return False
        return self._block.uncancel() <= self._cancels_before

    async def _campaign(self) -> LeaderTerm:
        while True:
            term = await self._try_to_win()
            if term is not None:
                return term
            await asyncio.sleep(self._jittered())

    async def _try_to_win(self) -> LeaderTerm | None:
        started, limit = self._clock(), self._timings.renew_deadline
        try:
            # It has a little less than we wait: why a try failed it knows, and only once its time is up.
            attempt = self._backend.acquire(self._role, self._candidate, limit * _OF_ITS_LIMIT)
            outcome = await self._bounded(attempt, limit)
        except _BACKEND_FAULTS as fault:
            self._observe(observations.SourceUnavailable(self._role, self._backend.name, _say(fault)))
            return None
        if not isinstance(outcome, Won):
            return None
        # An acquire may find a lease that we have held for a while: only a renewal says from when it counts.
        # The first one with active=True also is what announces the term.
        while self._clock() < started + limit:
            asked = self._clock()
            try:
                await self._renew(outcome.token, started + limit - asked)
            except LeaseLost:
                return None
            except _BACKEND_FAULTS:
                await asyncio.sleep(min(self._jittered(), max(0.0, started + limit - self._clock())))
            else:
                term = LeaderTerm(self._role, outcome.token, self._timings, asked, self._clock, self._grants)
                return term if term.remaining() > 0 else None
        return None

    async def _keep(self, term: LeaderTerm) -> None:
        """Renew until the term is lost. A fault only costs time; the clock alone decides when there is none left."""
        try:
            while term.remaining() > 0:
                await asyncio.sleep(min(self._jittered(), term.remaining()))
                await self._once_more(term)
        finally:
            # Also should this task end in a way that nobody foresaw: a term that nobody renews is over.
            term.end("renew_deadline")

    async def _once_more(self, term: LeaderTerm) -> None:
        started = self._clock()
        if term.remaining() <= 0:
            return
        try:
            await self._renew(term.token, term.remaining())
        except LeaseLost:
            term.end("lost")
        except Exception:
            # Observed already. Whatever a backend throws, it is a renewal that did not succeed, and no more.
            return
        else:
            term.renewed(started)

    async def _renew(self, token: int, left: float) -> None:
        timings = self._timings
        limit = max(0.001, min(left, max(timings.retry_period, timings.renew_deadline / _TRIES_PER_DEADLINE)))
        started = self._clock()
        renewal = self._backend.renew(self._role, token, self._candidate, active=True, deadline=limit)
        try:
            await self._bounded(renewal, limit)
        except LeaseLost as fault:
            self._failed("lost", fault)
            raise
        except Exception as fault:
            self._failed(_cause(fault), fault)
            raise
        expires_at = time.time() + timings.lease_duration - (self._clock() - started)
        self._observe(observations.LeaseRenewed(self._role, self._backend.name, self._clock() - started, expires_at))

    def _failed(self, cause: Cause, fault: Exception) -> None:
        self._observe(observations.LeaseRenewalFailed(self._role, self._backend.name, cause, _say(fault)))

    async def _bounded(self, call: Coroutine[Any, Any, _T], limit: float) -> _T:
        """The call's result within ``limit`` seconds, else ``TimeoutError``, also if it ignores its cancellation."""
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait({task}, timeout=limit)
        finally:
            if not task.done():
                task.cancel()
                self._abandoned.add(task)
                task.add_done_callback(self._forget)
        if not task.done():
            raise TimeoutError(f"no answer within {limit:.3g} s")
        return task.result()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()

    async def _give_back(self, term: LeaderTerm) -> None:
        seal, limit = SealRecord(term.token, self._candidate.region), self._timings.retry_period
        try:
            await self._bounded(self._backend.release(self._role, term.token, seal, limit), limit)
        except _BACKEND_FAULTS as fault:
            # It lapses by itself.
            self._observe(observations.SourceUnavailable(self._role, self._backend.name, _say(fault)))

    async def _forget_candidacy(self) -> None:
        """Leave the line; and whoever leads over this backend next does so under a token of its own.

        A term that was won is not ended by it, and lapses.
        """
        try:
            await self._bounded(self._backend.withdraw(self._role, _WITHDRAW_LIMIT), _WITHDRAW_LIMIT)
        except Exception as fault:  # whatever a backend throws must not take the place of how the block ended
            self._observe(observations.SourceUnavailable(self._role, self._backend.name, _say(fault)))
        finally:
            _entered.discard(self._candidacy)

    def _on_loss(self) -> None:
        term = self._term
        if term is None:
            return
        # Where the block itself found out, it gets the exception: no cancellation on top of it.
        if self._may_cancel and self._block is not None and self._block is not asyncio.current_task():
            self._cancelled_block = True
            self._block.cancel(f"leadership of {self._role!r} is lost: {term.reason}")
        self._observe(observations.LeadershipLost(self._role, term.token, term.reason))

    def _jittered(self) -> float:
        return self._timings.retry_period * random.uniform(1.0, JITTER_FACTOR)


def lead(
    role: str,
    *,
    backend: ElectionBackend,
    candidate: Candidate,
    timings: LeaseTimings | None = None,
    grants: Grants | None = None,
    shared_store: bool = False,
    cancel_on_loss: bool = False,
    observer: observations.Observer = observations.ignore,
    clock: Clock = own_clock,
) -> Leading:
    """Campaign for ``role`` and lead it for the length of an ``async with`` block, which gets the :class:`LeaderTerm`.

    Entering waits until the role is won; bound it with ``asyncio.timeout``. ``cancel_on_loss`` cancels the
    block's task when the term is lost, and the block then ends with :class:`LeadershipLost`; without it, look at
    ``term.lost`` or call ``term.check()``. ``shared_store``: see the module. ``timings`` must be those of ``backend``.
    ``grants``: what the term's writes are granted by, where the gateways require grants. The backend stays open; two
    blocks of one role at a time need one each (``RuntimeError``), as both would lead under one token.
    Raises :class:`fencegate.errors.ConfigurationError` for timings that make no sense.
    """
    used = timings or LeaseTimings()
    check_timings(used)
    return Leading(role, backend, candidate, used, shared_store, cancel_on_loss, observer, clock, grants)


def check_timings(timings: LeaseTimings) -> None:
    """Raises :class:`fencegate.errors.ConfigurationError` for timings that make no sense."""
    if faults := timings.faults():
        raise ConfigurationError(faults)


def _cause(fault: Exception) -> Cause:
    if isinstance(fault, ElectionUnavailable):
        return fault.cause
    return "timeout" if isinstance(fault, TimeoutError) else "connection"


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def _say(fault: Exception) -> str:
    return str(fault) or type(fault).__name__
