"""Fencing tokens: how one is written, read and compared; and the names of the headers.

A token is the number of a term: an int64 greater than zero that grows with every term. It is
compared as a plain ``int``; this module is the only place that turns text into one. ``int()``
is no parser for it: it takes ``1_000``, ``+7``, surrounding spaces and the digits of every script.
"""

from __future__ import annotations

import re
from typing import Final, NewType

from fencegate.errors import FencegateError

FencingToken = NewType("FencingToken", int)

MAX_TOKEN: Final = 2**63 - 1

HEADER_TOKEN: Final = "X-Fencing-Token"
HEADER_TIMEOUT: Final = "X-Fencing-Timeout-Ms"
HEADER_OUTCOME: Final = "X-Fencing-Outcome"
HEADER_APPLIED: Final = "X-Fencing-Applied"
HEADER_RETRY: Final = "X-Fencing-Retry"
HEADER_REGION: Final = "X-Fencing-Region"
HEADER_MAX_SEEN: Final = "X-Fencing-Max-Seen"
HEADER_LEADER: Final = "X-Fencing-Leader"
HEADER_ROLE: Final = "X-Fencing-Role"
HEADER_CALLER: Final = "X-Fencing-Caller"
HEADER_GRANT: Final = "X-Fencing-Grant"
HEADER_PROOF: Final = "X-Fencing-Proof"
HEADER_IDEMPOTENCY_KEY: Final = "Idempotency-Key"
HEADER_REPLAYED: Final = "Idempotent-Replayed"

OUTCOME_ACCEPTED: Final = "accepted"

_TOKEN = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_BARE_KEY = re.compile(r"[!-~]{1,255}", re.ASCII)
_QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', re.ASCII)


class MalformedToken(FencegateError):
    """The text is not a fencing token."""


class MalformedKey(FencegateError):
    """The text is not an idempotency key."""


def parse_token(text: str) -> FencingToken:
    """The token that ``text`` spells: ASCII ``[1-9][0-9]{0,18}``, at most 2^63 - 1.

    Raises :class:`MalformedToken`, whose message never echoes the text.
    """
    if _TOKEN.fullmatch(text) is None:
        raise MalformedToken("a fencing token is 1 to 19 ASCII digits, without sign, spaces or leading zero")
    value = int(text)
    if value > MAX_TOKEN:
        raise MalformedToken(f"a fencing token is at most {MAX_TOKEN}")
    return FencingToken(value)


def parse_idempotency_key(text: str) -> str:
    """The key that ``text`` spells, bare or as a quoted structured-field string (RFC 8941, section 3.3.3).

    1 to 255 visible ASCII characters; both spellings give the same key. Raises :class:`MalformedKey`.
    """
    key = text
    if text.startswith('"'):
        quoted = _QUOTED_KEY.fullmatch(text)
        if quoted is None:
            raise MalformedKey("a quoted idempotency key is one closed string without parameters")
        key = re.sub(r"\\(.)", r"\1", quoted.group(1))
    if _BARE_KEY.fullmatch(key) is None:
        raise MalformedKey("an idempotency key is 1 to 255 visible ASCII characters")
    return key
