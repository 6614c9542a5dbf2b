"""What fencegate writes into Consul, as plain values: the key of a role, and the record in it.

One key per role, ``{prefix}/{role}``. It is never deleted: who holds it is its ``Session``, and what its value says
counts only while it names that session, or, after a release, while the key's ``LockIndex`` is still the one that the
seal was written under (each acquisition counts it up).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import orjson

from fencegate.lease import HIGHEST_BASE, Candidate, SealRecord, Term
from fencegate.tokens import MAX_TOKEN

Json = dict[str, Any]

_SHOWN_LIMIT: Final = 120


def key_of(prefix: str, role: str) -> str:
    """The key of ``role``. A slash in a role is escaped, so that no role lies in another one's folder."""
    return f"{prefix.strip('/')}/{quote(role, safe='')}"


def encoded(record: Json) -> str:
    """A value as a transaction takes it."""
    return base64.b64encode(orjson.dumps(record)).decode()


@dataclass(frozen=True, slots=True)
class Entry:
    """The key as Consul returned it. ``record`` is ``None`` where the value is not ours to read."""

    session: str
    modify_index: int
    lock_index: int
    record: Json | None

    @classmethod
    def of(cls, raw: Json) -> Entry:
        """Raises ``ValueError`` where ``raw`` is no entry of Consul's."""
        try:
            indexes = (raw["ModifyIndex"], raw["LockIndex"])
        except KeyError as error:
            raise ValueError(f"no {error} in the entry") from None
        if any(type(index) is not int or index < 0 for index in indexes) or not 0 < indexes[0] < 2**63:
            raise ValueError(f"indexes that are no int64: {indexes}")
        return cls(str(raw.get("Session") or ""), *indexes, _object(raw.get("Value")))

    # -- whose term it is ---------------------------------------------------------------------------

    @property
    def held_record(self) -> Json | None:
        """The record of the term that holds the key now; ``None``: a foreign holder's, or nobody's."""
        return self.record if self.record and self.session and self.record.get("session") == self.session else None

    @property
    def token(self) -> int | None:
        """The token in the value, of the term that holds the key or of the one that held it last."""
        record = self.held_record if self.session else self.record
        found = (record or {}).get("token")
        return found if type(found) is int and 0 < found <= MAX_TOKEN else None

    @property
    def sealed(self) -> SealRecord | None:
        """The seal of the term that was given back last, if nobody has held the key since."""
        found = (self.record or {}).get("sealed")
        if self.session or not isinstance(found, dict) or type(found.get("token")) is not int:
            return None
        if found.get("lock_index") != self.lock_index:
            return None
        return SealRecord(found["token"], str(found.get("region") or ""), found.get("successor") or None)

    @property
    def predecessor(self) -> SealRecord | None:
        """The seal of the term before the current one, as its winner found it."""
        found = (self.held_record or {}).get("predecessor")
        if not isinstance(found, dict) or type(found.get("token")) is not int:
            return None
        return SealRecord(found["token"], str(found.get("region") or ""), found.get("successor") or None)

    @property
    def lease_duration(self) -> float:
        """Seconds for which the latest sign of life holds, by the record; 0 for a value that is not ours."""
        found = (self.record or {}).get("lease_duration")
        return float(found) if isinstance(found, int | float) and type(found) is not bool and found > 0 else 0.0

    @property
    def base(self) -> int:
        """What an index counts from, after a rebase; a foreign value, or a deleted key, takes it back to 0."""
        found = (self.record or {}).get("base")
        return found if type(found) is int and 0 < found <= HIGHEST_BASE else 0

    @property
    def sign(self) -> tuple[str, int, int]:
        """What must stay the same for a holder to be taken for gone.

        Not the ModifyIndex: the end of a session moves it, and is no sign of life.
        """
        return str((self.record or {}).get("session") or ""), self.renewals, self.token or 0

    @property
    def renewals(self) -> int:
        """How often the holder has renewed, by the record; -1 for a value that is not ours."""
        found = (self.record or {}).get("renewals")
        return found if type(found) is int and 0 <= found < MAX_TOKEN else -1


def taken(session: str, candidate: Candidate, lease_duration: float, old: Entry | None) -> Json:
    """The value that wins. The token is not in it: Consul assigns it in answer to this very write."""
    before = old.sealed if old else None
    record = _record(session, candidate, lease_duration, old.base if old else 0)
    record["predecessor"] = (
        {"token": before.token, "region": before.region, "successor": before.successor} if before else None
    )
    return record


def renewed(entry: Entry, token: int, candidate: Candidate, lease_duration: float, *, active: bool) -> Json:
    """The value with one more sign of life and the token of the term."""
    old = entry.record or {}
    record = _record(entry.session, candidate, lease_duration, entry.base)
    record |= {"token": token, "active": active, "renewals": entry.renewals + 1}
    return {**record, "predecessor": old.get("predecessor")}


def given_back(entry: Entry, sealed: SealRecord) -> Json:
    """The value that ends the term, with our seal record in it."""
    seal = {
        "token": sealed.token,
        "region": sealed.region,
        "successor": sealed.successor,
        "lock_index": entry.lock_index,
    }
    return {**(entry.record or {}), "active": False, "renewals": entry.renewals + 1, "sealed": seal}


def rebased(entry: Entry | None, base: int, by: str, at: str, lease_duration: float) -> Json:
    """The value with another base. What the seal says is from before the restore: it counts no longer.

    It is a new sign of life too: whoever comes next has to see it unchanged for a lease.
    """
    record = {name: value for name, value in ((entry.record if entry else None) or {}).items() if name != "sealed"}
    renewals = entry.renewals + 1 if entry else 0
    audit = {"rebased_by": by, "rebased_at": at}
    return {"lease_duration": lease_duration, **record, "renewals": renewals, "base": base, **audit}


def term_of(role: str, entry: Entry, expires_in: float) -> Term:
    """The term that a held key stands for.

    Without a token in the value the term is not active, and the number shown is only the key's present
    ModifyIndex: a holder that is not fencegate, or one of ours that has not renewed yet.
    """
    record = entry.held_record or {}
    token = entry.token
    foreign = "".join(c for c in entry.session if c.isprintable())[:_SHOWN_LIMIT]
    return Term(
        role,
        entry.modify_index if token is None else token,
        str(record.get("node") or f"session {foreign}"),
        str(record.get("region") or ""),
        str(record.get("url") or ""),
        token is not None and record.get("active") is True,
        entry.lease_duration,
        expires_in=expires_in if record else None,
        draining_to=str(record["draining_to"]) if record.get("draining_to") else None,
    )


def _record(session: str, candidate: Candidate, lease_duration: float, base: int) -> Json:
    return {
        "session": session,
        "base": base,
        "token": None,
        "node": candidate.node,
        "region": candidate.region,
        "url": candidate.url,
        "active": False,
        "draining_to": candidate.draining_to,
        "lease_duration": lease_duration,
        "renewals": 0,
    }


def _object(value: object) -> Json | None:
    try:
        found = orjson.loads(base64.b64decode(value)) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
