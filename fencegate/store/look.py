"""Admissions of terms whose mark stands (rule R12): a look at the fence that takes no lock and writes nothing.

``fencegate.look()`` says why that is enough (``migrations/0014_look_without_the_lock.sql``). All that it does not
suffice for goes to the lock: a mark that must be made or written on, a refusal, a key, and any server that may not
write by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Final

from fencegate.store.ledger import ROLES
from fencegate.store.link import Link
from fencegate.store.validity import SEPARATOR
from fencegate.store.witness import Witness, guarded, position

_LOOK: Final = f"""
    SELECT fencegate.look(u.role, u.token, u.mark, u.seconds) AS seconds_left, {position("u.place = 1")}
      FROM unnest({guarded(ROLES, first=5)}, string_to_array($2, ',')::bigint[], string_to_array($3, chr(30)),
                  string_to_array($4, ',')::double precision[]) WITH ORDINALITY u(role, token, mark, seconds, place)
     ORDER BY u.place DESC"""
_IN_VAIN: Final = 3
"""Looks in a row of which none sufficed, after which the lock is gone to at once: one is in vain where a mark has to be
written on, which comes once a second."""
_PAUSE: Final = 5.0
"""Seconds for which it is then."""


class Looks:
    """Of one gateway. ``portable``: the store is in portability mode, and never looked at so."""

    def __init__(self, witness: Witness, *, portable: bool = False) -> None:
        self._witness = witness
        self._portable = portable
        self._in_vain = 0
        self._not_before = 0.0

    def worth_it(self) -> bool:
        """Whether a look may suffice, as far as is known."""
        return not self._portable and (self._in_vain < _IN_VAIN or monotonic() >= self._not_before)

    async def ask(
        self, link: Link, limit: float, terms: Sequence[tuple[str, int]], marks: Sequence[str], seconds: Sequence[float]
    ) -> list[float | None]:
        """How long each term's lease lasts, in seconds from when the server had the question, where that is enough to
        admit to it; ``None``: to be asked with the lock.

        ``marks`` are the names under which they stand, ``seconds`` is for how long the writes may be under way. Raises
        as :meth:`Link.fetch`, and :class:`~fencegate.errors.Unavailable` where the store has gone back in time.
        """
        arguments = (
            SEPARATOR.join([role for role, _ in terms]),
            ",".join([str(token) for _, token in terms]),
            SEPARATOR.join(marks),
            ",".join([repr(more) for more in seconds]),
        )
        rows = await self._witness.fetch(link, limit, _LOOK, arguments, enforced=True)
        found = [row["seconds_left"] for row in reversed(rows)]
        if any(left is not None for left in found):
            self._in_vain = 0
        else:
            self._in_vain += 1
            self._not_before = monotonic() + _PAUSE
        return found
