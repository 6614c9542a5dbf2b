"""An upstream's usual answer, read in one go: plain, with a declared length, and all of it in one piece.

Whatever is not that is left to the full parser (llhttp, in :mod:`fencegate.gateway.targets.upstream`), which a property
test holds to the same reading. Most answers to writes are small, and a parser's callbacks cost more than they do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fencegate.gateway.header_lines import AGENT, CONNECTION, FORWARDED, HOST, KEY, LENGTH, SECRET, Headers, read_line

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~\x80-\xff]*+)?")
_UNFRAMED = frozenset({204, 304})
_NO_MATTER = frozenset({0, AGENT, FORWARDED, HOST, KEY, SECRET})
_MOST_DIGITS = 15


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and header lines of the final answer, as sent."""

    status: int
    headers: Headers


def whole_answer(data: bytes) -> tuple[ResponseHead, bytes] | None:
    """Head and body, where ``data`` is one whole answer after which the connection stays; ``None`` for all others."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = data[:end].split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        return None
    headers: Headers = []
    length = -1
    for text in lines:
        line = read_line(text)
        if line is None:
            return None
        field, mark = line
        headers.append(field)
        if mark in _NO_MATTER:
            continue
        value = field[1]
        if mark == LENGTH and length < 0 and value.isdigit() and len(value) <= _MOST_DIGITS:
            length = int(value)
        elif mark != CONNECTION or value.lower() != b"keep-alive":
            return None
    status = int(status_line[1])
    if length != len(data) - end - 4 or status in _UNFRAMED:
        return None
    return ResponseHead(status, headers), data[end + 4 :]
