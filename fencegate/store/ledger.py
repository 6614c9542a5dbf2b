"""The built-in ledger: append in the fenced transaction, and read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Entry, Verdict, Write, WriteResult
from fencegate.steady_clock import steady_clock
from fencegate.store.lane import Group, check_commit_time, group, in_order
from fencegate.store.link import Link
from fencegate.store.pending import Batch, PendingCommits, void
from fencegate.store.sharing import Sharing
from fencegate.store.validity import SEPARATOR
from fencegate.store.witness import UNKNOWING, Witness, guarded, position

ROLES: Final = "string_to_array($1, chr(30))"
_APPEND: Final = f"""
    SELECT *, {position()} FROM fencegate.append(
      {guarded(ROLES, first=11)}, string_to_array($2, ',')::bigint[],
      string_to_array($3, ',')::bigint[], string_to_array($4, ',')::boolean[], string_to_array($5, ',')::integer[],
      $6, $7, $8, $9, $10)"""
# Texts for arrays: to encode one as an array takes our side a microsecond a group, and Postgres next to nothing.
_COLUMNS: Final = "SELECT f.role, e.seq, e.token, e.recorded_at, e.hash, e.key, e.caller, e.body::text AS body"
_FROM: Final = " FROM fencegate.entry e JOIN fencegate.fence f USING (role_id)"
ENTRY: Final = _COLUMNS + _FROM + " WHERE f.role = $1 AND e.seq = $2"
ENTRIES: Final = _COLUMNS + _FROM + " WHERE f.role = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3"
PART: Final = f"""
    SELECT * FROM (
        SELECT *, sum(octet_length(body::text)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(body::text)
                  AS bytes_before
          FROM ({ENTRIES}) found) counted
     WHERE bytes_before < $4 ORDER BY seq"""
"""As ``ENTRIES``, but ends with the entry that fills ``$4`` bytes: nobody knows before how long they are."""
_REPLAYED: Final = (
    _COLUMNS + _FROM + " JOIN unnest($1::text[], $2::bigint[]) u(role, seq) ON u.role = f.role AND u.seq = e.seq"
)

_NO_DIGEST: Final = bytes(16)


Outcome = WriteResult | FencegateError


async def append(
    link: Link,
    limit: float,
    writes: Sequence[Write],
    pending: PendingCommits | None = None,
    witness: Witness = UNKNOWING,
    sharing: Sharing | None = None,
) -> list[Outcome]:
    """One batch, one transaction. Raises as :meth:`Link.fetch`, and where the commit came too late.

    With ``pending`` all are of one role and one token, and are confirmed only once the election has proved the term:
    how late the commit is does not matter then.

    After the commit nothing is raised any more: a replay whose first result cannot be read is answered
    with :class:`OutcomeUnknown` by itself.
    """
    groups: list[Group[Any]] = group(writes)
    ordered = writes if len(groups) == 1 else [write for g in groups for write in g.items]
    arguments = (
        SEPARATOR.join([g.role for g in groups]),
        ",".join([str(g.token) for g in groups]),
        ",".join([str(g.issued) for g in groups]),
        ",".join(["t" if g.enforce else "f" for g in groups]),
        ",".join([str(len(g.items)) for g in groups]),
        SEPARATOR.join([write.key for write in ordered]),
        b"".join([write.key_digest or _NO_DIGEST for write in ordered]),
        b"".join([write.payload_digest or _NO_DIGEST for write in ordered]),
        SEPARATOR.encode().join([write.body for write in ordered]).decode(),
        _callers(ordered),
    )
    why = None
    if pending is None:
        began = steady_clock()
        [row] = await witness.fetch(link, limit, _APPEND, arguments, enforced=any(g.enforce for g in groups))
        check_commit_time(row["seconds_left"], steady_clock() - began)
    else:
        batch = Batch(writes[0].role, writes[0].token, _applied, _APPEND, arguments)
        [row], why = await pending.commit(link, limit, batch, witness)
    verdicts, highest, recorded_at, seqs, hashes, effects, *_ = row
    instant = timestamp(recorded_at)
    if len(groups) == 1 and effects is None and verdicts[0] == Verdict.ADMIT and why is None:  # the usual case
        seen = highest[0]
        if sharing is not None:
            sharing.note(writes[0].role, seqs[0], seqs[-1])
        return [_new(w, Verdict.ADMIT, seen, instant, n, h) for w, n, h in zip(writes, seqs, hashes, strict=True)]
    nothing = [None] * len(ordered)
    hashes, seqs = hashes or nothing, seqs or nothing
    if effects is None:
        effects, first = [None if digest is None else Effect.APPLIED for digest in hashes], {}
    else:
        first = await _first_results(link, limit, ordered, effects, seqs)
    answers = zip(effects, seqs, hashes, strict=True)
    results = in_order(
        groups,
        [
            [_result(write, verdict, seen, instant, first, *next(answers)) for write in g.items]
            for g, verdict, seen in zip(groups, map(Verdict, verdicts), highest, strict=True)
        ],
    )
    return results if why is None else void(writes, results, why)


def _callers(writes: Sequence[Write]) -> str | None:
    """``None`` where none of them has a caller: then the store has nothing to do for it."""
    joined = SEPARATOR.join([write.caller for write in writes])
    return joined if len(joined) >= len(writes) else None


def _applied(rows: Sequence[asyncpg.Record]) -> bool:
    return any(digest is not None for digest in rows[0]["hashes"] or ())


def entry(row: asyncpg.Record) -> Entry:
    return Entry(
        row["role"],
        row["seq"],
        row["token"],
        timestamp(row["recorded_at"]),
        row["body"].encode(),
        row["hash"].hex(),
        row["key"],
        row["caller"],
    )


def timestamp(instant: datetime) -> str:
    """RFC 3339 in UTC, always with six digits of microseconds, so that it sorts and hashes as text too."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


async def _first_results(
    link: Link, limit: float, writes: Sequence[Write], effects: Sequence[int | None], seqs: Sequence[int | None]
) -> dict[tuple[str, int], Entry]:
    """The entries that replays speak of: they can no longer change, so they are read after the commit."""
    replays = [(w, seq) for w, effect, seq in zip(writes, effects, seqs, strict=True) if effect == Effect.REPLAYED]
    if not replays:
        return {}
    try:
        found = await link.read(limit, _REPLAYED, [write.role for write, _ in replays], [seq for _, seq in replays])
    except Unavailable:
        return {}  # the batch is committed: its other writes have their answers
    return {(row["role"], row["seq"]): entry(row) for row in found}


def _new(write: Write, verdict: Verdict, highest: int | None, instant: str, seq: int, digest: bytes) -> WriteResult:
    entry = Entry(write.role, seq, write.token, instant, b"", digest.hex(), write.key or None, write.caller or None)
    return WriteResult(verdict, Effect.APPLIED, highest, entry)


def _result(
    write: Write,
    verdict: Verdict,
    highest: int | None,
    instant: str,
    first: dict[tuple[str, int], Entry],
    effect: int | None,
    seq: int,
    digest: bytes,
) -> Outcome:
    if effect == Effect.APPLIED:
        return _new(write, verdict, highest, instant, seq, digest)
    if effect == Effect.REPLAYED:
        stored = first.get((write.role, seq))
        if stored is None:
            return OutcomeUnknown("applied before under this key, but its entry cannot be read now")
        return WriteResult(verdict, Effect.REPLAYED, highest, stored)
    return WriteResult(verdict, None if effect is None else Effect(effect), highest)
