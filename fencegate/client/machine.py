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
 under a grant                           Rediscover, where the hint's token is another than the grant's
 with a pinned token                     Send to a hint of the same token; else Fail stale / not leader
``grant_required``, ``grant_expired``    Rediscover at once, at most twice; with a pinned token Send again, under
                                         what its owner grants now; then Fail refused
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
term or a new grant, or one that follows a hint, is free (terms are few, hops and grants are limited), so that a
failover costs no budget, and an overloaded gateway sees at most ``ratio`` more requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from fencegate.client.answers import Answer, Lost
from fencegate.client.policy import Policy
from fencegate.errors import Retry
from fencegate.tokens import OUTCOME_ACCEPTED

UNREACHABLE: Final = "unreachable"
"""Stands for a problem code where no gateway could be reached."""
FOREIGN: Final = "not_the_gateway"
"""Stands for a problem code where the answer was not the gateway's."""
MAX_RENEWED: Final = 2
"""New grants in one operation: a client whose clock, or whose gateway's, is wrong must not go round in a circle."""
RENEWABLE: Final = frozenset({"grant_required", "grant_expired"})
"""Refusals that a new grant answers."""
LOST: Final = "answer_lost"
"""Stands for a problem code where the answer was lost after the send."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One logical request and what is known of it. ``deadline`` is an instant; ``token`` the one to present.

    ``read`` needs no token and may always be repeated. ``pinned``: the token is the caller's own term
    and cannot be replaced. ``floor`` is the highest token heard of. ``unknown``: some try may have been applied.
    ``grant`` goes with the token that it was given for; ``renewed`` counts those that were refused and replaced.
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
    grant: str | None = field(default=None, repr=False)
    renewed: int = 0


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
    """Discovery's answer, given at the origin ``via``: ``leader`` (an origin, or ``None``) leads under ``token``.

    ``grant``: what was given with it, to present it under.
    """

    via: str
    leader: str | None
    token: int
    grant: str | None = field(default=None, repr=False)


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
            pause = policy.pause(_earlier(operation), None, jitter) if operation.tries else 0.0
            return _again(policy, operation, operation.origin or policy.origins[0], now, pause, budget)
        return _rediscover(policy, operation, now, result.retry_after, jitter)
    known = max(operation.floor, operation.token or 0)
    chosen = result.leader if policy.may_go(result.via, result.leader) else result.via
    if result.token < known or chosen is None or not policy.may_go(operation.origin, chosen):
        return _rediscover(policy, operation, now, None, jitter)
    newer = result.token > (operation.token or 0) or operation.code in RENEWABLE
    cost = 0 if newer and not operation.read else 1
    pause = policy.spread(jitter) if operation.tries else 0.0
    operation = replace(operation, token=result.token, grant=result.grant)
    return _again(policy, operation, chosen, now, pause, budget, cost)


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
    if answer.outcome in RENEWABLE:
        return _ungranted(policy, operation, answer, now, jitter, budget)
    if answer.retry is Retry.REDISCOVER:
        return _moved(policy, operation, answer, now, jitter, budget)
    if answer.outcome in ("no_leader", "draining") and not operation.pinned and not operation.read:
        operation = replace(operation, floor=max(operation.floor, answer.max_seen or 0))
        return _rediscover(policy, operation, now, answer.retry_after, jitter)
    pause = policy.pause(_earlier(operation), answer.retry_after, jitter)
    return _again(policy, operation, operation.origin, now, pause, budget)


def _ungranted(
    policy: Policy, operation: Operation, answer: Answer, now: float, jitter: float, budget: float
) -> Decision:
    """The token may be the right one: what is wanting is a grant, or a fresh one."""
    if operation.renewed >= MAX_RENEWED:
        return _fail(operation, Failure.REFUSED)
    pause = policy.spread(jitter)
    if operation.renewed:
        pause = max(policy.backoff_base, policy.pause(_earlier(operation), answer.retry_after, jitter))
    operation = replace(operation, renewed=operation.renewed + 1)
    if operation.pinned:
        return _again(policy, operation, operation.origin, now, pause, budget, cost=0)
    return _asked_at(policy, replace(operation, grant=None), now, pause)


def _lost(policy: Policy, operation: Operation, lost: Lost, now: float, jitter: float, budget: float) -> Decision:
    if lost.sent and not operation.read:
        return _unknown(policy, operation, LOST, None, now, jitter, budget)
    operation = replace(operation, code=LOST if lost.sent else UNREACHABLE)
    if operation.read or operation.pinned:
        origin = policy.next_origin(operation.origin)
        return _again(policy, operation, origin, now, policy.pause(_earlier(operation), None, jitter), budget)
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
    origin = policy.next_origin(operation.origin) if operation.read else operation.origin
    return _again(policy, operation, origin, now, policy.pause(_earlier(operation), retry_after, jitter), budget)


def _moved(policy: Policy, operation: Operation, answer: Answer, now: float, jitter: float, budget: float) -> Decision:
    token = _hinted_token(policy, operation, answer)
    if operation.pinned and token != operation.token:
        return replace(_fail(operation), superseded=True)
    operation = replace(operation, floor=max(operation.floor, answer.max_seen or 0))
    if token is None:
        return _rediscover(policy, operation, now, answer.retry_after, jitter)
    before = operation.token
    operation = replace(operation, token=token or None, hops=operation.hops + 1)
    pause = min(answer.retry_after or 0.0, policy.retry_after_cap) + policy.spread(jitter)
    if operation.grant is not None and token != before:
        # A hint carries no grant, and ours is for another token: the grant of the newer one is asked for.
        return _asked_at(
            policy, replace(operation, token=before, grant=None, floor=max(operation.floor, token)), now, pause
        )
    return _again(policy, operation, answer.leader, now, pause, budget, cost=0)


def _hinted_token(policy: Policy, operation: Operation, answer: Answer) -> int | None:
    """The token to present at the hint (0: none is needed), or ``None`` where the hint is not to be followed."""
    if operation.hops >= policy.max_hops or not policy.may_go(operation.origin, answer.leader):
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
    pause = max(policy.backoff_base, policy.pause(_earlier(operation), retry_after, jitter))
    return _asked_at(policy, replace(operation, rounds=operation.rounds + 1), now, pause)


def _asked_at(policy: Policy, operation: Operation, now: float, pause: float) -> Rediscover | Fail:
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


def _earlier(operation: Operation) -> int:
    """What the back-off grows with."""
    return operation.tries + operation.rounds
