"""The bytes of one client connection, taken apart into requests: heads, and bodies that came whole with them."""

from __future__ import annotations

import re
from typing import Final

from fencegate.gateway.edge_parts import MOST_FIELDS, fields_too_large, not_http
from fencegate.gateway.limits import Limits
from fencegate.gateway.request_bytes import Head, Malformed, read_head

_STARTS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_EMPTY_LINES: Final = re.compile(rb"(?:\r\n)++")


class ArrivingRequests:
    """Bytes that came and were not taken yet. ``head_began``: some of a head is here, and not all of it."""

    __slots__ = ("_searched", "head_began", "waiting")

    def __init__(self) -> None:
        self.waiting = b""
        self.head_began = False
        self._searched = 0

    def add(self, data: bytes) -> None:
        self.waiting = self.waiting + data if self.waiting else data

    def drop(self) -> None:
        """Whatever waits will never be read."""
        self.waiting = b""

    def next_head(self, limits: Limits) -> Head | None:
        """The next head, ``None`` while it has not come whole. Raises ``Refused``: nothing after it can be read."""
        raw = self.waiting
        if (empty := _EMPTY_LINES.match(raw)) is not None:
            raw = self.waiting = raw[empty.end() :]
        end = raw.find(b"\r\n\r\n", self._searched) + 4
        # Twice, since the fields and the target are each held to the limit; the gateway adds up the fields.
        if end > 2 * limits.header_bytes or (end < 4 and len(raw) > 2 * limits.header_bytes):
            raise fields_too_large(limits)
        if end < 4:
            self._searched = max(0, len(raw) - 3)
            if raw and raw[0] not in _STARTS and raw != b"\r":
                raise not_http()
            self.head_began = bool(raw)
            return None
        self._searched, self.head_began = 0, False
        self.waiting = raw[end:]
        try:
            head = read_head(raw[:end])
        except Malformed:
            raise not_http() from None
        if len(head.headers) > MOST_FIELDS or len(head.line.target) > limits.header_bytes:
            raise fields_too_large(limits)
        return head

    def take(self, length: int) -> bytes | None:
        """That many bytes, if they are all here."""
        waiting = self.waiting
        if length > len(waiting):
            return None
        self.waiting = waiting[length:]
        return waiting[:length]
