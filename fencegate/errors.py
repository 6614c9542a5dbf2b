"""The registry of problems: every way in which fencegate says no, in one table.

Each :class:`Problem` is one row of the wire contract: its code, status, what the caller may do
next (``retry``), and whether the write may have been applied (``applied``). Everything that
answers a client (gateway, authorizer, SQL guard) and everything that reads an answer (the SDK)
takes its facts from here and from nowhere else.

Rules about the table:

* ``applied = "no"`` is a promise: that write is not in the store and never will be through that request.
* Only a problem whose ``applied`` is ``"no"`` may be refused before the store was asked.
* A code, once published, keeps its status and its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

Applied = Literal["no", "unknown"]


class Retry(StrEnum):
    """What a caller may do after a refusal (header ``X-Fencing-Retry``)."""

    NEVER = "never"
    AFTER_DELAY = "after-delay"
    REDISCOVER = "rediscover"
    IF_IDEMPOTENT = "if-idempotent"


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of refusal. ``status`` is the HTTP status; ``title`` never varies (RFC 9457, section 3.1.3)."""

    code: str
    status: int
    retry: Retry
    title: str
    applied: Applied = "no"

    @property
    def type(self) -> str:
        """The ``type`` member of the problem document: a URN that never changes."""
        return f"urn:fencegate:problem:{self.code}"

    @property
    def retryable(self) -> bool:
        return self.retry is not Retry.NEVER


def _table(*rows: Problem) -> dict[str, Problem]:
    return {row.code: row for row in rows}


_NEVER, _DELAY, _REDISCOVER, _IDEMPOTENT = Retry.NEVER, Retry.AFTER_DELAY, Retry.REDISCOVER, Retry.IF_IDEMPOTENT

PROBLEMS: Final = _table(
    # The token and its term.
    Problem("token_required", 428, _NEVER, "Fencing token required"),
    Problem("token_malformed", 400, _NEVER, "Malformed fencing token"),
    Problem("stale_token", 409, _REDISCOVER, "Stale fencing token"),
    Problem("not_leader", 409, _REDISCOVER, "This region does not lead"),
    Problem("no_leader", 503, _DELAY, "Nobody leads"),
    Problem("token_not_issued", 403, _NEVER, "Fencing token was never issued"),
    Problem("fence_unavailable", 503, _DELAY, "Fence cannot be consulted"),
    Problem("draining", 503, _DELAY, "Leadership is being handed over"),
    # The caller.
    Problem("caller_required", 403, _NEVER, "Caller is not known"),
    Problem("caller_not_allowed", 403, _NEVER, "Caller may not write here"),
    Problem("grant_required", 428, _REDISCOVER, "Grant required"),
    Problem("grant_invalid", 403, _NEVER, "Grant does not hold"),
    Problem("grant_expired", 403, _REDISCOVER, "Grant is not fresh"),
    # Idempotency.
    Problem("idempotency_key_required", 400, _NEVER, "Idempotency key required"),
    Problem("idempotency_key_malformed", 400, _NEVER, "Malformed idempotency key"),
    Problem("idempotency_in_progress", 409, _DELAY, "A request with this key is still running", "unknown"),
    Problem("idempotency_key_reused", 422, _NEVER, "Idempotency key was used for another payload"),
    # The request itself.
    Problem("too_early", 425, _DELAY, "Write sent in TLS early data"),
    Problem("body_too_large", 413, _NEVER, "Body over the route's limit"),
    Problem("overloaded", 503, _DELAY, "Too many requests in flight"),
    Problem("outcome_unknown", 502, _IDEMPOTENT, "Outcome unknown", "unknown"),
    # Beyond the contract's table: conditions that it does not name, all of them "not applied".
    Problem("request_malformed", 400, _NEVER, "Malformed request"),
    Problem("body_malformed", 422, _NEVER, "Body is not what the target takes"),
    Problem("request_timeout", 408, _DELAY, "Request was not received in time"),
    Problem("headers_too_large", 431, _NEVER, "Header fields over the limit"),
    Problem("unknown_route", 404, _NEVER, "No such route"),
    Problem("unknown_role", 404, _NEVER, "No such role"),
    Problem("unknown_entry", 404, _NEVER, "No such entry"),
    Problem("method_not_allowed", 405, _NEVER, "Method not allowed"),
    Problem("upgrade_refused", 400, _NEVER, "Protocol upgrade on a fenced path"),
    Problem("rejected_by_function", 422, _NEVER, "The function rejected the write"),
    Problem("upstream_unavailable", 503, _DELAY, "Upstream cannot be reached"),
    Problem("deadline_exceeded", 503, _DELAY, "Caller's time ran out before the write began"),
    # At an upstream that checks for itself (fencegate.middleware).
    Problem("proof_required", 403, _NEVER, "Write did not come through the gate"),
    Problem("proof_invalid", 403, _NEVER, "Proof of the gate does not hold"),
    Problem("proof_expired", 409, _DELAY, "Proof of the gate is not fresh"),
)
"""Every problem by its code."""

OUTCOME_TIMEOUT_STATUS: Final = 504
"""``outcome_unknown`` answers 502 where the connection was lost and 504 where the time ran out."""


class FencegateError(Exception):
    """Base of every exception that fencegate raises on purpose."""


class ConfigurationError(FencegateError):
    """The settings are wrong. ``faults`` holds one sentence per fault, all of them at once."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[list[str]]]:
        return type(self), (self.faults,)


class Unavailable(FencegateError):
    """A store or an election service could not answer. Nothing is known to have changed; fail closed."""


class OutcomeUnknown(FencegateError):
    """A write was sent and its answer was lost: it may or may not have been applied.

    ``cause`` is ``"timeout"`` or ``"connection"``.
    """

    def __init__(self, message: str, cause: Literal["timeout", "connection"] = "connection") -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a role, as far as is known. The redirect hint is made of it.

    ``url`` is an origin out of the configuration (``https://host[:port]``), never out of a request.
    ``lease_expires_in_ms`` counts from ``observed_at`` (RFC 3339, UTC).
    """

    url: str
    region: str
    token: int
    state: Literal["active", "incoming"] = "active"
    observed_at: str = ""
    lease_expires_in_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """One write refused: the problem and the facts of this case. Rendered by ``gateway/replies.py``.

    ``retry_after_ms`` of ``None`` sends no ``Retry-After``. ``extra`` are further members of the body.
    """

    problem: Problem
    detail: str
    role: str | None = None
    presented_token: int | None = None
    max_token_seen: int | None = None
    leader: Leader | None = None
    retry_after_ms: int | None = None
    status: int | None = None
    extra: dict[str, object] = field(default_factory=dict)


def problem(code: str) -> Problem:
    """The problem of this code. Raises ``KeyError`` for a code that is not in the registry."""
    return PROBLEMS[code]
