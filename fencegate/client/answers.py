"""One observed answer, read from its status, header lines and body. Pure: no I/O, no clock.

What comes over the wire is judged, never trusted: a header that is repeated, malformed or at odds
with the registry of problems counts as absent, and an answer whose ``X-Fencing-Outcome`` cannot be
believed is *not the gateway's*: it says nothing about whether the write happened. Where a header
and the registry differ, the more cautious of the two holds. Nothing in here raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from fencegate.errors import OUTCOME_TIMEOUT_STATUS, PROBLEMS, Applied, Retry
from fencegate.tokens import (
    HEADER_APPLIED,
    HEADER_LEADER,
    HEADER_MAX_SEEN,
    HEADER_OUTCOME,
    HEADER_REGION,
    HEADER_REPLAYED,
    HEADER_RETRY,
    MAX_TOKEN,
    OUTCOME_ACCEPTED,
    MalformedToken,
    parse_token,
)

HeaderLines = Iterable[tuple[str, str]]

_SECONDS = re.compile(r"[0-9]+", re.ASCII)
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_VISIBLE = re.compile(r"[!-~]+", re.ASCII)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LONGEST_WAIT: Final = 10**9


@dataclass(frozen=True, slots=True)
class Answer:
    """What one HTTP answer says. ``retry_after`` is seconds, uncapped.

    ``outcome`` is ``"accepted"``, a problem code, or ``None`` for an answer that is not the gateway's.
    ``leader`` is the hint's origin in normal form; ``leader_token`` comes from the body, where it has one.
    ``complete`` is False where the body ended early.
    """

    status: int
    outcome: str | None = None
    retry: Retry = Retry.IF_IDEMPOTENT
    applied: Applied | Literal["yes"] = "unknown"
    replayed: bool = False
    max_seen: int | None = None
    leader: str | None = None
    leader_token: int | None = None
    region: str = ""
    retry_after: float | None = None
    detail: str = ""
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer at all. ``sent`` is False only where not one byte of the request can have left."""

    sent: bool
    detail: str = ""
    timed_out: bool = False


def origin_of(text: str) -> str | None:
    """The normal form ``scheme://host[:port]`` of an http(s) origin, or ``None`` where ``text`` is not one.

    A path other than ``/``, a query, a fragment, credentials, spaces or non-ASCII make it no origin.
    """
    if _VISIBLE.fullmatch(text) is None or "\\" in text or len(text) > 300:
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not host or "@" in parts.netloc:
        return None
    if parts.path not in ("", "/") or "?" in text or "#" in text or port == 0 or "%" in host:
        return None
    host = f"[{host}]" if ":" in host else host
    suffix = "" if port is None or port == _DEFAULT_PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{host}{suffix}"


def read_answer(status: int, headers: HeaderLines, body: bytes = b"", *, complete: bool = True) -> Answer:
    """The meaning of an answer. ``headers`` are its header lines as they came; ``body`` may be cut short."""
    fields = _Fields(headers)
    region, retry_after = fields.one(HEADER_REGION) or "", _seconds(fields.one("Retry-After"))
    outcome = fields.one(HEADER_OUTCOME)
    max_seen = _token(fields.one(HEADER_MAX_SEEN))
    if outcome == OUTCOME_ACCEPTED:
        if fields.has(HEADER_APPLIED) or fields.has(HEADER_RETRY):  # only refusals say these: which of the two is it?
            return Answer(status, retry_after=retry_after, complete=complete)
        replayed = fields.one(HEADER_REPLAYED) == "true"
        return Answer(status, outcome, Retry.NEVER, "yes", replayed, max_seen, region=region, complete=complete)
    verdict = _refusal(status, outcome, fields)
    if outcome is None or verdict is None:
        return Answer(status, retry_after=retry_after, complete=complete)
    retry, applied = verdict
    leader = origin_of(fields.one(HEADER_LEADER) or "")
    document = _document(body)
    return Answer(
        status,
        outcome,
        retry,
        applied,
        max_seen=max_seen,
        leader=leader,
        leader_token=_leader_token(document, leader),
        region=region,
        retry_after=retry_after,
        detail=_text(document.get("detail")),
        complete=complete,
    )


def _refusal(status: int, outcome: str | None, fields: _Fields) -> tuple[Retry, Applied] | None:
    """What a refusal allows, or ``None`` where it cannot be the gateway's."""
    if outcome is None or _CODE.fullmatch(outcome) is None:
        return None
    said_retry = _retry(fields.one(HEADER_RETRY))
    said_applied: Applied = "no" if fields.one(HEADER_APPLIED) == "no" else "unknown"
    known = PROBLEMS.get(outcome)
    if known is None:
        # A code of a newer gateway: its headers are enough to act on, but only where they are whole.
        return (said_retry, said_applied) if status >= 400 and said_retry is not None else None
    statuses = {known.status} | ({OUTCOME_TIMEOUT_STATUS} if outcome == "outcome_unknown" else set())
    if status not in statuses:
        return None
    retry = Retry.NEVER if said_retry is Retry.NEVER else known.retry
    return retry, ("no" if known.applied == "no" and said_applied == "no" else "unknown")


class _Fields:
    """Header lines by lower-case name; a name that comes twice has no value."""

    def __init__(self, lines: HeaderLines) -> None:
        self._values: dict[str, str | None] = {}
        for name, value in lines:
            lower = name.lower()
            self._values[lower] = None if lower in self._values else value.strip(" \t")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def one(self, name: str) -> str | None:
        return self._values.get(name.lower())


def _retry(text: str | None) -> Retry | None:
    try:
        return Retry(text or "")
    except ValueError:
        return None


def _seconds(text: str | None) -> float | None:
    """Delta-seconds only: a date would have to be compared with a remote clock."""
    if text is None or _SECONDS.fullmatch(text) is None:
        return None
    return float(_LONGEST_WAIT) if len(text) > 9 else float(int(text))


def _token(text: str | None) -> int | None:
    try:
        return parse_token(text or "")
    except MalformedToken:
        return None


def _document(body: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _leader_token(document: dict[str, object], leader: str | None) -> int | None:
    """The hint's token out of the body; only where the body's leader is the header's."""
    hint = document.get("leader")
    if leader is None or not isinstance(hint, dict) or origin_of(_text(hint.get("url"))) != leader:
        return None
    return token_in(hint.get("token"))


def token_in(value: object) -> int | None:
    """A token out of a JSON member: a number, or a string of digits (for readers without 64-bit numbers)."""
    if isinstance(value, str):
        return _token(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKEN:
        return value
    return None


def _text(value: object) -> str:
    return value[:500] if isinstance(value, str) else ""
