"""Sessions with a store in portability mode: what an engine that only speaks Postgres' protocol is relied upon for.

For one thing: under snapshot isolation or stricter, of two transactions that write one row the later one fails. Every
statement that admits a write or changes a term therefore writes its roles' rows first (``migrations/portable/``, which
refuses those that have not), and what fails by a conflict is sent again here. That is right only because the server has
answered: ``40001`` says that the transaction is gone, whether it comes from a statement or from the COMMIT behind it.
An answer that was lost, or one that does not say as much, is :class:`~fencegate.errors.OutcomeUnknown`, and nothing is
sent again after it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import cache
from random import uniform
from time import monotonic
from typing import Any, ClassVar, Final

import asyncpg

from fencegate.access.database import Database
from fencegate.errors import OutcomeUnknown
from fencegate.store.ledger import ROLES
from fencegate.store.link import Link, Server, describe

_CONFLICTS: Final = frozenset({"40001", "40P01"})
_CLEAR: Final = frozenset(
    "0A 21 22 23 25 26 28 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 54 55 P0 ZF".split()  # noqa: SIM905 - to be read
)
"""Classes of errors that are about the transaction, or of our own. What is not among them an engine of several nodes
may also meet after its COMMIT was sent: a connection between two of them (08), want of resources (53), an operator or a
time limit (57), the system (58), a fault of its own (XX). Postgres is clear in those as well; here none is believed."""
_COMMITTED_OR_NOT: Final = "40003"
_AGAIN_FOR: Final = 1.0
"""Seconds in which a conflict is sent again here, at most; then it is told, and a lane looks for the culprit in it."""
_PAUSE: Final = 0.02
"""Seconds, at most, before a statement is sent again: by chance, so that two gateways do not go in step."""

_ROLES: Final = {
    "append": (ROLES, "text[]"),
    "call": ("$2", "text[]"),
    "admit": (ROLES, "text[]"),
    "claim": ("$1", "text"),
    "extend": ("$1", "text"),
    "seal": ("$1", "text"),
    "set_draining": ("$1", "text"),
}
"""What the roles are to each function that decides on a term: a parameter, or made of one."""
_DECIDING: Final = re.compile(rf"\bfencegate\.({'|'.join(_ROLES)})\(")


def is_clear(sqlstate: str | None) -> bool:
    """Whether an error with this code says that nothing of the transaction stands."""
    return sqlstate is not None and sqlstate[:2] in _CLEAR and sqlstate != _COMMITTED_OR_NOT


@cache
def writing_first(query: str) -> str:
    """``query``, which writes the rows of its roles before the function that decides begins: as its argument."""
    found = _DECIDING.search(query)
    if found is None:
        return query
    parameter, kind = _ROLES[found[1]]
    before, arguments = query[: found.end()], query[found.end() :]
    written = f"fencegate.written({parameter}::{kind})"
    return before + re.sub(rf"{re.escape(parameter)}(?!\d)", lambda _: written, arguments, count=1)


class PortableLink(Link):
    """A session with such a store. What met a conflict is sent again for a while, within the caller's limit."""

    settings: ClassVar[Mapping[str, str]] = {"default_transaction_isolation": "repeatable read"}
    checked: ClassVar[str] = (
        "SELECT current_setting('synchronous_commit', true) AS commit, current_setting('fsync', true) AS fsync"
    )

    async def fetch(self, limit: float, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """As :meth:`Link.fetch`; and :class:`OutcomeUnknown` for an error that is not clear."""
        ends = monotonic() + limit
        # Half of the time at most: a statement that is cut off by its limit is of unknown outcome, a conflict is not.
        enough = monotonic() + min(limit / 2, _AGAIN_FOR)
        query = writing_first(query)
        while True:
            try:
                return await super().fetch(max(0.0, ends - monotonic()), query, *arguments)
            except asyncpg.PostgresError as error:
                if not is_clear(error.sqlstate):
                    raise OutcomeUnknown(
                        f"the store does not say whether it has committed: {describe(error)}"
                    ) from error
                if error.sqlstate not in _CONFLICTS:
                    raise
                conflict = error
            await asyncio.sleep(uniform(0.0, _PAUSE))
            if monotonic() >= enough:
                raise conflict


def link_to(
    address: str | Database, name: str, *, limit: float, statement_timeout: float, server: Server | None = None
) -> Link:
    """A session as the store at ``address`` needs it; the rest as for :class:`Link`."""
    kind = PortableLink if Database.at(address).portable else Link
    return kind(address, name, limit=limit, statement_timeout=statement_timeout, server=server)
