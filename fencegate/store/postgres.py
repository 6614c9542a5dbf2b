"""A region's store in Postgres: the contracts of the fence, the write path and nothing else.

Each kind of work has sessions of its own: the elector's (:mod:`fencegate.store.control`), one lane
each for ledger, function and forward, and one for reads. Nothing here retries a write.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self

from fencegate.access.database import Database
from fencegate.errors import FencegateError, Unavailable
from fencegate.fence import (
    PART_BYTES,
    Admission,
    ClaimRefused,
    Entry,
    Fence,
    Forward,
    Mode,
    StillLeads,
    StoreClock,
    StoredAnswer,
    Verdict,
    Write,
    WriteResult,
)
from fencegate.observations import (
    FenceSeen,
    KeysExpired,
    Observer,
    OrphanedMarkExpired,
    StoreCameUp,
    StoreWentBack,
    StoreWentDown,
    ignore,
)
from fencegate.store import function, ledger
from fencegate.store.control import Control
from fencegate.store.forward import Forwards
from fencegate.store.function import Call
from fencegate.store.known_keys import KnownKeys
from fencegate.store.lane import Lane, checks_told_to
from fencegate.store.link import Link, Server
from fencegate.store.portability import link_to
from fencegate.store.sharing import Sharing
from fencegate.store.validated import Validated, clear_up
from fencegate.store.validity import check_call, check_forward, check_write
from fencegate.store.witness import WHY, Known, Sight, Witness, compared, is_older
from fencegate.telling import Tell, tell_of

_PEEK: Final = """
    SELECT fencegate.decide(f, $2, 0, clock_timestamp(), fencegate.incarnation()) AS verdict, f.max_token_seen
      FROM (SELECT) one LEFT JOIN fencegate.fence f ON f.role = $1"""


class PostgresStore:
    """Implements :class:`fencegate.fence.FenceStore` and :class:`fencegate.fence.WritePath`.

    ``write_limit`` bounds one flush, ``control_limit`` one question of the elector, ``connect_limit``
    one attempt to connect; all in seconds. The server's ``statement_timeout`` is a little shorter
    than each, so that the server gives up first and says so. A write that breaks its contract (a digest
    of another length, a body that is not UTF-8) raises ``ValueError`` and never meets another's batch.
    """

    def __init__(
        self,
        address: str | Database,
        *,
        gateway: str,
        observe: Observer = ignore,
        write_limit: float = 5.0,
        control_limit: float = 2.0,
        connect_limit: float = 3.0,
        monitor_period: float = 1.0,
    ) -> None:
        self._observe = observe
        self._write_limit = write_limit
        self._control_limit = control_limit
        self._monitor_period = monitor_period
        self.up = False
        self._seen: dict[str, FenceSeen] = {}
        self._digest: str | None = None
        self._server = server = Server()
        self._portable, self._clock_offset = Database.at(address).portable, Database.at(address).clock_offset
        self._control = Control(
            address, server, sessions=4, limit=control_limit, connect_limit=min(connect_limit, control_limit)
        )

        def link(name: str) -> Link:
            return link_to(address, name, limit=connect_limit, statement_timeout=write_limit * 0.8, server=server)

        # A process that comes back after a crash must not take an earlier life's marks for its own.
        self._name = unique = f"{gateway}#{secrets.token_hex(4)}"
        self._witness = witness = Witness()
        self._told_gone_back = False
        sharing = Sharing()
        self._appends: Lane[Write, WriteResult] = Lane(
            link("ledger"),
            lambda a, b: ledger.append(a, write_limit, b, witness=witness, sharing=sharing),
            role=lambda w: w.role,
            max_items=512,
            took=checks_told_to(observe),
            shared=sharing.believed,
        )
        self._calls: Lane[Call, WriteResult] = Lane(
            link("function"),
            lambda a, b: function.call(a, write_limit, b, witness=witness),
            lambda c: c.function,
            role=lambda c: c.write.role,
            max_items=32,
            alone=True,
            took=checks_told_to(observe),
        )
        self._forwards = Forwards(
            link("forward"),
            link("settle"),
            unique,
            write_limit,
            observe,
            witness,
            portable=self._portable,
            clock_offset=self._clock_offset,
        )
        self._reads = link("read")
        self._peeks = link("peek")
        self._known_keys = KnownKeys(self._peeks, write_limit)
        self._link = link
        self._validated: Validated | None = None
        self._monitor: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, address: str | Database, *, gateway: str, observe: Observer = ignore, **limits: float) -> Self:
        """A store that is watched from now on. It need not be up: until it is, everything is refused."""
        store = cls(address, gateway=gateway, observe=observe, **limits)
        await store._look()
        store._monitor = asyncio.get_running_loop().create_task(store._watch())
        return store

    async def close(self) -> None:
        """Finish what was taken, remove our marks, close every session."""
        if self._monitor is not None:
            self._monitor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._monitor
        await asyncio.gather(
            self._appends.close(), self._calls.close(), self._forwards.close(), self._known_keys.close()
        )
        if self._validated is not None:
            await self._validated.close()
        await asyncio.gather(self._control.close(), self._reads.close(), self._peeks.close())

    def validate(self, roles: Collection[str], still_leads: StillLeads) -> None:
        """Rule R15: no write of ``roles`` counts before ``still_leads`` has proved its term. Call it first.

        Raises ``ValueError`` for a store in portability mode, which has no prepared transactions.
        """
        if roles and self._portable:
            raise ValueError("rule R15 rests on prepared transactions, which a store in portability mode does without")
        if roles:
            self._validated = Validated(
                roles,
                still_leads,
                link=self._link,
                gateway=self._name,
                limit=self._write_limit,
                observe=self._observe,
                witness=self._witness,
            )

    # -- the write path -------------------------------------------------------------------------

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        check_write(write)
        self._refuse_gone_back(write)
        if self._validated is not None and self._validated.takes(write):
            return await self._validated.append(write, time_limit)
        return await self._appends.submit(write, len(write.body), time_limit)

    def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
        check_write(write)
        self._refuse_gone_back(write)
        if self._validated is not None and self._validated.takes(write):
            tell_of(self._validated.append(write, time_limit), tell)
            return
        self._appends.put(write, len(write.body), time_limit, tell)

    async def call(self, function: str, write: Write, time_limit: float) -> WriteResult:
        check_call(write)
        self._refuse_gone_back(write)
        if self._validated is not None and self._validated.takes(write):
            return await self._validated.call(function, write, time_limit)
        return await self._calls.submit(Call(function, write), len(write.body), time_limit)

    def admit(self, forward: Forward, time_limit: float) -> Awaitable[Admission]:
        check_forward(forward)  # Now: a coroutine would only say so once it is waited for.
        self._refuse_gone_back(forward)
        if self._validated is not None and self._validated.takes(forward):
            return self._validated.admit(self._forwards, forward, time_limit)
        return self._forwards.admit(forward, time_limit)

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        if self._validated is not None and self._validated.takes(forward):
            tell_of(self.admit(forward, time_limit), tell)
            return
        self._refuse_gone_back(forward)
        self._forwards.ask(forward, time_limit, tell)

    def settle(self, ticket: int, answer: StoredAnswer | None, *, sent: bool = True) -> Awaitable[None]:
        return self._forwards.settle(ticket, answer, sent=sent)

    async def peek(self, role: str, token: int, time_limit: float) -> tuple[Verdict, int | None]:
        row = (await self._peeks.read(time_limit, _PEEK, role, token))[0]
        return Verdict(row["verdict"]), row["max_token_seen"]

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        self._known_keys.knows(role, key_digest, time_limit, tell)

    async def entry(self, role: str, seq: int) -> Entry | None:
        rows = await self._reads.read(self._write_limit, ledger.ENTRY, role, seq)
        return ledger.entry(rows[0]) if rows else None

    async def entries(self, role: str, after: int, limit: int) -> list[Entry]:
        rows = await self._reads.read(self._write_limit, ledger.PART, role, after, limit, PART_BYTES)
        return [ledger.entry(row) for row in rows]

    def _refuse_gone_back(self, write: Write | Forward) -> None:
        """A refusal from memory: observe mode is let in as by any other closed fence."""
        if self._witness.gone_back and write.enforce:
            raise Unavailable(WHY)

    # -- the fence ------------------------------------------------------------------------------

    async def clock(self) -> StoreClock:
        """Every claim and renewal begins with it: a store that has gone back leads nothing (rule R14)."""
        if self._witness.gone_back:
            raise Unavailable(WHY)
        clock = await self._control.clock()
        if is_older(clock.incarnation, self._witness.known.incarnation):
            raise Unavailable(WHY)  # found out by the next look
        return clock

    async def claim(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        if self._validated is not None:
            await self._validated.make_way(role, token - 1)
        try:
            return await self._control.claim(role, token, holder, clock, valid_for)
        except Unavailable:
            await self._clear_up(role, token)
            raise

    async def extend(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        return await self._control.extend(role, token, holder, clock, valid_for)

    async def seal(self, role: str, token: int, incarnation: str) -> bool:
        if self._witness.gone_back:
            raise Unavailable(WHY)
        if self._validated is not None:
            await self._validated.make_way(role, token)
        return await self._control.seal(role, token, incarnation, self._witness)

    async def _clear_up(self, role: str, up_to: int) -> None:
        """Rule R14, for the next try: what was left pending while the role was validated holds its row for ever."""
        if not self._portable:
            await clear_up(self._reads, role, up_to, self._write_limit / 2, self._observe)

    async def set_draining(self, role: str, token: int, draining: bool) -> bool:
        return await self._control.set_draining(role, token, draining)

    async def in_flight(self, role: str, token: int) -> int:
        under_way, orphans = await self._control.in_flight(role, token)
        for _ in range(orphans):
            self._observe(OrphanedMarkExpired(role, token))
        return under_way

    async def read(self, role: str) -> Fence | None:
        return await self._control.read(role)

    async def read_some(self, roles: Sequence[str]) -> list[Fence]:
        return await self._control.read_some(roles)

    async def read_all(self) -> list[Fence]:
        return await self._control.read_all()

    # -- upkeep ---------------------------------------------------------------------------------

    async def ensure_roles(self, roles: Mapping[str, Mode]) -> None:
        """Make the missing rows, closed. Raises :class:`FencegateError` where a role's row is in the other mode."""
        if wrong := await self._control.ensure_roles(roles):
            raise FencegateError(
                f"the fence of role {', '.join(wrong)} was made for the other mode: a role cannot be moved between "
                "campaign (lease mode) and follow (token mode)"
            )

    async def check_pending_allowed(self) -> None:
        """Raises :class:`Unavailable` where the store takes no prepared transactions, which validated roles need."""
        if self._validated is not None:
            await self._validated.check_allowed()

    async def expire_keys(self, keep: float) -> int:
        """Drop idempotency keys older than ``keep`` seconds; how many went."""
        count = await self._control.expire_keys(keep + self._clock_offset)
        if count:
            self._observe(KeysExpired(count))
        return count

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._monitor_period)
            await self._look()
            if self._validated is not None and (self.up or self._witness.gone_back):
                await self._validated.look()

    async def _look(self) -> None:
        before = self._witness.known
        try:
            sight, digest = await self._control.survey()
            self._server.is_now((sight.incarnation, sight.started))
            await self._look_for_gone_back(before, sight)
            fences = () if digest == self._digest else await self._control.seen()
            self._digest = digest
        except Unavailable as error:
            if self.up or self._monitor is None:
                self._observe(StoreWentDown(str(error)))
            self.up = False
            return
        if not self.up:
            self._observe(StoreCameUp(sight.incarnation))
            self._told_gone_back = False
        self.up = True
        for seen in fences:
            if self._seen.get(seen.role) != seen:
                self._seen[seen.role] = seen
                self._observe(seen)

    async def _look_for_gone_back(self, before: Known, sight: Sight) -> None:
        """Raises :class:`Unavailable` where the store has gone back, and closes it for those who can't know."""
        if not self._witness.look(before, sight):
            return
        if not self._told_gone_back:
            self._told_gone_back = True
            self._observe(StoreWentBack(compared(before, sight)))
        if self._witness.gone_back and not self._witness.closed:
            if is_older(sight.incarnation, before.incarnation):  # the server that was seen, and no other, is to close
                before = replace(before, incarnation=sight.incarnation, reopened=sight.reopened)
            await self._control.close_gone_back(self._name, before)
            self._witness.closed = True
        raise Unavailable(WHY)
