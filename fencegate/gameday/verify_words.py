"""Whether what each write was answered fits the entry that it made: its token, and that it was new. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fencegate.fence import Entry
from fencegate.gameday.history import Attempt


def stamped(attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """By the place that was told."""
    tokens = {(entry.seq, entry.hash): entry.token for entries in ledgers.values() for entry in entries}
    for a in attempts:
        if a.answered == "accepted" and not a.replayed:
            token = tokens.get((a.seq, a.hash), a.token)
            if token != a.token:
                yield f"{a.region} took {a.key} under token {a.token}, and its entry {a.seq} carries token {token}"


def stamped_unheard(attempts: Sequence[Attempt], fresh: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """The same for what no answer told of in the first place: it carries the token of one of its tries."""
    tokens: dict[str, set[int]] = defaultdict(set)
    for a in attempts:
        if a.answered == "unknown" or (a.answered == "accepted" and not (a.replayed and a.tries == 1)):
            # Of several tries in one the first ones' tokens are not known.
            tokens[a.key].add(a.token if a.tries == 1 else 0)
    heard = {a.key for a in attempts if a.answered == "accepted" and not a.replayed}
    for region, entries in fresh.items():
        for entry in entries:
            sent = tokens.get(entry.key or "", {0})
            if entry.key not in heard and entry.token not in sent and 0 not in sent:
                told = " and ".join(map(str, sorted(sent)))
                yield f"{region}'s entry {entry.seq} carries token {entry.token}; {entry.key} was sent under {told}"


def without_effect(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Of the answers that tell of one entry, one may say that it is new."""
    first: dict[tuple[str, int, str], Attempt] = {}
    for a in attempts:
        if a.answered == "accepted" and not a.replayed:
            earlier = first.get((a.key, a.seq, a.hash))
            if earlier is None:
                first[a.key, a.seq, a.hash] = a
                continue
            yield (
                f"{a.client} was told by {a.region} that {a.key} is new, entry {a.seq}; {earlier.client} had been "
                f"told so by {earlier.region} already"
            )
