"""Who still thinks that it leads: stale writes by who sends them, as ``fencegate status --zombies`` shows them.

A metric's label never takes a client's value, and the log is sampled; this is the place where each sender is counted.
Bounded: the sender that has been quiet for longest makes room for a new one, and an address that sends under ever new
names is counted as one, so that it cannot push the others out.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fencegate import observations as seen

STALE: Final = frozenset({"stale_token", "not_leader", "token_not_issued"})
"""The refusals of a sender that believes in a term that is not the current one."""
MOST: Final = 500
MOST_NAMES: Final = 16
"""Agents and forwarded addresses that a caller at one address is counted under, for each role; all further ones are
one."""
FORGOTTEN: Final = 3600.0
"""Seconds of quiet after which a sender is shown no more."""
MANY: Final = "(many others)"
_SHOWN: Final = 80

_Name = tuple[str, str, str, str, str]
"""Role, client address, the caller's identity, user agent, and whom a proxy says that it speaks for."""

Document = list[dict[str, Any]]


@dataclass(slots=True)
class _Sender:
    first: float
    last: float
    refused: int = 0
    let_through: int = 0
    code: str = ""
    token: int | None = None


class StaleSenders:
    """An ``Observer``. ``clock`` gives seconds of a steady clock."""

    hears: Final = frozenset({seen.WriteRefused, seen.WouldRefuse})

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._senders: OrderedDict[_Name, _Sender] = OrderedDict()
        self._names: Counter[tuple[str, str, str]] = Counter()
        self.counted = 0
        """Stale writes so far: whether there is news."""

    def __call__(self, fact: seen.Observation) -> None:
        if not isinstance(fact, (seen.WriteRefused, seen.WouldRefuse)) or fact.code not in STALE:
            return
        self.counted += 1
        sender = self._sender(fact)
        sender.last, sender.code, sender.token = self._clock(), fact.code, fact.presented_token
        if isinstance(fact, seen.WriteRefused):
            sender.refused += 1
        else:
            sender.let_through += 1

    def _sender(self, fact: seen.WriteRefused | seen.WouldRefuse) -> _Sender:
        role = fact.member or fact.role
        name = (role, fact.client, fact.caller, fact.agent[:_SHOWN], fact.forwarded[-_SHOWN:])
        if name not in self._senders and self._names[name[:3]] >= MOST_NAMES:
            name = (*name[:3], MANY, "")
        sender = self._senders.get(name)
        if sender is None:
            if len(self._senders) >= MOST:
                gone, _ = self._senders.popitem(last=False)
                self._names[gone[:3]] -= 1
                if not self._names[gone[:3]]:
                    del self._names[gone[:3]]
            self._names[name[:3]] += 1
            now = self._clock()
            sender = self._senders[name] = _Sender(now, now)
        else:
            self._senders.move_to_end(name)
        return sender

    def document(self) -> Document:
        """Every sender of the last hour, the latest first, with its latest token and reason. Ages are seconds.

        ``refused`` counts its refusals, ``let_through`` the writes that a route in observe mode took all the same.
        """
        now = self._clock()
        return [
            {
                "role": role,
                "client": client,
                "caller": caller,
                "agent": agent,
                "forwarded_for": forwarded,
                "refused": sender.refused,
                "let_through": sender.let_through,
                "reason": sender.code,
                "token": sender.token,
                "first_age_s": round(now - sender.first, 1),
                "last_age_s": round(now - sender.last, 1),
            }
            for (role, client, caller, agent, forwarded), sender in reversed(self._senders.items())
            if now - sender.last <= FORGOTTEN
        ]


class SendersOfAll:
    """The senders that several workers tell of, as one list; what a worker that ended had told is not forgotten."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[int, tuple[float, Document]] = {}
        self._past: tuple[float, Document] = (clock(), [])

    def take(self, worker: int, document: Document) -> None:
        """The whole of what the worker of that number counted, as :meth:`StaleSenders.document` gives it."""
        self._told[worker] = (self._clock(), document)

    def ended(self, worker: int) -> None:
        """Its process has ended; another of that number begins anew."""
        if worker in self._told:
            now = self._clock()
            self._past = (now, _joined(now, [self._past, self._told.pop(worker)]))

    def document(self) -> Document:
        """As :meth:`StaleSenders.document`, over all workers."""
        return _joined(self._clock(), [self._past, *self._told.values()])


def _joined(now: float, documents: list[tuple[float, Document]]) -> Document:
    """One line a sender: counts are added up, and the token and the reason are those of the latest."""
    senders: dict[_Name, dict[str, Any]] = {}
    for told_at, document in documents:
        for one in document:
            older = now - told_at
            aged = {**one, **{age: round(one[age] + older, 1) for age in ("first_age_s", "last_age_s")}}
            name = (one["role"], one["client"], one["caller"], one["agent"], one["forwarded_for"])
            other = senders.setdefault(name, aged)
            if other is not aged:
                latest = min(aged, other, key=lambda each: float(each["last_age_s"]))
                both = {
                    "refused": aged["refused"] + other["refused"],
                    "let_through": aged["let_through"] + other["let_through"],
                    "first_age_s": max(aged["first_age_s"], other["first_age_s"]),
                }
                senders[name] = {**latest, **both}
    kept = [one for one in senders.values() if one["last_age_s"] <= FORGOTTEN]
    return sorted(kept, key=lambda one: float(one["last_age_s"]))[:MOST]
