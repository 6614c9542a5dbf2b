"""The values of the settings: what each kind has to look like, and the sentence that says so.

A check gives the value, perhaps in its usual form, or raises ``ValueError`` whose message begins with "expected".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from fencegate.config import routes

FOLLOWED: Final = ("patroni", "redis-sentinel", "kafka")
"""Systems that elect for themselves: they can be followed, nobody campaigns there."""
SOURCES: Final = ("etcd", "postgres", "postgres-advisory", "zookeeper", "kubernetes", "consul", *FOLLOWED)
INSTALLED: Final = "installed:"
"""Before the name of an election that another package brings along (``election/installed.py``)."""


def checked(check: Callable[[Any], Any]) -> AfterValidator:
    """The check as a validator; its ``ValueError`` message begins with "expected"."""
    return AfterValidator(check)


def origin(text: str) -> str:
    """``text`` as an origin, lower-case, without a trailing slash. Raises ``ValueError``."""
    parts = urlsplit(text)
    bare = parts.path in ("", "/") and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme not in ("http", "https") or not parts.hostname or not bare or not text.isascii():
        raise ValueError("expected an origin only: http:// or https://, a host, perhaps a :port, and no path")
    if parts.port == 0:
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


def address(text: str) -> str:
    split_address(text)
    return text


def dsn(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError("expected a Postgres DSN such as postgresql://fencegate@localhost/ledger")
    return text


def source(text: str) -> str:
    installed = text.removeprefix(INSTALLED)
    if text not in SOURCES and (installed == text or not installed.strip()):
        raise ValueError(f"expected one of {', '.join(SOURCES)}, or {INSTALLED}NAME for an election of another package")
    return text


def client(text: str) -> str:
    if text not in ("json", "etcd3"):
        raise ValueError("expected json (etcd's JSON gateway) or etcd3 (gRPC, with the extra fencegate[etcd3])")
    return text


def endpoint(text: str) -> str:
    if "://" in text:
        return origin(text)
    split_address(text)
    return text


def role_from(text: str) -> str:
    raise ValueError("expected no role_from: a role named by a header is not in this version; put it into the path")


def target(text: str) -> str:
    routes.parse_target(text)
    return text


def members(value: list[str] | int) -> list[str] | int:
    names = [] if isinstance(value, int) else value
    if isinstance(value, int) and not 1 <= value <= routes.MAX_MEMBERS:
        raise ValueError(f"expected a number of members of 1 to {routes.MAX_MEMBERS}")
    if not isinstance(value, int) and not names:
        raise ValueError("expected at least one member")
    for name in names:
        if routes.SEGMENT.fullmatch(name) is None or name in (".", ".."):
            raise ValueError(f"expected names of letters, digits, '.', '_', '~', '-'; {name!r} is none")
    if len(set(names)) != len(names):
        raise ValueError("expected each member once")
    return value


def methods(value: list[str]) -> list[str]:
    for name in value:
        if routes.METHOD.fullmatch(name) is None:
            raise ValueError(f"expected upper-case HTTP methods; {name!r} is none")
        if name in ("CONNECT", "TRACE"):
            raise ValueError(f"expected methods that can be forwarded; {name} cannot")
    if not value or len(set(value)) != len(value):
        raise ValueError("expected at least one method, each once")
    return value


Name = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit",
    ),
]
Origin = Annotated[str, checked(origin), Field(description="an origin, such as https://ledger.eu.example")]
Endpoint = Annotated[str, checked(endpoint), Field(description="an origin, or host:port")]
Address = Annotated[str, checked(address), Field(description="host:port, such as 127.0.0.1:8080")]
Dsn = Annotated[str, checked(dsn), Field(description="a Postgres DSN such as postgresql://fencegate@localhost/ledger")]
File = Annotated[str, Field(min_length=1, description="the path of a file")]
Seconds = Annotated[
    float, Field(gt=0, le=86400, allow_inf_nan=False, description="a number of seconds, more than 0 and at most 86400")
]
Count = Annotated[int, Field(ge=1, le=1_000_000, description="a whole number of 1 to 1000000")]
