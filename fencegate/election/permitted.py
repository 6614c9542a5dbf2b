"""An election that is listened to only while those lead who may (``election.holders``).

Whoever can write an election's records can win it: a gateway of another environment that was given the wrong prefix, or
somebody who got hold of its account. Nothing here keeps them from holding the lease, and a name is no proof. But what
such a holder says goes nowhere: its term is not known, its address is in no hint, its token raises no fence, and
everybody hears of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from fencegate.errors import Unavailable
from fencegate.lease import Candidate, LeadershipSource, Reading, Term, is_among
from fencegate.observations import Observer, StrangerLeads


class PermittedHolders(LeadershipSource):
    """``source``, whose terms of holders that match none of ``patterns`` are no answer: :class:`Unavailable`."""

    def __init__(self, source: LeadershipSource, patterns: Sequence[str], observe: Observer) -> None:
        self._source = source
        self._patterns = tuple(patterns)
        self._observe = observe
        self._strangers: dict[str, int] = {}
        self.name = source.name
        self.roles_a_read, self.roles_a_watch = source.roles_a_read, source.roles_a_watch

    async def read(self, role: str, deadline: float) -> Term | None:
        found = self._judged(role, await self._source.read(role, deadline))
        if isinstance(found, Unavailable):
            raise found
        return found

    async def read_many(self, roles: Sequence[str], deadline: float) -> Mapping[str, Reading]:
        found = await self._source.read_many(roles, deadline)
        return {role: self._judged(role, reading) for role, reading in found.items()}

    def _judged(self, role: str, reading: Reading) -> Reading:
        if isinstance(reading, Unavailable):
            return reading
        if reading is None or is_among(self._patterns, reading.region, reading.node):
            self._strangers.pop(role, None)
            return reading
        if self._strangers.get(role) != reading.token:
            self._strangers[role] = reading.token
            self._observe(StrangerLeads(role, reading.token, reading.region, reading.node))
        return Unavailable(f"{reading.shown_holder} holds {role!r}, and is not among election.holders")

    def changes(self, role: str) -> AsyncIterator[None]:
        return self._source.changes(role)

    def changes_among(self, roles: Sequence[str]) -> AsyncIterator[str | None]:
        return self._source.changes_among(roles)

    async def probe(self, deadline: float) -> None:
        await self._source.probe(deadline)

    async def issued_up_to(self, role: str, deadline: float) -> int:
        return await self._source.issued_up_to(role, deadline)

    async def candidates(self, role: str, deadline: float) -> list[Candidate]:
        waiting = await self._source.candidates(role, deadline)
        return [each for each in waiting if is_among(self._patterns, each.region, each.node)]

    async def close(self) -> None:
        await self._source.close()
