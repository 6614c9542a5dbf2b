"""The user's own SQL function, run in the fenced transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import orjson

from fencegate.errors import FencegateError
from fencegate.fence import Effect, Verdict, Write, WriteResult
from fencegate.steady_clock import steady_clock
from fencegate.store.lane import Group, check_commit_time, group, in_order
from fencegate.store.link import Link
from fencegate.store.pending import Batch, PendingCommits, void
from fencegate.store.witness import UNKNOWING, Witness, guarded, position

_CALL: Final = f"""
    SELECT *, {position("verdict = -1")}
      FROM fencegate.call($1, {guarded("$2", first=12)}, $3, $4, $5, $6, $7, $8, $9, $10, $11)"""
_NO_DIGEST: Final = bytes(16)


@dataclass(frozen=True, slots=True)
class Call:
    """One write and the function that takes it."""

    function: str
    write: Write


async def call(
    link: Link,
    limit: float,
    calls: Sequence[Call],
    pending: PendingCommits | None = None,
    witness: Witness = UNKNOWING,
) -> list[WriteResult | FencegateError]:
    """One batch for one function, one transaction, each call undone by itself where it raises.

    ``pending``: as for :func:`fencegate.store.ledger.append`.
    """
    writes = [c.write for c in calls]
    groups: list[Group[Any]] = group(writes)
    ordered: list[Write] = [write for g in groups for write in g.items]
    arguments = (
        calls[0].function,
        [g.role for g in groups],
        [g.token for g in groups],
        [g.issued for g in groups],
        [g.enforce for g in groups],
        [len(g.items) for g in groups],
        [bool(write.key_digest) for write in ordered],
        b"".join(write.key_digest or _NO_DIGEST for write in ordered),
        b"".join(write.payload_digest or _NO_DIGEST for write in ordered),
        [write.body.decode() for write in ordered],
        [_context(write) for write in ordered],
    )
    why = None
    if pending is None:
        began = steady_clock()
        rows = await witness.fetch(link, limit, _CALL, arguments, enforced=any(g.enforce for g in groups))
        check_commit_time(rows[-1]["seconds_left"], steady_clock() - began)
    else:
        batch = Batch(writes[0].role, writes[0].token, _applied, _CALL, arguments)
        rows, why = await pending.commit(link, limit, batch, witness)
    results = [
        WriteResult(
            Verdict(row["verdict"]),
            None if row["effect"] is None else Effect(row["effect"]),
            row["max_token_seen"],
            answer=row["answer"],
            status=200 if row["effect"] in (Effect.APPLIED, Effect.REPLAYED) else None,
        )
        for row in rows[:-1]
    ]
    shares, base = [], 0
    for g in groups:
        shares.append(results[base : base + len(g.items)])
        base += len(g.items)
    in_batch = in_order(groups, shares)
    return list(in_batch) if why is None else void(writes, in_batch, why)


def _applied(rows: Sequence[asyncpg.Record]) -> bool:
    return any(row["effect"] == Effect.APPLIED for row in rows[:-1])


def _context(write: Write) -> str:
    context = {**write.context, "role": write.role, "token": write.token, "idempotency_key": write.key or None}
    return orjson.dumps(context).decode()
