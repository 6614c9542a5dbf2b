"""What stands in a Lease, as plain values: names, the ``spec`` that client-go shares with us, and our annotations.

The ``spec`` follows client-go's ``leaderelection``, so that a Go controller and fencegate can contend for one
Lease. What client-go has no field for stands in annotations, which client-go carries along *unchanged* when it
takes the Lease over. So each of ours names what it belongs to, and counts only while the ``spec`` agrees:

* ``fencegate.dev/term``: who we are, under which token, and the seal of the term before. Belongs to one
  ``holderIdentity``, ``leaseTransitions`` and ``acquireTime``.
* ``fencegate.dev/sealed``: the seal record of a term given back. Belongs to one ``leaseTransitions`` and ``renewTime``.
* ``fencegate.dev/base``: only after a rebase; what is added to a version to make a token. Belongs to the Lease.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from fencegate.lease import HIGHEST_BASE, Candidate, SealRecord, Term
from fencegate.tokens import MAX_TOKEN, MalformedToken, parse_token

Json = dict[str, Any]

API_VERSION: Final = "coordination.k8s.io/v1"
TERM: Final = "fencegate.dev/term"
SEALED: Final = "fencegate.dev/sealed"
ROLE: Final = "fencegate.dev/role"
BASE: Final = "fencegate.dev/base"

_ESCAPED_ENDING: Final = ".fencegate"
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NAME_LIMIT: Final = 253
_SHOWN_LIMIT: Final = 120


def lease_name(role: str) -> str:
    """The Lease of ``role``: the role itself where Kubernetes takes it as a name, else a readable part and a digest."""
    if len(role) <= _NAME_LIMIT and _SUBDOMAIN.fullmatch(role) and not role.endswith(_ESCAPED_ENDING):
        return role
    readable = re.sub(r"[^a-z0-9]+", "-", role.lower()).strip("-")[:100].strip("-") or "role"
    return f"{readable}-{hashlib.sha256(role.encode()).hexdigest()[:32]}{_ESCAPED_ENDING}"


def written(now: datetime.datetime) -> str:
    """An instant as a MicroTime. For display only: nobody's rule reads it."""
    return now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as the API server returned it."""

    raw: Json

    @property
    def spec(self) -> Json:
        found = self.raw.get("spec")
        return found if isinstance(found, dict) else {}

    @property
    def metadata(self) -> Json:
        found = self.raw.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid") or "")

    @property
    def holder(self) -> str:
        return str(self.spec.get("holderIdentity") or "")

    @property
    def transitions(self) -> int:
        found = self.spec.get("leaseTransitions")
        return found if type(found) is int else 0

    @property
    def duration(self) -> float:
        """Seconds of the holder's lease; 0 where it names none, as client-go counts it."""
        found = self.spec.get("leaseDurationSeconds")
        return float(found) if type(found) is int and found > 0 else 0.0

    @property
    def resource_version(self) -> int:
        """The version as a number. Raises :class:`~fencegate.tokens.MalformedToken` where it is no decimal int64."""
        found = self.metadata.get("resourceVersion")
        if not isinstance(found, str):
            raise MalformedToken("the Lease has no resourceVersion")
        return parse_token(found)

    @property
    def base(self) -> int:
        """What a version counts from; a deleted Lease, or whoever takes the annotation away, takes it back to 0."""
        found = (self.annotation(BASE) or {}).get("base")
        return found if type(found) is int and 0 < found <= HIGHEST_BASE else 0

    @property
    def sign(self) -> tuple[str, bytes]:
        """What must stay the same for a holder to be taken for gone: the ``spec``, of this very object.

        Not the resourceVersion: somebody who edits a label is no sign of life of the holder.
        """
        return self.uid, orjson.dumps(self.spec, option=orjson.OPT_SORT_KEYS)

    def annotation(self, name: str) -> Json | None:
        annotations = self.metadata.get("annotations")
        text = annotations.get(name) if isinstance(annotations, dict) else None
        try:
            found = orjson.loads(text) if isinstance(text, str) else None
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict) else None

    # -- whose term it is ---------------------------------------------------------------------------

    @property
    def record(self) -> Json | None:
        """Our record of the term that holds the Lease now, or ``None``: a foreign holder's, or nobody's."""
        found = self.annotation(TERM)
        return found if found is not None and self.holder and found.get("of") == self.mark else None

    @property
    def token(self) -> int | None:
        """The token of the current term, where one has been written down."""
        found = (self.record or {}).get("token")
        return found if type(found) is int and 0 < found <= MAX_TOKEN else None

    @property
    def sealed(self) -> SealRecord | None:
        """The seal of the term that was given back last, if nothing has happened to the Lease since."""
        found = self.annotation(SEALED)
        if found is None or self.holder or found.get("of") != self._seal_mark or type(found.get("token")) is not int:
            return None
        return SealRecord(found["token"], str(found.get("region") or ""), found.get("successor") or None)

    @property
    def predecessor(self) -> SealRecord | None:
        """The seal of the term before the current one, as its winner found it."""
        found = (self.record or {}).get("predecessor")
        if not isinstance(found, dict) or type(found.get("token")) is not int:
            return None
        return SealRecord(found["token"], str(found.get("region") or ""), found.get("successor") or None)

    @property
    def mark(self) -> list[Any]:
        """What tells one term from every other: renewals keep it, whoever does them."""
        return [self.holder, self.transitions, self.spec.get("acquireTime")]

    @property
    def _seal_mark(self) -> list[Any]:
        return [self.transitions, self.spec.get("renewTime")]

    # -- the next version ---------------------------------------------------------------------------

    def taken(self, role: str, identity: str, candidate: Candidate, seconds: int, now: str) -> Json:
        """As ``identity`` takes it over. The token is not in it: the server assigns it in answer to this very write."""
        before = self.sealed
        new = self._copy()
        new["spec"].update(
            holderIdentity=identity,
            leaseDurationSeconds=seconds,
            acquireTime=now,
            renewTime=now,
            leaseTransitions=self.transitions + 1 if self.uid else 0,
        )
        annotations = new["metadata"]["annotations"]
        annotations[ROLE] = role
        annotations.pop(SEALED, None)
        record = _record(candidate, token=None, active=False)
        record["predecessor"] = (
            {"token": before.token, "region": before.region, "successor": before.successor} if before else None
        )
        _write_term(new, record)
        return new

    def renewed(self, token: int, candidate: Candidate, seconds: int, now: str, *, active: bool) -> Json:
        """With a sign of life and the token of the term."""
        new = self._copy()
        new["spec"].update(leaseDurationSeconds=seconds, renewTime=self._another(now))
        record = _record(candidate, token=token, active=active)
        record["predecessor"] = (self.record or {}).get("predecessor")
        _write_term(new, record)
        return new

    def given_back(self, sealed: SealRecord, now: str) -> Json:
        """As client-go gives it back: no holder and a lease of one second; and our seal record with it."""
        new = self._copy()
        now = self._another(now)
        new["spec"].update(holderIdentity="", leaseDurationSeconds=1, acquireTime=now, renewTime=now)
        annotations = new["metadata"]["annotations"]
        annotations.pop(TERM, None)
        record = {
            "token": sealed.token,
            "region": sealed.region,
            "successor": sealed.successor,
            "of": Lease(new)._seal_mark,
        }
        annotations[SEALED] = orjson.dumps(record).decode()
        return new

    def named(self, token: int) -> Json:
        """With a token for a term that somebody else holds; the ``spec`` stays as it is."""
        new = self._copy()
        _write_term(new, {"token": token, "foreign": True})
        return new

    def rebased(self, base: int, by: str, now: str) -> Json:
        """With another base. What the seal says is from before the restore: it counts no longer."""
        new = self._copy()
        annotations = new["metadata"]["annotations"]
        annotations.pop(SEALED, None)
        annotations[BASE] = orjson.dumps({"base": base, "by": by, "at": now}).decode()
        return new

    def _another(self, now: str) -> str:
        """``now``, or a microsecond more where a standing clock would make two signs of life look like one."""
        if now != self.spec.get("renewTime"):
            return now
        return written(datetime.datetime.fromisoformat(now) + datetime.timedelta(microseconds=1))

    def _copy(self) -> Json:
        new = copy.deepcopy(self.raw)
        if not isinstance(new.get("spec"), dict):
            new["spec"] = {}
        metadata = new.setdefault("metadata", {})
        if not isinstance(metadata.get("annotations"), dict):
            metadata["annotations"] = {}
        metadata.pop("managedFields", None)
        return new


