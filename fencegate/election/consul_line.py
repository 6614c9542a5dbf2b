"""Who waits in line, in Consul: one key per candidate beside the role's, each under a session that takes it along.

The line decides nothing (the lock does): it is for those who ask whom a term could be handed to. Its sessions are not
those that campaigns lock with: a lock's value must outlast its session, a place in line must not.
"""

from __future__ import annotations

import math
from contextlib import suppress

from fencegate.election.consul_agent import ConsulAgent
from fencegate.election.consul_records import encoded, key_of
from fencegate.election.http_endpoints import Deadline
from fencegate.lease import Candidate, ElectionUnavailable


class ConsulLine:
    """``ttl``: seconds after which a session whose candidate died may end; Consul takes up to twice that."""

    def __init__(self, agent: ConsulAgent, prefix: str, ttl: int) -> None:
        self._agent = agent
        self._prefix = prefix
        self._ttl = ttl
        self._places: dict[str, str] = {}
        """By role: the session of our place."""
        self._taken: set[str] = set()
        """The roles of which that place is known to stand in line."""

    async def stand(self, role: str, candidate: Candidate, until: Deadline) -> None:
        """Join the line, or give a sign of life in it. Raises :class:`~fencegate.lease.ElectionUnavailable`."""
        session = self._places.get(role)
        if session is None or not await self._agent.renew_session(session, until.left):
            self._forget(role)
            name = f"fencegate {role} {candidate.holder} waits"
            session = await self._agent.create_session(name, self._ttl, 0, until.left, behavior="delete")
            self._places[role] = session
        elif role in self._taken:
            return
        who = {"node": candidate.node, "region": candidate.region, "url": candidate.url}
        key = f"{self._line(role)}{session}"
        done = await self._agent.transact(
            [{"Verb": "lock", "Key": key, "Value": encoded(who), "Session": session}], until.left
        )
        if done.done:
            self._taken.add(role)
        else:  # the session ended meanwhile, and the next turn makes another
            self._forget(role)

    async def leave(self, role: str, until: Deadline, *, patience: float = math.inf) -> None:
        """A place that cannot be given up within ``patience`` seconds ends with its session."""
        place = self._forget(role)
        if place is not None:
            with suppress(ElectionUnavailable):
                await self._agent.destroy_session(place, min(until.left, patience))

    async def waiting(self, role: str, until: Deadline) -> list[Candidate]:
        """In the order of joining. Raises :class:`~fencegate.lease.ElectionUnavailable`."""
        found = await self._agent.entries_under(self._line(role), until.left)
        places = sorted((entry for entry in found if entry.session), key=lambda entry: entry.modify_index)
        records = [entry.record or {} for entry in places]
        return [
            Candidate(record["node"], str(record.get("region") or ""), str(record.get("url") or ""))
            for record in records
            if isinstance(record.get("node"), str)
        ]

    def _forget(self, role: str) -> str | None:
        self._taken.discard(role)
        return self._places.pop(role, None)

    def _line(self, role: str) -> str:
        # A role's own key has no slash after the prefix: no place is ever taken for a role, nor the other way round.
        return f"{key_of(self._prefix, role)}/line/"
