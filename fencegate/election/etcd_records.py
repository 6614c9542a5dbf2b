"""What fencegate writes into etcd, as plain values: names of keys, and the records in them.

The layout of the election is that of etcd's own ``concurrency.Election``, so that
``etcdctl elect {prefix}/{role}`` and fencegate stand in one line:

* ``{prefix}/{role}/{lease id, hex}``: one key per candidate; the one with the lowest create
  revision holds the role, and that revision, plus the role's base, is its token.
* ``{prefix}-term/{role}``: the latest term that may have claimed a store, written before each claim.
* ``{prefix}-sealed/{role}``: the seal record of the latest term that was given back.
* ``{prefix}-base/{role}``: only after a rebase; what is added to a create revision (``bases.py``).

The last three lie outside the election's prefix, where they would be taken for candidates. A slash in
a role is escaped: the range of ``ledger`` must not contain the candidates of ``ledger/eu-7``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import orjson

from fencegate.election.etcd_gateway import decode
from fencegate.lease import Candidate, SealRecord, Term

_FOREIGN_NAME_LIMIT = 120


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as etcd returns it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int

    @classmethod
    def of(cls, raw: dict[str, Any]) -> KeyValue:
        return cls(
            decode(raw["key"]),
            decode(raw.get("value", "")),
            int(raw.get("create_revision", 0)),
            int(raw.get("mod_revision", 0)),
            int(raw.get("lease", 0)),
        )


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of one role under ``prefix``."""

    prefix: str
    role: str

    @property
    def _role(self) -> str:
        return quote(self.role, safe="")

    @property
    def line(self) -> bytes:
        """First key of the range of candidates."""
        return f"{self.prefix}/{self._role}/".encode()

    @property
    def line_end(self) -> bytes:
        return self.line[:-1] + b"0"

    @property
    def term(self) -> bytes:
        return f"{self.prefix}-term/{self._role}".encode()

    @property
    def sealed(self) -> bytes:
        return f"{self.prefix}-sealed/{self._role}".encode()

    @property
    def base(self) -> bytes:
        return f"{self.prefix}-base/{self._role}".encode()

    def candidate(self, lease: int) -> bytes:
        return self.line + f"{lease:x}".encode()

    def has(self, key: bytes) -> bool:
        """Whether a key of that range is one of a candidate: where a prefix lies below this one, others' are in it."""
        return b"/" not in key.removeprefix(self.line)


def role_of(prefix: str, key: bytes) -> str | None:
    """The role that a candidate's key under ``prefix`` belongs to."""
    role, slash, _ = key.removeprefix(f"{prefix}/".encode()).rpartition(b"/")
    return unquote(role.decode("utf-8", "replace")) if slash else None


def candidate_value(candidate: Candidate, *, active: bool, lease_duration: float) -> bytes:
    return orjson.dumps(
        {
            "node": candidate.node,
            "region": candidate.region,
            "url": candidate.url,
            "active": active,
            "lease_duration": lease_duration,
            "draining_to": candidate.draining_to,
        }
    )


def candidate_of(found: KeyValue) -> Candidate | None:
    """Who stands by this key, ``None`` for one that is not fencegate: nothing can be handed to it."""
    record = _object(found.value)
    if record is None or not isinstance(record.get("node"), str):
        return None
    return Candidate(record["node"], str(record.get("region") or ""), str(record.get("url") or ""))


def term_of(role: str, found: KeyValue, token: int, default_lease: float) -> Term:
    """The term that a holder's key stands for, under ``token``.

    A holder that is not fencegate (``etcdctl elect``, a Go program) is shown by its text, without an
    origin; it knows no "claimed", so its term counts as active. It may proclaim another text in its term,
    but its key stays.
    """
    record = _object(found.value)
    if record is None or not isinstance(record.get("node"), str):
        name = found.value.decode("utf-8", "replace")
        shown = "".join(c for c in name if c.isprintable())[:_FOREIGN_NAME_LIMIT] or "unknown"
        identity = found.key.rpartition(b"/")[2].decode("utf-8", "replace")[:_FOREIGN_NAME_LIMIT]
        return Term(role, token, shown, "", "", True, default_lease, identity=f"etcd/{identity}")
    lease = record.get("lease_duration")
    return Term(
        role,
        token,
        record["node"],
        str(record.get("region") or ""),
        str(record.get("url") or ""),
        record.get("active") is True,
        float(lease) if isinstance(lease, int | float) and lease > 0 else default_lease,
        draining_to=str(record["draining_to"]) if record.get("draining_to") else None,
    )


def seal_value(sealed: SealRecord) -> bytes:
    successor = {"successor": sealed.successor} if sealed.successor else {}
    return orjson.dumps({"token": sealed.token, "region": sealed.region, **successor})


def seal_of(found: KeyValue | None) -> SealRecord | None:
    record = _object(found.value) if found else None
    if record is None or type(record.get("token")) is not int:
        return None
    successor = record.get("successor")
    return SealRecord(record["token"], str(record.get("region") or ""), str(successor) if successor else None)


def last_claimed(found: KeyValue | None) -> int:
    """The token in a ``term`` record; 0 without one."""
    try:
        return int(found.value) if found else 0
    except ValueError:
        return 0


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None
