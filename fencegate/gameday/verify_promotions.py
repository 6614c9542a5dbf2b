"""What a store's failover may take with it, and what not. Pure.

A standby that lagged lacks the last entries, and no fence can bring them back (rule R13): they are set apart, and
counted. A synchronous one lacks nothing. On either the old term is over (rule R9): whatever comes behind the entries
that the standby had must carry a newer token than anything that the region acknowledged before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fencegate.fence import Entry
from fencegate.gameday.history import Attempt


@dataclass(frozen=True, slots=True)
class Promotion:
    """The store of ``region`` was replaced by a standby whose ledger ended with ``last``.

    ``at`` is on the clock of the answers, after the old server had lost its last client. ``exact``: it was synchronous.
    """

    region: str
    at: float
    last: int
    exact: bool


def left_behind(
    attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]], promotions: Sequence[Promotion]
) -> set[str]:
    """The keys of acknowledged writes that a lagging standby was allowed to lack.

    A write that was sent before the promotion may have waited, and be the new server's: a term that wrote there wrote
    nowhere before.
    """
    found = set()
    for promotion in promotions:
        if promotion.exact:
            continue
        newer = {entry.token for entry in ledgers[promotion.region] if entry.seq > promotion.last}
        for a in attempts:
            acknowledged = a.answered == "accepted" and a.region == promotion.region and a.began < promotion.at
            if acknowledged and a.seq > promotion.last and a.token not in newer:
                found.add(a.key)
    return found


def revived(
    attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]], promotions: Sequence[Promotion]
) -> Iterator[str]:
    """Entries that a promoted standby took under a term that had been open on the server before it."""
    for promotion in promotions:
        before = [a.token for a in attempts if a.region == promotion.region and a.answered == "accepted"
                  and a.ended < promotion.at]  # fmt: skip
        old = max(before, default=0)
        for entry in ledgers[promotion.region]:
            if entry.seq > promotion.last and entry.token <= old:
                yield (
                    f"{promotion.region}'s promoted standby took entry {entry.seq} under token {entry.token}; "
                    f"the server before it had acknowledged token {old}"
                )
