"""What a server says, quoted in our messages, without the secrets that it was told.

A proxy's error page, or a server that means ill, may echo the headers and bodies that it got. Messages go into logs, on
the console, and in parts to clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_SHORTEST: Final = 4
"""A secret that is shorter is a word of its own in many a message, and no secret."""


def masked(text: str, secrets: Iterable[str | None]) -> str:
    """``text`` with ``***`` for each of the secrets, the longest first."""
    for secret in sorted({each for each in secrets if each and len(each) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
