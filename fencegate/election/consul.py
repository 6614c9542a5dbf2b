"""The election over one locked key per role in Consul: a session, a lock, and client-go's rule of take-over.

The token is the key's ModifyIndex in the answer to the transaction that locked it. That number moves on with each
renewal, so the first renewal writes it into the value; until then the term is not active. A renewal is a
transaction "the key is locked by our session and is the version we know": its success is the linearizable proof
that the term stands. A session's own renewal is none.

Tested against a small server of the documented API (``fencegate.testing.consul_agent``), not yet against a real
Consul. Why each step is as it is: see DESIGN.md beside this file.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fencegate.election.consul_agent import ConsulAgent
from fencegate.election.consul_line import ConsulLine
from fencegate.election.consul_records import Entry, Json, encoded, given_back, key_of, rebased, renewed, taken, term_of
from fencegate.election.http_endpoints import Deadline
from fencegate.election.sightings import Sightings
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

DEFAULT_PREFIX: Final = "fencegate"
SHORTEST_TTL: Final = 10
"""Seconds: Consul's own floor (``session_ttl_min``)."""
LONGEST_LOCK_DELAY: Final = 60
_TRIES: Final = 4
_LINE_PATIENCE: Final = 0.25
"""Seconds for which a win may wait for its place in line to be given up: nobody is served meanwhile."""


@dataclass(slots=True)
class _Campaign:
    """Our session for one role; each term has one of its own."""

    session: str
    entry: Entry | None = None
    token: int = 0


