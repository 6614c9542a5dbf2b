"""What a program without the SDK asks of a gateway: who leads, and one write; each sent once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from fencegate.client.answers import read_answer
from fencegate.client.discovery import read_discovery
from fencegate.client.machine import Found
from fencegate.errors import PROBLEMS
from fencegate.gameday.history import Answered
from fencegate.gameday.plain_http import Answer, NoAnswer, NotSent, ask
from fencegate.gameday.plain_line import Raw

_VARYING: Final = re.compile(rb"\r\n(?:Date|Location|Content-Length): [^\r\n]*")
"""Header lines that differ from answer to answer, and say nothing of what became of the write."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answer to a write. ``entry`` is the ledger's, of an accepted one; ``reason`` a problem's code, or ``""``."""

    answered: Answered
    status: int
    reason: str = ""
    entry: dict[str, Any] | None = None
    replayed: bool = False


async def discover(origin: str, role: str, *, limit: float = 3.0) -> Found | None:
    """Who leads by the word of the gateway at ``origin``; ``None`` where it names nobody. Raises as :func:`ask`."""
    answer = await ask("GET", f"{origin}/.well-known/fencegate/leader/{role}", limit=limit)
    return read_discovery(origin, answer.body) if answer.status == 200 else None


async def write(url: str, token: int, key: str, body: object, *, limit: float = 3.0) -> Said:
    """Send one write. Raises as :func:`ask`."""
    headers = {"Content-Type": "application/json", "X-Fencing-Token": str(token), "Idempotency-Key": key}
    return said(await ask("POST", url, headers=headers, body=orjson.dumps(body), limit=limit))


def heard(answer: Raw | NotSent | NoAnswer) -> tuple[Said, dict[str, Any]]:
    """As :func:`said`, for many: beside what is said, the entry of the ledger, which :class:`Said` then only announces.

    Raises ``ValueError`` for a body that is not what its head announces.
    """
    if not isinstance(answer, Raw):
        return said(answer), {}
    meaning = _meaning(_VARYING.sub(b"", answer.head))
    return meaning, orjson.loads(answer.body) if meaning.entry is not None else {}


def said(answer: Answer | NotSent | NoAnswer) -> Said:
    """What an answer says of its write. Refused counts only by a promise of the gateway's own."""
    if isinstance(answer, NotSent):
        return Said("refused", 0, "unreachable")
    if isinstance(answer, NoAnswer):
        return Said("unknown", 0, "no answer")
    read = read_answer(answer.status, answer.headers, answer.body)
    if read.applied == "yes":
        if answer.status >= 400:  # the upstream's own refusal, passed on: it may have done it or not
            return Said("unknown", answer.status, str(answer.status))
        entry = orjson.loads(answer.body) if answer.body.startswith(b"{") else None
        return Said("accepted", answer.status, "", entry, read.replayed)
    certain = read.applied == "no" and read.outcome in PROBLEMS
    return Said("refused" if certain else "unknown", answer.status, read.outcome or str(answer.status))


@lru_cache(4096)
def _meaning(head: bytes) -> Said:
    """What answers with this head say. Where it has an ``entry``, which is empty here, each body has its own."""
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = tuple((name, text.strip()) for name, _, text in (line.partition(":") for line in lines))
    is_json = any(name.lower() == "content-type" and text.startswith("application/json") for name, text in pairs)
    return said(Answer(int(status_line.split(" ", 2)[1]), pairs, b"{}" if is_json else b""))
