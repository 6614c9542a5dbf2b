"""Which headers travel on, and which end here.

Hop-by-hop fields (RFC 9110, section 7.6.1), those that ``Connection`` names, and every
``X-Fencing-*`` field are the gateway's own business, in both directions. Names are compared with
``_`` folded to ``-``: a CGI or WSGI upstream cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from fencegate.gateway.request import Fields, Headers, Request, nominations

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)

_SET_BY_US: Final = frozenset(
    {
        b"host",
        b"content-length",
        b"expect",
        b"early-data",
        b"idempotency-key",
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
        # Never written: some frameworks take the path from these, and it was another path that was checked.
        b"x-original-url",
        b"x-rewrite-url",
    }
)
"""Request fields that are written anew for the upstream, from what was checked, if at all."""

_OURS_IN_ANSWERS: Final = frozenset({b"idempotent-replayed", b"fencegate-origin", b"fencegate-replayed-body"})


def _folded(name: bytes) -> bytes:
    lowered = name.lower()
    return lowered.replace(b"_", b"-") if b"_" in lowered else lowered


def nominated(headers: Headers) -> frozenset[bytes]:
    """Names that the ``Connection`` fields declare hop-by-hop, lower-case and folded."""
    return frozenset(name for field, value in headers if field.lower() == b"connection" for name in nominations(value))


def _passes(name: bytes, dropped: Set[bytes]) -> bool:
    return name not in HOP_BY_HOP and name not in dropped and not name.startswith(b"x-fencing-")


def end_to_end_request(headers: Headers, fields: Fields) -> Headers:
    """The client's headers that travel on as they are, without those that the gateway writes anew."""
    dropped = fields.nominated | _SET_BY_US
    return [(name, value) for name, value in headers if _passes(_folded(name), dropped)]


def end_to_end_response(headers: Headers) -> Headers:
    """The upstream's headers that travel back, untouched and in order."""
    dropped = nominated(headers) | _OURS_IN_ANSWERS
    return [(name, value) for name, value in headers if _passes(_folded(name), dropped)]


def forwarded(request: Request) -> Headers:
    """``Forwarded`` and ``X-Forwarded-*`` for the upstream: what came, with this hop added."""
    earlier = {b"forwarded": list[bytes](), b"x-forwarded-for": list[bytes]()}
    for name, value in request.headers:
        lowered = name.lower()
        if lowered in earlier:
            earlier[lowered].append(value)
    peer = request.peer.encode("latin-1", "replace")
    scheme, host = request.scheme.encode(), request.header(b"host").encode("latin-1")
    node = b'"[' + peer + b']"' if b":" in peer else peer or b"unknown"
    element = b"for=" + node + b";proto=" + scheme
    if host:
        element += b';host="' + host.replace(b"\\", b"").replace(b'"', b"") + b'"'
    chain = [*earlier[b"x-forwarded-for"], peer or b"unknown"]
    added = [
        (b"Forwarded", b", ".join([*earlier[b"forwarded"], element])),
        (b"X-Forwarded-For", b", ".join(chain)),
        (b"X-Forwarded-Proto", scheme),
    ]
    return [*added, (b"X-Forwarded-Host", host)] if host else added
