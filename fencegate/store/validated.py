"""The write path of roles with ``validate = true`` (rule R15), in lanes of their own: no other role waits for them.

A flush is one role's and one token's, and asks the election once. What a gateway that died or stopped has left pending
holds the fence row's lock: it is voided before a claim and a seal, and in any case after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from time import monotonic
from typing import Final

from fencegate.errors import FencegateError, Unavailable
from fencegate.fence import Admission, Effect, Forward, StillLeads, Verdict, Write, WriteResult
from fencegate.observations import Observer, PendingVoided
from fencegate.store import function, ledger
from fencegate.store.forward import Forwards
from fencegate.store.function import Call
from fencegate.store.lane import Lane, checks_told_to
from fencegate.store.link import Link
from fencegate.store.pending import PROOF_LIMIT, PendingCommits, role_prefix
from fencegate.store.witness import Witness
from fencegate.tokens import MAX_TOKEN

_EVERY_ROLE: Final = "fencegate:"


class Validated:
    """Writes of ``roles``. ``gateway`` is unique among all processes that share the store; ``limit`` bounds a flush."""

    def __init__(
        self,
        roles: Collection[str],
        still_leads: StillLeads,
        *,
        link: Callable[[str], Link],
        gateway: str,
        limit: float,
        observe: Observer,
        witness: Witness,
    ) -> None:
        self._roles = frozenset(roles)
        self._still_leads = still_leads
        self._limit = limit
        self._observe = observe
        self._left = link("pending")
        self._pending = PendingCommits(self._left, gateway, still_leads)
        self._appends: Lane[Write, WriteResult] = Lane(
            link("validated ledger"),
            lambda a, b: ledger.append(a, limit, b, self._pending, witness),
            lambda w: (w.role, w.token),
            role=lambda w: w.role,
            max_items=512,
            took=checks_told_to(observe),
        )
        self._calls: Lane[Call, WriteResult] = Lane(
            link("validated function"),
            lambda a, b: function.call(a, limit, b, self._pending, witness),
            lambda c: (c.function, c.write.role, c.write.token),
            role=lambda c: c.write.role,
            max_items=32,
            alone=True,
            took=checks_told_to(observe),
        )

    def takes(self, write: Write | Forward) -> bool:
        """Whether the write is one of these. One that is let through whatever the fence says needs no proof."""
        return write.enforce and write.role in self._roles

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        return await self._appends.submit(write, len(write.body), time_limit)

    async def call(self, function: str, write: Write, time_limit: float) -> WriteResult:
        return await self._calls.submit(Call(function, write), len(write.body), time_limit)

    async def admit(self, forwards: Forwards, forward: Forward, time_limit: float) -> Admission:
        """The committed mark is what is pending here; without a proof it is taken back, and nothing is sent.

        What comes after the proof, the forwarding itself, is not covered: see DESIGN.md beside this file.
        """
        ends = monotonic() + time_limit
        admission = await forwards.admit(forward, time_limit)
        if admission.effect is not Effect.APPLIED:
            return admission
        proved = False
        try:
            limit = min(PROOF_LIMIT, max(0.0, ends - monotonic()))
            proved = await self._still_leads(forward.role, forward.token, limit)
        except Unavailable as error:
            raise Unavailable(f"the election could not be asked whether the term still stands: {error}") from error
        finally:
            if not proved:
                await forwards.settle(admission.ticket, None, sent=False)
        return admission if proved else Admission(Verdict.NOT_LEADING, None, admission.max_token_seen)

    async def make_way(self, role: str, up_to: int) -> None:
        """Void what is pending in terms up to ``up_to``: a claim or a seal would wait for it, perhaps for ever."""
        if role in self._roles:
            with contextlib.suppress(Unavailable):  # then the claim or the seal says what is wrong
                await self._void(role_prefix(role), 0.0, range(1, min(up_to, MAX_TOKEN) + 1))

    async def look(self) -> None:
        """Void what has been pending for longer than a flush takes, whoever's it is."""
        with contextlib.suppress(Unavailable):
            await self._void(_EVERY_ROLE, self._limit / 2)

    async def check_allowed(self) -> None:
        """Raises :class:`Unavailable` where the store takes no prepared transactions."""
        await self._pending.check_allowed(self._limit)

    async def close(self) -> None:
        await asyncio.gather(self._appends.close(), self._calls.close())
        await self._left.close()

    async def _void(self, prefix: str, older_than: float, tokens: range | None = None) -> None:
        await _void(self._pending, prefix, older_than, self._observe, tokens)


async def clear_up(link: Link, role: str, up_to: int, older_than: float, observe: Observer) -> None:
    """Void what has been pending for ``older_than`` s in terms of ``role`` up to ``up_to``; nobody validates it now."""

    async def nobody_leads(role: str, token: int, time_limit: float) -> bool:
        return False

    with contextlib.suppress(Unavailable):
        tokens = range(1, min(up_to, MAX_TOKEN) + 1)
        await _void(PendingCommits(link, "", nobody_leads), role_prefix(role), older_than, observe, tokens)


async def _void(
    pending: PendingCommits, prefix: str, older_than: float, observe: Observer, tokens: range | None
) -> None:
    try:
        voided = await pending.roll_back(prefix, older_than, PROOF_LIMIT, tokens)
    except FencegateError as error:
        raise Unavailable(str(error)) from error
    if voided:
        observe(PendingVoided(voided))
