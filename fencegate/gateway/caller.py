"""Who calls: the identity that a write is sent under. Pure; what is not certainly somebody's name is nobody's.

It is the name in a verified client certificate, or what a trusted proxy says in a header. An identity is 1 to
:data:`LONGEST` printable ASCII characters, ``""`` for none. It is part of an idempotency key's scope, so one caller
must never be written in two ways, nor two callers in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from fencegate.gateway.header_lines import Headers
from fencegate.gateway.request import Request, refused
from fencegate.tokens import HEADER_CALLER

LONGEST: Final = 512
"""Longest identity, in characters. A longer one is none: cut off, two callers could become one."""
_MOST_REMEMBERED: Final = 1024

_NAMED = re.compile(rb"[ -~]{0,%d}" % LONGEST)
_SPIFFE = re.compile(r"spiffe://[a-z0-9._-]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+)+", re.ASCII)
_SPECIAL: Final = frozenset('"+,;<>\\')
_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""RFC 4514, section 3; other attributes keep the name that OpenSSL has for them, or their dotted number."""

NOBODY: Final = "A write needs a caller that is known here: by its certificate, or by the word of a trusted proxy."

Network = IPv4Network | IPv6Network


def name_in(certificate: Mapping[str, Any] | None) -> str:
    """The identity in a verified certificate, as :meth:`ssl.SSLSocket.getpeercert` tells it; ``""`` for none.

    The SPIFFE ID where there is one (and then no other URI, as SPIFFE demands), else the subject by RFC 4514.
    """
    if not certificate:
        return ""
    uris = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    if any(uri.lower().startswith("spiffe:") for uri in uris):
        return uris[0] if len(uris) == 1 and len(uris[0]) <= LONGEST and _SPIFFE.fullmatch(uris[0]) else ""
    subject = distinguished_name(certificate.get("subject", ()))
    return subject if len(subject) <= LONGEST else ""


def distinguished_name(names: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The string of RFC 4514, the last name first, in ASCII: all other bytes of UTF-8 are written as ``\\XX``."""
    parts = ["+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in each) for each in names]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    text = "".join(map(_written, value))
    if text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return f"\\{text}" if text.startswith(("#", " ")) else text


def _written(char: str) -> str:
    if " " <= char <= "~":
        return f"\\{char}" if char in _SPECIAL else char
    return "".join(f"\\{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


class Allowed:
    """A route's list of callers. In a pattern ``*`` stands for any characters, also for none; all else for itself."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = frozenset(patterns)
        parts = ("[ -~]*".join(map(re.escape, pattern.split("*"))) for pattern in sorted(self.patterns))
        self._matches = re.compile("|".join(parts)).fullmatch

    def __contains__(self, caller: str) -> bool:
        return bool(caller) and self._matches(caller) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allowed) and self.patterns == other.patterns

    def __hash__(self) -> int:
        return hash(self.patterns)


class Callers:
    """How a gateway knows its callers. ``required``: no write is taken from nobody.

    ``certificate``: by the client certificate of the connection. ``header``: by this header, from a peer in
    ``proxies`` and nobody else. Such a peer speaks for others: its own certificate names no caller.
    """

    def __init__(
        self,
        *,
        certificate: bool = False,
        header: str = "",
        proxies: Iterable[Network] = (),
        required: bool = False,
    ) -> None:
        self.required = required
        self._certificate = certificate
        self._header = header.encode("ascii")
        self._folded = _folded(self._header)
        self._proxies = tuple(proxies)
        self._known: dict[str, bool] = {}

    def of(self, request: Request) -> str:
        """Who calls, ``""`` for nobody. Raises ``request_malformed`` where a proxy names nobody clearly."""
        if self._proxies and self._is_proxy(request.peer):
            return self._named(request.headers)
        return request.certificate if self._certificate else ""

    def for_upstream(self, headers: Headers, request: Request, caller: str) -> Headers:
        """The headers that go on, with the caller's identity where there is one and nobody else's word for it."""
        if self._header:
            size = len(self._header)
            headers = [field for field in headers if len(field[0]) != size or _folded(field[0]) != self._folded]
        if not caller:
            return headers
        name = caller.encode("ascii")
        if self._proxies and self._is_proxy(request.peer):
            headers = [*headers, (self._header, name)]
        return [*headers, (HEADER_CALLER.encode(), name)]

    def _named(self, headers: Headers) -> str:
        size = len(self._header)
        found = [field for field in headers if len(field[0]) == size and _folded(field[0]) == self._folded]
        if not found:
            return ""
        name, value = found[0]
        if len(found) > 1 or b"_" in name or not _NAMED.fullmatch(value):
            raise refused(
                "request_malformed",
                f"{self._header.decode()} must come on one line, in at most {LONGEST} printable ASCII characters.",
            )
        return value.decode("ascii")

    def _is_proxy(self, peer: str) -> bool:
        known = self._known.get(peer)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[peer] = _is_within(peer, self._proxies)
        return known


def _is_within(peer: str, networks: Sequence[Network]) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # A socket for both families tells IPv4 so.
    return any(address in network for network in networks)


def _folded(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")
