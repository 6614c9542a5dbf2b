"""The route table: which path belongs to which role, default deny.

A path is looked at once, in one normal form. What an upstream may read in another way than we do
(empty segments, dot segments, encoded slashes, a second layer of encoding) matches no route at all. Nor does a
path that a lenient upstream (see :func:`_lenient`) would take for one of another route: that route's fence, methods
and keys would not hold for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal
from unicodedata import normalize
from urllib.parse import unquote, unquote_to_bytes

from fencegate.errors import ConfigurationError
from fencegate.gateway.caller import Allowed
from fencegate.gateway.granting import Granting
from fencegate.gateway.request import SAFE_METHODS
from fencegate.key_ring import SharedKey

TargetKind = Literal["ledger", "function", "http", "authz"]
"""``authz``: the role is only asked about, by a front proxy that forwards by itself."""
Profile = Literal["pass", "nginx", "envoy"]
"""How an external authorizer's refusal looks: see :mod:`fencegate.gateway.authz`."""

DISCOVERY: Final = (".well-known", "fencegate", "leader")
"""First segments of the discovery endpoint's path."""

_RAW_PATH = re.compile(r"/[!\"$->@-\[\]-~]*", re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_STILL_ENCODED = re.compile(r"%(2f|5c|2e|00)", re.IGNORECASE)
_CUT = re.compile(r"[;?#]")
_MOST_LAYERS: Final = 8
_MOST_SEGMENTS: Final = 256
_MOST_FORMATS: Final = 4
_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_NEVER_ROUTED = frozenset({"CONNECT", "TRACE"})


class NoSuchPath(Exception):
    """The path has no normal form that every reader would agree on."""


def segments_of(path: str) -> tuple[str, ...]:
    """The decoded segments of a raw path. Raises :class:`NoSuchPath`.

    ``/a/b`` gives ``("a", "b")``, ``/a/`` gives ``("a", "")``. Refused: ``//``, segments ``.`` and ``..``
    (also before ``;``, ``?`` or ``#`` and between spaces), encoded slashes, backslashes and NUL, control characters,
    bytes outside UTF-8, a fragment, and a second layer of encoding that hides any of these; and more segments than
    anybody's path has, since each is read in several ways.
    """
    if not path.startswith("/") or not _RAW_PATH.fullmatch(path) or _BAD_ESCAPE.search(path):
        raise NoSuchPath
    raw = path[1:].split("/")
    if len(raw) > _MOST_SEGMENTS:
        raise NoSuchPath
    return tuple(_segment(part, last=number == len(raw) - 1) for number, part in enumerate(raw))


def _segment(raw: str, *, last: bool) -> str:
    if not raw:
        if last:
            return ""
        raise NoSuchPath
    if "%" not in raw:
        decoded = raw
    else:
        try:
            decoded = unquote_to_bytes(raw).decode("utf-8")
        except UnicodeDecodeError:
            raise NoSuchPath from None
        if not decoded.isprintable():
            raise NoSuchPath
        # Some upstreams decode again, or normalize: of U+2025 they make "..", of U+FF0F a slash.
        plain = normalize("NFKC", _to_the_end(decoded))
        if not plain.isprintable() or any(character in plain for character in "/\\"):
            raise NoSuchPath
        if _CUT.split(plain, 1)[0].strip(" ") in (".", ".."):
            raise NoSuchPath
        if _STILL_ENCODED.search(decoded):
            raise NoSuchPath
    if decoded.split(";", 1)[0] in (".", ".."):
        raise NoSuchPath
    return decoded


def _to_the_end(segment: str) -> str:
    """Decoded until nothing is encoded any more. Raises :class:`NoSuchPath` for more layers than anybody means."""
    for _ in range(_MOST_LAYERS):
        again = unquote(segment)
        if again == segment:
            return segment
        segment = again
    raise NoSuchPath


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the route table.

    ``path`` may hold ``{parameters}`` and end in ``/*``; ``role`` may hold one of the path's parameters,
    and is then a family whose ``members`` (values of that parameter) are declared. ``argument`` is the
    function's name or the upstream's base URL. ``methods`` are the privileged ones; ``None`` means all
    but GET, HEAD and OPTIONS. ``timeout`` is in seconds, as is ``hold``: how long a write is kept at most while a
    handoff or an election is under way (0: not at all).
    """

    path: str
    role: str
    target: TargetKind
    argument: str = ""
    members: frozenset[str] = frozenset()
    methods: frozenset[str] | None = None
    idempotency: Literal["optional", "required"] = "optional"
    max_body_bytes: int = 1_048_576
    timeout: float = 30.0
    hold: float = 0.0
    mode: Literal["enforce", "observe"] = "enforce"
    method_from: str = ""
    """Target ``authz``: the header in which the asking proxy, and nobody else, tells the original request's method."""
    callers: Allowed | None = None
    """Who may write, ``None``: whoever presents the token."""
    granting: Granting | None = None
    """What the role has to do with grants, ``None``: nothing. Equal in all of a role's routes, and then ``callers`` of
    those that require one takes nobody without an identity."""
    proof_key: SharedKey | None = None
    """Target ``http``: what writes are signed with on their way to the upstream; ``None``: they are not."""

    def privileged(self, method: str) -> bool:
        """Whether a request with this method is a write that the fence must admit."""
        if self.methods is None:
            return method not in SAFE_METHODS
        # Upstreams carry a HEAD out by the code for GET.
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def allows(self, method: str) -> bool:
        """Whether the method is taken at all. Neither privileged nor safe means no."""
        if method in _NEVER_ROUTED:
            return False
        if self.target == "http":
            return method in SAFE_METHODS or self.privileged(method)
        return method == "POST" or (method in SAFE_METHODS and (self.target == "ledger" or method == "OPTIONS"))

    @property
    def allowed(self) -> str:
        """The value of an ``Allow`` header."""
        known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        names = {*known, *(self.methods or ())}
        return ", ".join(sorted(name for name in names if self.allows(name)))


@dataclass(frozen=True, slots=True)
class Match:
    """A path matched. ``role`` is ``None`` for a member that was never declared; ``rest`` is what followed the path."""

    route: Route
    role: str | None
    rest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Compiled:
    route: Route
    segments: tuple[str | None, ...]
    """``None`` stands for a parameter."""
    names: tuple[str, ...]
    """The parameters' names by position, ``""`` for a literal."""
    open_ended: bool
    folded: tuple[str | None, ...]
    """The segments as :func:`_lenient` reads them."""

    def match(self, path: tuple[str, ...]) -> Match | None:
        count = len(self.segments)
        if len(path) < count or (len(path) == count and self.open_ended):
            return None
        for wanted, got in zip(self.segments, path, strict=False):
            if (wanted is None and not got) or (wanted is not None and wanted != got):
                return None
        rest = path[count:]
        if rest and not self.open_ended and not (self.route.target == "ledger" and len(rest) == 1 and rest[0]):
            return None
        values = {name: path[index] for index, name in enumerate(self.names) if name}
        return Match(self.route, _role_of(self.route, values), rest)

    def takes_leniently(self, path: tuple[str, ...]) -> bool:
        """Whether an upstream would take ``path``, read leniently by :func:`_lenient`, for one of this route."""
        ends = len(path) >= len(self.folded) if self.open_ended else len(path) == len(self.folded)
        return ends and all(want in (None, got) for want, got in zip(self.folded, path, strict=False))

    @property
    def specificity(self) -> tuple[int, tuple[int, ...]]:
        """Sorts literals before parameters before open ends, segment by segment."""
        ranks = tuple(0 if segment is not None else 1 for segment in self.segments)
        return (1 if self.open_ended else 0, (*ranks, 2) if self.open_ended else ranks)


def _lenient(path: tuple[str, ...]) -> tuple[str, ...]:
    """The segments as the most lenient of upstreams would compare them.

    Decoded to the end, without a difference in case or width of letters; ``;parameters``, what is behind an encoded
    ``?`` or ``#``, spaces and dots at the end, and what is empty then, are read over.
    """
    return tuple(read for segment in path if (read := _plain(segment)))


def _plain(segment: str) -> str:
    folded = _CUT.split(normalize("NFKC", _to_the_end(segment)), maxsplit=1)[0].casefold()
    # Both Turkish letters are an i to Python's re.IGNORECASE and Java's equalsIgnoreCase, though not to casefold.
    return folded.replace("i\u0307", "i").replace("\u0131", "i").strip(" ").rstrip(" .")


def _without_format(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Rails and others take ``/admin.json`` for ``/admin``, with a wish for the answer's format."""
    yield path
    while path and path[-1].startswith("."):
        path = path[:-1]
        yield path
    name = path[-1] if path else ""
    names = {name.partition(".")[0]}
    for _ in range(_MOST_FORMATS):
        name = name.rpartition(".")[0] or name
        names.add(name)
    for each in names:
        yield (*path[:-1], each.rstrip(" ."))


def _role_of(route: Route, values: dict[str, str]) -> str | None:
    found = _PARAMETER.search(route.role)
    if found is None:
        return route.role
    value = values[found.group(1)]
    if value not in route.members:
        return None
    return route.role[: found.start()] + value + route.role[found.end() :]


@dataclass(slots=True)
class RouteTable:
    """All routes. Raises :class:`fencegate.errors.ConfigurationError` with every fault at once."""

    routes: Iterable[Route]
    members: int = field(default=0, init=False)
    """How many all families have."""
    _literal: dict[tuple[str, ...], Match] = field(default_factory=dict)
    _others: list[_Compiled] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.routes = tuple(self.routes)
        self.members = sum(len(route.members) for route in self.routes)
        faults: list[str] = []
        shapes: set[tuple[tuple[str | None, ...], bool]] = set()
        compiled = []
        for route in self.routes:
            if route.target == "authz":
                continue
            one, found = _compile(route)
            faults += found
            shape = (one.segments, one.open_ended)
            if shape in shapes:
                faults.append(f"route {route.path}: another route has the same path")
            shapes.add(shape)
            compiled.append(one)
        if faults:
            raise ConfigurationError(faults)
        self._others = sorted(compiled, key=lambda one: one.specificity)
        for one in self._others:
            literal = [segment for segment in one.segments if segment is not None]
            if len(literal) == len(one.segments) and not one.open_ended:
                self._literal[tuple(literal)] = Match(one.route, _role_of(one.route, {}))

    def match(self, path: tuple[str, ...]) -> Match | None:
        """The most specific route for these segments, or ``None``: literals win over parameters, those over ``*``.

        ``None`` too where a lenient upstream would take the path for one of a more specific route.
        """
        found = self._literal.get(path)
        if found is not None:
            return found
        for number, one in enumerate(self._others):
            match = one.match(path)
            if match is not None:
                return None if self._is_anothers(path, number) else match
        return None

    def _is_anothers(self, path: tuple[str, ...], number: int) -> bool:
        """Whether a lenient upstream would take a path of route ``number`` for one of a more specific route."""
        if not number or self._others[number].route.target != "http":
            return False
        plain = _lenient(path)
        if len(plain) > _MOST_FORMATS and all(name.startswith(".") for name in plain[-_MOST_FORMATS - 1 :]):
            return True  # More formats than anybody means, and each is another reading to be compared.
        readings = set(_without_format(plain))
        return any(one.takes_leniently(read) for one in self._others[:number] for read in readings)

    def authorizer_of(self, family: str) -> Route | None:
        """The route that declares an authorizer for the roles of ``family``."""
        return next((route for route in self.routes if route.target == "authz" and route.role == family), None)

    def granting_of(self, family: str) -> Granting | None:
        """By what grants of the roles of ``family`` are made and read; ``None``: there are none."""
        return next((r.granting for r in self.routes if r.role == family and r.granting is not None), None)

    def admits(self, family: str, caller: str) -> bool:
        """Whether some route of ``family`` would take a write of this caller."""
        return any(r.role == family and (r.callers is None or caller in r.callers) for r in self.routes)

    def family_of(self, role: str) -> str | None:
        """The configured name (the role itself, or its family's) of a declared role, else ``None``."""
        for route in self.routes:
            found = _PARAMETER.search(route.role)
            if found is None:
                if route.role == role:
                    return role
                continue
            before, after = route.role[: found.start()], route.role[found.end() :]
            if len(role) > len(before) + len(after) and role.startswith(before) and role.endswith(after):
                value = role[len(before) : len(role) - len(after)]
                if value in route.members:
                    return route.role
        return None


def _compile(route: Route) -> tuple[_Compiled, list[str]]:
    faults: list[str] = []
    open_ended = route.path.endswith("/*")
    body = route.path[:-2] if open_ended else route.path
    parts = body.split("/")[1:] if body else []
    names = [found.group(1) if (found := _PARAMETER.fullmatch(part)) else "" for part in parts]
    segments = tuple(None if name else part for part, name in zip(parts, names, strict=True))
    if not route.path.startswith("/"):
        faults.append(f"route {route.path!r}: a path begins with /")
    if any(part in ("", ".", "..", "*") for part in parts[:-1]) or (parts and parts[-1] in (".", "..", "*")):
        faults.append(f"route {route.path}: no empty segment, dot segment or * inside the path")
    if tuple(parts[:1]) == ("-",) or tuple(parts[:2]) == DISCOVERY[:2]:
        faults.append(f"route {route.path}: /-/ and /.well-known/fencegate/ are the gateway's own")
    for name in _PARAMETER.findall(route.role):
        if name not in names:
            faults.append(f"route {route.path}: the role {route.role} needs {{{name}}} in the path")
    if len(_PARAMETER.findall(route.role)) > 1:
        faults.append(f"route {route.path}: a role has at most one parameter")
    if open_ended and route.target != "http":
        faults.append(f"route {route.path}: only an http target can stand at a path that ends in /*")
    folded = tuple(None if segment is None else _plain(segment) for segment in segments)
    return _Compiled(route, segments, tuple(names), open_ended, folded), faults
