"""The retry decision of the SDK, pure: no I/O, no clock, no random numbers.

An :class:`Operation` is one logical read or write. Whoever drives it does what the last decision
says and feeds back what came of it: :func:`found` after a discovery, :func:`observe` after a try.
Instants are seconds on the driver's monotonic clock; ``jitter`` is a fraction in [0, 1) that the
driver draws; ``budget`` is what is left in the :class:`RetryBudget` that all operations of a client share.

======================================== =====================================================================
observed                                 decision
======================================== =====================================================================
accepted, whole                          Done
accepted, body cut off                   as *outcome unknown*
retry ``never``                          Fail refused, at once
``stale_token``, ``not_leader``          Send to the hint, if it may be followed (below); else Rediscover
 with a pinned token                     Send to a hint of the same token; else Fail stale / not leader
``no_leader``, ``draining``              Rediscover after the delay; with a pinned token Send again after it
any other ``after-delay``                Send to the same origin after the delay
outcome unknown: ``outcome_unknown``,    with an idempotency key: Send to the same origin, same key, after the
 ``idempotency_in_progress``, no answer  delay (the store that has the key is there); without: Fail unknown
 after the send, not the gateway's
not sent at all (no connection)          Rediscover; with a pinned token, or for a read, Send to the next origin
a read: any answer not the gateway's     Done; lost: Send to the next origin
discovered: a leader, token not older    Send, at once
discovered: nobody, or an older token    Rediscover after the delay (a read: Send to any origin)
discovered: ``never``, e.g. unknown role Fail refused, at once
deadline, tries or budget at their end   Fail
======================================== =====================================================================

A hint may be followed where its origin is in the client's own list, never from https to http, at
most ``max_hops`` times in an operation, and only where its token is not below the highest one heard of
(two gateways that point at each other end there).

What holds, whatever the answers are (the property tests' list): nothing is sent at or after the
deadline, to an origin outside the list, or from https down to http; the idempotency key never changes;
without a key nothing is sent again once an outcome is unknown; **a Fail other than ``OUTCOME_UNKNOWN``
says that nothing was applied**: one unknown try makes the whole operation unknown, whatever came after it.

The budget: a try is charged when it repeats an earlier one under the same token. A try under a newer
term, or one that follows a hint, is free (terms are few and hops are limited), so that a failover costs
no budget, and an overloaded gateway sees at most ``ratio`` more requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fencegate.client.answers import Answer, Lost
from fencegate.errors import Retry
from fencegate.tokens import OUTCOME_ACCEPTED

UNREACHABLE: Final = "unreachable"
"""Stands for a problem code where no gateway could be reached."""
FOREIGN: Final = "not_the_gateway"
"""Stands for a problem code where the answer was not the gateway's."""
LOST: Final = "answer_lost"
"""Stands for a problem code where the answer was lost after the send."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a client retries. Durations are seconds; ``origins`` are in normal form, at least one."""

    origins: tuple[str, ...]
    try_timeout: float = 10.0
    max_tries: int = 20
    max_hops: int = 2
    backoff_base: float = 0.1
    backoff_cap: float = 2.0
    retry_after_cap: float = 15.0


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """A token bucket: each operation earns ``ratio`` of a retry, ``burst`` may be saved up."""

    ratio: float = 0.1
    burst: float = 10.0
    left: float = 10.0

    def earned(self) -> RetryBudget:
        return replace(self, left=min(self.burst, self.left + self.ratio))

    def spent(self, cost: int) -> RetryBudget:
        return replace(self, left=max(0.0, self.left - cost))


@dataclass(frozen=True, slots=True)
class Operation:
    """One logical request and what is known of it. ``deadline`` is an instant; ``token`` the one to present.

    ``read`` needs no token and may always be repeated. ``pinned``: the token is the caller's own term
    and cannot be replaced. ``floor`` is the highest token heard of. ``unknown``: some try may have been applied.
    """

    deadline: float
    origin: str | None = None
    token: int | None = None
    key: str | None = None
    read: bool = False
    pinned: bool = False
    tries: int = 0
    hops: int = 0
    rounds: int = 0
    floor: int = 0
    unknown: bool = False
    code: str = ""
    hint: str | None = None


class Failure(StrEnum):
    STALE = "stale"
    NOT_LEADER = "not_leader"
    NO_LEADER = "no_leader"
    REFUSED = "refused"
    OUTCOME_UNKNOWN = "outcome_unknown"
    DEADLINE = "deadline"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True)
class Done:
    replayed: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``operation`` to its ``origin`` under its ``token``, not before ``not_before``; it costs ``cost``."""

    operation: Operation
    not_before: float
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Rediscover:
    operation: Operation
    not_before: float


@dataclass(frozen=True, slots=True)
class Fail:
    """``operation.code`` is the last problem's code; ``out_of_time`` tells the deadline from the other limits.

    ``superseded``: the pinned token was refused as no longer the leader's; its term is over.
    """

    failure: Failure
    operation: Operation
    out_of_time: bool = False
    superseded: bool = False


Decision = Done | Send | Rediscover | Fail


@dataclass(frozen=True, slots=True)
class Found:
    """Discovery's answer, given at the origin ``via``: ``leader`` (an origin, or ``None``) leads under ``token``."""

    via: str
    leader: str | None
    token: int


