"""Judges a drill: what every client was answered, held against what every store finally holds.

Pure and independent of the write path: it reads entries and answers only, computes the hash chain anew, and names each
violation with the shortest evidence. It knows nothing of leases or fences, so it cannot share their mistakes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from fencegate.fence import Entry
from fencegate.gameday.history import Attempt
from fencegate.gameday.verify_order import Seal, after_seal, interleaved
from fencegate.gameday.verify_promotions import Promotion, left_behind, revived
from fencegate.gameday.verify_words import stamped, stamped_unheard, without_effect
from fencegate.store.chain import genesis, link

_EVIDENCE = 3
"""Examples shown of one kind of violation; the count tells of the rest."""
_CASE = re.compile(rb'"case": ?"([^"\\]*)"')
"""What a drill's clients put into each body: the write's key, without the region that some add to it."""


class Kind(StrEnum):
    """What can be wrong with a run."""

    DIVERGED = "ledgers diverged"
    LOST = "acknowledged write lost"
    TWICE = "write applied twice"
    NO_EFFECT = "write acknowledged without effect"
    REFUSED_APPLIED = "refused write applied"
    UNASKED = "entry that nobody asked for"
    MIXED = "entry with another write's body"
    STAMPED = "entry under another token than its write's"
    GAP = "sequence has a gap"
    CHAIN_BROKEN = "hash chain broken"
    TOKEN_FELL = "token fell"
    INTERLEAVED = "terms interleaved"
    SEALED = "write taken after its term's seal"
    TERM_SHARED = "one term in two stores"
    REVIVED = "old term went on on a promoted standby"


@dataclass(frozen=True, slots=True)
class Violation:
    """``count`` cases of one kind; ``evidence`` are sentences about the first few."""

    kind: Kind
    count: int
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """Two ledgers part at ``seq``: from there on each side has entries that the other hasn't."""

    seq: int
    leader: str
    other: str
    leader_entries: int
    other_entries: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``behind`` counts the entries that a region's copy lacks at its end, which is no fault of ownership."""

    entries: Mapping[str, int]
    behind: Mapping[str, int]
    forks: tuple[Fork, ...]
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.violations

    def count(self, kind: Kind) -> int:
        return sum(v.count for v in self.violations if v.kind is kind)

    def with_seals(self, attempts: Sequence[Attempt], seals: Sequence[Seal]) -> Verdict:
        """The same with what the stores' own words of their seals show."""
        found = grouped([(Kind.SEALED, text) for text in after_seal(attempts, seals)])
        return replace(self, violations=self.violations + found)

    @property
    def divergent(self) -> int:
        """Entries on both sides of every fork."""
        return sum(f.leader_entries + f.other_entries for f in self.forks)


def verify(
    attempts: Sequence[Attempt],
    ledgers: Mapping[str, Sequence[Entry]],
    *,
    role: str,
    leader: str,
    since: int = 0,
) -> Verdict:
    """Judge one run. ``ledgers`` holds each region's entries in the order of their sequence.

    ``leader`` is the region that leads at the end: its ledger is the one that an acknowledged write must be in.
    Entries up to the sequence number ``since`` were there before, and nobody of ``attempts`` has asked for them.
    """
    found: list[tuple[Kind, str]] = []
    forks = tuple(_forks(ledgers, leader))
    for fork in forks:
        sentence = (
            f"from sequence {fork.seq} on, {fork.leader} holds {fork.leader_entries} entries that {fork.other} hasn't, "
            f"and {fork.other} {fork.other_entries} that {fork.leader} hasn't"
        )
        found.append((Kind.DIVERGED, sentence))
    found += ((Kind.LOST, text) for text in _lost(attempts, ledgers, leader))
    found += _of_all(attempts, ledgers, _behind(ledgers, dict.fromkeys(ledgers, since)))
    for region, entries in ledgers.items():
        found += _of_one(region, entries, role)
    sizes = {region: len(entries) for region, entries in ledgers.items()}
    forked = {fork.other for fork in forks}
    behind = {region: max(0, sizes[leader] - size) for region, size in sizes.items() if region not in forked}
    return Verdict(sizes, behind, forks, grouped(found))


