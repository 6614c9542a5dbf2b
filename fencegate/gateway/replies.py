"""Replies: how an accepted write and a refusal look on the wire. The contract's headers are made here only."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import orjson

from fencegate import tokens
from fencegate.errors import Leader, Refusal
from fencegate.gateway.header_lines import Headers, header_block
from fencegate.gateway.request import Reply

_ORIGIN = re.compile(r"https?://[^/?#@\s\\\"<>]+", re.ASCII)

JSON_TYPE: Final = (b"Content-Type", b"application/json")
_PROBLEM_TYPE: Final = (b"Content-Type", b"application/problem+json")
_NO_STORE: Final = (b"Cache-Control", b"no-store")
_ACCEPTED: Final = (tokens.HEADER_OUTCOME.encode(), tokens.OUTCOME_ACCEPTED.encode())
_REPLAYED: Final = (tokens.HEADER_REPLAYED.encode(), b"true")
_MAX_SEEN: Final = tokens.HEADER_MAX_SEEN.encode()
_REGION: Final = tokens.HEADER_REGION.encode()
_PROCESS: Final = b"%08x-%04x-8%03x-8fff-" % tuple(random.getrandbits(bits) for bits in (32, 16, 12))
_serial: Final = itertools.count(random.getrandbits(40))
_BLANK: Final = b"00000000-0000-4000-8000-000000000000"


def origin_only(url: str) -> str | None:
    """``url`` if it is an origin (``https://host[:port]``) and nothing more, else ``None``."""
    return url if _ORIGIN.fullmatch(url) else None


def leader_document(leader: Leader) -> dict[str, object]:
    """The ``leader`` member of a problem document and of discovery. An unknown token is left out.

    ``token_text`` is for readers whose numbers are 64-bit floats: no header tells them this token.
    """
    members: dict[str, object] = {"url": leader.url, "region": leader.region, "state": leader.state}
    if leader.token > 0:
        members["token"] = leader.token
        members["token_text"] = str(leader.token)
    if leader.observed_at:
        members["observed_at"] = leader.observed_at
    if leader.lease_expires_in_ms is not None:
        members["lease_expires_in_ms"] = leader.lease_expires_in_ms
    return members


@lru_cache(256)
def accepted_block(region: str, max_token_seen: int | None, replayed: bool) -> bytes:
    """:func:`accepted_headers` as the bytes of a reply's head."""
    return header_block(accepted_headers(region, max_token_seen, replayed=replayed))


@lru_cache(16)
def region_block(region: str) -> bytes:
    """The header line that names the region, ready for a reply's head."""
    return header_block([(_REGION, region.encode())])


def accepted_headers(region: str, max_token_seen: int | None, *, replayed: bool = False) -> Headers:
    """The headers that make an answer the gateway's acceptance."""
    headers: Headers = [_ACCEPTED]
    if max_token_seen is not None:
        headers.append((_MAX_SEEN, b"%d" % max_token_seen))
    headers.append((_REGION, region.encode()))
    if replayed:
        headers.append(_REPLAYED)
    return headers


def read_reply(region: str, document: object, *, cache: bytes = b"no-store") -> Reply:
    """A JSON answer of the gateway's own that is no write."""
    headers: Headers = [JSON_TYPE, (b"Cache-Control", cache), (_REGION, region.encode())]
    return Reply(200, headers, orjson.dumps(document))


def lines_of(reply: Reply) -> Iterator[tuple[str, str]]:
    """Every header line of a reply as text, whichever way the reply holds it."""
    for name, value in reply.headers:
        yield name.decode("latin-1"), value.decode("latin-1")
    for line in reply.block.decode("latin-1").split("\r\n")[:-1]:
        field, _, text = line.partition(": ")
        yield field, text


def new_instance() -> bytes:
    """A UUID of version 8 (RFC 9562: "custom") out of this process and a serial number, to find a refusal again.

    Nothing depends on its being unguessable, and a random one takes longer to make than the rest of a refusal.
    """
    return b"%b%012x" % (_PROCESS, next(_serial))


class RefusalTemplate:
    """One refusal that is sent many times: each has an ``instance`` of its own, all else is made once."""

    __slots__ = ("_after", "_before", "_block", "_status")

    def __init__(self, refusal: Refusal, region: str) -> None:
        reply = refusal_reply(refusal, region, instance=_BLANK)
        assert isinstance(reply.body, bytes)
        # With its quotes, which are escaped inside any other string of the document.
        before, _, after = reply.body.partition(b'"urn:uuid:%b"' % _BLANK)
        self._status, self._block = reply.status, header_block(reply.headers)
        self._before, self._after = before + b'"urn:uuid:', b'"' + after

    def reply(self) -> Reply:
        """The refusal, once more."""
        return Reply(self._status, [], b"%b%b%b" % (self._before, new_instance(), self._after), False, self._block)


def refusal_reply(refusal: Refusal, region: str, *, close: bool = False, instance: bytes = b"") -> Reply:
    """The refusal on the wire: headers that are enough to act on, and a body that repeats them (RFC 9457)."""
    status = refusal.status or refusal.problem.status
    leader = refusal.leader
    if leader is not None and origin_only(leader.url) is None:
        leader = None
    return Reply(
        status,
        _refusal_headers(refusal, leader, region),
        orjson.dumps(
            _refusal_document(refusal, leader, region, status, (instance or new_instance()).decode()),
            option=orjson.OPT_NON_STR_KEYS,
        ),
        close=close,
    )


def _refusal_headers(refusal: Refusal, leader: Leader | None, region: str) -> Headers:
    kind = refusal.problem
    headers: list[tuple[str, str]] = [
        (tokens.HEADER_OUTCOME, kind.code),
        (tokens.HEADER_APPLIED, kind.applied),
        (tokens.HEADER_RETRY, kind.retry.value),
        (tokens.HEADER_REGION, region),
    ]
    if refusal.max_token_seen is not None:
        headers.append((tokens.HEADER_MAX_SEEN, str(refusal.max_token_seen)))
    if leader is not None:
        headers.append((tokens.HEADER_LEADER, leader.url))
    if refusal.retry_after_ms is not None:
        headers.append(("Retry-After", str(-(-refusal.retry_after_ms // 1000))))
    allow = refusal.extra.get("allow")
    if isinstance(allow, str):
        headers.append(("Allow", allow))
    return [_PROBLEM_TYPE, _NO_STORE, *((name.encode(), value.encode()) for name, value in headers)]


def _refusal_document(
    refusal: Refusal, leader: Leader | None, region: str, status: int, instance: str
) -> dict[str, object]:
    kind = refusal.problem
    document: dict[str, object] = {
        "type": kind.type,
        "title": kind.title,
        "status": status,
        "detail": refusal.detail,
        "instance": f"urn:uuid:{instance}",
        "code": kind.code,
        "retryable": kind.retryable,
        "retry": kind.retry.value,
        "applied": kind.applied,
        "region": region,
    }
    known = (
        ("role", refusal.role),
        ("presented_token", refusal.presented_token),
        ("max_token_seen", refusal.max_token_seen),
        ("leader", None if leader is None else leader_document(leader)),
    )
    document.update((name, value) for name, value in known if value is not None)
    document["retry_after_ms"] = refusal.retry_after_ms or 0
    for name, value in refusal.extra.items():
        document.setdefault(name, value)
    return document
