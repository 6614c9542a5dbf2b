"""One request on its way through the stations, and what every station needs to know of the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final, Literal

from fencegate.errors import OUTCOME_TIMEOUT_STATUS, FencegateError, OutcomeUnknown, Refusal, Unavailable, problem
from fencegate.fence import Admission, Effect, Forward, Verdict, WritePath
from fencegate.gateway.admission import SOON_MS, Places, Presented, judge_above, refusal_for
from fencegate.gateway.caller import NOBODY, Callers
from fencegate.gateway.granting import Granting
from fencegate.gateway.header_lines import Fields
from fencegate.gateway.holding import Case, hold_until, reserve
from fencegate.gateway.last_look import LEAST_TIME, too_late
from fencegate.gateway.request import Refused, Reply, Request, presented_token
from fencegate.gateway.routes import Route
from fencegate.gateway.stale import HighestSeen
from fencegate.gateway.waiting_room import Held, LetGo, WaitingRoom
from fencegate.lease import LeadershipView
from fencegate.observations import Observer, WouldRefuse, WriteAccepted, WriteOutcomeUnknown
from fencegate.telling import heard

ISSUED_LIMIT: Final = 3.0
"""Longest wait, in seconds, for the election store's word on a token."""
_FIRST_LIMIT: Final = 1.0
"""The same where the store was not asked yet: its answer may make the question needless."""
_WAITS: Final = frozenset({Verdict.UNDRAINED, Verdict.ADMIT})
"""Verdicts that come without an effect where the store has to be asked again: older writes end, or a key's row."""


