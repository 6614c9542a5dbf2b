"""The election over ZooKeeper. Why each step is as it is: see DESIGN.md beside this file.

The token is the czxid of the holder's own ephemeral node, assigned when the candidate joins the line; after a rebase,
and the role's base (``bases.py``).
The session is no lease. A follower tells the leader of a session's signs of life only now and then, and what
it had not told yet is lost with it, so that no length of time after a write is promised to its session. The lease is
therefore in a record that each renewal writes through the quorum, and a rival takes it only after it has seen it
unchanged for the holder's whole lease on its own clock.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from fencegate.election.bases import Bases
from fencegate.election.sightings import Sightings
from fencegate.election.zookeeper_calls import Changed, ZookeeperCalls
from fencegate.election.zookeeper_line import Line, Nodes, Place
from fencegate.election.zookeeper_link import LinkLost, ZookeeperLink, exceptions
from fencegate.election.zookeeper_records import (
    Names,
    Record,
    ahead_of,
    decode,
    wait,
)
from fencegate.lease import (
    HIGHEST_BASE,
    Candidate,
    ElectionBackend,
    ElectionUnavailable,
    Held,
    LeaseLost,
    LeaseTimings,
    Rebased,
    SealRecord,
    Term,
    Won,
)

DEFAULT_PREFIX: Final = "/fencegate"


@dataclass(frozen=True, slots=True)
class _Sight:
    """The role's record as it was read: None where there is none."""

    record: Record | None
    version: int
    idle: float


