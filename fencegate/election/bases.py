"""A role's base: what is added to the number that an election store gave, to make a token (rule R10).

A restore takes the numbers of etcd or ZooKeeper back, below tokens that a store has accepted. Their own numbers cannot
be raised from outside, so ``fencegate rebase`` writes a base beside the election, and a token is *base + number of the
candidate's key* (etcd's create revision, ZooKeeper's czxid).

Which base? A step of the base counts for keys made *after* the revision that wrote it. That revision is the record's
own for the latest step, and is written down in the record for the earlier ones. So a term keeps its number while the
base moves, and whoever reads the record no earlier than the key was made computes the same token as everybody else.
Steps are only ever added, and only upwards: a later key has a greater revision and no lower base.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import orjson

from fencegate.lease import HIGHEST_BASE


@dataclass(frozen=True, slots=True)
class Step:
    """Keys created after revision ``after`` count from ``base``. ``by`` and ``at`` (ISO 8601) are the audit."""

    after: int
    base: int
    by: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Bases:
    """Every step of one role's base, the oldest first; ``mod_revision`` is the record's, 0 without one."""

    steps: tuple[Step, ...] = ()
    mod_revision: int = 0

    @classmethod
    def of(cls, name: str, value: bytes, mod_revision: int) -> Self:
        """The record ``name`` as it was read. Raises ``ValueError`` for what is none: a guessed base would be a
        guessed token."""
        try:
            raw = orjson.loads(value)
            steps = [Step(int(s["after"]), int(s["base"]), str(s["by"]), str(s["at"])) for s in raw["steps"]]
            steps[-1] = replace(steps[-1], after=mod_revision)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{name} holds no base of fencegate's: {error!r}") from None
        rising = all(one.base < two.base for one, two in pairwise(steps))
        if not rising or steps[0].base <= 0 or steps[-1].base > HIGHEST_BASE:
            raise ValueError(f"{name} holds steps that do not rise")
        return cls(tuple(steps), mod_revision)

    @property
    def latest(self) -> int:
        """What is added to the revision of a key that is made now."""
        return self.steps[-1].base if self.steps else 0

    def token(self, created: int) -> int:
        """The token of a key with this create revision."""
        return created + next((step.base for step in reversed(self.steps) if step.after < created), 0)

    def outdates(self, created: int) -> bool:
        """Whether the base has moved since a key with this create revision was made."""
        return bool(self.steps) and created <= self.steps[-1].after

    def moved(self, base: int, by: str, at: str) -> bytes:
        """The record with one more step. Raises ``ValueError`` where that step would not be upwards."""
        if not self.latest < base <= HIGHEST_BASE:
            raise ValueError(f"the base moves up from {self.latest}, to at most {HIGHEST_BASE}; not to {base}")
        # The new step's own revision is not known before it is written: 0 stands for "the record's".
        steps = (*self.steps, Step(0, base, by, at))
        return orjson.dumps({"steps": [{"after": s.after, "base": s.base, "by": s.by, "at": s.at} for s in steps]})