def verify_apart(
    attempts: Sequence[Attempt],
    ledgers: Mapping[str, Sequence[Entry]],
    *,
    role: str,
    since: Mapping[str, int] | None = None,
    promotions: Sequence[Promotion] = (),
) -> Verdict:
    """Judge a run over stores that nothing copies between, in which each key was sent to one region only.

    An acknowledged write must be in the ledger of the region that said so, and each term in one ledger. ``since`` is
    per region what it is for :func:`verify`. ``ledgers`` are those of the servers in charge at the end; ``promotions``
    say what a store that failed over may lack.
    """
    found: list[tuple[Kind, str]] = [(Kind.REVIVED, text) for text in revived(attempts, ledgers, promotions)]
    excused = left_behind(attempts, ledgers, promotions)
    for region, entries in ledgers.items():
        own = [a for a in attempts if a.region == region and a.key not in excused]
        found += ((Kind.LOST, text) for text in _lost(own, {region: entries}, region))
        found += _of_one(region, entries, role)
    fresh = _behind(ledgers, since or {})
    found += _of_all(attempts, ledgers, fresh)
    found += ((Kind.TERM_SHARED, text) for text in _shared(ledgers, fresh))
    return Verdict({r: len(e) for r, e in ledgers.items()}, dict.fromkeys(ledgers, 0), (), grouped(found))


def _behind(ledgers: Mapping[str, Sequence[Entry]], since: Mapping[str, int]) -> dict[str, list[Entry]]:
    return {region: [e for e in entries if e.seq > since.get(region, 0)] for region, entries in ledgers.items()}


def _of_all(
    attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]], fresh: Mapping[str, Sequence[Entry]]
) -> Iterator[tuple[Kind, str]]:
    """What the answers and all ledgers show together; ``fresh`` are the entries of this run alone."""
    yield from ((Kind.TWICE, text) for text in _twice(ledgers, {e.key for entries in fresh.values() for e in entries}))
    yield from ((Kind.NO_EFFECT, text) for text in without_effect(attempts))
    yield from _unexpected(attempts, fresh)
    yield from ((Kind.MIXED, text) for text in _mixed(fresh))
    yield from ((Kind.STAMPED, text) for text in stamped(attempts, ledgers))
    yield from ((Kind.STAMPED, text) for text in stamped_unheard(attempts, fresh))
    held = {entry.key: entry.token for entries in fresh.values() for entry in entries if entry.key is not None}
    yield from ((Kind.INTERLEAVED, text) for text in interleaved(attempts, held))


def _of_one(region: str, entries: Sequence[Entry], role: str) -> Iterator[tuple[Kind, str]]:
    """What a ledger shows by itself."""
    yield from ((Kind.GAP, text) for text in _gaps(region, entries))
    yield from ((Kind.CHAIN_BROKEN, text) for text in _breaks(region, entries, role))
    yield from ((Kind.TOKEN_FELL, text) for text in _falls(region, entries))


def _shared(ledgers: Mapping[str, Sequence[Entry]], fresh: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """Of the terms of this run. What all ledgers hold at one place was copied there, before it."""
    copied = set.intersection(*({(e.seq, e.hash) for e in entries} for entries in ledgers.values()))
    running = {entry.token for entries in fresh.values() for entry in entries}
    wrote: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for region, entries in ledgers.items():
        for entry in entries:
            if entry.token in running and (entry.seq, entry.hash) not in copied:
                wrote[entry.token][region] += 1
    for token, regions in wrote.items():
        if len(regions) > 1:
            yield f"token {token} wrote in " + " and ".join(f"{region} ({n} entries)" for region, n in regions.items())


def grouped(found: Sequence[tuple[Kind, str]]) -> tuple[Violation, ...]:
    """One violation of each kind, with its first few sentences."""
    by_kind: dict[Kind, list[str]] = defaultdict(list)
    for kind, sentence in found:
        by_kind[kind].append(sentence)
    return tuple(Violation(kind, len(texts), tuple(texts[:_EVIDENCE])) for kind, texts in by_kind.items())


def _forks(ledgers: Mapping[str, Sequence[Entry]], leader: str) -> Iterator[Fork]:
    ours = {entry.seq: entry.hash for entry in ledgers[leader]}
    for region, entries in ledgers.items():
        theirs = {entry.seq: entry.hash for entry in entries}
        parted = [seq for seq, digest in theirs.items() if ours.get(seq) != digest]
        if region == leader or not parted:
            continue
        first = min(parted)
        alone = sum(1 for seq, digest in ours.items() if seq >= first and theirs.get(seq) != digest)
        yield Fork(first, leader, region, alone, len(parted))


def _lost(attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]], leader: str) -> Iterator[str]:
    """By the place that was acknowledged: an entry of the same key elsewhere is not what the client was told."""
    kept = {(entry.seq, entry.hash): entry.key for entry in ledgers[leader]}
    told: set[tuple[str, int, str]] = set()
    for a in attempts:
        place = (a.key, a.seq, a.hash)
        if a.answered != "accepted" or place in told:
            continue
        told.add(place)
        if kept.get((a.seq, a.hash)) != a.key:
            yield (
                f"{a.client} was told by {a.region} that {a.key} is entry {a.seq} (token {a.token}); "
                f"the ledger of {leader} hasn't got it"
            )


