"""The election over a Kubernetes Lease, by the rules of client-go, so that a Go controller can contend for the same.

The token is the Lease's resourceVersion in the answer to the write that won it. That number moves on with each
renewal, so the first renewal writes it into an annotation; until then the term is not active. A renewal is a PUT
conditional on the resourceVersion: its success is the linearizable proof that the term stands.

Tested against a small server of the documented API (``fencegate.testing.kubernetes_api``), not yet against a real
API server. Why each step is as it is: see DESIGN.md beside this file.
"""

from __future__ import annotations

import datetime
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from fencegate.election.http_endpoints import Deadline
from fencegate.election.kubernetes_api import KubernetesAccess, LeaseApi
from fencegate.election.kubernetes_records import Lease, new_lease, term_of, written
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
from fencegate.tokens import MalformedToken, parse_token

_TRIES: Final = 4
"""Tries of one write, each after the Lease was seen to have changed under it."""


@dataclass(slots=True)
class _Campaign:
    """One life as a candidate: its identity is never used for a second term."""

    identity: str
    lease: Lease | None = None
    token: int = 0


class KubernetesElection(ElectionBackend):
    """Campaigns for Leases in one namespace; the Lease of a role is ``kubernetes_records.lease_name(role)``.

    ``timings.lease_duration`` is rounded up to whole seconds, as the API counts them. With ``name_foreign_terms``
    (follow mode) :meth:`read` writes a token into the Lease for a holder that is not fencegate.
    Raises ``ValueError`` for a bad endpoint or an empty namespace.
    """

    name = "kubernetes"
    proves_terms = True

    def __init__(
        self,
        access: KubernetesAccess,
        timings: LeaseTimings,
        *,
        name_foreign_terms: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self.api = LeaseApi(access)
        self._namespace = access.namespace
        self._seconds = math.ceil(timings.lease_duration)
        self._name_foreign_terms = name_foreign_terms
        self._now = now
        self._campaigns: dict[str, _Campaign] = {}
        self._seen = Sightings(clock, timings.hold_back)
        self._objects: dict[str, str] = {}
        """By role: the ``uid`` of the Lease that was seen last."""

    # -- campaigning --------------------------------------------------------------------------------

    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        until = Deadline("kubernetes", deadline)
        lease = await self._look(role, until)
        place = self._campaigns.get(role)
        if place and place.token and (lease is None or not _same_term(lease, place)):
            place = None  # that term is over: a new one is won under a new name
        if place is None:
            place = self._campaigns[role] = _Campaign(f"{candidate.holder}_{uuid.uuid4()}")
        if lease is not None and lease.holder == place.identity:
            return self._won(place, lease)
        if not self._is_free(role):
            return Held(self._term(role, lease) if lease is not None and lease.holder else None)
        if lease is not None and self._seen.is_anothers(role, lease.sealed, candidate.region):
            return Held(None)
        base = lease or new_lease(role, self._namespace)
        if base.spec.get("strategy"):
            raise ElectionUnavailable(
                f"kubernetes: the Lease of {role!r} is given out by the control plane (spec.strategy is set); "
                "use another role, or take the strategy out",
                "refused",
            )
        raw = base.taken(role, place.identity, candidate, self._seconds, written(self._now()))
        write = self.api.update if lease is not None else self.api.create
        taken = await write(role, raw, until.left)
        if taken is None:
            # Somebody else was quicker; or it was we, in a try whose answer was lost.
            taken = await self._look(role, until)
        if taken is None or taken.holder != place.identity:
            return Held(self._term(role, taken) if taken is not None and taken.holder else None)
        self._note(role, taken)
        return self._won(place, taken)

    def _won(self, place: _Campaign, lease: Lease) -> Won:
        """Won under the version that the Lease had when it was first known to be ours.

        Where the answer to the winning write was lost, that may be a later version than the write's own: still
        above every version of the term before, still below that of the write that wins the next.
        """
        if not place.token:
            place.token = _version(lease) + lease.base
        place.lease = lease
        return Won(place.token, lease.predecessor)

    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        until = Deadline("kubernetes", deadline)
        place = self._campaigns.get(role)
        if place is None or place.lease is None or place.token != token:
            raise LeaseLost(f"term {token} of {role!r} was not won by this process, or was given up")
        for _ in range(_TRIES):
            raw = place.lease.renewed(token, candidate, self._seconds, written(self._now()), active=active)
            renewed = await self.api.update(role, raw, until.left)
            if renewed is not None:
                place.lease = renewed
                self._note(role, renewed)
                return
            found = await self._look(role, until)
            if found is None or not _same_term(found, place):
                raise LeaseLost(f"the Lease of {role!r} is gone, or no longer carries term {token}")
            place.lease = found
        raise ElectionUnavailable(f"kubernetes: the Lease of {role!r} keeps changing under the renewal", "refused")

    # -- leaving ------------------------------------------------------------------------------------

    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        """See :class:`ElectionBackend`. Also ends a term of an earlier life of this process, found by its token."""
        until = Deadline("kubernetes", deadline)
        for _ in range(_TRIES):
            lease = await self._look(role, until)
            if lease is None:
                return False
            place = self._campaigns.get(role)
            ours = place is not None and place.token == token and _same_term(lease, place)
            if not ours and lease.token != token:
                return lease.sealed == sealed
            freed = await self.api.update(role, lease.given_back(sealed, written(self._now())), until.left)
            if freed is not None:
                if ours:
                    del self._campaigns[role]
                self._note(role, freed)
                return True
        raise ElectionUnavailable(f"kubernetes: the Lease of {role!r} keeps changing under the release", "refused")

    async def withdraw(self, role: str, deadline: float) -> None:
        """Nothing to undo at the server: nobody stands in line, and a term that was won lapses."""
        self._campaigns.pop(role, None)

    # -- looking ------------------------------------------------------------------------------------

    async def read(self, role: str, deadline: float) -> Term | None:
        """See :class:`ElectionBackend`. A term that shows no sign of life for its whole lease leads no more."""
        until = Deadline("kubernetes", deadline)
        for _ in range(_TRIES):
            lease = await self._look(role, until)
            if lease is None or not lease.holder or self._is_free(role):
                return None
            if not self._name_foreign_terms or lease.record is not None:
                return self._term(role, lease)
            # Conditional on the version read: the number is bound to this term and no other, once for all readers.
            named = await self.api.update(role, lease.named(_version(lease) + lease.base), until.left)
            if named is not None:
                return self._term(role, named)
        raise ElectionUnavailable(f"kubernetes: the Lease of {role!r} keeps changing while it is read", "refused")

    async def changes(self, role: str) -> AsyncIterator[None]:
        """See :class:`ElectionBackend`. Mere renewals give no hint."""
        last: Any = ()
        async for lease in self.api.watch(role):
            state = (lease.mark, lease.record, lease.sealed) if lease is not None else None
            if state != last:
                last = state
                yield

    async def probe(self, deadline: float) -> None:
        """Raises :class:`ElectionUnavailable` saying why where these Leases cannot be used."""
        await self._revision(Deadline("kubernetes", deadline))

    # -- moving the numbers up ----------------------------------------------------------------------

    async def issued_up_to(self, role: str, deadline: float) -> int:
        revision, lease = await self._numbers(role, Deadline("kubernetes", deadline))
        return revision + (lease.base if lease is not None else 0)

    async def rebase(self, role: str, above: int, by: str, deadline: float) -> Rebased:
        """See :class:`ElectionBackend`. Who and when stay in the Lease, whose deletion takes the base with it."""
        if above > HIGHEST_BASE:
            raise ValueError(f"the numbers move up to at most {HIGHEST_BASE}; not to {above}")
        until = Deadline("kubernetes", deadline)
        for _ in range(_TRIES):
            revision, lease = await self._numbers(role, until)
            before = revision + (lease.base if lease is not None else 0)
            if before >= above:
                return Rebased(before, before)
            old = lease or new_lease(role, self._namespace)
            write = self.api.update if lease is not None else self.api.create
            moved = await write(role, old.rebased(above - revision, by, written(self._now())), until.left)
            if moved is not None:
                return Rebased(before, _version(moved) + moved.base)
        raise ElectionUnavailable(f"kubernetes: the Lease of {role!r} keeps changing under the rebase", "refused")

    async def _numbers(self, role: str, until: Deadline) -> tuple[int, Lease | None]:
        """The Lease, and a later revision: a list's is etcd's own, whatever it is a list of."""
        lease = await self.api.get(role, until.left)
        return await self._revision(until), lease

    async def _revision(self, until: Deadline) -> int:
        try:
            return parse_token(await self.api.probe(until.left))
        except MalformedToken as error:
            raise _no_number(error) from None

    async def close(self) -> None:
        self._campaigns.clear()
        await self.api.close()

    # -- what was seen ------------------------------------------------------------------------------

    async def _look(self, role: str, until: Deadline) -> Lease | None:
        lease = await self.api.get(role, until.left)
        if lease is not None:
            self._note(role, lease)
        return lease

    def _note(self, role: str, lease: Lease) -> None:
        made_anew = self._objects.get(role, lease.uid) != lease.uid
        self._objects[role] = lease.uid
        # Nobody gave a deleted Lease back: its holder's time goes on under whatever stands in its place.
        before = self._seen.left(role) if made_anew else 0.0
        self._seen.note(role, lease.sign, max(lease.duration if lease.holder else 0.0, before))

    def _is_free(self, role: str) -> bool:
        """May the Lease be taken, as it was seen last? A holder whose Lease was deleted is waited for, if we saw it."""
        return self._seen.left(role) <= 0

    def _term(self, role: str, lease: Lease) -> Term:
        try:
            return term_of(role, lease, max(0.0, self._seen.left(role)))
        except MalformedToken as error:
            raise _no_number(error) from None


def _same_term(lease: Lease, place: _Campaign) -> bool:
    before = place.lease
    return before is not None and (lease.uid, lease.mark) == (before.uid, before.mark)


def _version(lease: Lease) -> int:
    try:
        return lease.resource_version
    except MalformedToken as error:
        raise _no_number(error) from None


def _no_number(error: MalformedToken) -> ElectionUnavailable:
    return ElectionUnavailable(
        f"kubernetes: this server's resourceVersion cannot be a token: {error}; use another election", "refused"
    )
