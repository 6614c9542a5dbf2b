"""A view of the leadership that says what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable

from fencegate.errors import Unavailable
from fencegate.lease import Observed, Term


class ScriptedView:
    """A :class:`fencegate.lease.LeadershipView` in memory. Unknown until told otherwise.

    ``unavailable = True`` makes :meth:`issued` fail; ``asked`` counts its calls. ``issued_terms`` overrides, per
    role, what the linearizable read finds, where it is to differ from the observation.
    """

    def __init__(self) -> None:
        self._observed: dict[str, Observed] = {}
        self.issued_terms: dict[str, Term | None] = {}
        self.unavailable = False
        self.asked = 0
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    def lead(
        self,
        role: str,
        token: int,
        region: str,
        url: str,
        *,
        node: str = "gw-1",
        active: bool = True,
        expires_in: float | None = 11.8,
        draining_to: str | None = None,
        observed_at: float = 1_796_000_000.0,
    ) -> Term:
        """``region`` leads ``role`` under ``token``, as observed just now."""
        term = Term(role, token, node, region, url, active, 15.0, expires_in, draining_to)
        self._observed[role] = Observed(True, term if active else None, observed_at, 0.0)
        self.issued_terms[role] = term
        self._tell(role)
        return term

    def nobody(self, role: str) -> None:
        """The election store says that nobody leads ``role``."""
        self._observed[role] = Observed(True, None, 1_796_000_000.0, 0.0)
        self.issued_terms[role] = None
        self._tell(role)

    def forget(self, role: str) -> None:
        """The election store has not answered for a lease's length."""
        self._observed.pop(role, None)

    def observed(self, role: str) -> Observed:
        return self._observed.get(role, Observed(False, None, 0.0, float("inf")))

    async def issued(self, role: str, time_limit: float) -> Term | None:
        self.asked += 1
        if self.unavailable or role not in self.issued_terms:
            raise Unavailable("the scripted election store does not answer")
        return self.issued_terms[role]

    async def still_leads(self, role: str, token: int, time_limit: float) -> bool:
        """:data:`fencegate.fence.StillLeads`, by what :meth:`issued` says."""
        term = await self.issued(role, time_limit)
        return term is not None and term.active and term.token == token

    def _tell(self, role: str) -> None:
        for tell in self._listeners:
            tell(role)