def operation_digest(request: Request) -> blake2b:
    """A digest to go on with the body: what else of a request says which operation an idempotency key stands for.

    That is its method and its path and query, as sent: an upstream or a function acts on them too.
    """
    digest = blake2b(request.method.encode() + b"\0", digest_size=16)
    digest.update(request.target.encode("utf-8", "surrogateescape") + b"\0")
    return digest


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the stations share: the store, the view of the leadership, who listens, and the monotonic clock.

    ``callers`` is ``None`` where no caller has an identity.
    """

    store: WritePath
    view: LeadershipView
    places: Places
    observe: Observer
    clock: Callable[[], float]
    room: WaitingRoom
    seen: HighestSeen
    callers: Callers | None


@dataclass(slots=True)
class Exchange:
    """One request under way. ``deadline`` is on the monotonic clock.

    ``sent`` says that from here on a failure leaves the outcome unknown.
    """

    request: Request
    route: Route
    role: str
    fields: Fields
    around: Surroundings
    deadline: float
    rest: tuple[str, ...] = ()
    token: int | None = None
    key: str = ""
    caller: str = ""
    """Who calls (:mod:`fencegate.gateway.caller`); ``""``: nobody that is known."""
    would_refuse: str = ""
    """Observe mode: the code of the refusal that enforcing would have sent."""
    sent: bool = field(default=False)
    hold_began: float | None = None
    held: float = 0.0
    """Seconds for which the write was held so far."""

    @property
    def enforce(self) -> bool:
        return self.route.mode == "enforce"

    @property
    def presented(self) -> Presented:
        return Presented(self.role, self.token or None)

    @property
    def member(self) -> str:
        """The role where the route's is a family, else ``""``."""
        return "" if self.role == self.route.role else self.role

    def left(self) -> float:
        """Seconds left, perhaps negative."""
        return self.deadline - self.around.clock()

    def time_left(self, now: float | None = None) -> float:
        """Seconds left. Raises ``deadline_exceeded`` where a write that begins now could not finish."""
        left = self.deadline - (self.around.clock() if now is None else now)
        if left < LEAST_TIME:
            raise self.refused("deadline_exceeded", "The caller's time ran out before the write began.")
        return left

    def look_again(self, admission: Admission, told_at: float) -> None:
        """The last look before the first byte. Raises the refusal of a write that it comes too late for."""
        why = too_late(self.around.clock(), good_until=admission.good_until, deadline=self.deadline, told_at=told_at)
        if why is not None:
            raise self.refused(*why)

    def key_digest(self) -> bytes:
        """16 bytes over the caller's identity and the idempotency key; empty without a key."""
        if not self.key:
            return b""
        # No identity holds a NUL. A caller without one has the scope that all callers had before there were any.
        return blake2b(f"{self.caller}\0{self.key}".encode(), digest_size=16).digest()

    def check_caller(self) -> None:
        """Raises ``caller_required`` or ``caller_not_allowed``; in observe mode it is only remembered."""
        if not self.caller:
            code, detail = "caller_required", NOBODY
        elif self.route.callers is not None and self.caller not in self.route.callers:
            code, detail = "caller_not_allowed", f'"{self.caller}" is not among the callers of this route.'
        else:
            return
        if self.enforce:
            raise self.refused(code, detail)
        self.would_refuse = code

    def take_token(self) -> None:
        """Raises ``token_required`` or ``token_malformed``; in observe mode it is only remembered."""
        try:
            self.token = presented_token(self.fields)
        except Refused as error:
            if self.enforce:
                raise
            self.token = 0
            self.would_refuse = self.would_refuse or error.refusal.problem.code

    def check_grant(self, granting: Granting) -> None:
        """Raises ``grant_required``, ``grant_invalid`` or ``grant_expired``; in observe mode it is only remembered."""
        refusal = granting.refusal(self.fields, self.role, self.token or 0, self.caller)
        if refusal is None:
            return
        if self.enforce:
            raise Refused(refusal)
        self.would_refuse = self.would_refuse or refusal.problem.code

    def refused(
        self,
        code: str,
        detail: str,
        *,
        max_seen: int | None = None,
        status: int | None = None,
        retry_after_ms: int | None = None,
        extra: dict[str, object] | None = None,
        close: bool = False,
    ) -> Refused:
        """A refusal that knows this exchange's role and token."""
        kind = problem(code)
        if retry_after_ms is None and kind.retry.value == "after-delay":
            retry_after_ms = SOON_MS
        refusal = Refusal(
            kind, detail, self.role, self.token, max_seen, None, retry_after_ms, status, dict(extra or {})
        )
        return Refused(refusal, close=close)

    def outcome_unknown(self, detail: str, cause: Literal["timeout", "connection"]) -> Refused:
        """The write was sent and its answer was lost: 502, or 504 where the time ran out."""
        self.around.observe(WriteOutcomeUnknown(self.route.role, cause))
        status = OUTCOME_TIMEOUT_STATUS if cause == "timeout" else None
        return self.refused("outcome_unknown", detail, status=status)

    async def proof_first(self) -> int:
        """The token, proved to be issued before the store is asked, where it seems to open a term; else 0.

        It spares the new leader's first write a batch that would only be told so. Not where this process campaigns: its
        elector raises the fence. A refusal is not given here: the store may know the key.
        """
        around = self.around
        if not around.seen.below(self.role, self.token or 0) or around.view.observed(self.role).candidacy:
            return 0
        limit = min(self.time_left() / 2, _FIRST_LIMIT)
        return (await judge_above(around.view, self.presented, None, around.places, limit)).issued

    async def proof_or_refusal(self, verdict: Verdict, max_seen: int | None, *, tried: bool) -> int:
        """The token proved to be issued, to ask the store once more with. Else raises the refusal of ``verdict``."""
        around = self.around
        if verdict is Verdict.ABOVE and not tried:
            limit = min(self.time_left(), ISSUED_LIMIT)
            judged = await judge_above(around.view, self.presented, max_seen, around.places, limit)
            if judged.refusal is not None:
                raise Refused(judged.refusal)
            return judged.issued
        observed = around.view.observed(self.role)
        raise Refused(refusal_for(verdict, self.presented, max_seen, observed, around.places))

    async def ask_again(self, verdict: Verdict, max_seen: int | None, *, issued: int, in_hand: int | None) -> int:
        """The proved token (0 for none) with which to ask the store once more, perhaps after a hold.

        Else raises the refusal of ``verdict``. ``issued`` is the proof that the store was asked with just now.
        ``in_hand``: bytes of the body in memory, all of it or none; a body that is still coming (``None``) keeps the
        client's going away from being seen, and is not held.
        """
        try:
            return await self.proof_or_refusal(verdict, max_seen, tried=issued > 0)
        except Refused as error:
            if in_hand is None or not await self._was_held(verdict, error.refusal, in_hand):
                raise
            return 0

    async def _was_held(self, verdict: Verdict, refusal: Refusal, size: int) -> bool:
        """Hold the refused write if that is worth it. True: ask the store again. False: the refusal stands."""
        around, route = self.around, self.route
        if not route.hold or not self.enforce:
            return False
        now = around.clock()
        observed = around.view.observed(self.role)
        case = Case(refusal, observed, around.places.region, route.hold, self.deadline, self.hold_began)
        until = hold_until(case, now)
        if until is None:
            return False
        self.hold_began = now if self.hold_began is None else self.hold_began
        write = Held(self.role, route.role, self.token or 0, verdict, size)
        why = await around.room.wait(write, until - now, self.request.departure)
        self.held += around.clock() - now
        return why in (LetGo.NEWS, LetGo.EXPIRED, LetGo.STOPPING)

    async def peek(self) -> None:
        """The fence's verdict before a body is asked for (``Expect: 100-continue``). Raises its refusal.

        Where the store knows the write's key the body is needed even so: a stored result is given again even
        after a failover, but only to the same payload.
        """
        if not self.enforce or self.token is None:
            return
        store, issued = self.around.store, 0
        while not issued:
            verdict, max_seen = await store.peek(self.role, self.token, self.time_left())
            self.around.seen.note(self.role, verdict, max_seen)
            if verdict is Verdict.ADMIT:
                return
            if self.key and await heard(partial(store.knows, self.role, self.key_digest(), self.time_left())):
                return
            issued = await self.ask_again(verdict, max_seen, issued=0, in_hand=0)

    def unanswered(self, error: FencegateError) -> Admission:
        """The store did not say whether the write may go on to where it lands. Raises ``fence_unavailable``.

        Not in observe mode, which gets in nobody's way: there it goes on without a mark. Under an idempotency key only
        the store knows whether it is a repetition.
        """
        if self.enforce or self.key:
            raise self.refused("fence_unavailable", f"The fence store cannot be asked: {error}") from error
        self.would_refuse = self.would_refuse or "fence_unavailable"
        return Admission(Verdict.NO_FENCE, Effect.APPLIED, None)

    def check_effect(self, effect: Effect, max_seen: int | None) -> None:
        """Raises the refusal for an effect of an idempotency key that is neither a new write nor a replay."""
        if effect is Effect.KEY_REUSED:
            detail = "This Idempotency-Key was used for another payload; a new operation needs a new key."
            raise self.refused("idempotency_key_reused", detail, max_seen=max_seen)
        if effect is Effect.IN_PROGRESS:
            detail = "A request with this Idempotency-Key is still running; ask again for its result."
            raise self.refused("idempotency_in_progress", detail, max_seen=max_seen)
        if effect is Effect.UNKNOWN:
            raise self.outcome_unknown(
                "An earlier request with this Idempotency-Key ended without an answer.", "connection"
            )

    def forward(self, limit: float, issued: int = 0) -> Forward:
        """The write as the store admits it, for an upstream that has ``limit`` s."""
        # By position, as names cost: role, token, upstream_limit, issued, key_digest, enforce, has_left.
        return Forward(
            self.role,
            self.token or 0,
            limit,
            issued,
            self.key_digest(),
            self.enforce,
            self.request.departure.has_happened,
        )

    async def admitted(self, in_hand: int | None, first: Admission | BaseException | None = None) -> Admission:
        """The store's admission of a write that leaves it: a mark stands, or the key's effect is known.

        Raises the refusal. ``in_hand`` as in :meth:`ask_again`.

        ``first``: what the store said, where it was asked, or why it is not waited for.
        """
        store, issued = self.around.store, 0 if first is not None else await self.proof_first()
        while True:
            try:
                if isinstance(first, BaseException):
                    raise first
                if first is not None:
                    admission = first
                else:
                    limit = self.time_left()
                    admission = await store.admit(self.forward(limit, issued), limit - reserve(limit))
            except (Unavailable, OutcomeUnknown) as error:
                # Nothing has been sent: even a mark that may stand in the store applies nothing.
                return self.unanswered(error)
            self.around.seen.note(self.role, admission.verdict, admission.max_token_seen)
            one_look, first = first is not None, None
            if one_look and admission.effect is None and admission.verdict in _WAITS:
                continue
            if admission.effect is not None:
                if admission.effect is Effect.APPLIED:
                    await self.note_verdict(admission.verdict, admission.max_token_seen)
                return admission
            issued = await self.ask_again(admission.verdict, admission.max_token_seen, issued=issued, in_hand=in_hand)

    async def note_verdict(self, verdict: Verdict, max_seen: int | None) -> None:
        """Observe mode: remembers what enforcing would have said of a write that went through."""
        if self.enforce or verdict is Verdict.ADMIT or self.would_refuse:
            return
        try:
            await self.proof_or_refusal(verdict, max_seen, tried=False)
        except Refused as error:
            self.would_refuse = error.refusal.problem.code

    def accepted(self, *, replayed: bool, check_duration: float) -> None:
        """Says that the write was accepted, and in observe mode whether it would have been refused."""
        if self.would_refuse:
            request, token = self.request, self.token or None
            self.around.observe(
                WouldRefuse(
                    self.route.role,
                    self.would_refuse,
                    token,
                    request.peer,
                    request.agent,
                    request.forwarded,
                    self.member,
                    self.caller,
                )
            )
        self.around.observe(WriteAccepted(self.route.role, self.token or 0, replayed, check_duration))


def _nothing(_: object) -> None:
    pass


class Pending:
    """A request that goes on by itself when answers come: no task has to wait with it. Of each target its own."""

    __slots__ = ("_then", "exchange")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._then: Callable[[object], None] = _nothing

    def wait(self, then: Callable[[object], None]) -> None:
        """``then`` is called once, when :meth:`go_on` has something to say: never before this returns."""
        self._then = then

    def _call(self, _: object = None) -> None:
        # Once: a connection that is ended for a failure tells of its end as well.
        then, self._then = self._then, _nothing
        then(self)

    def give_up(self) -> None:
        """Wait no longer: ``then`` is called soon, unless it has been."""
        raise NotImplementedError

    def go_on(self) -> Reply | None:
        """The reply; ``None`` where more has to be waited for: by :meth:`station`."""
        raise NotImplementedError

    def station(self, exchange: Exchange) -> Awaitable[Reply]:
        """All that is left to do."""
        raise NotImplementedError
