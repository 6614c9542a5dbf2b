"""Which headers travel on, and which end here.

Hop-by-hop fields (RFC 9110, section 7.6.1), those that ``Connection`` names, and every
``X-Fencing-*`` field are the gateway's own business, in both directions. Names are compared with
``_`` folded to ``-``: a CGI or WSGI upstream cannot tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import lru_cache
from typing import Final

from fencegate.gateway.header_lines import Fields, Headers, checked_block, nominations
from fencegate.gateway.request import Request

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
        # gunicorn believes the first of who is on its machine, daphne the last of anybody, and cut it off the path.
        b"script-name",
        b"path-info",
        b"x-script-name",
        b"daphne-root-path",
        # Nor these: a mesh's proxy before the upstream would send a write again for who has them in its request, or
        # give it up, and answer, while the upstream is still about it (Envoy and Istio, Linkerd).
        b"x-envoy-retry-on",
        b"x-envoy-retry-grpc-on",
        b"x-envoy-max-retries",
        b"x-envoy-retriable-status-codes",
        b"x-envoy-retriable-header-names",
        b"x-envoy-hedge-on-per-try-timeout",
        b"x-envoy-upstream-rq-timeout-ms",
        b"x-envoy-upstream-rq-per-try-timeout-ms",
        b"l5d-retry-http",
        b"l5d-retry-grpc",
        b"l5d-retry-limit",
        b"l5d-retry-timeout",
        b"l5d-timeout",
        b"l5d-response-timeout",
    }
)
"""Request fields that are written anew for the upstream, from what was checked, if at all."""

_LONGEST_REMEMBERED: Final = 64
_MOST_REMEMBERED: Final = 1024
_HARMLESS: Final = frozenset({b"close", b"keep-alive"})
"""What ``Connection`` usually says; both are hop-by-hop, or no name of a header."""
_OURS_IN_ANSWERS: Final = frozenset({b"idempotent-replayed", b"fencegate-origin", b"fencegate-replayed-body"})


def _folded(name: bytes) -> bytes:
    lowered = name.lower()
    return lowered.replace(b"_", b"-") if b"_" in lowered else lowered


class _Judged(dict[bytes, bool]):
    """Names of headers, each judged once; bounded, since clients choose them."""

    def __init__(self, ends_here: Set[bytes]) -> None:
        self._ends_here = ends_here

    def __missing__(self, name: bytes) -> bool:
        folded = _folded(name)
        passes = folded not in HOP_BY_HOP and folded not in self._ends_here and not folded.startswith(b"x-fencing-")
        if len(name) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[name] = passes
        return passes


_TRAVELS: Final = _Judged(_SET_BY_US)
"""Whether a request's header goes on to the upstream as it is."""
_RETURNS: Final = _Judged(_OURS_IN_ANSWERS)
"""Whether an answer's header goes back to the client as it is."""


def end_to_end_request(headers: Headers, fields: Fields) -> Headers:
    """The client's headers that travel on as they are, without those that the gateway writes anew."""
    kept = [field for field in headers if _TRAVELS[field[0]]]
    if fields.nominated:
        kept = [field for field in kept if _folded(field[0]) not in fields.nominated]
    return kept


def passed_on(request: Request, fields: Fields) -> bytes:
    """The lines of :func:`end_to_end_request` and :func:`forwarded`, as bytes for the head of the request upstream.

    ``fields`` are those of the request's lines. They remember it: clients send the same lines again and again.
    """
    known = fields.known_passage
    if known is not None and known[0] == request.peer and known[1] == request.scheme:
        return known[2]
    block = checked_block([*end_to_end_request(request.headers, fields), *forwarded(request)])
    fields.known_passage = request.peer, request.scheme, block
    return block


def end_to_end_response(headers: Headers) -> Headers:
    """The upstream's headers that travel back, untouched and in order."""
    kept = [field for field in headers if _RETURNS[field[0]]]
    nominated = [
        name
        for field, value in headers
        if len(field) == 10 and field.lower() == b"connection"
        for name in nominations(value)
    ]
    if nominated and not _HARMLESS.issuperset(nominated):
        kept = [field for field in kept if _folded(field[0]) not in nominated]
    return kept


@lru_cache(1024)
def _of_a_first_hop(peer: str, scheme: str, host: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(_forwarded(peer, scheme, host, [], []))


def forwarded(request: Request) -> Iterable[tuple[bytes, bytes]]:
    """``Forwarded`` and ``X-Forwarded-*`` for the upstream: what came, with this hop added."""
    host = b""
    elements: list[bytes] = []
    addresses: list[bytes] = []
    for name, value in request.headers:
        # The length first: most names are told apart by it alone.
        size = len(name)
        if size == 4:
            host = value if not host and name.lower() == b"host" else host
        elif size == 9:
            elements += [value] if name.lower() == b"forwarded" else []
        elif size == 15 and name.lower() == b"x-forwarded-for":
            addresses.append(value)
    if not elements and not addresses and len(host) < 256:
        return _of_a_first_hop(request.peer, request.scheme, host)
    return _forwarded(request.peer, request.scheme, host, elements, addresses)


def _forwarded(peer: str, scheme: str, host: bytes, elements: list[bytes], addresses: list[bytes]) -> Headers:
    address = peer.encode("latin-1", "replace")
    node = b'"[' + address + b']"' if b":" in address else address or b"unknown"
    element = b"for=" + node + b";proto=" + scheme.encode()
    if host:
        element += b';host="' + host.replace(b"\\", b"").replace(b'"', b"") + b'"'
    added = [
        (b"Forwarded", b", ".join([*elements, element])),
        (b"X-Forwarded-For", b", ".join([*addresses, address or b"unknown"])),
        (b"X-Forwarded-Proto", scheme.encode()),
    ]
    return [*added, (b"X-Forwarded-Host", host)] if host else added
