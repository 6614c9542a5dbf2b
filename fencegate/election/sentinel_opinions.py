"""What the sentinels of a Redis primary say, and when it counts: pure rules, without a connection.

One sentinel's word is worth little: it may be cut off, or not have heard of the latest failover yet. A term is
what a majority says, with nobody knowing better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fencegate.tokens import MAX_TOKEN


class NoOpinion(Exception):
    """The answer is not what a sentinel says of a primary; the text says why."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """One sentinel's word: the primary's ``address``, its config-epoch, and how many ``sentinels`` it knows in all."""

    address: str
    epoch: int
    sentinels: int

    @property
    def token(self) -> int:
        """The config-epoch plus one: a primary that was never failed over has epoch 0, and a token is above that."""
        return self.epoch + 1


def opinion_of(answer: object) -> Opinion:
    """The opinion in an answer to ``SENTINEL MASTER name``: a flat list of names and values.

    Raises :class:`NoOpinion`.
    """
    if not isinstance(answer, list) or len(answer) % 2:
        raise NoOpinion("the answer is no list of names and values: is it a sentinel?")
    found = dict(zip(map(str, answer[::2]), map(str, answer[1::2]), strict=True))
    try:
        epoch, others = int(found["config-epoch"]), int(found["num-other-sentinels"])
        host, port = found["ip"], int(found["port"])
    except (KeyError, ValueError) as error:
        raise NoOpinion(f"the answer lacks what a sentinel says of a primary: {error}") from None
    if not 0 <= epoch < MAX_TOKEN or others < 0 or not host:
        raise NoOpinion("the answer is not what a sentinel says of a primary")
    return Opinion(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", epoch, others + 1)


def majority(opinions: Sequence[Opinion], asked: int) -> int:
    """How many must agree: a majority of those that were asked, or of those that any sentinel knows, if more."""
    return max([asked, *(opinion.sentinels for opinion in opinions)]) // 2 + 1


def agreed(opinions: Sequence[Opinion], asked: int) -> Opinion | None:
    """What the sentinels agree on, or ``None``.

    A majority names one primary under one epoch, and *none* knows a higher epoch, or another primary under
    the same. A higher one, be it a single sentinel's, proves that the majority's is over. Lower ones only lag.
    """
    if not opinions:
        return None
    newest = max(opinion.epoch for opinion in opinions)
    current = [opinion for opinion in opinions if opinion.epoch == newest]
    same = all(opinion.address == current[0].address for opinion in current)
    return current[0] if same and len(current) >= majority(opinions, asked) else None