@dataclass(frozen=True, slots=True)
class Nobody:
    """Discovery found no leader: ``code`` is a problem's or :data:`UNREACHABLE`; ``final``: asking again is no use.

    An empty ``code`` is a discovery that was cut short: it says nothing, and takes no earlier reason's place.
    """

    code: str
    retry_after: float | None = None
    final: bool = False
    detail: str = ""


def begin(policy: Policy, operation: Operation, now: float) -> Send | Rediscover | Fail:
    """The first decision on a new operation."""
    if now >= operation.deadline:
        return _fail(operation, out_of_time=True)
    if operation.pinned and operation.origin is None:
        # The token is at hand, and a hint corrects a wrong origin: no discovery is needed.
        operation = replace(operation, origin=policy.origins[0])
    if operation.origin is None:
        return Rediscover(operation, now)
    return Send(operation, now)


def expired(operation: Operation, now: float) -> Fail | None:
    """Asked right before a send: the wait may have taken longer than it should."""
    return _fail(operation, out_of_time=True) if now >= operation.deadline else None


def given_up(operation: Operation, code: str) -> Fail:
    """The driver itself ends the operation between two tries; ``code`` says why."""
    return _fail(replace(operation, code=code))


def found(
    policy: Policy, operation: Operation, result: Found | Nobody, *, now: float, jitter: float, budget: float
) -> Decision:
    """What follows from a discovery."""
    if isinstance(result, Nobody):
        operation = replace(operation, code=result.code or operation.code or UNREACHABLE)
        if result.final:
            return _fail(operation, Failure.REFUSED)
        if operation.read:
            pause = _pause(policy, operation, None, jitter) if operation.tries else 0.0
            return _again(policy, operation, operation.origin or policy.origins[0], now, pause, budget)
        return _rediscover(policy, operation, now, result.retry_after, jitter)
    known = max(operation.floor, operation.token or 0)
    chosen = result.leader if _may_go(policy, result.via, result.leader) else result.via
    if result.token < known or chosen is None or not _may_go(policy, operation.origin, chosen):
        return _rediscover(policy, operation, now, None, jitter)
    cost = 0 if result.token > (operation.token or 0) and not operation.read else 1
    pause = _spread(policy, jitter) if operation.tries else 0.0
    return _again(policy, replace(operation, token=result.token), chosen, now, pause, budget, cost)


def observe(
    policy: Policy, operation: Operation, answer: Answer | Lost, *, now: float, jitter: float, budget: float
) -> Decision:
    """What follows from one try. ``operation`` is the one that was sent; this counts the try."""
    operation = replace(operation, tries=operation.tries + 1)
    if isinstance(answer, Lost):
        return _lost(policy, operation, answer, now, jitter, budget)
    if answer.outcome is None:
        if operation.read and answer.complete:
            return Done(replayed=False)
        return _unknown(policy, operation, FOREIGN, answer.retry_after, now, jitter, budget)
    operation = replace(operation, code=answer.outcome, hint=answer.leader or operation.hint)
    if answer.outcome == OUTCOME_ACCEPTED:
        if answer.complete:
            return Done(answer.replayed)
        return _unknown(policy, operation, LOST, None, now, jitter, budget)
    if answer.applied != "no":
        if answer.retry is Retry.NEVER:
            return _fail(replace(operation, unknown=not operation.read))
        return _unknown(policy, operation, answer.outcome, answer.retry_after, now, jitter, budget)
    return _refused(policy, operation, answer, now, jitter, budget)


def _refused(
    policy: Policy, operation: Operation, answer: Answer, now: float, jitter: float, budget: float
) -> Decision:
    """A refusal that promises that nothing was applied by this try."""
    if answer.retry is Retry.NEVER:
        return _fail(operation, Failure.REFUSED)
    if answer.retry is Retry.REDISCOVER:
        return _moved(policy, operation, answer, now, jitter, budget)
    if answer.outcome in ("no_leader", "draining") and not operation.pinned and not operation.read:
        operation = replace(operation, floor=max(operation.floor, answer.max_seen or 0))
        return _rediscover(policy, operation, now, answer.retry_after, jitter)
    pause = _pause(policy, operation, answer.retry_after, jitter)
    return _again(policy, operation, operation.origin, now, pause, budget)


def _lost(policy: Policy, operation: Operation, lost: Lost, now: float, jitter: float, budget: float) -> Decision:
    if lost.sent and not operation.read:
        return _unknown(policy, operation, LOST, None, now, jitter, budget)
    operation = replace(operation, code=LOST if lost.sent else UNREACHABLE)
    if operation.read or operation.pinned:
        origin = _next_origin(policy, operation.origin)
        return _again(policy, operation, origin, now, _pause(policy, operation, None, jitter), budget)
    return _rediscover(policy, operation, now, None, jitter)


