"""What says who calls: the grammar of the header, the proxies that may set it, and the callers of a route."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final

from pydantic import Field

from fencegate.config.routes import check_header
from fencegate.config.values import Table, checked

_PATTERN = re.compile(r"[ -~]{1,512}", re.ASCII)
_WITH_ANOTHER_MEANING: Final = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "early-data",
        "expect",
        "forwarded",
        "host",
        "idempotency-key",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
    }
)
"""Headers that frame a message, hold a credential or are written by every proxy; none of them is a name."""


def _header(text: str) -> str:
    lowered = check_header(text).lower()
    if lowered in _WITH_ANOTHER_MEANING or lowered.startswith("x-fencing-"):
        raise ValueError("expected a header of its own for the caller's name, such as X-Forwarded-User")
    return text


def network(text: str) -> IPv4Network | IPv6Network:
    """``text`` as a network, or as the one of a single address. Raises ``ValueError``."""
    try:
        found = ip_network(text)
    except ValueError:
        raise ValueError(f"expected networks such as 10.1.0.0/16 or single addresses; {text!r} is none") from None
    if found.prefixlen == 0:
        raise ValueError(f"expected the networks of your proxies alone; from {text} anybody could name any caller")
    return found


def _networks(value: list[str]) -> list[str]:
    for text in value:
        network(text)
    return value


def check_callers(value: list[str]) -> list[str]:
    """``value`` if it is a list of callers. Raises ``ValueError``."""
    for text in value:
        if _PATTERN.fullmatch(text) is None:
            raise ValueError(f"expected callers of 1 to 512 printable ASCII characters; {text!r} is none")
    if not value or len(set(value)) != len(value):
        raise ValueError("expected at least one caller, each once")
    return value


class IdentitySettings(Table):
    """Who calls. ``certificate``: whom the client certificate of the data listener names.

    ``header``: the header in which the proxies in ``from``, and nobody else, name the caller that they speak for.
    ``required``: no write is taken from a caller without an identity.
    """

    certificate: Annotated[bool, Field(description="true or false")] = False
    header: Annotated[str, checked(_header), Field(description="a header such as X-Forwarded-User")] | None = None
    proxies: Annotated[
        list[str], checked(_networks), Field(description="a list of networks such as 10.1.0.0/16", alias="from")
    ] = []
    required: Annotated[bool, Field(description="true or false")] = False

    @property
    def known(self) -> bool:
        """Whether any caller can have an identity."""
        return self.certificate or self.header is not None
