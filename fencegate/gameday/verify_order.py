"""Whether a term wrote after a newer one or after its own seal, by the clock of the clients. Pure.

Ledgers that nothing copies between show by themselves only that no token fell in either. That a term had ended when
the next one wrote is seen from outside: a write that was *sent* after a newer token was *acknowledged* is too late.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fencegate.gameday.history import Attempt


@dataclass(frozen=True, slots=True)
class Seal:
    """The store of ``region`` said, at ``at`` on the clock of the answers, that ``token`` and older ones are sealed."""

    region: str
    token: int
    at: float


def after_seal(attempts: Sequence[Attempt], seals: Sequence[Seal]) -> Iterator[str]:
    """A write taken in a term that its store had sealed before it was sent (rule R7): no later term need show it."""
    for a in attempts:
        if a.answered != "accepted" or a.replayed:
            continue
        sealed = [seal for seal in seals if seal.region == a.region and seal.at < a.began and seal.token >= a.token]
        if sealed:
            yield (
                f"{a.region} accepted {a.key} under token {a.token}, sent {a.began - sealed[0].at:.2f} s "
                f"after its store had sealed token {sealed[0].token}"
            )


def interleaved(attempts: Sequence[Attempt], held: Mapping[str, int]) -> Iterator[str]:
    """A write taken under an older token although it was only sent after a newer token's had been acknowledged.

    ``held`` is by key the token of what is there: a write whose answer was lost was taken too, if it is. It was sent no
    earlier than the first try of which that can be said.
    """
    sure = [a for a in attempts if a.answered == "accepted" and not a.replayed]
    taken = sorted([*sure, *_taken_unheard(attempts, sure, held)], key=lambda a: (a.began, a.ended))
    under_way: list[tuple[float, int, int]] = []  # (ended, index, token), earliest end first
    newest: Attempt | None = None
    for index, a in enumerate(taken):
        while under_way and under_way[0][0] < a.began:
            ended = taken[heapq.heappop(under_way)[1]]
            if newest is None or ended.token > newest.token:
                newest = ended
        if newest is not None and a.token < newest.token:
            yield (
                f"{a.region} accepted {a.key} under token {a.token}, sent {a.began - newest.ended:.2f} s after "
                f"{newest.region} had acknowledged {newest.key} under token {newest.token}"
            )
        if a.answered == "accepted":
            heapq.heappush(under_way, (a.ended, index, a.token))


def _taken_unheard(attempts: Sequence[Attempt], sure: Sequence[Attempt], held: Mapping[str, int]) -> Iterator[Attempt]:
    """The first try of each write that is held and of which no answer told its sender so in the first place."""
    heard = {a.key for a in sure}
    first: dict[str, Attempt] = {}
    for a in attempts:
        if a.answered != "refused" and a.key in held and a.key not in heard:
            earlier = first.get(a.key)
            if earlier is None or a.began < earlier.began:
                first[a.key] = a
    return (replace(a, token=held[key], answered="unknown") for key, a in first.items())
