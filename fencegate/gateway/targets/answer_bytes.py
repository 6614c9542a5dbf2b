"""An upstream's usual answer, read in one go: plain, with a declared length, and all of it in one piece.

Whatever is not that is left to the full parser (llhttp, in :mod:`fencegate.gateway.targets.upstream`), which a property
test holds to the same reading. Most answers to writes are small, and a parser's callbacks cost more than they do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fencegate.gateway.header_lines import AGENT, CONNECTION, FORWARDED, HOST, KEY, LENGTH, SECRET, Headers, read_line
from fencegate.gateway.hop_headers import end_to_end_response
from fencegate.gateway.reply_bytes import ready_block

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~\x80-\xff]*+)?")
_UNFRAMED = frozenset({204, 304})
_NO_MATTER = frozenset({0, AGENT, FORWARDED, HOST, KEY, SECRET})
_MOST_DIGITS = 15


_LONGEST_REMEMBERED = 1024
_MOST_REMEMBERED = 256
_heads: dict[bytes, tuple[ResponseHead, int]] = {}
"""Heads that came before, without cookies, and the length that each declares: an upstream's answers are much alike."""


@dataclass(slots=True)
class ResponseHead:
    """Status and header lines of the final answer, as sent. Shared: nothing changes it."""

    status: int
    headers: Headers
    end_to_end: Headers = field(init=False)
    """The lines that travel back to the client."""

    _block: tuple[bytes, bool] | None = None

    def __post_init__(self) -> None:
        self.end_to_end = end_to_end_response(self.headers)

    def block(self) -> tuple[bytes, bool]:
        """The lines that travel back as :func:`~fencegate.gateway.reply_bytes.ready_block`; made once."""
        if self._block is None:
            self._block = ready_block(self.end_to_end)
        return self._block


def whole_answer(data: bytes) -> tuple[ResponseHead, bytes] | None:
    """Head and body, where ``data`` is one whole answer after which the connection stays; ``None`` for all others."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    raw = data[:end]
    found = _heads.get(raw) or _read_head(raw)
    if found is None or found[1] != len(data) - end - 4:
        return None
    return found[0], data[end + 4 :]


def _read_head(raw: bytes) -> tuple[ResponseHead, int] | None:
    """The head and the length that it declares; ``None`` for all that are not plain."""
    first, *lines = raw.split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        return None
    headers: Headers = []
    length = -1
    remember = len(raw) <= _LONGEST_REMEMBERED
    for text in lines:
        line = read_line(text)
        if line is None:
            return None
        pair, mark = line
        headers.append(pair)
        if mark in _NO_MATTER:
            remember = remember and mark != SECRET
            continue
        value = pair[1]
        if mark == LENGTH and length < 0 and value.isdigit() and len(value) <= _MOST_DIGITS:
            length = int(value)
        elif mark != CONNECTION or value.lower() != b"keep-alive":
            return None
    status = int(status_line[1])
    if length < 0 or status in _UNFRAMED:
        return None
    found = ResponseHead(status, headers), length
    if remember:
        if len(_heads) >= _MOST_REMEMBERED:
            _heads.clear()
        _heads[raw] = found
    return found
