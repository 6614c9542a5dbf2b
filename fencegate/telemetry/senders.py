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


@dataclass(slots=True)
class _Sender:
    first: float
    last: float
    count: int = 0
    code: str = ""
    token: int | None = None


class StaleSenders:
    """An ``Observer``. ``clock`` gives seconds of a steady clock."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._senders: OrderedDict[tuple[str, str, str], _Sender] = OrderedDict()

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

    def document(self) -> list[dict[str, Any]]:
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
