"""Judges a run against an upstream: what every client was told, held against what the upstream did. Pure.

The guarantee is the weaker one, *drain*: a write that was under way when its gateway stopped, or its region's term
ended, may still be applied until its deadline, behind a newer term's. Such writes are counted and measured; behind the
deadline, or twice, or after a refusal, nothing may happen, nor under another token than was sent, nor anything that was
only sent when a newer term's write had been acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fencegate.gameday.history import Attempt
from fencegate.gameday.verify import Kind, Verdict, grouped
from fencegate.gameday.verify_order import interleaved


@dataclass(frozen=True, slots=True)
class Effect:
    """The upstream applied a write, ``at`` on the clock of the answers."""

    key: str
    token: int
    at: float


def late(effects: Sequence[Effect]) -> list[float]:
    """For each write of an old term that was applied behind a newer term's: how long after the newer one's first."""
    found: list[float] = []
    newest, since = 0, 0.0
    for effect in effects:
        if effect.token > newest:
            newest, since = effect.token, effect.at
        elif effect.token < newest:
            found.append(effect.at - since)
    return found


def verify_effects(attempts: Sequence[Attempt], effects: Sequence[Effect], *, limit: float) -> Verdict:
    """Judge one run. ``limit`` is the route's ``timeout`` in seconds: how long a write may be under way."""
    found: list[tuple[Kind, str]] = []
    times = Counter(effect.key for effect in effects)
    found += ((Kind.TWICE, f"{key} was applied {n} times") for key, n in times.items() if n > 1)
    found += _lost(attempts, times)
    found += _unexpected(attempts, times)
    found += _stamped(attempts, effects)
    held = {effect.key: effect.token for effect in effects}
    found += ((Kind.INTERLEAVED, text) for text in interleaved(attempts, held))
    for seconds in late(effects):
        if seconds > limit:
            found.append(
                (
                    Kind.TOKEN_FELL,
                    f"an old term's write was applied {seconds:.2f} s after a newer term's: over {limit:g} s",
                )
            )
    return Verdict({"upstream": len(effects)}, {}, (), grouped(found))


def _lost(attempts: Sequence[Attempt], times: Counter[str]) -> Iterator[tuple[Kind, str]]:
    for a in attempts:
        if a.answered == "accepted" and a.key not in times:
            yield Kind.LOST, f"{a.client} was told by {a.region} that {a.key} was done; the upstream never did it"


def _unexpected(attempts: Sequence[Attempt], times: Counter[str]) -> Iterator[tuple[Kind, str]]:
    told = {a.key: a for a in attempts}
    for key in times:
        a = told.get(key)
        if a is None:
            yield Kind.UNASKED, f"the upstream did {key}, which no client sent"
        elif a.answered == "refused":
            yield Kind.REFUSED_APPLIED, f"{a.client} was refused by {a.region} ({a.reason}), yet {key} was done"


def _stamped(attempts: Sequence[Attempt], effects: Sequence[Effect]) -> Iterator[tuple[Kind, str]]:
    sent = {a.key: a.token for a in attempts if a.answered != "refused"}
    for effect in effects:
        token = sent.get(effect.key, effect.token)
        if token != effect.token:
            yield (
                Kind.STAMPED,
                f"{effect.key} was sent under token {token}, and the upstream did it under {effect.token}",
            )
