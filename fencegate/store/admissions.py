"""Admissions of writes that leave the store (rule R12): with the fence row's lock, or by a look without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import asyncpg
import orjson

from fencegate.fence import Admission, Effect, Forward, StoredAnswer, Verdict, Write
from fencegate.observations import Observer, OrphanedMarkExpired
from fencegate.steady_clock import steady_clock
from fencegate.store.lane import Group, check_commit_time, group, in_order
from fencegate.store.ledger import ROLES
from fencegate.store.link import Link
from fencegate.store.look import Looks
from fencegate.store.marks import Marks, Term
from fencegate.store.validity import DIGEST_SIZE, SEPARATOR
from fencegate.store.witness import Witness, guarded, position
from fencegate.telling import Tell

_ADMIT: Final = f"""
    SELECT *, {position("verdict = -1")} FROM fencegate.admit(
      string_to_array($2, chr(30)), {guarded(ROLES, first=11)}, string_to_array($3, ',')::bigint[],
      string_to_array($4, ',')::bigint[], string_to_array($5, ',')::boolean[],
      string_to_array($6, ',')::double precision[], string_to_array($7, ',')::integer[],
      string_to_array($8, ',')::boolean[], $9, $10)"""
_NO_DIGEST: Final = bytes(DIGEST_SIZE)
_EFFECTS: Final = {effect.value: effect for effect in Effect}
_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}


@dataclass(slots=True)
class Asked:
    """One question, for a write with a key; or for all of one term without one that come while it was not put yet.

    The fence tells these nothing apart: one look at it, one mark that stands for as long as the last of them may take.
    """

    forward: Forward
    term: Term
    owner: bytes
    due: float
    """When nobody waits any longer, on the loop's clock."""
    upstream_limit: float
    listeners: list[Tell[Admission]] = field(default_factory=list)
    unheard: int = 0
    """Of those that asked, how many do not wait for the answer any more."""


class Admissions:
    """Of one gateway, whose ``marks`` they are. ``limit`` bounds a statement in seconds.

    ``portable``: the store is in portability mode. ``clock_offset``: by how many seconds an end that one of the store's
    nodes writes may come early on another's clock.
    """

    def __init__(
        self,
        marks: Marks,
        limit: float,
        observe: Observer,
        witness: Witness,
        *,
        portable: bool = False,
        clock_offset: float = 0.0,
    ) -> None:
        self._marks = marks
        self._limit = limit
        self._observe = observe
        self._witness = witness
        self._looks = Looks(witness, portable=portable)
        self._clock_offset = clock_offset

    async def ask(self, link: Link, asked: list[Asked]) -> Sequence[Admission]:
        """The store's word on each, in order, all of it committed. Raises as :meth:`Link.fetch`.

        Call it with no other admission of this gateway under way.
        """
        if not self._looks.worth_it() or not all(map(self._may_look, asked)):
            return await self._admit(link, asked)
        found = await self._look(link, asked)
        missing = [one for one, known in zip(asked, found, strict=True) if known is None]
        others = iter(await self._admit(link, missing) if missing else ())
        return [known or next(others) for known in found]

    def _may_look(self, asked: Asked) -> bool:
        return not asked.forward.key_digest and asked.forward.enforce and self._marks.stands(asked.term)

    async def _look(self, link: Link, asked: list[Asked]) -> list[Admission | None]:
        """What a look without the lock suffices for; the others are not answered yet."""
        began = steady_clock()
        marks = [self._marks.name(one.term) for one in asked]
        limits = [one.upstream_limit + self._clock_offset for one in asked]
        lefts = await self._looks.ask(link, self._limit, [one.term for one in asked], marks, limits)
        elapsed = steady_clock() - began
        return [
            None
            if left is None or elapsed >= left
            else Admission(Verdict.ADMIT, Effect.APPLIED, one.term[1], good_until=began + left)
            for one, left in zip(asked, lefts, strict=True)
        ]

    async def _admit(self, link: Link, asked: list[Asked]) -> list[Admission]:
        groups = group([a.forward for a in asked])
        ordered = [asked[place] for g in groups for place in g.at]
        terms = [(g.role, g.token) for g in groups]
        fresh = {term for term in terms if not self._marks.stands(term)}
        began = steady_clock()
        arguments = (
            SEPARATOR.join([g.role for g in groups]),
            SEPARATOR.join([self._marks.name(term) for term in terms]),
            ",".join([str(g.token) for g in groups]),
            ",".join([str(g.issued) for g in groups]),
            ",".join(["t" if g.enforce else "f" for g in groups]),
            ",".join([repr(max(asked[at].upstream_limit for at in g.at) + self._clock_offset) for g in groups]),
            ",".join([str(len(g.items)) for g in groups]),
            ",".join(["t" if a.forward.key_digest else "f" for a in ordered]),
            b"".join([a.forward.key_digest or _NO_DIGEST for a in ordered]),
            b"".join([a.owner for a in ordered]),
        )
        enforced = any(g.enforce for g in groups)
        rows = await self._witness.fetch(link, self._limit, _ADMIT, arguments, enforced=enforced)
        shares = _shares(groups, rows)
        made = {term for term, share in zip(terms, shares, strict=True) if share[0]["verdict"] == 0}
        for term in fresh - made:
            self._marks.was_not_made(term)
        for g, share in zip(groups, shares, strict=True):
            for _ in range(share[0]["orphans"] or 0):
                self._observe(OrphanedMarkExpired(g.role, g.token))
        left = rows[-1]["seconds_left"]
        check_commit_time(left, steady_clock() - began)
        # The server counted from when it had the statement, which was after it was sent.
        ends = [began + left if g.enforce else inf for g in groups]
        return in_order(
            groups, [[_admission(row, end) for row in share] for end, share in zip(ends, shares, strict=True)]
        )


def _shares(groups: Sequence[Group[Write | Forward]], rows: Sequence[asyncpg.Record]) -> list[list[asyncpg.Record]]:
    shares, base = [], 0
    for g in groups:
        shares.append(list(rows[base : base + len(g.items)]))
        base += len(g.items)
    return shares


def _admission(row: asyncpg.Record, good_until: float) -> Admission:
    effect = None if row["effect"] is None else _EFFECTS[row["effect"]]
    stored = None
    if effect is Effect.REPLAYED:
        headers = tuple((name, value) for name, value in orjson.loads(row["headers"] or "[]"))
        stored = StoredAnswer(row["status"], headers, row["answer"], row["payload"])
    return Admission(_VERDICTS[row["verdict"]], effect, row["max_token_seen"], 0, stored, good_until)
