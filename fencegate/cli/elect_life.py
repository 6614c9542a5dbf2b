"""The life of a command that may run only while its node leads: what to do to it, and when. No I/O, no clock.

One :class:`Life` is one run of the command. Whoever drives it hands in what happened and the time, does what
comes back, and calls :meth:`Life.tick` at :meth:`Life.wakeup`. All instants are seconds on one steady clock, the
same for the process that renews the lease and for the one that guards the command.

* ``believed_until``: from here on the node no longer takes itself for the leader; the command is asked to end.
* ``kill_by``: here nothing of the command may be alive; it lies the margin before the end of the lease.

Both are handed in with every renewal. They are all that keeps the command alive: a driver that hears nothing
more ends it, whatever has become of the process that renews.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from signal import SIGTERM
from typing import Final


class State(StrEnum):
    RUNNING = "running"
    ENDING = "ending"
    KILLING = "killing"


class Why(StrEnum):
    """Why the command ended: by itself, because elect was told to stop, or with the term."""

    ENDED = "ended"
    STOPPED = "stopped"
    LOST = "lost"
    ORPHANED = "orphaned"


@dataclass(frozen=True, slots=True)
class Signal:
    """Send this to the command's process group."""

    number: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End everything that descends from the command, now and until nothing is left."""


Action = Signal | Kill
_NOTHING: Final[list[Action]] = []


class Life:
    """``grace``: seconds that the command has to end by itself after it was asked to, where the lease lasts so long."""

    def __init__(self, grace: float, believed_until: float, kill_by: float) -> None:
        self.state = State.RUNNING
        self.why: Why | None = None
        self._grace = grace
        self._believed_until = believed_until
        self._kill_by = kill_by
        self._asked_until = float("inf")

    def renewed(self, believed_until: float, kill_by: float) -> None:
        """The term was renewed. It can't bring back a term that this side has given up already."""
        if self.why in (None, Why.STOPPED):
            self._believed_until = max(self._believed_until, believed_until)
            self._kill_by = max(self._kill_by, kill_by)

    def stop(self, number: int, now: float) -> list[Action]:
        """elect was told to stop by the signal ``number``: the command gets the same one."""
        return self.tick(now) or self._ask(Why.STOPPED, number, now)

    def expired(self, now: float) -> list[Action]:
        """The term could not be renewed in time. The lease still runs for a while: that is the command's to end in."""
        return self.tick(now) or self._ask(Why.LOST, SIGTERM, now)

    def orphaned(self, now: float) -> list[Action]:
        """Nobody renews any more: the process that did is gone."""
        return self.tick(now) or self._ask(Why.ORPHANED, SIGTERM, now)

    def lost(self) -> list[Action]:
        """The election says that the lease is over: another may lead already, and there is no time to ask."""
        return self._kill(Why.LOST)

    def forward(self, number: int, now: float) -> list[Action]:
        """A signal that is the command's alone."""
        return self.tick(now) or ([Signal(number)] if self.state is State.RUNNING else _NOTHING)

    def ended(self) -> list[Action]:
        """The command's own process has ended; nothing that it left behind may go on."""
        return self._kill(Why.ENDED)

    def tick(self, now: float) -> list[Action]:
        """What the time alone calls for. Look at it first: whoever was frozen has nothing else to do before."""
        if self.state is State.KILLING:
            return _NOTHING
        if now >= self._kill_by:
            return self._kill(Why.LOST)
        if now >= self._asked_until:
            return self._kill(self.why or Why.LOST)
        if now >= self._believed_until and self.why in (None, Why.STOPPED):
            return self._ask(Why.LOST, SIGTERM, now)
        return _NOTHING

    def wakeup(self) -> float:
        """The instant of the next :meth:`tick`; infinity when the time calls for nothing more."""
        if self.state is State.KILLING:
            return float("inf")
        due = [self._kill_by, self._asked_until]
        if self.why in (None, Why.STOPPED):
            due.append(self._believed_until)
        return min(due)

    def _ask(self, why: Why, number: int, now: float) -> list[Action]:
        if self.state is State.KILLING:
            return _NOTHING
        self.state = State.ENDING
        self._settle(why)
        self._asked_until = min(self._asked_until, now + self._grace)
        return [Signal(number)]

    def _kill(self, why: Why) -> list[Action]:
        if self.state is State.KILLING:
            return _NOTHING
        self.state = State.KILLING
        self._settle(why)
        return [Kill()]

    def _settle(self, why: Why) -> None:
        """The first reason stays, but a term that is lost while the command is stopping is a term lost."""
        if self.why is None or (self.why is Why.STOPPED and why in (Why.LOST, Why.ORPHANED)):
            self.why = why
