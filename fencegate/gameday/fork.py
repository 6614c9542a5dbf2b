"""Where two copies of a ledger part, and what became of each decision behind that point. No I/O of its own.

Each entry's hash is chained to the one before, so two copies that agree on the hash of an entry agree on everything up
to it: the fork is found by bisection, in about log2(entries) looks at each copy. Behind it the entries are matched by
idempotency key, since a client that tried again on the other side used the same one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fencegate.fence import Entry


class Fate(StrEnum):
    """What the entries of one key on both sides come to."""

    SAME = "same decision on both sides"
    DIFFERENT = "different decisions"
    ONLY_FIRST = "only in the first"
    ONLY_SECOND = "only in the second"


@dataclass(frozen=True, slots=True)
class Decision:
    """All entries of one caller under one key behind the fork, in order; ``caller`` is empty for those without one.

    More than one a side where the key had expired meanwhile.
    """

    key: str
    first: tuple[Entry, ...]
    second: tuple[Entry, ...]
    caller: str = ""

    @property
    def fate(self) -> Fate:
        if not self.second:
            return Fate.ONLY_FIRST
        if not self.first:
            return Fate.ONLY_SECOND
        bodies = {meaning(entry.body) for entry in (*self.first, *self.second)}
        return Fate.SAME if len(bodies) == 1 else Fate.DIFFERENT


def bisect_fork(shared: int) -> Generator[int, bool, int]:
    """Finds the last entry that two copies have in common, of which both have at least ``shared``.

    Yields the sequence number to compare next and is sent whether both copies carry the same hash there; returns
    the last common one, 0 for none.
    """
    low, high = 0, shared
    middle = shared  # copies that have not forked are the usual case: one look tells
    while low < high:
        same = yield middle
        low, high = (middle, high) if same else (low, middle - 1)
        middle = (low + high + 1) // 2
    return low


async def match(first: AsyncIterator[Entry], second: AsyncIterator[Entry]) -> AsyncIterator[Decision]:
    """Pairs the entries of two copies by key and caller. Each side comes ordered by key and caller, as code points,
    and then by sequence.

    Holds one key at a time, however long the tails are. Entries without a key must be left out.
    """
    sides = (_Keys(first), _Keys(second))
    for side in sides:
        await side.advance()
    while sides[0].key is not None or sides[1].key is not None:
        key = min(side.key for side in sides if side.key is not None)
        found = [await side.take(key) for side in sides]
        yield Decision(key[0], found[0], found[1], key[1])


def meaning(body: bytes) -> Hashable:
    """What decides whether two bodies are the same decision: the order of members and the white space do not.

    Numbers count by their digits as sent (1.0 is not 1); where a member's name is repeated, or the nesting is deeper
    than can be followed, every byte counts.
    """
    repeated = False

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal repeated
        found = dict(pairs)
        repeated = repeated or len(found) < len(pairs)
        return found

    numbers: dict[str, Any] = dict.fromkeys(("parse_float", "parse_int", "parse_constant"), _Number)
    try:
        tree = _hashable(json.loads(body, object_pairs_hook=members, **numbers))
    except RecursionError:
        return body
    return body if repeated else tree


class _Number(str):
    """A number by its digits."""

    __slots__ = ()


def _hashable(value: object) -> Hashable:
    if isinstance(value, dict):
        return "object", frozenset((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return type(value).__name__, value


class _Keys:
    """One side, a key at a time."""

    def __init__(self, entries: AsyncIterator[Entry]) -> None:
        self._entries = entries
        self._next: Entry | None = None

    @property
    def key(self) -> tuple[str, str] | None:
        """The next one's, with its caller: each caller's keys are its own."""
        return (self._next.key or "", self._next.caller or "") if self._next else None

    async def advance(self) -> None:
        self._next = await anext(self._entries, None)

    async def take(self, key: tuple[str, str]) -> tuple[Entry, ...]:
        taken = []
        while self._next is not None and self.key == key:
            taken.append(self._next)
            await self.advance()
        return tuple(taken)
