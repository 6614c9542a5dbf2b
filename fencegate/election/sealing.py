"""A seal as an operator asks for it. It is final: this store takes no write of that term, nor of any before it, again.

Where this node leads, the term ends in order: drained, sealed, given back, and another region may open at once. From
any other gateway of the region the store alone is sealed; whoever renews there learns it and steps down, and the next
term waits for the lease to lapse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fencegate.election.elector import Elector
from fencegate.errors import Unavailable
from fencegate.fence import FenceStore

Outcome = Literal["sealed", "already", "lapsing", "other_term"]
"""sealed: the seal stands. already: it stood before. lapsing: it is not known to stand, the lease runs out by itself.
other_term: refused, nothing was done."""


@dataclass(frozen=True, slots=True)
class SealResult:
    outcome: Outcome
    detail: str
    token: int


async def seal(
    role: str, token: int, limit: float, *, electors: Mapping[str, Elector], store: FenceStore
) -> SealResult:
    """Seal term ``token`` of ``role`` in this region's store within ``limit`` seconds, if that is its term.

    Raises :class:`fencegate.errors.Unavailable` where the store does not tell its term: nothing was done.
    """
    elector = electors.get(role)
    led = elector.token if elector is not None else None
    if elector is not None and led is not None:
        if led != token:
            return _other(token, led)
        # The machine takes this up before any answer that could bring another term.
        if await elector.resign("resigned", limit):
            return SealResult("sealed", "The term was drained, sealed and given back; this node holds off.", token)
        return SealResult("lapsing", "The seal is not known to stand; the lease lapses by itself.", token)
    return await _seal_store(role, token, limit, store)


async def _seal_store(role: str, token: int, limit: float, store: FenceStore) -> SealResult:
    ends = asyncio.get_running_loop().time() + limit
    try:
        async with asyncio.timeout_at(ends):
            row = await store.read(role)
    except TimeoutError:
        raise Unavailable("the store did not answer in time") from None
    if row is None or row.max_token_seen != token:
        return _other(token, row.max_token_seen if row else None)
    if row.sealed >= token:
        return SealResult("already", "This store has sealed the term before.", token)
    known = False
    try:
        async with asyncio.timeout_at(ends):
            known = await store.seal(role, token, row.incarnation)
    except (Unavailable, TimeoutError):
        pass
    if known:
        return SealResult("sealed", "This region's store is sealed; whoever leads here steps down.", token)
    return SealResult("lapsing", "The seal is not known to stand; ask again, or wait for the lease to lapse.", token)


def _other(token: int, found: int | None) -> SealResult:
    there = "none" if found is None else f"{found}"
    return SealResult("other_term", f"The term here is {there}, not {token}: nothing was sealed.", token)
