"""The built-in ledger: append in the fenced transaction, and read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

import asyncpg

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Entry, Verdict, Write, WriteResult
from fencegate.store.lane import Group, check_commit_time, group, in_order
from fencegate.store.link import Link
from fencegate.store.validity import SEPARATOR

_APPEND: Final = "SELECT * FROM fencegate.append($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_COLUMNS: Final = "SELECT f.role, e.seq, e.token, e.recorded_at, e.hash, e.key, e.body::text AS body"
_FROM: Final = " FROM fencegate.entry e JOIN fencegate.fence f USING (role_id)"
ENTRY: Final = _COLUMNS + _FROM + " WHERE f.role = $1 AND e.seq = $2"
ENTRIES: Final = _COLUMNS + _FROM + " WHERE f.role = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3"
_REPLAYED: Final = (
    _COLUMNS + _FROM + " JOIN unnest($1::text[], $2::bigint[]) u(role, seq) ON u.role = f.role AND u.seq = e.seq"
)

_NO_DIGEST: Final = bytes(16)


Outcome = WriteResult | FencegateError


async def append(link: Link, limit: float, writes: Sequence[Write]) -> list[Outcome]:
    """One batch, one transaction. Raises as :meth:`Link.fetch`, and where the commit came too late.

    After the commit nothing is raised any more: a replay whose first result cannot be read is answered
    with :class:`OutcomeUnknown` by itself.
    """
    groups: list[Group[Any]] = group(writes)
    ordered = [write for g in groups for write in g.items]
    began = monotonic()
    rows = await link.fetch(
        limit,
        _APPEND,
        [g.role for g in groups],
        [g.token for g in groups],
        [g.issued for g in groups],
        [g.enforce for g in groups],
        [len(g.items) for g in groups],
        SEPARATOR.join(write.key for write in ordered),
        b"".join(write.key_digest or _NO_DIGEST for write in ordered),
        b"".join(write.payload_digest or _NO_DIGEST for write in ordered),
        SEPARATOR.encode().join(write.body for write in ordered).decode(),
    )
    check_commit_time(rows[-1]["seconds_left"], monotonic() - began)
    replayed = await _replayed(link, limit, groups, rows)
    return in_order(groups, [_results(g, row, replayed) for g, row in zip(groups, rows[:-1], strict=True)])


def entry(row: asyncpg.Record) -> Entry:
    return Entry(
        row["role"],
        row["seq"],
        row["token"],
        timestamp(row["recorded_at"]),
        row["body"].encode(),
        row["hash"].hex(),
        row["key"],
    )


def timestamp(instant: datetime) -> str:
    """RFC 3339 in UTC, always with six digits of microseconds, so that it sorts and hashes as text too."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _replayed(
    link: Link, limit: float, groups: Sequence[Group[Any]], rows: Sequence[asyncpg.Record]
) -> dict[tuple[str, int], Entry]:
    """The entries that replays speak of: they can no longer change, so they are read after the commit."""
    wanted = [
        (g.role, seq)
        for g, row in zip(groups, rows, strict=False)
        if row["effects"] is not None
        for effect, seq in zip(row["effects"], row["seqs"], strict=True)
        if effect == Effect.REPLAYED
    ]
    if not wanted:
        return {}
    try:
        found = await link.read(limit, _REPLAYED, [role for role, _ in wanted], [seq for _, seq in wanted])
    except Unavailable:
        return {}  # the batch is committed: its other writes have their answers
    return {(row["role"], row["seq"]): entry(row) for row in found}


def _results(g: Group[Write], row: asyncpg.Record, replayed: dict[tuple[str, int], Entry]) -> list[Outcome]:
    verdict, highest = Verdict(row["verdict"]), row["max_token_seen"]
    hashes, effects = row["hashes"], row["effects"]
    if hashes is None and effects is None:
        return [WriteResult(verdict, None, highest)] * len(g.items)
    recorded_at = "" if row["recorded_at"] is None else timestamp(row["recorded_at"])
    results: list[Outcome] = []
    taken = 0
    for i, write in enumerate(g.items):
        effect = Effect.APPLIED if effects is None else effects[i]
        if effect == Effect.APPLIED:
            seq = row["first_seq"] + taken
            written = Entry(
                g.role, seq, g.token, recorded_at, b"", hashes[taken * 32 : taken * 32 + 32].hex(), write.key or None
            )
            results.append(WriteResult(verdict, Effect.APPLIED, highest, entry=written))
            taken += 1
        elif effect == Effect.REPLAYED:
            first = replayed.get((g.role, row["seqs"][i]))
            if first is None:
                results.append(OutcomeUnknown("applied before under this key, but its entry cannot be read now"))
            else:
                results.append(WriteResult(verdict, Effect.REPLAYED, highest, entry=first))
        else:
            results.append(WriteResult(verdict, None if effect is None else Effect(effect), highest))
    return results
