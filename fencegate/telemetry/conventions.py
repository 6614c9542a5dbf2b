"""OpenTelemetry's names for what happens (HTTP and database conventions, both stable), and our own beside them.

Of a URL the query is never told: it may hold what is nobody's business. Our own attributes say what the wire
contract's headers say, in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from fencegate import tokens

METHOD: Final = "http.request.method"
METHOD_AS_SENT: Final = "http.request.method_original"
RESEND_COUNT: Final = "http.request.resend_count"
STATUS: Final = "http.response.status_code"
ROUTE: Final = "http.route"
PATH: Final = "url.path"
SCHEME: Final = "url.scheme"
URL: Final = "url.full"
SERVER: Final = "server.address"
SERVER_PORT: Final = "server.port"
CLIENT: Final = "client.address"
AGENT: Final = "user_agent.original"
ERROR: Final = "error.type"
DB_SYSTEM: Final = "db.system.name"
DB_NAMESPACE: Final = "db.namespace"
DB_OPERATION: Final = "db.operation.name"
DB_SUMMARY: Final = "db.query.summary"

ROLE: Final = "fencegate.role"
TOKEN: Final = "fencegate.token"
OUTCOME: Final = "fencegate.outcome"
"""``accepted``, or the code of the problem: as in ``X-Fencing-Outcome``."""
REFUSAL: Final = "fencegate.refusal"
"""That code once more, where it is one: to look for refusals by whether it is there."""
APPLIED: Final = "fencegate.applied"
MAX_SEEN: Final = "fencegate.max_token_seen"
REPLAYED: Final = "fencegate.replayed"
WOULD_REFUSE: Final = "fencegate.would_refuse"
HELD: Final = "fencegate.held"
"""Seconds for which the write was held."""
VERDICT: Final = "fencegate.verdict"
EFFECT: Final = "fencegate.effect"
TO: Final = "fencegate.to"
REASON: Final = "fencegate.reason"
NODE: Final = "fencegate.node"
REGION: Final = "fencegate.region"

OTHER: Final = "_OTHER"
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
_PORTS: Final = {"http": 80, "https": 443}
_LONGEST: Final = 256
_LONGEST_PATH: Final = 2048


def method(name: str) -> dict[str, str]:
    """The request's method; of one that nobody has heard of, what was sent stands beside it."""
    return {METHOD: name} if name in _METHODS else {METHOD: OTHER, METHOD_AS_SENT: name}


def span_name(method_name: str, route: str = "") -> str:
    """``POST /v1/entries``: made of few words, whatever the client sends."""
    known = method_name if method_name in _METHODS else "HTTP"
    return f"{known} {route}" if route else known


def path(as_sent: str) -> str:
    """The path of a URL, as text that can be written down: what a client sends need not be any."""
    shown = as_sent[:_LONGEST_PATH]
    return shown if shown.isascii() else shown.encode("utf-8", "replace").decode()


def server(authority: str, scheme: str) -> dict[str, str | int]:
    """Whom a request is for, out of ``host[:port]``; nothing where that is no such thing."""
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return {}
    if not host or len(host) > _LONGEST or parts.path:
        return {}
    return {SERVER: host, SERVER_PORT: port or _PORTS.get(scheme, 0)}


def database(dsn: str) -> dict[str, str | int]:
    """The store, out of its DSN: no user and no password. Of several hosts none is told."""
    found: dict[str, str | int] = {DB_SYSTEM: "postgresql"}
    try:
        parts = urlsplit(dsn)
        if parts.path.strip("/"):
            found[DB_NAMESPACE] = parts.path.strip("/")
        if parts.hostname and "," not in parts.netloc:
            found |= {SERVER: parts.hostname, SERVER_PORT: parts.port or 5432}
    except ValueError:
        pass
    return found


def statement(target: str) -> dict[str, str]:
    """A statement of the fence: all are a ``SELECT``, from a table or of a function in SQL."""
    return {DB_OPERATION: "SELECT", DB_SUMMARY: f"SELECT {target}"}


def fencing(lines: Iterable[tuple[str, str]]) -> dict[str, str | int | bool]:
    """What the contract's headers of an answer say."""
    found: dict[str, str | int | bool] = {}
    for name, value in lines:
        match name.lower():
            case "x-fencing-outcome":
                found[OUTCOME] = value
                if value != tokens.OUTCOME_ACCEPTED:
                    found[REFUSAL] = value
            case "x-fencing-applied":
                found[APPLIED] = value
            case "x-fencing-max-seen" if value.isascii() and value.isdigit() and len(value) < 20:
                found[MAX_SEEN] = int(value)
            case "idempotent-replayed":
                found[REPLAYED] = value == "true"
    return found
