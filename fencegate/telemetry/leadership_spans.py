"""What becomes of the leadership, as spans: moments, and the handoffs and drains that take time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencegate import observations as seen
from fencegate.telemetry.conventions import OUTCOME, REASON, ROLE, TO, TOKEN
from fencegate.telemetry.tracing import Attributes, Span, Tracing

_ORDERLY: Final = frozenset({"resigned", "shutdown", "handoff"})
_DONE: Final = frozenset({"released", "resumed", "term_over"})


class LeadershipSpans:
    """An ``Observer``. What happens to a role during its handoff, or its drain, is a part of that."""

    hears: Final = frozenset(
        {
            seen.LeadershipGained,
            seen.LeadershipLost,
            seen.ClaimWasRefused,
            seen.TermSealed,
            seen.HandoffBegan,
            seen.HandoffEnded,
            seen.DrainBegan,
            seen.DrainEnded,
        }
    )

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._under_way: dict[tuple[str, str], Span] = {}

    def __call__(self, fact: seen.Observation) -> None:
        match fact:
            case seen.LeadershipGained(role, token):
                self._moment("claim", role, {TOKEN: token})
            case seen.ClaimWasRefused(role, token, reason):
                self._moment("claim", role, {TOKEN: token, REASON: reason}, failed=reason)
            case seen.TermSealed(role, token, known):
                self._moment("seal", role, {TOKEN: token}, failed="" if known else "not_known")
            case seen.LeadershipLost(role, token, reason):
                failed = "" if reason in _ORDERLY else reason
                self._moment("step down", role, {TOKEN: token, REASON: reason}, failed=failed)
            case seen.HandoffBegan(role, token, to):
                self._begins("handoff", role, {TOKEN: token, TO: to})
            case seen.DrainBegan(role, token, _):
                self._begins("drain", role, {TOKEN: token})
            case seen.HandoffEnded(role, _, _, outcome):
                self._ends("handoff", role, outcome)
            case seen.DrainEnded(role, _, outcome):
                self._ends("drain", role, outcome)

    def close(self) -> None:
        """The process ends, and with it what was under way."""
        for name, role in list(self._under_way):
            self._ends(name, role, "abandoned")

    def _begins(self, name: str, role: str, attributes: Mapping[str, str | int]) -> None:
        if (name, role) not in self._under_way:  # A drain that is asked for again goes on.
            self._under_way[name, role] = self._span(name, role, attributes)

    def _ends(self, name: str, role: str, outcome: str) -> None:
        span = self._under_way.pop((name, role), None)
        if span is not None:
            span.put({OUTCOME: outcome})
            if outcome not in _DONE:
                span.fail(outcome)
            span.end()

    def _moment(self, name: str, role: str, attributes: Attributes, *, failed: str = "") -> None:
        around = self._under_way.get(("handoff", role)) or self._under_way.get(("drain", role))
        if around is None:
            span = self._span(name, role, attributes)
        else:
            with around.current():
                span = self._tracing.begin(f"fencegate {name}", "internal", {ROLE: role, **attributes})
        if failed:
            span.fail(failed)
        span.end()

    def _span(self, name: str, role: str, attributes: Attributes) -> Span:
        return self._tracing.begin(f"fencegate {name}", "internal", {ROLE: role, **attributes}, caller=())
