"""The grammar of a route: its path, the role that the path belongs to, the family's members, the target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from sys import intern
from typing import Final, Literal

from fencegate.config.values import has_port_or_none, split_url

SEGMENT: Final = re.compile(r"[A-Za-z0-9._~-]{1,128}", re.ASCII)
"""One literal segment of a path or a role, and the name of a family's member."""

PARAMETER: Final = re.compile(r"\{([a-z][a-z0-9_]{0,31})\}", re.ASCII)
FUNCTION: Final = re.compile(r"[a-z_][a-z0-9_$]{0,62}\.[a-z_][a-z0-9_$]{0,62}", re.ASCII)
METHOD: Final = re.compile(r"[A-Z][A-Z-]{0,31}", re.ASCII)
HEADER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}", re.ASCII)
RESERVED: Final = ("/-", "/.well-known/fencegate")
MAX_MEMBERS: Final = 65536
_UPSTREAM: Final = "expected an upstream such as http://upstream:9000, without a query"

TARGET_EXPECTED: Final = "ledger, function:schema.name, authz, or an upstream's origin such as http://upstream:9000"
AUTHZ: Final = "/-/authz/"
"""Where front proxies ask; the only paths of fencegate's own that a route may name, with the target ``authz``."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where admitted writes go. ``argument`` is the function's name or the upstream's base URL, else empty."""

    kind: Literal["ledger", "function", "http", "authz"]
    argument: str = ""


def parse_target(text: str) -> Target:
    """The target that ``text`` names. Raises ``ValueError`` whose message says what was expected."""
    if text == "ledger":
        return Target("ledger")
    if text == "authz":
        return Target("authz")
    kind, _, rest = text.partition(":")
    if kind == "function":
        if FUNCTION.fullmatch(rest) is None:
            raise ValueError("expected function:schema.name, both lower-case SQL identifiers")
        return Target("function", rest)
    if kind in ("http", "https"):
        return Target("http", upstream(text))
    raise ValueError(f"expected {TARGET_EXPECTED}")


def upstream(text: str) -> str:
    """``text`` as the base URL of an upstream, without a trailing slash. Raises ``ValueError``."""
    parts = split_url(text, _UPSTREAM)
    if not parts.hostname or parts.query or parts.fragment:
        raise ValueError(_UPSTREAM)
    if parts.username is not None or parts.password is not None:
        raise ValueError("expected an upstream without a user name or password in it")
    if not has_port_or_none(parts):
        raise ValueError("expected an upstream with a port of 1 to 65535")
    return text.rstrip("/")


def check_path(text: str) -> str:
    """``text`` if it is a route's path: ``/``-separated literals and ``{parameter}``, at most one ``/*`` at the end.

    Raises ``ValueError`` whose message says what was expected.
    """
    if not text.startswith("/"):
        raise ValueError("expected a path that begins with /")
    own = any(text == reserved or text.startswith(f"{reserved}/") for reserved in RESERVED)
    if own and not text.startswith(AUTHZ):
        raise ValueError("expected a path outside /-/ and /.well-known/fencegate/, which are fencegate's own")
    body = text[:-2] if text.endswith("/*") else text
    segments = body.split("/")[1:] if body not in ("", "/") else []
    parameters: list[str] = []
    for segment in segments:
        found = PARAMETER.fullmatch(segment)
        if found is not None:
            parameters.append(found.group(1))
        elif not segment:
            raise ValueError("expected segments that are not empty: no / at the end, and no two of them together")
        elif SEGMENT.fullmatch(segment) is None or segment in (".", ".."):
            raise ValueError(
                "expected segments of letters, digits, '.', '_', '~', '-' or one whole {parameter}, "
                f"and * only as the last segment; {segment!r} is none of them"
            )
    if len(set(parameters)) != len(parameters):
        raise ValueError("expected each {parameter} once")
    return text


def check_header(text: str) -> str:
    """``text`` if it is a header's name. Raises ``ValueError`` whose message says what was expected."""
    if HEADER.fullmatch(text) is None:
        raise ValueError("expected a header's name such as X-Original-Method")
    return text


def role_parameters(text: str) -> list[str]:
    """The parameters in a path or a role, in order."""
    return PARAMETER.findall(text)


def check_role(text: str) -> str:
    """``text`` if it is a role or a family: 1 to 4 segments, one of them perhaps a ``{parameter}``.

    Raises ``ValueError`` whose message says what was expected.
    """
    segments = text.split("/")
    if len(text) > 200 or len(segments) > 4:
        raise ValueError("expected a role of at most 200 characters in at most 4 segments")
    for segment in segments:
        if PARAMETER.fullmatch(segment) is None and (SEGMENT.fullmatch(segment) is None or segment in (".", "..")):
            raise ValueError(
                "expected a role such as ledger or ledger/{shard}: segments of letters, digits, '.', '_', '~', '-' "
                "or one whole {parameter}"
            )
    if len(role_parameters(text)) > 1:
        raise ValueError("expected at most one {parameter} in a role")
    if text == "-":
        raise ValueError("expected another role than -, which the metrics call what has no role")
    return text


def check_members(value: list[str] | int) -> list[str] | int:
    """``value`` if it names or counts members. Raises ``ValueError`` whose message says what was expected."""
    names = [] if isinstance(value, int) else value
    if isinstance(value, int) and not 1 <= value <= MAX_MEMBERS:
        raise ValueError(f"expected a number of members of 1 to {MAX_MEMBERS}")
    if not isinstance(value, int) and not names:
        raise ValueError("expected at least one member")
    for name in names:
        if SEGMENT.fullmatch(name) is None or name in (".", ".."):
            raise ValueError(f"expected names of letters, digits, '.', '_', '~', '-'; {name!r} is none")
    if len(set(names)) != len(names):
        raise ValueError("expected each member once")
    return value


def check_methods(value: list[str]) -> list[str]:
    """``value`` if it is HTTP methods that can be forwarded. Raises ``ValueError`` as above."""
    for name in value:
        if METHOD.fullmatch(name) is None:
            raise ValueError(f"expected upper-case HTTP methods; {name!r} is none")
        if name in ("CONNECT", "TRACE"):
            raise ValueError(f"expected methods that can be forwarded; {name} cannot")
    if not value or len(set(value)) != len(value):
        raise ValueError("expected at least one method, each once")
    return value


def member_names(members: list[str] | int) -> list[str]:
    """The names of a family's members: as listed, or ``0`` to ``members - 1``."""
    return [str(number) for number in range(members)] if isinstance(members, int) else list(members)


def role_members(role: str, members: list[str] | int | None) -> list[str]:
    """The roles that a route stands for: itself, or one per member of the family."""
    if not role_parameters(role) or members is None:
        return [role]
    # One object for each role, however often it is asked for: many parts keep all of them.
    return [intern(PARAMETER.sub(name, role)) for name in member_names(members)]
