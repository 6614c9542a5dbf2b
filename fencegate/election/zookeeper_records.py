"""What fencegate writes into ZooKeeper, as plain values: the names of nodes, the records in them, and who may take.

* ``{prefix}/line/{role}/{candidacy}-{sequence}``: one ephemeral sequential node per candidate. Its czxid, plus
  the role's base, is the token it would lead under. The sequence number is never looked at: an int32 turns negative.
* ``{prefix}/term/{role}``: one lasting node per role, the record of the current term. Every renewal writes it.
* ``{prefix}/base/{role}``: only after a rebase; what is added to a czxid (``bases.py``).
* ``{prefix}/{role}``: not ours. Other programs may hold an election there by the usual recipe, which is only followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson

from fencegate.lease import Candidate, SealRecord, Term
from fencegate.tokens import MAX_TOKEN


@dataclass(frozen=True, slots=True)
class Names:
    """The nodes of one role under ``prefix``. Another role never has the same ones, whatever its name."""

    prefix: str
    role: str

    @property
    def _role(self) -> str:
        # A dot too: ZooKeeper takes neither "." nor ".." for a name.
        return quote(self.role, safe="").replace(".", "%2E")

    @property
    def line(self) -> str:
        return f"{self.prefix}/line/{self._role}"

    @property
    def recipe(self) -> str:
        """Where other programs hold an election for this role by the usual recipe."""
        return f"{self.prefix}/{self._role}"

    @property
    def terms(self) -> str:
        return f"{self.prefix}/term"

    @property
    def bases(self) -> str:
        return f"{self.prefix}/base"

    @property
    def base(self) -> str:
        return f"{self.bases}/{self._role}"

    @property
    def term(self) -> str:
        return f"{self.terms}/{self._role}"


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a term. ``place`` is the holder's node in the line.

    ``sealed`` is set when this term was given back; ``before`` is the seal of the term directly before, if it was.
    """

    token: int
    place: str
    node: str
    region: str
    url: str
    active: bool
    lease_duration: float
    sealed: SealRecord | None = None
    before: SealRecord | None = None
    draining_to: str | None = None

    @classmethod
    def of(cls, token: int, place: str, candidate: Candidate, lease: float, *, active: bool = False) -> Record:
        who = (candidate.node, candidate.region, candidate.url)
        return cls(token, place, *who, active, lease, draining_to=candidate.draining_to)

    def encode(self) -> bytes:
        return orjson.dumps(self)

    def term(self, role: str, idle: float) -> Term:
        left = max(0.0, self.lease_duration - idle)
        draining = self.draining_to
        return Term(
            role, self.token, self.node, self.region, self.url, self.active, self.lease_duration, left, draining
        )


def decode(value: bytes) -> Record:
    """Raises ``ValueError`` where ``value`` is no record: such a node must be looked at by a person."""
    try:
        raw: dict[str, Any] = orjson.loads(value)
        lease = float(raw["lease_duration"])
        if not lease > 0:
            raise ValueError("lease_duration must be more than 0")
        return Record(
            _token(raw["token"]),
            str(raw["place"]),
            str(raw["node"]),
            str(raw["region"]),
            str(raw["url"]),
            raw["active"] is True,
            lease,
            _seal(raw.get("sealed")),
            _seal(raw.get("before")),
            str(raw["draining_to"]) if raw.get("draining_to") else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a record of a term: {error!r}") from None


def _seal(raw: Any) -> SealRecord | None:
    if raw is None:
        return None
    return SealRecord(_token(raw["token"]), str(raw["region"]), str(raw["successor"]) if raw.get("successor") else None)


def _token(raw: Any) -> int:
    if type(raw) is not int or not 0 < raw <= MAX_TOKEN:
        raise ValueError(f"a token must be a whole number from 1 to {MAX_TOKEN}")
    return raw


def candidate_value(candidate: Candidate) -> bytes:
    """What stands in a candidate's node, for those who ask who waits in line."""
    return orjson.dumps({"node": candidate.node, "region": candidate.region, "url": candidate.url})


def candidate_of(value: bytes) -> Candidate | None:
    """Who stands by a node; ``None`` where it does not say: nothing can be handed to it."""
    try:
        raw = orjson.loads(value)
        return Candidate(str(raw["node"]), str(raw["region"]), str(raw["url"]))
    except (KeyError, TypeError, ValueError):
        return None


def ahead_of(own: str, line: Mapping[str, int]) -> list[str]:
    """The nodes that joined ``line`` (name to czxid) before ``own``, the eldest first."""
    return sorted((name for name in line if line[name] < line[own]), key=line.__getitem__)


def wait(record: Record | None, ahead: int, own_lease: float, region: str = "", hold_back: float = 0.0) -> float:
    """Seconds for which the role's record must be seen unchanged before a candidate may take it.

    A term that was given back may be followed at once; any other only after the *holder's* lease. Each of the
    ``ahead`` living candidates before us gets one more lease to use its turn: one that hangs while its
    session goes on must not block the line for ever. A term that was handed to a region is that one's at once,
    whoever stands ahead; any other ``region`` leaves it ``hold_back`` seconds.
    """
    if record is None:
        return ahead * own_lease
    needed = record.lease_duration * (ahead + (record.sealed is None))
    successor = record.sealed.successor if record.sealed else None
    if successor is None:
        return needed
    return 0.0 if successor == region else max(needed, hold_back)
