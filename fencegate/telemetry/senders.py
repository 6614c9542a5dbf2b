"""Who still thinks that it leads: stale writes by who sends them, as ``fencegate status --zombies`` shows them.

A metric's label never takes a client's value, and the log is sampled; this is the place where each sender is counted.
Bounded: the sender that has been quiet for longest makes room for a new one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fencegate import observations as seen

STALE: Final = frozenset({"stale_token", "not_leader", "token_not_issued"})
"""The refusals of a sender that believes in a term that is not the current one."""
MOST: Final = 500
FORGOTTEN: Final = 3600.0
"""Seconds of quiet after which a sender is shown no more."""
_AGENT_SHOWN: Final = 80

Document = list[dict[str, Any]]


@dataclass(slots=True)
class _Sender:
    first: float
    last: float
    count: int = 0
    code: str = ""
    token: int | None = None


class StaleSenders:
    """An ``Observer``. ``clock`` gives seconds of a steady clock."""

    hears: Final = frozenset({seen.WriteRefused})

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._senders: OrderedDict[tuple[str, str, str], _Sender] = OrderedDict()
        self.counted = 0
        """Stale writes so far: whether there is news."""

    def __call__(self, fact: seen.Observation) -> None:
        if type(fact) is not seen.WriteRefused or fact.code not in STALE:
            return
        key, now = (fact.role, fact.client, fact.agent), self._clock()
        sender = self._senders.get(key)
        if sender is None:
            if len(self._senders) >= MOST:
                self._senders.popitem(last=False)
            sender = self._senders[key] = _Sender(now, now)
        else:
            self._senders.move_to_end(key)
        sender.last, sender.code, sender.token = now, fact.code, fact.presented_token
        sender.count += 1
        self.counted += 1

    def document(self) -> Document:
        """Every sender of the last hour, the latest first, with its latest token and reason. Ages are seconds."""
        now = self._clock()
        return [
            {
                "role": role,
                "client": client,
                "agent": agent[:_AGENT_SHOWN],
                "refused": sender.count,
                "reason": sender.code,
                "token": sender.token,
                "first_age_s": round(now - sender.first, 1),
                "last_age_s": round(now - sender.last, 1),
            }
            for (role, client, agent), sender in reversed(self._senders.items())
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
    senders: dict[tuple[str, str, str], dict[str, Any]] = {}
    for told_at, document in documents:
        for one in document:
            older = now - told_at
            aged = {**one, **{age: round(one[age] + older, 1) for age in ("first_age_s", "last_age_s")}}
            other = senders.setdefault((one["role"], one["client"], one["agent"]), aged)
            if other is not aged:
                latest = min(aged, other, key=lambda each: float(each["last_age_s"]))
                both = {
                    "refused": aged["refused"] + other["refused"],
                    "first_age_s": max(aged["first_age_s"], other["first_age_s"]),
                }
                senders[one["role"], one["client"], one["agent"]] = {**latest, **both}
    kept = [one for one in senders.values() if one["last_age_s"] <= FORGOTTEN]
    return sorted(kept, key=lambda one: float(one["last_age_s"]))[:MOST]
