"""What one node remembers for the console: its own terms, its renewals, its checks, and the latest facts. Bounded.

An ``Observer``. Times are seconds of a steady clock; what leaves here are ages, so that no reader's clock matters.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fencegate import observations as seen

WINDOW: Final = 900.0
"""Seconds of history that are shown."""
STEP: Final = 30.0
"""Seconds that one point of a series stands for."""
_EVENTS: Final = 60
_DURATIONS: Final = 600
_TURNS: Final = 200

_TOLD: Final[dict[type[seen.Observation], Callable[[Any], str]]] = {
    seen.LeadershipGained: lambda f: f"leads {f.role} under token {f.token}",
    seen.LeadershipLost: lambda f: f"leads {f.role} no more: {f.reason}",
    seen.HandoffBegan: lambda f: f"hands {f.role} to {f.to}",
    seen.HandoffEnded: lambda f: f"handoff of {f.role} to {f.to}: {f.outcome}",
    seen.TermSealed: lambda f: (
        f"sealed term {f.token} of {f.role}" if f.known else f"term {f.token} of {f.role} lapses"
    ),
    seen.LeaseRenewalFailed: lambda f: f"a renewal of {f.role} failed ({f.cause}): {f.detail}",
    seen.ClaimWasRefused: lambda f: f"the store refused term {f.token} of {f.role}: {f.reason}",
    seen.TokenRegressed: lambda f: f"token regressed: {f.role}: {f.token} issued, {f.max_token_seen} seen",
    seen.StoreWentDown: lambda f: f"store {f.store} down: {f.detail}".replace("  ", " "),
    seen.StoreWentBack: lambda f: f"store {f.store} went back in time: closed until it is reopened".replace("  ", " "),
    seen.StoreCameUp: lambda f: f"store {f.store} up".replace("  ", " "),
    seen.SourceUnavailable: lambda f: f"the election cannot be asked: {f.detail}",
    seen.StrangerLeads: lambda f: f"{f.region}/{f.node} holds {f.role} and is not among election.holders".lstrip("/"),
    seen.OrphanedMarkExpired: lambda f: f"a write of {f.role} under token {f.token} was left behind in the upstream",
    seen.DrainBegan: lambda f: f"drains {f.role} for {f.limit:g} s at most",
    seen.DrainEnded: lambda f: f"drain of {f.role} ended: {f.outcome.replace('_', ' ')}",
    seen.NotEnforcing: lambda f: f"only observes {f.role}: stale writes go through",
    seen.WorkerEnded: lambda f: f"worker {f.number} ended: {f.reason}",
    seen.PendingVoided: lambda f: f"{f.count} unconfirmed batches were rolled back",
    seen.Reloaded: lambda f: "configuration reloaded",
    seen.ReloadRefused: lambda f: "a changed configuration was refused",
    seen.CertificatesLoaded: lambda f: f"certificates of {f.setting} loaded",
    seen.CertificatesRefused: lambda f: f"changed certificates of {f.setting} were refused",
    seen.CertificateExpiring: lambda f: f"the certificate of {f.setting} {_expiry(f.left)}",
}
ALARMING: Final = (
    seen.LeaseRenewalFailed,
    seen.ClaimWasRefused,
    seen.TokenRegressed,
    seen.StoreWentDown,
    seen.StoreWentBack,
    seen.SourceUnavailable,
    seen.StrangerLeads,
    seen.OrphanedMarkExpired,
    seen.WorkerEnded,
    seen.ReloadRefused,
    seen.NotEnforcing,
    seen.CertificatesRefused,
    seen.CertificateExpiring,
)


@dataclass(slots=True)
class _Durations:
    """When something was done and how long it took: the latest few hundred, and the longest of each step in time."""

    taken: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_DURATIONS))
    longest: deque[list[float]] = field(default_factory=lambda: deque(maxlen=int(WINDOW / STEP) + 1))

    def add(self, now: float, took: float) -> None:
        self.taken.append((now, took))
        step = now // STEP
        last = self.longest[-1] if self.longest else None
        if last is None or last[0] != step:
            self.longest.append([step, took])
        elif took > last[1]:
            last[1] = took

    def document(self, now: float) -> dict[str, Any]:
        """``series``: [age in seconds, longest], the oldest first. The quantiles are of the latest few hundred."""
        recent = sorted(took for at, took in self.taken if now - at <= WINDOW)
        ages = [(now - (step + 0.5) * STEP, took) for step, took in self.longest]
        return {
            "last_age": now - self.taken[-1][0] if self.taken else None,
            "last": self.taken[-1][1] if self.taken else None,
            "p50": _quantile(recent, 0.5),
            "p99": _quantile(recent, 0.99),
            "series": [[round(max(0.0, age), 1), round(took, 6)] for age, took in ages if age <= WINDOW],
        }


_NONE: Final = _Durations()


class Memory:
    """One node's memory of ``roles``. Facts about roles that are not configured are not kept."""

    hears: Final = frozenset({*_TOLD, seen.LeaseRenewed, seen.FenceChecked})
    """All other facts leave it as it is."""

    def __init__(self, roles: Sequence[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roles = frozenset(roles)
        # Made with a role's first fact: most of ten thousand roles have none here.
        self._turns: dict[str, deque[tuple[float, int]]] = {}
        self._renewals: dict[str, _Durations] = {}
        self._checks: dict[str, _Durations] = {}
        self._events: deque[tuple[float, bool, str]] = deque(maxlen=_EVENTS)

    def __call__(self, fact: seen.Observation) -> None:
        now = self._clock()
        match fact:
            case seen.FenceChecked(roles=roles, duration=took):  # First: it comes with each batch.
                for role in roles:
                    if (known := self._checks.get(role)) is None and role in self._roles:
                        known = self._checks[role] = _Durations()
                    if known is not None:
                        known.add(now, took)
            case seen.LeadershipGained(role=role) | seen.LeadershipLost(role=role) if role in self._roles:
                turns = self._turns.setdefault(role, deque(maxlen=_TURNS))
                turns.append((now, int(isinstance(fact, seen.LeadershipGained))))
            case seen.LeaseRenewed(role=role, duration=took) if role in self._roles:
                self._renewals.setdefault(role, _Durations()).add(now, took)
        tell = _TOLD.get(type(fact))
        if tell is not None:
            self._events.append((now, isinstance(fact, ALARMING), tell(fact)))

    def of_role(self, role: str) -> dict[str, Any]:
        """``leading``: [age in seconds, 1 or 0] of each change, the oldest first; the others are seconds."""
        now, known = self._clock(), role in self._roles
        return {
            "leading": [[now - at, leads] for at, leads in self._turns.get(role, ())],
            "renewals": self._renewals.get(role, _NONE).document(now) if known else None,
            "checks": self._checks.get(role, _NONE).document(now) if known else None,
        }

    def events(self) -> list[dict[str, Any]]:
        """The latest facts, the newest first."""
        now = self._clock()
        return [{"age": now - at, "alarming": alarming, "text": text} for at, alarming, text in reversed(self._events)]


def _expiry(left: float) -> str:
    return "has expired" if left <= 0 else f"expires in {left / 86400:.0f} days"


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
