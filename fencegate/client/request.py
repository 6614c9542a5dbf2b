"""What a caller hands to the client, checked before anything is sent; and the answer that they get back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import orjson
from multidict import CIMultiDict
from yarl import URL

from fencegate.client.answers import Answer, origin_of
from fencegate.client.exchange import Reply
from fencegate.client.machine import Operation
from fencegate.errors import ConfigurationError
from fencegate.tokens import (
    HEADER_GRANT,
    HEADER_IDEMPOTENCY_KEY,
    HEADER_TIMEOUT,
    HEADER_TOKEN,
    MAX_TOKEN,
    parse_idempotency_key,
)

READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that need no token and no key."""

_METHOD: Final = re.compile(r"[A-Z]{1,20}", re.ASCII)
_GRANT: Final = re.compile(r"[!-~]{1,4096}", re.ASCII)
_NOT_IN_HEADERS: Final = re.compile(r"[\r\n\0]")
_LONGEST_BUDGET: Final = 999_999_999
"""Milliseconds: the contract knows no longer one, and a gateway takes it for malformed."""
_OF_THE_CONNECTION: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"})
"""A length of the caller's would be believed: a body that is longer would be cut off there, and accepted so."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. For a write it means: accepted by the fence; ``status`` and ``body`` are the target's.

    The target may itself have said no (``ok`` is False then). ``token`` is the one that was presented;
    ``origin`` the gateway that answered; ``replayed``: the stored result of an earlier try with this key.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    token: int | None
    max_token_seen: int | None
    region: str
    replayed: bool
    origin: str
    tries: int
    idempotency_key: str | None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body, parsed. Raises ``ValueError`` where it is not JSON."""
        return orjson.loads(self.body)


def response_of(operation: Operation, answer: Answer, reply: Reply, tries: int) -> Response:
    return Response(
        reply.status,
        reply.headers,
        reply.body,
        operation.token,
        answer.max_seen,
        answer.region,
        answer.replayed,
        operation.origin or "",
        tries,
        operation.key,
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request, ready to be sent any number of times with the same bytes and the same key."""

    method: str
    path: str
    """With its query."""
    headers: Mapping[str, str]
    body: bytes | None
    key: str | None

    @property
    def read(self) -> bool:
        return self.method in READS


def wanted(
    method: str,
    path: str,
    *,
    json: object,
    data: bytes | None,
    params: Mapping[str, str] | None,
    headers: Mapping[str, str] | None,
    idempotency_key: str | bool | None,
) -> Wanted:
    """Check a caller's request and make its bytes.

    Raises ``ValueError`` or ``TypeError`` for what cannot be sent, and
    :class:`fencegate.tokens.MalformedKey` for a bad idempotency key.
    """
    method = method.upper()
    if _METHOD.fullmatch(method) is None:
        raise ValueError("method must be a word of ASCII letters, for example POST")
    if not path.startswith("/") or any(ord(sign) < 0x20 or sign in "#\\" for sign in path):
        raise ValueError(f"path must begin with '/' and hold no '#', '\\' or control characters, not {path!r}")
    if json is not None and data is not None:
        raise ValueError("give json or data, not both")
    if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError("data must be bytes: a body that can be read only once cannot be sent again")
    given = _headers(headers or {})
    body = bytes(data) if data is not None else None
    if json is not None:
        body = orjson.dumps(json)
        if not any(name.lower() == "content-type" for name in given):
            given["Content-Type"] = "application/json"
    if params:
        # Now, since the mapping is the caller's, who may have changed it before the second try.
        path = URL("http://localhost" + path).update_query(params).raw_path_qs
    return Wanted(method, path, given, body, _key(method, idempotency_key))


def stamped(want: Wanted, operation: Operation, limit: float) -> CIMultiDict[str]:
    """The header lines of one try that has ``limit`` seconds."""
    headers = CIMultiDict(want.headers)
    headers[HEADER_TIMEOUT] = str(max(1, int(min(limit * 1000, _LONGEST_BUDGET))))
    if operation.token is not None and not want.read:
        headers[HEADER_TOKEN] = str(operation.token)
        if operation.grant is not None:
            headers[HEADER_GRANT] = operation.grant
    if want.key is not None:
        headers[HEADER_IDEMPOTENCY_KEY] = want.key
    return headers


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        lower = name.lower().replace("_", "-")
        if lower.startswith("x-fencing-") or lower == HEADER_IDEMPOTENCY_KEY.lower():
            raise ValueError(f"{name} is set by the client; use the arguments token, deadline and idempotency_key")
        if lower in _OF_THE_CONNECTION:
            raise ValueError(f"{name} is the connection's, not the request's: leave it out")
        if _NOT_IN_HEADERS.search(name + value):
            raise ValueError(f"header {name!r} holds a line break or NUL")
    return dict(headers)


def _key(method: str, idempotency_key: str | bool | None) -> str | None:
    if method in READS or idempotency_key is False:
        return None
    if idempotency_key is None or idempotency_key is True:
        return str(uuid4())
    parse_idempotency_key(idempotency_key)
    return idempotency_key


def checked_deadline(seconds: float) -> float:
    """``seconds`` as given. Raises ``ValueError`` where no clock would ever reach it."""
    if seconds != seconds:
        raise ValueError("deadline must be a number of seconds, not NaN")
    return seconds


def checked_token(token: int | None) -> int | None:
    """``token`` as it was given. Raises ``ValueError`` where it is none."""
    if token is not None and (isinstance(token, bool) or not 1 <= token <= MAX_TOKEN):
        raise ValueError(f"token must be a number from 1 to {MAX_TOKEN}")
    return token


def checked_grant(token: int | None, grant: str | Callable[[], str] | None) -> Callable[[], str] | None:
    """What makes the grant of a try. Raises ``ValueError`` for one without the token that it was given for."""
    if grant is None:
        return None
    if token is None:
        raise ValueError("a grant goes with its token: give token too, or leave both to discovery")
    make = grant if callable(grant) else lambda: grant

    def one() -> str:
        text = make()
        if not isinstance(text, str) or _GRANT.fullmatch(text) is None:
            raise ValueError("a grant is one line of visible ASCII characters")
        return text

    return one


def checked_settings(urls: Sequence[str], role: str, numbers: Mapping[str, float]) -> tuple[str, ...]:
    """The origins of ``urls`` in normal form, without repeats. Raises ``ConfigurationError`` with every fault."""
    faults, origins = [], []
    if isinstance(urls, str):
        faults.append("urls must be a list of URLs, not one string")
        urls = [urls]
    for url in urls:
        origin = origin_of(url)
        if origin is None:
            faults.append(f"urls: {url!r} is not an origin; give scheme://host[:port] without a path")
        elif origin not in origins:
            origins.append(origin)
    if not urls:
        faults.append("urls must name at least one gateway, for example ['https://ledger.eu.example']")
    if not role or any(not 0x20 < ord(sign) < 0x7F for sign in role):
        faults.append(f"role must be visible ASCII without spaces, for example 'ledger', not {role!r}")
    faults += [f"{name} must be more than 0, not {value:g}" for name, value in numbers.items() if not value > 0]
    if faults:
        raise ConfigurationError(faults)
    return tuple(origins)
