"""What the SDK raises. Every one but :class:`OutcomeUnknown` says that nothing was applied."""

from __future__ import annotations

from typing import Final, Literal

from fencegate import errors
from fencegate.client.machine import FOREIGN, LOST, UNREACHABLE, Fail, Failure


class FencedError(errors.FencegateError):
    """Base of what a :class:`~fencegate.client.FencedClient` raises about a request.

    ``code`` is the last problem's code (of :data:`fencegate.errors.PROBLEMS`, or ``"unreachable"``,
    ``"answer_lost"``, ``"not_the_gateway"``, ``"client_closed"``, ``"leadership_lost"``); ``leader`` the last hint,
    whether or not it could be followed; ``tries`` how often it was tried.
    """

    applied: Literal["no", "unknown"] = "no"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        role: str = "",
        leader: str | None = None,
        tries: int = 0,
        idempotency_key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.role = role
        self.leader = leader
        self.tries = tries
        self.idempotency_key = idempotency_key


class StaleToken(FencedError):
    """A newer term has been accepted, and no newer token could be had."""


class NotLeader(FencedError):
    """Whoever was asked does not lead, and no hint could be followed; ``leader`` is the last hint."""


class NoLeader(FencedError):
    """Nobody led the role for as long as could be waited."""


class Refused(FencedError):
    """Refused for good: the same request would be refused again. ``code`` says why."""


class RetriesExhausted(FencedError):
    """Tries or the client's retry budget came to their end before the deadline did."""


class DeadlineExceeded(FencedError):
    """The operation's time ran out. Nothing was applied: where that is not certain, it is :class:`OutcomeUnknown`."""


class OutcomeUnknown(FencedError, errors.OutcomeUnknown):
    """The write may or may not have been applied.

    ``idempotency_key`` is the key it was sent with (``None`` without): the same request with this key, sent later,
    gives the original answer if it was applied, and applies it once if it was not. That holds for as long as the store
    keeps the key, and in one store: after an unplanned failover to a region whose copy lacks the write, it is applied
    there too, and ``fencegate diff`` finds it by its key (rule R13).
    """

    applied: Literal["no", "unknown"] = "unknown"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        role: str = "",
        leader: str | None = None,
        tries: int = 0,
        idempotency_key: str | None = None,
        cause: Literal["timeout", "connection"] = "connection",
    ) -> None:
        super().__init__(message, code=code, role=role, leader=leader, tries=tries, idempotency_key=idempotency_key)
        self.cause = cause


class LeadershipLost(errors.FencegateError):
    """The term is over. Nothing more can be written under its token; ``reason`` says how it ended."""

    def __init__(self, message: str, *, role: str = "", token: int = 0, reason: str = "") -> None:
        # Made of its message alone where it comes out of another process, which then gives it the rest.
        super().__init__(message)
        self.role = role
        self.token = token
        self.reason = reason


_CLASSES: Final[dict[Failure, type[FencedError]]] = {
    Failure.STALE: StaleToken,
    Failure.NOT_LEADER: NotLeader,
    Failure.NO_LEADER: NoLeader,
    Failure.REFUSED: Refused,
    Failure.OUTCOME_UNKNOWN: OutcomeUnknown,
    Failure.DEADLINE: DeadlineExceeded,
    Failure.EXHAUSTED: RetriesExhausted,
}

_SAYS: Final = {
    UNREACHABLE: "no gateway could be reached",
    LOST: "the request was sent and its answer was lost",
    FOREIGN: "the answer did not come from a gateway",
    "": "no try had begun",
}


def error_of(fail: Fail, role: str, detail: str, *, timed_out: bool = False) -> FencedError:
    """The exception for a failed operation. ``detail`` is the last answer's own sentence, if it had one."""
    operation = fail.operation
    reason = detail or _SAYS.get(operation.code, "")
    title = _title(operation.code)
    parts = [f"{role!r}: {_headline(fail)}", *([f"last: {title}"] if title else []), *([reason] if reason else [])]
    parts.append(f"tried {operation.tries} time{'' if operation.tries == 1 else 's'}")
    if operation.hint is not None:
        parts.append(f"last hint: {operation.hint}")
    if fail.failure is Failure.OUTCOME_UNKNOWN and operation.key is not None:
        parts.append(f"ask again with idempotency key {operation.key!r}")
    made = _CLASSES[fail.failure](
        "; ".join(parts),
        code=operation.code,
        role=role,
        leader=operation.hint,
        tries=operation.tries,
        idempotency_key=operation.key,
    )
    if isinstance(made, OutcomeUnknown) and timed_out:
        made.cause = "timeout"
    return made


def _headline(fail: Fail) -> str:
    if fail.failure is Failure.OUTCOME_UNKNOWN:
        return "the write may or may not have been applied"
    if fail.failure is Failure.REFUSED:
        return "refused for good, nothing applied"
    if fail.out_of_time:
        return "the deadline came first, nothing applied"
    return "given up, nothing applied"


def _title(code: str) -> str:
    known = errors.PROBLEMS.get(code)
    return code if known is None else f"{code} ({known.title})"
