"""The bytes of one client connection, taken apart into requests: heads, and bodies that came whole with them."""

from __future__ import annotations

import re
from typing import Final

from fencegate.gateway.edge_parts import MOST_FIELDS, fields_too_large, not_http
from fencegate.gateway.limits import Limits
from fencegate.gateway.request_bytes import Head, Malformed, read_head
from fencegate.steady_clock import steady_clock

_STARTS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)++")
_MOST_MARKS: Final = 64
"""Moments that are remembered of bytes behind a request; of more the later ones are taken together, as of the last."""


class ArrivingRequests:
    """Bytes that came and were not taken yet. ``head_began``: some of a head is here, and not all of it.

    ``marks``: up to which byte had come when, of those that came behind a request under way. Places are counted from
    the end of what waits, so that taking from its beginning moves none.
    """

    __slots__ = ("_came", "_searched", "head_began", "marks", "waiting")

    def __init__(self) -> None:
        self.waiting = b""
        self.head_began = False
        self._searched = 0
        self._came = 0
        self.marks: list[tuple[int, float]] = []

    def add(self, data: bytes) -> None:
        """Bytes that are looked at now."""
        self.waiting = self.waiting + data if self.waiting else data
        if self.marks:
            self.marks.clear()

    def add_behind(self, data: bytes) -> int:
        """Bytes that have to wait for the request under way; how many do by now."""
        self.waiting = self.waiting + data if self.waiting else data
        self._came += len(data)
        if len(self.marks) >= _MOST_MARKS:
            del self.marks[-1]
        self.marks.append((self._came, steady_clock()))
        return len(self.waiting)

    def put_back(self, rest: bytes) -> None:
        """The end of what waited: what follows a request's body."""
        self.waiting = rest
        if rest and not self.marks:  # It came with that request.
            self.marks.append((self._came, steady_clock()))

    def waited(self) -> float:
        """Seconds since the last byte came of what was taken, where that was behind another request. Never too many."""
        marks, taken = self.marks, self._came - len(self.waiting)
        while marks and marks[0][0] < taken:
            del marks[0]
        return max(0.0, steady_clock() - marks[0][1]) if marks else 0.0

    def drop(self) -> None:
        """Whatever waits will never be read."""
        self.waiting = b""

    def next_head(self, limits: Limits) -> tuple[Head, bytes | None] | None:
        """The next head and its key's value, as of :func:`read_head`; ``None`` while it has not come whole.

        Raises ``Refused``: nothing after it can be read.
        """
        raw = self.waiting
        if raw.startswith(b"\r\n") and (empty := _EMPTY_LINES.match(raw)) is not None:
            raw = self.waiting = raw[empty.end() :]
        end = raw.find(b"\r\n\r\n", self._searched) + 4
        # Twice, since the fields and the target are each held to the limit.
        if end > 2 * limits.header_bytes or (end < 4 and len(raw) > 2 * limits.header_bytes):
            raise fields_too_large(limits)
        if end < 4:
            self._searched = max(0, len(raw) - 3)
            if raw and raw[0] not in _STARTS and raw != b"\r":
                raise not_http()
            self.head_began = bool(raw)
            return None
        self._searched, self.head_began = 0, False
        text, self.waiting = raw[:end], raw[end:]
        try:
            head, key = found = read_head(text)
        except Malformed:
            raise not_http() from None
        if end > limits.header_bytes or len(head.headers) >= MOST_FIELDS:  # Most are far from it.
            lines = end - text.find(b"\r\n") - 4
            too_many = len(head.headers) + (key is not None) > MOST_FIELDS
            if too_many or lines > limits.header_bytes or len(head.line.target) > limits.header_bytes:
                raise fields_too_large(limits)
        return found

    def take(self, length: int) -> bytes | None:
        """That many bytes, if they are all here."""
        waiting = self.waiting
        if length > len(waiting):
            return None
        rest = self.waiting = waiting[length:]
        if rest:
            self.put_back(rest)
        return waiting[:length]