class ConsulElection(ElectionBackend):
    """Campaigns for keys under ``prefix`` in one Consul datacenter: every gateway names agents of the same one.

    ``shortest_ttl`` is the cluster's ``session_ttl_min`` in seconds. Raises ``ValueError`` for a bad endpoint or
    prefix, or a ``lease_duration`` over 60 s, the longest lock-delay that Consul keeps.
    """

    name = "consul"
    proves_terms = True

    def __init__(
        self,
        endpoints: list[str],
        timings: LeaseTimings,
        *,
        prefix: str = DEFAULT_PREFIX,
        token_file: str | None = None,
        tls: ssl.SSLContext | None = None,
        shortest_ttl: int = SHORTEST_TTL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not prefix.strip("/"):
            raise ValueError(f"election prefix: {prefix!r} must name something, such as {DEFAULT_PREFIX}")
        if timings.lease_duration > LONGEST_LOCK_DELAY:
            raise ValueError(
                f"election lease_duration: at most {LONGEST_LOCK_DELAY} s with Consul, whose lock-delay is no longer"
            )
        self.agent = ConsulAgent(endpoints, token_file=token_file, tls=tls)
        self._prefix = prefix
        self._lease_duration = timings.lease_duration
        self._lock_delay = max(1, math.ceil(timings.lease_duration))
        self._ttl = max(shortest_ttl, self._lock_delay)
        self._campaigns: dict[str, _Campaign] = {}
        self._line = ConsulLine(self.agent, prefix, self._ttl)
        self._seen = Sightings(clock, timings.hold_back)

    # -- campaigning --------------------------------------------------------------------------------

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        until = Deadline("consul", deadline)
        outcome = await self._acquire(role, candidate, until)
        if isinstance(outcome, Won):
            await self._line.leave(role, until, patience=_LINE_PATIENCE)
        else:
            await self._line.stand(role, candidate, until)
        return outcome

    async def _acquire(self, role: str, candidate: Candidate, until: Deadline) -> Won | Held:
        entry = await self._look(role, until)
        place = self._campaigns.get(role)
        if place and entry and entry.session == place.session:
            return self._won(place, entry)
        if place and place.token:
            del self._campaigns[role]  # that term is over: a new one is won under a session of its own
            place = None
        if entry is not None and entry.session:
            return Held(self._term(role, entry))
        if self._seen.left(role) > 0 and not (entry and entry.sealed):
            return Held(None)  # its session is gone, but what its last renewal promised is not over
        if entry is not None and self._seen.is_anothers(role, entry.sealed, candidate.region):
            return Held(None)
        if place is None or not await self.agent.renew_session(place.session, until.left):
            self._campaigns.pop(role, None)
            session = await self.agent.create_session(
                f"fencegate {role} {candidate.holder}", self._ttl, self._lock_delay, until.left
            )
            place = self._campaigns[role] = _Campaign(session)
        return await self._lock(role, candidate, place, entry, until)

    async def _lock(
        self, role: str, candidate: Candidate, place: _Campaign, entry: Entry | None, until: Deadline
    ) -> Won | Held:
        key = key_of(self._prefix, role)
        value = encoded(taken(place.session, candidate, self._lease_duration, entry))
        # The value that was judged free is the one that is locked.
        unchanged: Json = {"Verb": "check-not-exists", "Key": key}
        if entry is not None:
            unchanged = {"Verb": "check-index", "Key": key, "Index": entry.modify_index}
        lock = {"Verb": "lock", "Key": key, "Value": value, "Session": place.session}
        # Its answer is read from the key, which says the same where the answer was lost or came from a second try.
        outcome = await self.agent.transact([unchanged, lock], until.left)
        if not outcome.done and "invalid session" in outcome.why:
            self._campaigns.pop(role, None)
            return Held(None)
        found = await self._look(role, until)
        if found is not None and found.session == place.session:
            return self._won(place, found)
        return Held(self._term(role, found) if found is not None and found.session else None)

    def _won(self, place: _Campaign, entry: Entry) -> Won:
        """Won under the ModifyIndex that the key had when it was first known to be ours, and the base beside it.

        Where the answer to the winning transaction was lost, or a rebase came right after it, that is a later index
        than its own: still above every one of the term before, still below that of the transaction that wins the next.
        """
        if not place.token:
            place.token = entry.modify_index + entry.base
        place.entry = entry
        return Won(place.token, entry.predecessor)

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        until = Deadline("consul", deadline)
        place = self._campaigns.get(role)
        if place is None or place.entry is None or place.token != token:
            raise LeaseLost(f"term {token} of {role!r} was not won by this process, or was given up")
        # Only keeps the session from ending; whether it is gone, the transaction says.
        await self.agent.renew_session(place.session, until.left)
        key = key_of(self._prefix, role)
        for _ in range(_TRIES):
            record = renewed(place.entry, token, candidate, self._lease_duration, active=active)
            outcome = await self.agent.transact(
                [
                    {"Verb": "check-session", "Key": key, "Session": place.session},
                    {"Verb": "cas", "Key": key, "Value": encoded(record), "Index": place.entry.modify_index},
                ],
                until.left,
            )
            if outcome.done:
                known = place.entry
                index = int(outcome.results[-1]["ModifyIndex"])
                place.entry = Entry(place.session, index, known.lock_index, record)
                self._note(role, place.entry)
                return
            found = await self._look(role, until)
            if found is None or found.session != place.session:
                raise LeaseLost(f"the key of {role!r} is gone, or no longer locked by the session of term {token}")
            place.entry = found
        raise ElectionUnavailable(f"consul: the key of {role!r} keeps changing under the renewal", "refused")

    # -- leaving ------------------------------------------------------------------------------------

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        """See :class:`ElectionBackend`. Also ends a term of an earlier life of this process, found by its token."""
        until = Deadline("consul", deadline)
        key = key_of(self._prefix, role)
        for _ in range(_TRIES):
            entry = await self._look(role, until)
            if entry is None:
                return False
            place = self._campaigns.get(role)
            ours = place is not None and place.token == token and place.session == entry.session
            if not ours and (entry.token != token or entry.sealed):
                return entry.sealed == sealed
            value = encoded(given_back(entry, sealed))
            # Where the session has ended by itself only the seal is missing.
            write: Json = {"Verb": "cas", "Key": key, "Value": value, "Index": entry.modify_index}
            if entry.session:
                write = {"Verb": "unlock", "Key": key, "Value": value, "Session": entry.session}
            unchanged = {"Verb": "check-index", "Key": key, "Index": entry.modify_index}
            if (await self.agent.transact([unchanged, write], until.left)).done:
                if place is not None and place.token == token:
                    del self._campaigns[role]
                    await self._let_go(place.session, until)
                return True
        raise ElectionUnavailable(f"consul: the key of {role!r} keeps changing under the release", "refused")

    async def withdraw(self, role: str, deadline: float) -> None:
        until = Deadline("consul", deadline)
        place = self._campaigns.pop(role, None)
        try:
            if place is not None and not place.token:
                # Never told that we won, so nothing was opened under this session, which may hold the lock.
                await self.agent.destroy_session(place.session, until.left)
        finally:
            await self._line.leave(role, until)

    async def candidates(self, role: str, deadline: float) -> list[Candidate]:
        """See :class:`ElectionBackend`. One that died is shown until its session ends: up to twice its TTL."""
        return await self._line.waiting(role, Deadline("consul", deadline))

    async def _let_go(self, session: str, until: Deadline) -> None:
        """End a session that holds nothing any more; one that is left over ends with its TTL."""
        with suppress(ElectionUnavailable):
            await self.agent.destroy_session(session, until.left)

    # -- looking ------------------------------------------------------------------------------------

    async def read(self, role: str, deadline: float) -> Term | None:
        """See :class:`ElectionBackend`. A term that shows no sign of life for its whole lease leads no more."""
        entry = await self._look(role, Deadline("consul", deadline))
        if entry is None or not entry.session:
            return None
        if entry.held_record is not None and self._seen.left(role) <= 0:
            return None
        return self._term(role, entry)

    # -- moving the numbers up ----------------------------------------------------------------------

    async def issued_up_to(self, role: str, deadline: float) -> int:
        """See :class:`ElectionBackend`. Without a key nothing is told: an index that counts for all keys is not."""
        entry = await self._look(role, Deadline("consul", deadline))
        if entry is None:
            raise NotImplementedError(f"consul has no key for {role!r}, and does not tell what it would number next")
        return entry.modify_index + entry.base

    async def rebase(self, role: str, above: int, by: str, deadline: float) -> Rebased:
        """See :class:`ElectionBackend`. Who and when stay in the value, whose deletion takes the base with it."""
        if above > HIGHEST_BASE:
            raise ValueError(f"the numbers move up to at most {HIGHEST_BASE}; not to {above}")
        until, key = Deadline("consul", deadline), key_of(self._prefix, role)
        for _ in range(_TRIES):
            entry = await self._look(role, until)
            if entry is not None and entry.record is None:
                raise ElectionUnavailable(f"consul: the value of {key!r} is not fencegate's to write into", "refused")
            index = entry.modify_index if entry else 0
            before = index + (entry.base if entry else 0)
            if before >= above:
                return Rebased(before, before)
            at = datetime.now(UTC).isoformat(timespec="seconds")
            value = encoded(rebased(entry, above - index, by, at, self._lease_duration))
            # The holder's session and lock stay as they are: only one who acquires changes them.
            outcome = await self.agent.transact(
                [{"Verb": "cas", "Key": key, "Value": value, "Index": index}], until.left
            )
            if outcome.done:
                return Rebased(before, int(outcome.results[-1]["ModifyIndex"]) + above - index)
        raise ElectionUnavailable(f"consul: the key of {role!r} keeps changing under the rebase", "refused")

    async def changes(self, role: str) -> AsyncIterator[None]:
        """See :class:`ElectionBackend`. Mere renewals give no hint."""
        last: Any = ()
        async for entry in self.agent.watch(key_of(self._prefix, role)):
            active = (entry.held_record or {}).get("active") if entry else None
            state = (entry.session, entry.token, active, entry.sealed) if entry else None
            if state != last:
                last = state
                yield

    async def probe(self, deadline: float) -> None:
        """Raises :class:`ElectionUnavailable` saying why where this Consul cannot be used."""
        until = Deadline("consul", deadline)
        await self.agent.probe(until.left)
        await self.agent.entry(key_of(self._prefix, "probe"), until.left)

    async def close(self) -> None:
        self._campaigns.clear()
        await self.agent.close()

    # -- what was seen ------------------------------------------------------------------------------

    async def _look(self, role: str, until: Deadline) -> Entry | None:
        entry = await self.agent.entry(key_of(self._prefix, role), until.left)
        if entry is not None:
            self._note(role, entry)
        return entry

    def _note(self, role: str, entry: Entry) -> None:
        if entry.renewals < 0:
            return  # what is not ours to read takes nothing back that a renewal promised
        self._seen.note(role, entry.sign, entry.lease_duration)

    def _term(self, role: str, entry: Entry) -> Term:
        return term_of(role, entry, max(0.0, self._seen.left(role)))