def _unknown(
    policy: Policy,
    operation: Operation,
    code: str,
    retry_after: float | None,
    now: float,
    jitter: float,
    budget: float,
) -> Decision:
    """This try may have been applied. Only an idempotency key makes it safe to ask again."""
    operation = replace(operation, code=code, unknown=not operation.read)
    if operation.key is None and not operation.read:
        return _fail(operation)
    origin = _next_origin(policy, operation.origin) if operation.read else operation.origin
    return _again(policy, operation, origin, now, _pause(policy, operation, retry_after, jitter), budget)


def _moved(policy: Policy, operation: Operation, answer: Answer, now: float, jitter: float, budget: float) -> Decision:
    token = _hinted_token(policy, operation, answer)
    if operation.pinned and token != operation.token:
        return replace(_fail(operation), superseded=True)
    operation = replace(operation, floor=max(operation.floor, answer.max_seen or 0))
    if token is None:
        return _rediscover(policy, operation, now, answer.retry_after, jitter)
    operation = replace(operation, token=token or None, hops=operation.hops + 1)
    pause = min(answer.retry_after or 0.0, policy.retry_after_cap) + _spread(policy, jitter)
    return _again(policy, operation, answer.leader, now, pause, budget, cost=0)


def _hinted_token(policy: Policy, operation: Operation, answer: Answer) -> int | None:
    """The token to present at the hint (0: none is needed), or ``None`` where the hint is not to be followed."""
    if operation.hops >= policy.max_hops or not _may_go(policy, operation.origin, answer.leader):
        return None
    known = max(operation.floor, operation.token or 0, answer.max_seen or 0)
    if answer.leader_token is not None and answer.leader_token < known:
        return None
    token = max(known, answer.leader_token or 0)
    grown = token > (operation.token or 0)
    if not grown and (answer.outcome == "stale_token" or answer.leader == operation.origin):
        return None
    return token


def _rediscover(
    policy: Policy, operation: Operation, now: float, retry_after: float | None, jitter: float
) -> Rediscover | Fail:
    # Never shorter than backoff_base: a discovery that finds nothing must not become a busy loop.
    pause = max(policy.backoff_base, _pause(policy, operation, retry_after, jitter))
    operation = replace(operation, rounds=operation.rounds + 1)
    if operation.tries >= policy.max_tries:
        return _fail(operation)
    if now + pause >= operation.deadline:
        return _fail(operation, out_of_time=True)
    return Rediscover(operation, now + pause)


def _again(
    policy: Policy,
    operation: Operation,
    origin: str | None,
    now: float,
    pause: float,
    budget: float,
    cost: int = 1,
) -> Send | Fail:
    cost = cost if operation.tries else 0
    if operation.tries >= policy.max_tries or budget < cost:
        return _fail(operation)
    if now + pause >= operation.deadline:
        return _fail(operation, out_of_time=True)
    return Send(replace(operation, origin=origin), now + pause, cost)


_BY_CODE: Final = {
    "stale_token": Failure.STALE,
    "not_leader": Failure.NOT_LEADER,
    "no_leader": Failure.NO_LEADER,
    "draining": Failure.NO_LEADER,
}


def _fail(operation: Operation, failure: Failure | None = None, *, out_of_time: bool = False) -> Fail:
    """The failure with the reason that the caller can act on: the last problem's, not merely "time is up"."""
    if operation.unknown:
        return Fail(Failure.OUTCOME_UNKNOWN, operation, out_of_time)
    otherwise = Failure.DEADLINE if out_of_time else Failure.EXHAUSTED
    return Fail(failure or _BY_CODE.get(operation.code, otherwise), operation, out_of_time)


def _may_go(policy: Policy, source: str | None, target: str | None) -> bool:
    if target is None or target not in policy.origins:
        return False
    return not (source is not None and source.startswith("https:") and target.startswith("http:"))


def _next_origin(policy: Policy, origin: str | None) -> str | None:
    """The next of the list that may be gone to; the same where there is no other."""
    start = policy.origins.index(origin) + 1 if origin in policy.origins else 0
    around = policy.origins[start:] + policy.origins[:start]
    return next((other for other in around if _may_go(policy, origin, other)), origin)


def _pause(policy: Policy, operation: Operation, retry_after: float | None, jitter: float) -> float:
    """Full jitter over a doubling window, on top of what the server asked for (capped).

    The window is at least half of what was asked for: who were refused in one instant come back over a while.
    """
    doublings = min(operation.tries + operation.rounds, 30)
    asked = min(retry_after or 0.0, policy.retry_after_cap)
    window = min(policy.backoff_cap, max(asked / 2, policy.backoff_base * (1 << doublings)))
    return asked + jitter * window


def _spread(policy: Policy, jitter: float) -> float:
    """A little jitter before a free try, so that a whole population does not move in one instant."""
    return jitter * policy.backoff_base
