"""The election over etcd. Why each step is as it is: see DESIGN.md beside this file.

The token is the create revision of the holder's key: etcd assigns it in the act of joining the line. Where a restore
took revisions back, a base is added to it (``bases.py``), read in the same transaction as the key.
A renewal is no keepalive. It grants a *new* lease and moves the key to it by compare-and-swap: both go
through the quorum, so a deposed member can neither answer them nor promise time that nobody grants.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fencegate.election import etcd_txn as txn
from fencegate.election.bases import Bases
from fencegate.election.etcd_gateway import EtcdGateway, EtcdRefused, Json, encode
from fencegate.election.etcd_records import (
    KeyValue,
    Names,
    candidate_of,
    candidate_value,
    last_claimed,
    role_of,
    seal_of,
    seal_value,
    term_of,
)
from fencegate.election.etcd_txn import TxnAnswer
from fencegate.election.http_endpoints import Deadline
from fencegate.election.strange_answers import reading
from fencegate.errors import Unavailable
from fencegate.lease import (
    Candidate,
    ElectionBackend,
    ElectionUnavailable,
    Held,
    LeaseLost,
    LeaseTimings,
    Reading,
    Rebased,
    SealRecord,
    Term,
    Won,
)

DEFAULT_PREFIX: Final = "/fencegate"
_NOT_FOUND: Final = 5
_MOVES: Final = 4
"""Tries of one renewal to move the key, each after the key was seen to have changed under it."""


@dataclass(slots=True)
class _Candidacy:
    """Our place in the line of one role."""

    lease: int
    key: bytes
    created: int = 0
    token: int = 0
    won: bool = False
    mod_revision: int = 0
    ahead: int = 0
    """The highest token that was seen to hold the role while we waited."""


class EtcdElection(ElectionBackend):
    """Campaigns in an etcd cluster through its JSON gateway (etcd 3.4 or newer), or through ``transport``.

    Every gateway of one deployment uses the same ``prefix``; a slash at its end makes no difference.
    ``timings.lease_duration`` is rounded up to whole seconds, as etcd counts them. Raises ``ValueError`` for
    a bad endpoint or prefix.
    """

    name = "etcd"
    proves_terms = True
    roles_a_read = 60  # two steps each, of the 128 that etcd takes in a transaction unless told otherwise
    roles_a_watch = 1_000_000

    def __init__(
        self,
        endpoints: list[str],
        timings: LeaseTimings,
        *,
        prefix: str = DEFAULT_PREFIX,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        transport: EtcdGateway | None = None,
    ) -> None:
        if not prefix.strip("/"):
            raise ValueError(f"election prefix: {prefix!r} must name something, such as {DEFAULT_PREFIX}")
        self.gateway = transport or EtcdGateway(endpoints, username=username, password=password, tls=tls)
        self._prefix = prefix.rstrip("/")
        self._lease_duration = timings.lease_duration
        self._hold_back = timings.hold_back
        self._handed: dict[str, tuple[int, float]] = {}
        """By role: the last term that was handed to another region, and until when it is left to that one."""
        self._ttl = max(1, math.ceil(timings.lease_duration))
        self._line: dict[str, _Candidacy] = {}

    # -- campaigning --------------------------------------------------------------------------------

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        until = Deadline("etcd", deadline)
        try:
            return await self._acquire(role, candidate, until)
        except EtcdRefused as error:
            if error.code != _NOT_FOUND:
                raise ElectionUnavailable(str(error), "refused") from error
            # The candidate lease ended between its sign of life and the transaction: stand anew next time.
            self._line.pop(role, None)
            return Held(None)

    async def _acquire(self, role: str, candidate: Candidate, until: Deadline) -> Won | Held:
        names = Names(self._prefix, role)
        if await self._waits_for_the_successor(role, until):
            return Held(None)
        place = self._line.get(role)
        if place and not await self._alive(place.lease, until):
            del self._line[role]
            place = None
        if place is None:
            lease = await self._grant(until)
            place = self._line[role] = _Candidacy(lease, names.candidate(lease))
        look = [txn.get(key) for key in (names.sealed, names.term, names.base, place.key)]
        look.insert(0, txn.first(names))
        value = candidate_value(candidate, active=False, lease_duration=self._lease_duration)
        join = {
            "compare": [txn.created(place.key, 0)],
            "success": [txn.put(place.key, value, place.lease), *look],
            "failure": look,
        }
        found, sealed, term, base, own = (await self._txn(join, until)).found(5)
        first = txn.holder(names, found)
        if first is None or own is None:
            return Held(None)
        bases = _bases(base)
        if own.create_revision != place.created:
            place.created, place.won, place.ahead = own.create_revision, False, 0
            place.token = bases.token(own.create_revision)
        if not place.won and bases.outdates(place.created):
            # Joined before the base was moved: this place could only win a number from before.
            await self.withdraw(role, until.left)
            return Held(None)
        if first.key != place.key:
            holding = bases.token(first.create_revision)
            place.ahead = max(place.ahead, holding)
            return Held(term_of(role, first, holding, self._lease_duration))
        if self._is_anothers(role, seal_of(sealed), last_claimed(term), place, candidate):
            await self.withdraw(role, until.left)
            return Held(None)
        place.won, place.mod_revision = True, own.mod_revision
        return Won(place.token, _predecessor(seal_of(sealed), last_claimed(term), place.ahead))

    def _is_anothers(
        self, role: str, sealed: SealRecord | None, claimed: int, place: _Candidacy, candidate: Candidate
    ) -> bool:
        """The term before was handed to another region. Whoever stood in line ahead of it steps out of its way."""
        if place.won or sealed is None or sealed.successor in (None, candidate.region) or sealed.token < claimed:
            return False
        return asyncio.get_running_loop().time() < self._leave_it_to_the_successor(role, sealed.token)

    def _leave_it_to_the_successor(self, role: str, handed: int) -> float:
        """Until when: for a while from when it was first known that the term ``handed`` was handed over."""
        token, until = self._handed.get(role, (0, 0.0))
        if token != handed:
            until = asyncio.get_running_loop().time() + self._hold_back
            self._handed[role] = (handed, until)
        return until

    async def _waits_for_the_successor(self, role: str, until: Deadline) -> bool:
        """Out of the line, until the successor holds the role or its time is up: standing again would be in its way."""
        _, ends = self._handed.get(role, (0, 0.0))
        if role in self._line or asyncio.get_running_loop().time() >= ends:
            return False
        return await self.read(role, until.left) is None

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        until = Deadline("etcd", deadline)
        place = self._line.get(role)
        if place is None or place.token != token:
            raise LeaseLost(f"term {token} of {role!r} was not won by this process, or was given up")
        names = Names(self._prefix, role)
        try:
            lease = await self._grant(until)
            value = candidate_value(candidate, active=active, lease_duration=self._lease_duration)
            await self._move(names, place, token, value, lease, until)
        except EtcdRefused as error:
            raise ElectionUnavailable(str(error), "refused") from error

    async def _move(
        self, names: Names, place: _Candidacy, token: int, value: bytes, lease: int, until: Deadline
    ) -> None:
        """Attach the key to ``lease``, comparing token *and* modification.

        The second comparison is what keeps a transaction of an earlier renewal, whose answer was lost and
        which is applied late, from moving the key back to that renewal's older lease.
        """
        for _ in range(_MOVES):
            move = {
                "compare": [txn.created(place.key, place.created), txn.modified(place.key, place.mod_revision)],
                "success": [txn.put(place.key, value, lease), txn.put(names.term, str(token).encode())],
                "failure": [txn.get(place.key)],
            }
            answer = await self._txn(move, until)
            if answer.succeeded:
                place.mod_revision, place.lease = answer.revision, lease
                return
            [found] = answer.found(1)
            if found is None or found.create_revision != place.created:
                raise LeaseLost(f"the key of term {token} is gone from etcd, or is another term's")
            place.mod_revision = found.mod_revision
            if found.lease == lease:  # this very transaction was applied, and its answer lost
                place.lease = lease
                return
        raise ElectionUnavailable(f"etcd: the key of term {token} keeps changing under the renewal", "refused")

    # -- leaving ------------------------------------------------------------------------------------

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        """See :class:`ElectionBackend`. Also ends a term of an earlier life of this process, found by its token."""
        until = Deadline("etcd", deadline)
        names = Names(self._prefix, role)
        try:
            look = {"success": [txn.first(names), txn.get(names.sealed), txn.get(names.base)]}
            found, record, base = (await self._txn(look, until)).found(3)
            first = txn.holder(names, found)
            if first is None or _bases(base).token(first.create_revision) != token:
                return seal_of(record) == sealed
            end = {
                "compare": [txn.created(first.key, first.create_revision)],
                "success": [txn.delete(first.key), txn.put(names.sealed, seal_value(sealed))],
                "failure": [txn.get(names.sealed)],
            }
            answer = await self._txn(end, until)
        except EtcdRefused as error:
            raise ElectionUnavailable(str(error), "refused") from error
        place = self._line.get(role)
        if place and place.token == token:
            del self._line[role]
        if sealed.successor not in (None, sealed.region):
            self._leave_it_to_the_successor(role, token)
        return answer.succeeded or seal_of(answer.found(1)[0]) == sealed

    async def withdraw(self, role: str, deadline: float) -> None:
        place = self._line.pop(role, None)
        if place is None or place.won:
            return
        # Never told that we won, so nothing was opened under this key; the comparison spares any other.
        leave: Json = {"success": [txn.delete(place.key)]}
        if place.created:
            leave["compare"] = [txn.created(place.key, place.created)]
        with suppress(EtcdRefused):
            await self._txn(leave, Deadline("etcd", deadline))

    async def candidates(self, role: str, deadline: float) -> list[Candidate]:
        names = Names(self._prefix, role)
        line = {"key": encode(names.line), "range_end": encode(names.line_end), "sort_order": "ASCEND"}
        try:
            answer = await self.gateway.call("/v3/kv/range", {**line, "sort_target": "CREATE"}, deadline)
        except EtcdRefused as error:
            raise ElectionUnavailable(str(error), "refused") from error
        with reading("etcd"):
            keys = [found for found in map(KeyValue.of, answer.get("kvs", [])) if names.has(found.key)]
        return [candidate for candidate in map(candidate_of, keys[1:]) if candidate is not None]

    # -- looking ------------------------------------------------------------------------------------

    async def read(self, role: str, deadline: float) -> Term | None:
        if isinstance(found := (await self.read_many((role,), deadline))[role], Unavailable):
            raise found
        return found

    async def read_many(self, roles: Sequence[str], deadline: float) -> Mapping[str, Reading]:
        """As :meth:`read`, in one transaction."""
        names = [Names(self._prefix, role) for role in roles]
        look = {"success": [step for each in names for step in (txn.first(each), txn.get(each.base))]}
        try:
            answer = await self._txn(look, Deadline("etcd", deadline))
        except EtcdRefused as error:
            raise ElectionUnavailable(str(error), "refused") from error
        firsts = answer.found(2 * len(roles))
        found: dict[str, Reading] = dict.fromkeys(roles)
        for each, first, base in zip(names, firsts[::2], firsts[1::2], strict=True):
            try:
                if held := txn.holder(each, first):
                    token = _bases(base).token(held.create_revision)
                    found[each.role] = term_of(each.role, held, token, self._lease_duration)
            except ElectionUnavailable as error:
                found[each.role] = error
        return found

    async def changes(self, role: str) -> AsyncIterator[None]:
        names = Names(self._prefix, role)
        async for _ in self.gateway.watch(names.line, names.line_end):
            yield

    async def changes_among(self, roles: Sequence[str]) -> AsyncIterator[str | None]:
        """By one watch of the whole prefix."""
        line = f"{self._prefix}/".encode()
        async for keys in self.gateway.watch(line, line[:-1] + b"0"):
            for role in {role_of(self._prefix, key) for key in keys} - {None}:
                yield role

    # -- moving the numbers up ----------------------------------------------------------------------

    async def issued_up_to(self, role: str, deadline: float) -> int:
        """See :class:`ElectionBackend`: the cluster's revision and the role's base, by one linearizable read."""
        revision, bases = await self._numbers(Names(self._prefix, role), Deadline("etcd", deadline))
        return revision + bases.latest

    async def rebase(self, role: str, above: int, by: str, deadline: float) -> Rebased:
        """See :class:`ElectionBackend`. Who and when stay in the record. A running term keeps its number."""
        until = Deadline("etcd", deadline)
        names = Names(self._prefix, role)
        for _ in range(_MOVES):
            revision, bases = await self._numbers(names, until)
            before = revision + bases.latest
            if before >= above:
                return Rebased(before, before)
            base = above - revision
            move = {
                "compare": [txn.modified(names.base, bases.mod_revision)],
                # What the seal record says of the term before is from before the restore: it counts no longer.
                "success": [
                    txn.put(names.base, bases.moved(base, by, datetime.now(UTC).isoformat(timespec="seconds"))),
                    txn.put(names.term, str(before).encode()),
                ],
            }
            try:
                answer = await self._txn(move, until)
            except EtcdRefused as error:
                raise ElectionUnavailable(str(error), "refused") from error
            if answer.succeeded:
                return Rebased(before, answer.revision + base)
        raise ElectionUnavailable(f"etcd: the base of {role!r} keeps changing under the rebase", "refused")

    async def _numbers(self, names: Names, until: Deadline) -> tuple[int, Bases]:
        try:
            answer = await self._txn({"success": [txn.get(names.base)]}, until)
        except EtcdRefused as error:
            raise ElectionUnavailable(str(error), "refused") from error
        return answer.revision, _bases(answer.found(1)[0])

    async def probe(self, deadline: float) -> None:
        """Raises :class:`Unavailable` saying why where the cluster, or its JSON gateway, cannot be used."""
        try:
            await self.gateway.call("/v3/kv/range", {"key": encode(self._prefix)}, deadline)
        except EtcdRefused as error:
            raise Unavailable(str(error)) from error

    async def close(self) -> None:
        self._line.clear()
        await self.gateway.close()

    # -- calls --------------------------------------------------------------------------------------

    async def _grant(self, until: Deadline) -> int:
        answer = await self.gateway.call("/v3/lease/grant", {"TTL": self._ttl}, until.left)
        with reading("etcd"):
            granted, lease = int(answer.get("TTL", 0)), int(answer["ID"])
        if granted < self._ttl:
            raise ElectionUnavailable(f"etcd granted {granted} s of lease, not {self._ttl} s", "refused")
        return lease

    async def _alive(self, lease: int, until: Deadline) -> bool:
        """Keep a *waiting* candidate's lease. Enough for a place in line; never the proof of a term."""
        answer = await self.gateway.call("/v3/lease/keepalive", {"ID": lease}, until.left)
        with reading("etcd"):
            return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def _txn(self, body: Json, until: Deadline) -> TxnAnswer:
        return TxnAnswer(await self.gateway.call("/v3/kv/txn", body, until.left))


def _bases(found: KeyValue | None) -> Bases:
    if found is None:
        return Bases()
    try:
        return Bases.of(found.key.decode("utf-8", "replace"), found.value, found.mod_revision)
    except ValueError as error:
        raise ElectionUnavailable(f"etcd: {error}", "refused") from None


def _predecessor(sealed: SealRecord | None, claimed: int, ahead: int) -> SealRecord | None:
    """The seal record, where it is sure to name the term before ours (DESIGN.md)."""
    return sealed if sealed and sealed.token == claimed and sealed.token >= ahead else None
