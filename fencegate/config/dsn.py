"""What a Postgres DSN says of the way to its servers. Pure; the DSN's shape has been checked."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from fencegate.config.values import is_loopback

TLS_PARAMETERS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword")


def parameters(dsn: str) -> dict[str, str]:
    """The query's parameters; of one that is given twice the last counts."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(dsn).query).items()}


def hosts(dsn: str) -> list[str]:
    """The names and addresses of the servers; a path is the directory of a Unix socket; none: the driver's default."""
    listed = urlsplit(dsn).netloc.rpartition("@")[2] or parameters(dsn).get("host", "")
    return [_host(unquote(each)) for each in listed.split(",") if each]


def _host(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.startswith("/") else text.partition(":")[0]


def stays_here(dsn: str) -> bool:
    """Whether nothing of it leaves this machine: Unix sockets and loopback alone."""
    return all(host.startswith("/") or is_loopback(host) for host in hosts(dsn))


def over_sockets(dsn: str) -> bool:
    """Whether some server is reached over a Unix socket, where there is no TLS."""
    found = hosts(dsn)
    return not found or any(host.startswith("/") for host in found)


def has_password(dsn: str) -> bool:
    return bool(urlsplit(dsn).password) or "password" in parameters(dsn)
