"""Stale writes refused from memory: ``max_token_seen`` never falls, so below it a refusal is always safe.

An admission never comes from here. What is remembered is the store's own word, for a second at most: whether a stale
token is ``stale_token`` or ``not_leader`` depends on the row as it is now. A write with an idempotency key is only
refused once the store does not know the key: a stored result is given to its caller even after a failover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencegate.fence import Verdict
from fencegate.gateway.admission import Places, Presented, refusal_for
from fencegate.gateway.replies import RefusalTemplate
from fencegate.gateway.request import Reply
from fencegate.lease import LeadershipView

FRESH: Final = 1.0
"""Seconds for which the store's last word on an open term is repeated; after that it is asked again."""
FRESH_HINT: Final = 0.25
"""Seconds for which a reply with its hint is repeated."""
MOST_TEMPLATES: Final = 256
OF_AN_OPEN_TERM: Final = frozenset({Verdict.ADMIT, Verdict.STALE, Verdict.ABOVE, Verdict.UNDRAINED})
"""Verdicts after which the store would call an older token stale (the order of :func:`fencegate.fence.decide`)."""


class HighestSeen:
    """What the store said last of each role's fence. Roles are declared ones: no request can make this grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[int, float]] = {}

    def note(self, role: str, verdict: Verdict, max_token_seen: int | None, now: float | None = None) -> None:
        """The store's answer to a write. Whatever is not an open term's fence is forgotten: it closes or moves it."""
        if max_token_seen is None or verdict not in OF_AN_OPEN_TERM:
            self._known.pop(role, None)
            return
        known = self._known.get(role)
        # Answers may come out of their order; the fence only rises.
        highest = known[0] if known is not None and known[0] > max_token_seen else max_token_seen
        self._known[role] = highest, self._clock() if now is None else now

    def above(self, role: str, token: int) -> int | None:
        """The highest token accepted, where ``token`` is below it and the store said lately that its term is open."""
        known = self._known.get(role)
        if known is None or token >= known[0] or self._clock() - known[1] >= FRESH:
            return None
        return known[0]

    def below(self, role: str, token: int) -> bool:
        """Whether ``token`` is above all that the store ever told here: it may open a term."""
        known = self._known.get(role)
        return known is not None and token > known[0]


class StaleReplies:
    """The replies to stale tokens, made once for each (role, token) and repeated for :data:`FRESH_HINT` seconds."""

    def __init__(self, view: LeadershipView, places: Places, clock: Callable[[], float]) -> None:
        self._view = view
        self._places = places
        self._clock = clock
        self._made: dict[tuple[str, int], tuple[RefusalTemplate, int, float]] = {}

    def reply(self, role: str, token: int, max_token_seen: int) -> Reply:
        """``stale_token``, as the store would have had it said."""
        now = self._clock()
        made = self._made.get((role, token))
        if made is not None and made[1] == max_token_seen and now < made[2]:
            return made[0].reply()
        observed = self._view.observed(role)
        refusal = refusal_for(Verdict.STALE, Presented(role, token), max_token_seen, observed, self._places)
        template = RefusalTemplate(refusal, self._places.region)
        if len(self._made) >= MOST_TEMPLATES:
            self._made.clear()
        self._made[role, token] = template, max_token_seen, now + FRESH_HINT
        return template.reply()
