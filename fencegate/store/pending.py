"""Rule R15: a batch is committed as *pending*, the election is asked, and only then is it confirmed.

Pending is a prepared transaction: on disk, under the fence row's lock, seen by nobody, and gone without a trace once
it is rolled back. In this order no clock is needed. The write is durable *before* the election is asked, so an answer
"this token leads" says that it was in the store while its term led; whatever begins later finds it there. Asked first,
a gateway could stop between the answer and the commit for as long as it likes, and put the write into a store whose
term is over. Confirming compares by itself: what a seal has rolled back meanwhile can no longer be committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import asyncpg

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import Effect, StillLeads, Verdict, Write, WriteResult
from fencegate.store.link import Link, Session, describe
from fencegate.store.witness import Witness

PROOF_LIMIT: Final = 1.0
"""Seconds that the election gets to answer. The fence row is locked for so long: far less than a renewal has."""

_PREFIX: Final = "fencegate"
_LEFT: Final = """
    SELECT gid FROM pg_prepared_xacts
     WHERE database = current_database() AND starts_with(gid, $1)
       AND prepared < clock_timestamp() - make_interval(secs => $2)"""
_ALLOWED: Final = "SELECT current_setting('max_prepared_transactions')::int"

Unproved = Verdict | FencegateError
"""Why a batch was rolled back: its term was over, or nobody could say that it was not."""


class NotAllowed(Unavailable):
    """The server takes no prepared transactions."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One transaction: of one role, under one token. ``applied``: whether its answer says that something changed."""

    role: str
    token: int
    applied: Callable[[Sequence[asyncpg.Record]], bool]
    query: str
    arguments: tuple[Any, ...]


class PendingCommits:
    """Commits of validated roles. ``gateway`` is unique among all processes that share the store."""

    def __init__(self, link: Link, gateway: str, still_leads: StillLeads) -> None:
        self._link = link
        self._gateway = gateway
        self._still_leads = still_leads
        self._names = itertools.count(1)

    async def commit(
        self, link: Link, limit: float, batch: Batch, witness: Witness
    ) -> tuple[list[asyncpg.Record], Unproved | None]:
        """The statement's rows, and why nothing of it was applied, if so. Where nothing was to be, nothing is proved.

        Raises as :meth:`Link.fetch`; but up to the confirmation a lost answer is ``Unavailable``, since what is not
        confirmed never will be.
        """
        name = f"{role_prefix(batch.role)}{batch.token}:{self._gateway}:{next(self._names)}"
        way = _Way()
        try:
            async with asyncio.timeout(limit), link.session() as session:
                with witness.judging():
                    rows, unproved = await self._through(session, name, batch, way, witness)
                witness.leave_another(link, rows[-1])
                return rows, unproved
        except TimeoutError as error:
            if way.confirming:
                raise OutcomeUnknown(f"the store did not answer within {limit:g} s", "timeout") from error
            await self._left_behind(name, way)
            raise Unavailable(f"the store did not answer within {limit:g} s; nothing was confirmed") from error
        except OutcomeUnknown as error:
            if way.confirming:
                raise
            await self._left_behind(name, way)
            raise Unavailable(f"{error}; nothing was confirmed") from error

    async def _through(
        self, session: Session, name: str, batch: Batch, way: _Way, witness: Witness
    ) -> tuple[list[asyncpg.Record], Unproved | None]:
        await session.execute("BEGIN")
        try:
            before = witness.known
            rows = await session.fetch(batch.query, *batch.arguments, *witness.arguments())
            if not batch.applied(rows):
                way.confirming = True
                await session.execute("COMMIT")
                return rows, None
            way.pending = True
            await session.execute(f"PREPARE TRANSACTION '{name}'")
        except asyncpg.PostgresError:
            way.pending = False
            with contextlib.suppress(OutcomeUnknown):  # the session is gone, and what it had begun with it
                await session.execute("ROLLBACK")
            raise
        unproved = await self._prove(batch)
        if unproved is None and session.unreplicated:
            unproved = Unavailable("pending on the primary alone: the wait for the standby was cancelled")
        if unproved is not None:
            await _roll_back(session, name)
            return rows, unproved
        way.confirming = True
        unproved = await self._confirm(session, name)
        if unproved is None:
            witness.saw(rows[-1], before)
        return rows, unproved

    async def _prove(self, batch: Batch) -> Unproved | None:
        try:
            return None if await self._still_leads(batch.role, batch.token, PROOF_LIMIT) else Verdict.NOT_LEADING
        except Unavailable as error:
            return Unavailable(f"the election could not be asked whether the term still stands: {error}")

    async def _confirm(self, session: Session, name: str) -> Unproved | None:
        try:
            await session.execute(f"COMMIT PREPARED '{name}'")
        except asyncpg.UndefinedObjectError:
            return Verdict.NOT_LEADING  # rolled back by a seal, or by whoever took this gateway for gone
        except asyncpg.PostgresError as error:
            raise OutcomeUnknown(f"the store did not confirm: {describe(error)}") from error
        if session.unreplicated:
            raise OutcomeUnknown("committed on the primary alone: the wait for the standby was cancelled")
        return None

    async def _left_behind(self, name: str, way: _Way) -> None:
        """What may be pending under our name holds the row's lock. Where this fails too, the next round does it."""
        if way.pending:
            try:
                async with asyncio.timeout(PROOF_LIMIT), self._link.session() as session:
                    await _roll_back(session, name)
            except (TimeoutError, FencegateError):
                return

    # -- what others have left ------------------------------------------------------------------

    async def roll_back(self, prefix: str, older_than: float, limit: float, tokens: range | None = None) -> int:
        """Void what is pending under ``prefix`` for ``older_than`` s, of ``tokens`` only; how many were voided.

        Never wrong, whoever's it is: what is not confirmed was not answered. Raises :class:`Unavailable`.
        """
        count = 0
        names = [row["gid"] for row in await self._link.read(limit, _LEFT, prefix, older_than)]
        try:
            async with asyncio.timeout(limit), self._link.session() as session:
                for name in names:
                    if tokens is None or token_of(name) in tokens:
                        count += await _roll_back(session, name)
        except (TimeoutError, OutcomeUnknown) as error:
            raise Unavailable("the store did not say whether what was pending is rolled back") from error
        return count

    async def check_allowed(self, limit: float) -> None:
        """Raises :class:`NotAllowed` where the server takes no prepared transactions."""
        if (await self._link.read(limit, _ALLOWED))[0][0] == 0:
            raise NotAllowed(
                "validate = true commits by prepared transactions, and the store has max_prepared_transactions = 0: "
                "set it to 2 or more for each gateway, and restart Postgres"
            )


