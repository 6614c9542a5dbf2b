"""The kinds of values that settings have, each checked, with a description of what is expected; and what a table is."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

_ORIGIN: Final = "expected an origin only: http:// or https://, a host, perhaps a :port, and no path"
_DSN: Final = "expected a Postgres DSN such as postgresql://fencegate@localhost/ledger"
_DSN_OF_SEVERAL: Final = (
    "expected a Postgres DSN that this Python can read; several hosts with an IPv6 address among them go into "
    "parameters, such as postgresql://fencegate@/ledger?host=db.example,[2001:db8::1]&port=5432,5432"
)


def checked(check: Callable[[Any], Any]) -> AfterValidator:
    """The check as a validator; its ``ValueError`` message begins with "expected"."""
    return AfterValidator(check)


def split_url(text: str, expected: str) -> SplitResult:
    """The parts of a URL. Raises ``ValueError(expected)`` where it has none; later Pythons refuse more than earlier."""
    try:
        return urlsplit(text)
    except ValueError:
        raise ValueError(expected) from None


def has_port_or_none(parts: SplitResult) -> bool:
    """Whether a port, where there is one, is of 1 to 65535."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def origin(text: str) -> str:
    """``text`` as an origin, lower-case, without a trailing slash. Raises ``ValueError``."""
    parts = split_url(text, _ORIGIN)
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme not in ("http", "https") or not parts.hostname or not bare or not text.isascii():
        raise ValueError(_ORIGIN)
    if not has_port_or_none(parts):
        raise ValueError("expected an origin with a port of 1 to 65535")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``. Raises ``ValueError``."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or (":" in host and not bracketed):
        raise ValueError("expected host:port, such as 127.0.0.1:8080 or [::1]:8080")
    if int(port) > 65535:
        raise ValueError("expected a port of 0 to 65535")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(text: str) -> str:
    split_address(text)
    return text


def _dsn(text: str) -> str:
    # The driver splits it by the same function: what that refuses is no way to any server.
    parts = split_url(text, _DSN if "[" not in text else _DSN_OF_SEVERAL)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(_DSN)
    return text


def _endpoint(text: str) -> str:
    if "://" in text:
        return origin(text)
    split_address(text)
    return text


Name = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit",
    ),
]
Origin = Annotated[str, checked(origin), Field(description="an origin, such as https://ledger.eu.example")]
Endpoint = Annotated[str, checked(_endpoint), Field(description="an origin, or host:port")]
Address = Annotated[str, checked(_address), Field(description="host:port, such as 127.0.0.1:8080")]
Dsn = Annotated[str, checked(_dsn), Field(description="a Postgres DSN such as postgresql://fencegate@localhost/ledger")]
File = Annotated[str, Field(pattern=r"^[^\x00]+$", description="the path of a file")]
Seconds = Annotated[
    float, Field(gt=0, le=86400, allow_inf_nan=False, description="a number of seconds, more than 0 and at most 86400")
]
Holder = Annotated[
    str,
    Field(
        pattern=r"^[!-~]{1,256}$",
        description='a list such as "eu/*" or "eu/gw-1" (region and node), or "pg-1" in a system without regions',
    ),
]
Count = Annotated[int, Field(ge=1, le=1_000_000, description="a whole number of 1 to 1000000")]


class Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


def fields(model: type[BaseModel]) -> dict[str, tuple[str, FieldInfo]]:
    """The keys of a table, each with the name that it has in the model."""
    return {info.alias or name: (name, info) for name, info in model.model_fields.items()}