def new_lease(role: str, namespace: str) -> Lease:
    """A Lease that does not exist yet."""
    metadata = {"name": lease_name(role), "namespace": namespace, "annotations": {}}
    return Lease({"apiVersion": API_VERSION, "kind": "Lease", "metadata": metadata, "spec": {}})


def term_of(role: str, lease: Lease, expires_in: float) -> Term:
    """The term that a held Lease stands for.

    Without a token in it the term is not active, and the number shown is only the Lease's present version: a
    holder that is not fencegate, or one of ours that has not renewed yet.
    """
    record = lease.record or {}
    shown = "".join(c for c in lease.holder if c.isprintable())[:_SHOWN_LIMIT] or "unknown"
    token = lease.token
    return Term(
        role,
        lease.resource_version if token is None else token,
        str(record.get("node") or shown),
        str(record.get("region") or ""),
        str(record.get("url") or ""),
        token is not None and (record.get("active") is True or record.get("foreign") is True),
        lease.duration,
        expires_in=expires_in,
        draining_to=str(record["draining_to"]) if record.get("draining_to") else None,
    )


def _record(candidate: Candidate, *, token: int | None, active: bool) -> Json:
    return {
        "token": token,
        "node": candidate.node,
        "region": candidate.region,
        "url": candidate.url,
        "active": active,
        "draining_to": candidate.draining_to,
    }


def _write_term(new: Json, record: Json) -> None:
    new["metadata"]["annotations"][TERM] = orjson.dumps({**record, "of": Lease(new).mark}).decode()