@dataclass(slots=True)
class _Way:
    pending: bool = False
    """A transaction may be pending under its name."""
    confirming: bool = False
    """The word that makes it count may have been heard."""


def role_prefix(role: str) -> str:
    """What the names of a role's pending transactions begin with. A role's own name may be too long for them."""
    return f"{_PREFIX}:{blake2b(role.encode(), digest_size=8).hexdigest()}:"


def token_of(name: str) -> int:
    """The token in the name of a pending transaction; 0 where there is none."""
    parts = name.split(":")
    return int(parts[2]) if len(parts) > 3 and parts[2].isascii() and parts[2].isdecimal() else 0


async def _roll_back(session: Session, name: str) -> bool:
    try:
        await session.execute(f"ROLLBACK PREPARED '{name}'")
    except asyncpg.PostgresError:
        return False  # gone, being confirmed at this very moment, or another user's
    return True


def void(
    writes: Sequence[Write], results: Sequence[WriteResult | FencegateError], why: Unproved
) -> list[WriteResult | FencegateError]:
    """The results of a batch that was rolled back: what it had applied is refused, and what repeats that.

    Results of earlier requests, given again, stand; so does what was refused by itself.
    """
    # Without max_token_seen: what the batch has seen of it may be its own raise, which was rolled back.
    refused = why if isinstance(why, FencegateError) else WriteResult(why, None, None)
    undone = [isinstance(r, WriteResult) and r.effect is Effect.APPLIED for r in results]
    keys = {write.key_digest for write, gone in zip(writes, undone, strict=True) if gone and write.key_digest}
    return [
        refused if gone or write.key_digest in keys else result
        for write, result, gone in zip(writes, results, undone, strict=True)
    ]
