"""Refusals on the wire, in the contract's words, from within somebody else's service."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any, Final

from fencegate import tokens
from fencegate.errors import PROBLEMS, FencegateError, Refusal, problem

_SOON_MS: Final = 1000


class Refused(FencegateError):
    """The request ends here."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer for any framework: a status, header fields and the body of an ``application/problem+json``."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def refused(
    code: str, detail: str, *, role: str | None = None, token: int | None = None, max_seen: int | None = None
) -> Refused:
    """The exception for a refusal with this code of the registry."""
    kind = problem(code)
    soon = _SOON_MS if kind.retryable else None
    return Refused(Refusal(kind, detail, role, token, max_seen, retry_after_ms=soon))


def answer(refusal: Refusal) -> Answer:
    """The refusal as the gateway would have sent it, but for the region and the leader, which only a gateway knows."""
    kind = refusal.problem
    wait = refusal.retry_after_ms
    headers = [
        ("Content-Type", "application/problem+json"),
        ("Cache-Control", "no-store"),
        (tokens.HEADER_OUTCOME, kind.code),
        (tokens.HEADER_APPLIED, kind.applied),
        (tokens.HEADER_RETRY, kind.retry.value),
    ]
    if refusal.max_token_seen is not None:
        headers.append((tokens.HEADER_MAX_SEEN, str(refusal.max_token_seen)))
    if wait is not None:
        headers.append(("Retry-After", str(-(-wait // 1000))))
    document: dict[str, Any] = {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": refusal.detail,
        "instance": f"urn:uuid:{uuid.uuid4()}",
        "code": kind.code,
        "retryable": kind.retryable,
        "retry": kind.retry.value,
        "applied": kind.applied,
        "role": refusal.role,
        "presented_token": refusal.presented_token,
        "max_token_seen": refusal.max_token_seen,
        "retry_after_ms": wait or 0,
    }
    body = json.dumps({name: value for name, value in document.items() if value is not None}).encode()
    return Answer(kind.status, (*headers, ("Content-Length", str(len(body)))), body)


def guard_refusal(error: BaseException) -> Answer | None:
    """The answer for an error with which the SQL guard refused a transaction; ``None`` for any other error.

    It is looked for in the error itself, in what it wraps (``orig``: SQLAlchemy) and in what it was raised from
    (Django). asyncpg's and psycopg's errors are known by their shape.
    """
    for each in (error, getattr(error, "orig", None), error.__cause__):
        state = getattr(each, "sqlstate", None)
        if state not in ("ZF400", "ZF403", "ZF409"):
            continue
        detail = getattr(each, "detail", None) or getattr(getattr(each, "diag", None), "message_detail", None)
        try:
            told = json.loads(detail or "")
            kind = PROBLEMS[told["code"]]
        except (ValueError, KeyError, TypeError):
            return None
        role, token, highest = told.get("role"), told.get("presented_token"), told.get("max_token_seen")
        message = f"The store refused the transaction: {kind.title.lower()}."
        wait = told.get("retry_after_ms") or None
        return answer(Refusal(kind, message, role, token, highest, retry_after_ms=wait))
    return None
