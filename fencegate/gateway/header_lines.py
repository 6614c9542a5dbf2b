"""Header lines, and what the gateway looks for in them. Each line is judged by its name once; the rest is passed on.

Most of a client's lines are the same in every request, so the protocol edge remembers lines that it has read
(:func:`read_line`): a look-up costs a tenth of reading. Nothing here refuses: :mod:`fencegate.gateway.request` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]
Line = tuple[tuple[bytes, bytes], int]
"""One header line: its name and value, as sent and without the white space around the value, and its mark."""

TOKEN, KEY, BUDGET, CONNECTION, EARLY_DATA, UPGRADE, OVERRIDE = range(1, 8)
HOST, LENGTH, CODING, EXPECT, AGENT, SECRET, KEEP_ALIVE, FORWARDED, GRANT = range(8, 17)
"""Marks: what a line is to the gateway; 0 for one that is only passed on. Negative: a *twin*, spelled with ``_`` for
``-``, which some upstreams cannot tell from the name that is meant."""

_MARKS: Final = {
    b"x-fencing-token": TOKEN,
    b"idempotency-key": KEY,
    b"x-fencing-timeout-ms": BUDGET,
    b"x-fencing-grant": GRANT,
    b"connection": CONNECTION,
    b"early-data": EARLY_DATA,
    b"upgrade": UPGRADE,
    b"x-http-method-override": OVERRIDE,
    b"x-http-method": OVERRIDE,
    b"x-method-override": OVERRIDE,
    b"host": HOST,
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"expect": EXPECT,
    b"user-agent": AGENT,
    b"x-forwarded-for": FORWARDED,
    b"authorization": SECRET,
    b"cookie": SECRET,
    b"set-cookie": SECRET,
    b"keep-alive": KEEP_ALIVE,
}
_LENGTHS: Final = frozenset(len(name) for name in _MARKS)

NAME: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
TEXT: Final = rb"[\t -~\x80-\xff]"
# Possessive: what does not match is known in one pass, however it is spelled.
_LINE = re.compile(rb"(" + NAME + rb"++):[ \t]*+(" + TEXT + rb"*+)")

PERSONAL: Final = frozenset({KEY, SECRET, GRANT, -KEY, -SECRET, -GRANT})
"""What never recurs, or is nobody's business: no line or head with one of these is remembered."""
LONGEST_REMEMBERED: Final = 256
MOST_REMEMBERED: Final = 1024
remembered_lines: Final[dict[bytes, Line]] = {}
"""Lines that :func:`read_line` has read, by their bytes; for a look-up before the call."""


def mark_of(name: bytes) -> int:
    """What a header of this name is to the gateway."""
    if len(name) not in _LENGTHS:
        return 0  # Told apart by the length alone, as most are.
    lowered = name.lower()
    if b"_" not in lowered:
        return _MARKS.get(lowered, 0)
    return -_MARKS.get(lowered.replace(b"_", b"-"), 0)


def read_line(raw: bytes) -> Line | None:
    """One header line without its line end; ``None`` for one that RFC 9112 does not allow, obs-fold included."""
    known = remembered_lines.get(raw)
    if known is not None:
        return known
    found = _LINE.fullmatch(raw)
    if found is None:
        return None
    name, value = found.groups()
    mark = mark_of(name)
    line = ((name, value.rstrip(b" \t")), mark)
    if len(raw) <= LONGEST_REMEMBERED and mark not in PERSONAL:
        if len(remembered_lines) >= MOST_REMEMBERED:
            remembered_lines.clear()
        remembered_lines[raw] = line
    return line