class ZookeeperElection(ElectionBackend):
    """Campaigns in a ZooKeeper ensemble (3.5 or newer) at ``hosts``, each a ``host:port``.

    Every gateway of one deployment uses the same ``prefix``. With a ``username`` the nodes are made so that only
    that user may touch them. Raises ``ValueError`` for bad hosts or a bad prefix.
    """

    name = "zookeeper"
    proves_terms = True

    def __init__(
        self,
        hosts: list[str],
        timings: LeaseTimings,
        *,
        prefix: str = DEFAULT_PREFIX,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not hosts:
            raise ValueError("election endpoints: name at least one ZooKeeper member, such as zk-1:2181")
        for host in hosts:
            if "/" in host or not host.rpartition(":")[2].isdecimal():
                raise ValueError(f"election endpoints: {host!r} must be host:port, such as zk-1:2181")
        if not prefix.strip("/"):
            raise ValueError(f"election prefix: {prefix!r} must name something, such as {DEFAULT_PREFIX}")
        self.link = ZookeeperLink(hosts, timings.lease_duration, username=username, password=password, tls=tls)
        self._zk = ZookeeperCalls(self.link, "/" + prefix.strip("/"))
        self._lease, self._hold_back = timings.lease_duration, timings.hold_back
        self._line = Line(self._zk)
        self._seen = Sightings(clock, timings.hold_back)
        self._open: dict[str, float] = {}

    # -- campaigning --------------------------------------------------------------------------------

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        return await self._zk.repeat(
            deadline, lambda left: self._acquire(Names(self._zk.prefix, role), candidate, left)
        )

    async def _acquire(self, names: Names, candidate: Candidate, left: float) -> Won | Held:
        role = names.role
        place, line = await self._line.stand(names, candidate, left)
        sight = await self._sight(names, left)
        record = sight.record
        if record is not None and record.token > place.token:
            # Others overtook us.
            await self._line.give_up(names, place, left)
            return Held(record.term(role, sight.idle))
        if record is not None and (record.token, record.place) == (place.token, place.path):
            return await self._confirm(names, place, sight, left)
        bases, moved = await self._zk.bases(names, left)
        if bases.outdates(place.joined):
            # Joined before the base was moved: this place could only win a number from before.
            await self._line.give_up(names, place, left)
            return Held(None)
        before = [path for path in ahead_of(place.path, line) if record is None or path != record.place]
        needed = wait(record, len(before), self._lease, candidate.region, self._hold_back)
        if record is None:  # it may have been removed by hand, under a holder whose store is open
            needed = max(needed, self._open.get(role, 0.0))
        if sight.idle < needed:
            return Held(record.term(role, sight.idle) if record and record.sealed is None else None)
        await self._zk.prepare(left, names.bases)
        return await self._take(names, place, candidate, sight, line, moved, left)

    async def _confirm(self, names: Names, place: Place, sight: _Sight, left: float) -> Won | Held:
        record = sight.record
        assert record is not None
        if record.sealed is not None:
            self._line.forget(names.role)
            return Held(None)
        # What we read may be old: only a transaction proves that we still hold.
        await self._zk.commit(left, lambda t: (t.check(place.path, -1), t.check(names.term, sight.version)))
        place.won, place.version = True, sight.version
        return Won(place.token, record.before)

    async def _take(
        self, names: Names, place: Place, candidate: Candidate, sight: _Sight, line: Nodes, moved: int, left: float
    ) -> Won:
        """Write our record, and remove in the same transaction every node before ours: their turn is over.

        Only while the base has the version ``moved``: a rebase that came meanwhile has ended the turn of our number.
        """
        before = sight.record.sealed if sight.record else None
        record = replace(Record.of(place.token, place.path, candidate, self._lease), before=before)

        def fill(transaction: Any) -> None:
            transaction.check(place.path, -1)
            if moved < 0:  # there is no check that a node does not exist, but making it is one
                transaction.create(names.base, b"")
                transaction.delete(names.base)
            else:
                transaction.check(names.base, moved)
            for path in ahead_of(place.path, line):
                transaction.delete(path)
            if sight.record is None:
                transaction.create(names.term, record.encode())
            else:
                transaction.set_data(names.term, record.encode(), version=sight.version)

        results = await self._zk.commit(left, fill)
        place.won = True
        place.version = 0 if sight.record is None else results[-1].version
        return Won(place.token, before)

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        place = self._line.place(role)
        if place is None or place.token != token or not place.won:
            raise LeaseLost(f"term {token} of {role!r} was not won by this process, or was given up")
        names = Names(self._zk.prefix, role)
        await self._zk.repeat(deadline, lambda left: self._renew(names, place, candidate, active, left))

    async def _renew(self, names: Names, place: Place, candidate: Candidate, active: bool, left: float) -> None:
        """One transaction through the quorum: our node is there, and the record is as we left it, and is new now."""
        sight = None
        if place.version < 0:
            sight = await self._sight(names, left, proven=True)
            if sight.record is None or sight.record.token != place.token or sight.record.sealed is not None:
                raise LeaseLost(f"the record of {names.role!r} no longer carries term {place.token}")
            place.version = sight.version
        record = Record.of(place.token, place.path, candidate, self._lease, active=active)
        version = place.version
        place.version = -1  # unknown, until the answer says otherwise
        try:
            results = await self._zk.commit(
                left,
                lambda t: (t.check(place.path, -1), t.set_data(names.term, record.encode(), version=version)),
            )
        except Changed:
            if await self._zk.call(left, lambda client: client.exists_async(place.path)) is None:
                raise LeaseLost(f"the node of term {place.token} is gone from ZooKeeper") from None
            raise
        place.version = results[-1].version

    # -- leaving ------------------------------------------------------------------------------------

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        """See :class:`ElectionBackend`. Also ends a term of an earlier life of this process, found by its token."""
        return await self._zk.repeat(
            deadline, lambda left: self._release(Names(self._zk.prefix, role), token, sealed, left)
        )

    async def _release(self, names: Names, token: int, sealed: SealRecord, left: float) -> bool:
        sight = await self._sight(names, left, proven=True)
        record = sight.record
        if record is None or record.token != token or record.sealed is not None:
            return record is not None and sealed in (record.sealed, record.before)
        ended = replace(record, active=False, sealed=sealed).encode()
        present = await self._zk.call(left, lambda client: client.exists_async(record.place)) is not None

        def fill(transaction: Any) -> None:
            if present:
                transaction.delete(record.place)
            transaction.set_data(names.term, ended, version=sight.version)

        await self._zk.commit(left, fill)
        place = self._line.place(names.role)
        if place and place.token == token:
            self._line.forget(names.role)
        return True

    async def withdraw(self, role: str, deadline: float) -> None:
        self._line.leave(role)
        await self._zk.repeat(deadline, lambda left: self._line.sweep(Names(self._zk.prefix, role), left))

    async def candidates(self, role: str, deadline: float) -> list[Candidate]:
        """See :class:`ElectionBackend`. One that died is shown until its session ends."""
        return await self._zk.repeat(deadline, lambda left: self._waiting(Names(self._zk.prefix, role), left))

    async def _waiting(self, names: Names, left: float) -> list[Candidate]:
        record = (await self._sight(names, left, proven=True)).record
        held = record.place if record is not None and record.sealed is None else ""
        return await self._line.candidates(names, left, without=held)

    # -- looking ------------------------------------------------------------------------------------

    async def read(self, role: str, deadline: float) -> Term | None:
        """See :class:`ElectionBackend`. A term that shows no sign of life for its whole lease leads no more."""
        names = Names(self._zk.prefix, role)
        sight = await self._zk.repeat(deadline, lambda left: self._sight(names, left, proven=True))
        record = sight.record
        if record is None or record.sealed is not None or sight.idle >= record.lease_duration:
            return None
        return record.term(role, sight.idle)

    async def changes(self, role: str) -> AsyncIterator[None]:
        names = Names(self._zk.prefix, role)
        try:
            await self._zk.prepare(self._lease, names.line, names.terms)
        except (LinkLost, ElectionUnavailable, exceptions.KazooException):
            return
        async for _ in self.link.hints(names.line, names.term, self._lease):
            yield

    # -- moving the numbers up ----------------------------------------------------------------------

    async def issued_up_to(self, role: str, deadline: float) -> int:
        names = Names(self._zk.prefix, role)
        zxid, bases, _ = await self._zk.repeat(deadline, lambda left: self._numbers(names, left))
        return zxid + bases.latest

    async def rebase(self, role: str, above: int, by: str, deadline: float) -> Rebased:
        """See :class:`ElectionBackend`. Who and when stay in the node; a term given back counts as held from now on."""
        if above > HIGHEST_BASE:
            raise ValueError(f"the numbers move up to at most {HIGHEST_BASE}; not to {above}")
        names = Names(self._zk.prefix, role)
        return await self._zk.repeat(deadline, lambda left: self._rebase(names, above, by, left))

    async def _rebase(self, names: Names, above: int, by: str, left: float) -> Rebased:
        await self._zk.prepare(left, names.bases)
        zxid, bases, version = await self._numbers(names, left)
        before = zxid + bases.latest
        if before >= above:
            return Rebased(before, before)
        sight = await self._sight(names, left)
        value = bases.moved(above - zxid, by, datetime.now(UTC).isoformat(timespec="seconds"))

        def fill(transaction: Any) -> None:
            if version < 0:
                transaction.create(names.base, value)
            else:
                transaction.set_data(names.base, value, version=version)
            if sight.record is not None and sight.record.sealed is not None:
                unsealed = replace(sight.record, sealed=None, before=None)
                transaction.set_data(names.term, unsealed.encode(), version=sight.version)

        await self._zk.commit(left, fill)
        return Rebased(before, above)

    async def _numbers(self, names: Names, left: float) -> tuple[int, Bases, int]:
        """The latest zxid by the quorum's word, the role's bases, and the version of their node."""
        await self._zk.prove(names, left)
        return self.link.last_zxid, *await self._zk.bases(names, left)

    async def probe(self, deadline: float) -> None:
        """Raises :class:`~fencegate.errors.Unavailable` saying why where the ensemble cannot be used."""
        await self._zk.repeat(deadline, lambda left: self._zk.prove(Names(self._zk.prefix, ""), left))

    async def close(self) -> None:
        self._line.clear()
        await self.link.close()

    # -- the record ---------------------------------------------------------------------------------

    async def _sight(self, names: Names, left: float, *, proven: bool = False) -> _Sight:
        """The role's record, and for how long it has been seen unchanged. ``proven``: not older than this call."""
        if proven:
            await self._zk.prove(names, left)
        try:
            value, stat = await self._zk.call(left, lambda client: client.get_async(names.term))
            record, version, sign = decode(value), stat.version, (stat.czxid, stat.mzxid)
        except exceptions.NoNodeError:
            record, version, sign = None, -1, (0, 0)
        except ValueError as error:
            raise ElectionUnavailable(f"ZooKeeper: {names.term} is {error}", "refused") from None
        if record is not None:
            self._open[names.role] = record.lease_duration if record.sealed is None else 0.0
        self._seen.note(names.role, sign, record.lease_duration if record else 0.0)
        return _Sight(record, version, self._seen.idle(names.role))
