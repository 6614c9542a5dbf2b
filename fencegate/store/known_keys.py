"""Whether an idempotency key was left here before: many questions, one read.

Asked before a stale write is refused from memory, so a storm of such writes must not become a storm of statements.
Each read begins after the questions that it answers: a write that had been committed before one was asked is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.store.batch import GroupCommit
from fencegate.store.link import Link
from fencegate.telling import Tell

Question = tuple[str, bytes]
"""The role, and the 16 bytes of the key's digest."""

DIGEST_SIZE: Final = 16
# A subquery for each, which is one step down the index; a join could become a scan of all keys.
_KNOWN: Final = """
    SELECT u.n FROM unnest($1::text[]) WITH ORDINALITY u(role, n)
     WHERE (SELECT true FROM fencegate.idempotency_key k
             WHERE k.role_id = (SELECT f.role_id FROM fencegate.fence f WHERE f.role = u.role)
               AND k.key = substr($2::bytea, (u.n::int - 1) * 16 + 1, 16))"""


class KnownKeys:
    """Reads over ``link``; ``limit`` bounds one read in seconds."""

    def __init__(self, link: Link, limit: float) -> None:
        self._link = link
        self._limit = limit
        self._questions: GroupCommit[Question, bool] = GroupCommit(self._ask)

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        """``tell`` hears :class:`Unavailable` where the store does not say; the caller does where it is not asked."""
        if len(key_digest) != DIGEST_SIZE:
            raise ValueError(f"a key's digest has {DIGEST_SIZE} bytes, not {len(key_digest)}")
        self._questions.put((role, key_digest), DIGEST_SIZE, time_limit, partial(_say, tell))

    async def close(self) -> None:
        await self._questions.close()

    async def _ask(self, questions: list[Question]) -> Sequence[bool | FencegateError]:
        roles = [role for role, _ in questions]
        try:
            rows = await self._link.read(self._limit, _KNOWN, roles, b"".join([digest for _, digest in questions]))
        except Unavailable as error:
            return [error] * len(questions)
        answers: list[bool | FencegateError] = [False] * len(questions)
        for row in rows:
            answers[row["n"] - 1] = True
        return answers


def _say(tell: Tell[bool], found: bool | Exception) -> None:
    """Of a read no outcome is unknown."""
    tell(Unavailable(str(found)) if isinstance(found, OutcomeUnknown) else found)
