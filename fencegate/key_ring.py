"""Secrets that several processes share, in a file: what proofs and grants are signed with, and how that is written.

The first key of a file signs and all of them verify, so that a key is replaced without a moment in which nothing holds:
add the new one at the end everywhere, move it to the front, take the old one out.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

SHORTEST_SECRET: Final = 32

KEY_ID: Final = r"[A-Za-z0-9._-]{1,32}"
_KEY_LINE: Final = re.compile(rf"({KEY_ID})[ \t]+([!-~]{{{SHORTEST_SECRET},512}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class SharedKey:
    """A secret that those who sign and those who verify share, and the name by which what was signed says so."""

    id: str
    secret: bytes = field(repr=False)

    def mac(self, text: bytes) -> bytes:
        """HMAC-SHA256 of ``text``."""
        return hmac.digest(self.secret, text, "sha256")


def parse_keys(text: str) -> tuple[SharedKey, ...]:
    """The keys in a file: an id and a secret a line, the one to sign with first. ``#`` begins a comment line.

    Raises ``ValueError`` whose message says what was expected of which line, and shows no secret.
    """
    keys: list[SharedKey] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _KEY_LINE.fullmatch(line)
        if found is None:
            raise ValueError(
                "expected on each line an id (at most 32 letters, digits, '.', '_', '-') and a secret of "
                f"{SHORTEST_SECRET} to 512 visible ASCII characters; line {number} is none"
            )
        keys.append(SharedKey(found[1], found[2].encode()))
    if not keys:
        raise ValueError("expected at least one line with an id and a secret")
    if len({key.id for key in keys}) != len(keys):
        raise ValueError("expected each id once")
    return tuple(keys)


def key_of(keys: Sequence[SharedKey], key_id: str) -> SharedKey | None:
    """The key of this name."""
    return next((key for key in keys if key.id == key_id), None)


def framed(parts: Iterable[bytes]) -> bytes:
    """The parts as one text that can be read back in one way only: each after its length."""
    return b"".join(b"%d:%b," % (len(part), part) for part in parts)
