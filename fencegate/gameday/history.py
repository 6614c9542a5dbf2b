"""What every client asked and was answered: the evidence that :mod:`fencegate.gameday.verify` judges. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from fencegate.tokens import MAX_TOKEN

Answered = Literal["accepted", "refused", "unknown"]
"""``refused``: the gateway promised that nothing was applied, or not one byte was sent. ``unknown``: no promise."""


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: a run has millions of them, at a third of the cost.
class Attempt:
    """One try (of a plain client) or one whole operation (of the SDK) and its answer.

    ``began`` and ``ended`` are seconds on one steady clock. ``region`` gave the answer, or was asked. ``reason`` is a
    problem's code; ``seq`` and ``hash`` name the entry of an accepted write. ``tries``: how often it was sent.
    """

    client: str
    key: str
    region: str
    token: int
    began: float
    ended: float
    answered: Answered
    reason: str = ""
    seq: int = 0
    hash: str = ""
    replayed: bool = False
    tries: int = 1


@dataclass(slots=True)
class History:
    """The attempts of a whole drill, in the order in which their answers came. ``totals`` are accepted writes."""

    attempts: list[Attempt] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)

    def record(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        if attempt.answered == "accepted" and not attempt.replayed:
            self.totals[attempt.region] += 1

    def accepted(self, region: str, since: float = float("-inf"), below: int = MAX_TOKEN) -> int:
        """Writes that a region has acknowledged after ``since`` under tokens below ``below``, replays left out."""
        return sum(1 for a in self._acknowledged(region) if not a.replayed and a.ended > since and a.token < below)

    def refused(self, region: str, clients: str | tuple[str, ...] = "", since: float = float("-inf")) -> Counter[str]:
        """Refusals by reason, of the clients whose names begin with (one of) ``clients``, answered after ``since``."""
        return Counter(
            a.reason
            for a in self.attempts
            if a.answered == "refused" and a.region == region and a.client.startswith(clients) and a.ended >= since
        )

    def handover(self, old: str, new: str, after: float) -> float:
        """Seconds without an acknowledged write: from the last one of ``old`` to the first of ``new`` behind ``after``.

        Infinite where ``new`` has acknowledged nothing since.
        """
        first = min((a.ended for a in self._acknowledged(new) if a.ended > after), default=float("inf"))
        last = max((a.ended for a in self._acknowledged(old) if a.ended <= first), default=after)
        return first - last

    def _acknowledged(self, region: str) -> Iterator[Attempt]:
        return (a for a in self.attempts if a.answered == "accepted" and a.region == region)