class Fields:
    """What the header lines of one request say. Nothing is judged yet, so that refusals keep their order.

    Requests with the same lines share one of these (:mod:`fencegate.gateway.request_bytes`): what was found to be
    well formed is noted here, and a key's line, which is another one in each, is not in it.
    """

    # Defaults of the class: a request only has what its lines set, and most set little.
    token: tuple[bytes, ...] = ()
    token_twin: bool = False
    """A header that an upstream may fold into the token's, such as ``X_Fencing_Token``."""
    key: tuple[bytes, ...] = ()
    key_twin: bool = False
    grant: tuple[bytes, ...] = ()
    grant_twin: bool = False
    budget: tuple[bytes, ...] = ()
    early_data: bool = False
    upgrade: bool = False
    """Asked for, and not only the offer of HTTP/2 in the clear that Java's client makes of itself."""
    override: bool = False
    options: frozenset[bytes] = frozenset()
    """What ``Connection`` says, in lower case."""
    nominated: frozenset[bytes] = frozenset()
    """Names in ``Connection``, lower-case and folded: hop-by-hop by the client's word."""
    hosts: int = 0
    lengths: tuple[bytes, ...] = ()
    codings: tuple[bytes, ...] = ()
    framing_twin: bool = False
    """A header that an upstream may fold into one that frames the message, or into ``Host``."""
    expect: bytes = b""
    agent: bytes = b""
    forwarded: bytes = b""
    """``X-Forwarded-For``, its first line: whom a proxy in front says that it speaks for. Anybody can say so."""
    size: int = 0
    """Bytes of all header lines, with their colons and line ends."""
    known_token: int = 0
    """The token, once it was found to be well formed."""
    known_length: int | None = None
    """The body's length, once it was found to be well formed, in HTTP/1.1; ``None`` for a chunked one too."""
    known_kind: object = None
    """The kind of ways whose every check these lines alone have passed (:class:`fencegate.gateway.app.Way`)."""
    known_passage: tuple[str, str, bytes] | None = None
    """Of the last peer and scheme: what travels on (:func:`fencegate.gateway.hop_headers.passed_on`)."""


def fields_of(marked: Iterable[Line], size: int) -> Fields:
    """What the marked ones among the lines say."""
    found = Fields()
    found.size = size
    for (_, value), mark in marked:
        if mark == HOST:
            found.hosts += 1
        elif mark == TOKEN:
            found.token = (*found.token, value)
        elif mark == LENGTH:
            found.lengths = (*found.lengths, value)
        elif mark == KEY:
            found.key = (*found.key, value)
        elif mark == AGENT:
            found.agent = found.agent or value
        else:
            _take_rare(found, value, mark)
    return found


def _take_rare(found: Fields, value: bytes, mark: int) -> None:
    kind = abs(mark)
    if kind == TOKEN:
        found.token, found.token_twin = (*found.token, value), True
    elif kind == KEY:
        found.key, found.key_twin = (*found.key, value), True
    elif kind == GRANT:
        found.grant, found.grant_twin = (*found.grant, value), found.grant_twin or mark < 0
    elif kind == BUDGET:
        found.budget = (*found.budget, value)
    elif kind == OVERRIDE:
        found.override = True
    elif mark in (-HOST, -LENGTH, -CODING):
        found.framing_twin = True
    elif mark == CODING:
        found.codings = (*found.codings, value)
    elif mark == CONNECTION:
        found.options |= {part.strip(b" \t") for part in value.lower().split(b",")}
        found.nominated |= set(nominations(value))
    elif kind == EARLY_DATA:
        found.early_data = True  # RFC 8470, section 5.1: a repeated or invalid one counts as one that says 1.
    elif mark == UPGRADE:
        found.upgrade |= value.lower() != b"h2c"  # Obsolete (RFC 9113, section 3.1), and nothing if it is not taken up.
    elif mark == EXPECT:
        found.expect = value.lower()
    elif mark == FORWARDED:
        found.forwarded = found.forwarded or value


def header_block(headers: Headers) -> bytes:
    """Header lines as the bytes that stand in a head."""
    return b"".join([b"%b: %b\r\n" % field for field in headers])


def checked_block(headers: Headers) -> bytes:
    """As :func:`header_block`. Raises ``ValueError`` for a line break or NUL in one."""
    block = header_block(headers)
    # What is counted once for each line and nowhere else is in no value.
    if block.count(b"\n") != len(headers) or block.count(b"\r") != len(headers) or b"\0" in block:
        raise ValueError("a header holds a line break or NUL")
    return block


def nominations(value: bytes) -> list[bytes]:
    """The names in one ``Connection`` field, in lower case and with ``_`` folded to ``-``."""
    return [part.strip(b" \t").lower().replace(b"_", b"-") for part in value.split(b",")]


def read_fields(headers: Headers) -> Fields:
    """The same from lines that an HTTP library has read."""
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    return fields_of([(pair, mark) for pair in headers if (mark := mark_of(pair[0]))], size)
