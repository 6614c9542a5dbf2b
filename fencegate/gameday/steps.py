"""Where in its protocol a gateway is, read off the bytes that pass between it, its store and the quorum.

So a run can strike at a step and at no other moment, and no product code has a hook for it: before a request reaches
its server, or after the server has done it and before anybody hears of it.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from fencegate.gameday.fault_proxy import Dropped, Tap

Moment = Literal["before", "after"]

TERM_STEPS: Final = ("claim", "extend", "seal", "set_draining")
"""Functions of the store: open a term, keep it, end it, stop its writes."""
STORE_STEPS: Final = (*TERM_STEPS, "append")
"""These and the group commit of the ledger."""
UPSTREAM_STEPS: Final = ("admit", "look", "settle")
"""The mark of a write to an upstream, a look at the fence while it stands, and its end."""
QUORUM_STEPS: Final = ("join", "renew", "release")
"""Transactions of the election: stand in line, prove and keep the term, give it back with a seal."""

_FUNCTION = re.compile(rb"fencegate\.(\w+)\(")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SSL_OR_GSS: Final = (80877103, 80877104)
_DONE: Final = b"Z\x00\x00\x00\x05I"
"""The server is ready for the next query, and in no transaction: what was asked has been committed."""


@dataclass(slots=True)
class Trap:
    """Springs once, at ``step`` of the gateway of ``region``: ``strike`` is done at that very moment."""

    step: str
    moment: Moment
    region: str
    strike: Callable[[], None]
    drops: bool = True
    """What springs it goes no further: as it is where one of the two ends is dead."""
    sprung: asyncio.Event = field(default_factory=asyncio.Event)

    def meets(self, region: str, step: str, moment: Moment) -> bool:
        return not self.sprung.is_set() and (self.region, self.step, self.moment) == (region, step, moment)

    def spring(self) -> None:
        self.sprung.set()
        self.strike()


class Traps(Protocol):
    """Whoever has set traps."""

    traps: list[Trap]


class StepTap:
    """Watches one connection of ``region`` with a reader of its requests, and springs what was set for them."""

    def __init__(self, owner: Traps, region: str, reader: StoreReader | QuorumReader) -> None:
        self._owner = owner
        self._region = region
        self._reader = reader
        self._under_way: list[str] = []

    def asked(self, piece: bytes) -> None:
        for step in self._reader.steps(piece):
            self._under_way.append(step)
            self._meet(step, "before")

    def answered(self, piece: bytes) -> None:
        if self._under_way and self._reader.ends(piece):
            step = self._under_way.pop(0)
            self._meet(step, "after")

    def _meet(self, step: str, moment: Moment) -> None:
        for trap in self._owner.traps:
            if trap.meets(self._region, step, moment):
                trap.spring()
                if trap.drops:
                    raise Dropped


class StoreReader:
    """Reads what a client of Postgres sends: which of our functions each statement that is run calls."""

    def __init__(self) -> None:
        self._buffer = b""
        self._greeted = False
        self._statements: dict[bytes, str] = {}

    def steps(self, piece: bytes) -> list[str]:
        """The functions that begin to run with these bytes."""
        self._buffer += piece
        found: list[str] = []
        while (message := self._next()) is not None:
            kind, body = message
            if kind == b"P":
                name, query, *_ = body.split(b"\x00", 2)
                self._statements[name] = _step(query)
            elif kind == b"B":
                _, name, *_ = body.split(b"\x00", 2)
                found += [self._statements.get(name, "")] if self._statements.get(name) else []
        return found

    def ends(self, piece: bytes) -> bool:
        return piece.endswith(_DONE)

    def _next(self) -> tuple[bytes, bytes] | None:
        skip = 1 if self._greeted else 0
        if len(self._buffer) < skip + 4:
            return None
        size = struct.unpack_from("!I", self._buffer, skip)[0]
        if len(self._buffer) < skip + size:
            return None
        kind, body = self._buffer[:skip], self._buffer[skip + 4 : skip + size]
        self._buffer = self._buffer[skip + size :]
        if not self._greeted:
            self._greeted = len(body) >= 4 and struct.unpack_from("!I", body)[0] not in _SSL_OR_GSS
        return kind, body


def _step(query: bytes) -> str:
    """The step that a statement is, whatever else of ours it calls around it; without one its first function."""
    called = [name.decode() for name in _FUNCTION.findall(query)]
    return next((name for name in called if name in (*STORE_STEPS, *UPSTREAM_STEPS)), called[0] if called else "")


class QuorumReader:
    """Reads what a client of etcd's JSON gateway sends: which transaction of the election each request is."""

    def __init__(self) -> None:
        self._buffer = b""

    def steps(self, piece: bytes) -> list[str]:
        """The transactions that are complete with these bytes."""
        self._buffer += piece
        found: list[str] = []
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            match = _LENGTH.search(head)
            size = int(match.group(1)) if match else 0
            if len(rest) < size:
                break
            self._buffer = rest[size:]
            step = transaction(rest[:size]) if b"/v3/kv/txn" in head else ""
            found += [step] if step else []
        return found

    def ends(self, piece: bytes) -> bool:
        return True


def transaction(body: bytes) -> str:
    """The election's step that a transaction is; ``""`` for one that only looks."""
    if b"request_delete_range" in body or b"requestDeleteRange" in body:
        return "release"
    if b'"MOD"' in body:
        return "renew"
    return "join" if b"request_put" in body or b"requestPut" in body else ""


def watching(owner: Traps, region: str, end: str) -> Tap:
    """The tap for one more connection of ``region`` to its ``end``: "store" or "quorum"."""
    return StepTap(owner, region, StoreReader() if end == "store" else QuorumReader())