def _twice(ledgers: Mapping[str, Sequence[Entry]], written: Set[str | None]) -> Iterator[str]:
    """Of the keys that were ``written``: what is older may have been other callers', or its key have expired between.

    A copied entry has the same sequence and hash, and counts once.
    """
    effects: dict[str, dict[tuple[int, str], str]] = defaultdict(dict)
    for region, entries in ledgers.items():
        for entry in entries:
            if entry.key is not None and entry.key in written:
                effects[entry.key].setdefault((entry.seq, entry.hash), f"{region} {entry.seq} (token {entry.token})")
    for key, places in effects.items():
        if len(places) > 1:
            yield f"{key} is in {len(places)} places: " + ", ".join(places.values())


def _unexpected(attempts: Sequence[Attempt], ledgers: Mapping[str, Sequence[Entry]]) -> Iterator[tuple[Kind, str]]:
    """Entries whose key no client sent, or of which every answer was a promise that nothing was applied.

    A replay tells of an earlier try and did nothing itself: it does not explain an entry.
    """
    refusals: dict[str, Attempt] = {}
    possible: set[str] = set()
    for a in attempts:
        if a.answered == "refused":
            refusals.setdefault(a.key, a)
        elif not (a.replayed and a.tries == 1):
            possible.add(a.key)
    seen: set[str] = set()
    for region, entries in ledgers.items():
        for entry in entries:
            key = entry.key or ""
            if key in possible or (key and key in seen):
                continue
            seen.add(key)
            refusal = refusals.get(key)
            if refusal is None:
                yield Kind.UNASKED, f"{region} holds entry {entry.seq} with key {key or 'none'}, which no client sent"
            else:
                yield (
                    Kind.REFUSED_APPLIED,
                    f"{refusal.client} was refused by {refusal.region} ({refusal.reason}), yet {key} is entry "
                    f"{entry.seq} of {region}",
                )


def _gaps(region: str, entries: Sequence[Entry]) -> Iterator[str]:
    expected = 1
    for entry in entries:
        if entry.seq != expected:
            yield f"{region} has entry {entry.seq} where {expected} should be"
        expected = entry.seq + 1


def _breaks(region: str, entries: Sequence[Entry], role: str) -> Iterator[str]:
    previous = genesis(role)
    for entry in entries:
        if link(previous, entry).hex() != entry.hash:
            yield f"{region}'s entry {entry.seq} does not continue the chain"
        previous = bytes.fromhex(entry.hash)


def _falls(region: str, entries: Sequence[Entry]) -> Iterator[str]:
    highest = 0
    for entry in entries:
        if entry.token < highest:
            yield f"{region}'s entry {entry.seq} carries token {entry.token} after token {highest}"
        highest = max(highest, entry.token)


def _mixed(ledgers: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    for region, entries in ledgers.items():
        for entry in entries:
            found, key = _CASE.search(entry.body), entry.key or ""
            case = found[1].decode() if found else key
            if key != case and not key.startswith(f"{case}-in-"):
                yield f"{region}'s entry {entry.seq} has the key {key or 'none'} and the body of {case}"
