"""The words of an elector: its states and their table, what it is told, and what it asks for.

Events go in, effects come out; :mod:`fencegate.leadership.machine` holds the rules between them.
Limits are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fencegate.fence import ClaimRefused
from fencegate.lease import Cause, Held, Won
from fencegate.observations import Observation


class State(StrEnum):
    STARTING = "starting"
    """Looking for a term that an earlier life of this process left behind."""
    CANDIDATE = "campaigning"
    SETTLING = "settling"
    """Won, and waiting out the term before on the own clock (``strict_wait``)."""
    CLAIMING = "claiming"
    LEADING = "leading"
    ANNOUNCING = "announcing"
    """A handoff begins: the record names the successor, writes are still taken."""
    YIELDING = "yielding"
    """A handoff: no new write begins, those under way end. The term is renewed and can be taken back."""
    UNDOING = "undoing"
    """A handoff is taken back: writes are taken again, the record names no successor."""
    DRAINING = "draining"
    """Resigning: no new write begins."""
    SEALING = "sealing"
    RELEASING = "releasing"
    STOPPED = "stopped"


class Cue(StrEnum):
    """Why the state changes."""

    LOOKED = "looked"
    WON = "won"
    WON_UNSEALED = "won, and no seal of the term before"
    SETTLED = "settled"
    CLAIMED = "claimed"
    RESIGNED = "resigned"
    HANDING_OVER = "handing over"
    ANNOUNCED = "announced"
    UNDO = "undo"
    UNDONE = "undone"
    LEFT = "left"
    DRAINED = "drained"
    SEAL_KNOWN = "seal known"
    ENDED = "ended"
    STOPPED = "stopped"


_LEAVING: Final = {
    Cue.RESIGNED: State.DRAINING,
    Cue.LEFT: State.SEALING,
    Cue.ENDED: State.CANDIDATE,
    Cue.STOPPED: State.STOPPED,
}

TRANSITIONS: Final[dict[State, dict[Cue, State]]] = {
    State.STARTING: {Cue.LOOKED: State.CANDIDATE, Cue.STOPPED: State.STOPPED},
    State.CANDIDATE: {
        Cue.WON: State.CLAIMING,
        Cue.WON_UNSEALED: State.SETTLING,
        Cue.STOPPED: State.STOPPED,
    },
    State.SETTLING: {Cue.SETTLED: State.CLAIMING, Cue.ENDED: State.CANDIDATE, Cue.STOPPED: State.STOPPED},
    State.CLAIMING: {
        Cue.CLAIMED: State.LEADING,
        Cue.LEFT: State.SEALING,
        Cue.ENDED: State.CANDIDATE,
        Cue.STOPPED: State.STOPPED,
    },
    State.LEADING: {Cue.HANDING_OVER: State.ANNOUNCING, **_LEAVING},
    State.ANNOUNCING: {Cue.ANNOUNCED: State.YIELDING, Cue.UNDO: State.UNDOING, **_LEAVING},
    State.YIELDING: {Cue.DRAINED: State.SEALING, Cue.UNDO: State.UNDOING, **_LEAVING},
    State.UNDOING: {Cue.UNDONE: State.LEADING, **_LEAVING},
    State.DRAINING: {Cue.DRAINED: State.SEALING},
    State.SEALING: {Cue.SEAL_KNOWN: State.RELEASING, Cue.ENDED: State.CANDIDATE, Cue.STOPPED: State.STOPPED},
    State.RELEASING: {Cue.ENDED: State.CANDIDATE, Cue.STOPPED: State.STOPPED},
    State.STOPPED: {},
}

LED: Final = frozenset({State.LEADING, State.ANNOUNCING, State.YIELDING, State.UNDOING})
"""States in which the term is claimed, renewed and may be gone on with."""

UNDOABLE: Final = frozenset({State.ANNOUNCING, State.YIELDING})
"""States of a handoff that is taken back when its time is up."""

HOLDING: Final = frozenset({State.SETTLING, State.CLAIMING, *LED})
"""States that last no longer than the renew deadline without a renewal."""

# -- effects: what the elector is to do -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """Something to ask of the election or the store; ends by ``limit`` seconds, answered under ``id``."""

    id: int
    limit: float


@dataclass(frozen=True, slots=True)
class Reclaim(Request):
    """Seal and release a term that an earlier life of this process left. Answered ``Done`` or ``Failed``."""


@dataclass(frozen=True, slots=True)
class Acquire(Request):
    """One try at winning, once the own store answers. ``Acquired`` or ``Failed``."""


@dataclass(frozen=True, slots=True)
class Withdraw(Request):
    """Forget the candidacy: the next ``Acquire`` stands anew. ``Done`` or ``Failed``."""


@dataclass(frozen=True, slots=True)
class Keep(Request):
    """Renew in the election only, unannounced. ``Done``, ``Lost`` or ``Failed``."""

    token: int


@dataclass(frozen=True, slots=True)
class Claim(Request):
    """Store's clock, renewal (unannounced), claim. ``Done``, ``Refused``, ``Lost`` or ``Failed``."""

    token: int


@dataclass(frozen=True, slots=True)
class Renew(Request):
    """Store's clock, renewal (announced), extension. ``Done``, ``Refused``, ``Lost`` or ``Failed``.

    ``draining_to`` is the successor that the record names. ``undrain``: have the store take writes again.
    """

    token: int
    draining_to: str | None = None
    undrain: bool = False


@dataclass(frozen=True, slots=True)
class Drain(Request):
    """Stop admitting, and wait for the writes under way outside the store. ``Done``, ``Undrained`` or ``Failed``.

    A resignation takes any answer; a handoff goes on only after ``Done``.
    """

    token: int


@dataclass(frozen=True, slots=True)
class Seal(Request):
    """Rule R7. ``Sealed`` or ``Failed``."""

    token: int


@dataclass(frozen=True, slots=True)
class Release(Request):
    """Give the lease back once no write is under way outside the store, the seal record in the same transaction.

    ``Released``, ``Undrained`` or ``Failed``; after the last two it is tried again until the lease has lapsed.

    ``successor`` is the region that alone may win at first.
    """

    token: int
    successor: str | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """A fact for the observer."""

    observation: Observation


Effect = Request | Tell

# -- events: what happened ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all."""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Hint(Event):
    """Something may have changed in the election."""


@dataclass(frozen=True, slots=True)
class Resign(Event):
    """Give the term up; with ``stop`` never campaign again."""

    reason: str
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Handoff(Event):
    """Hand the term to region ``to``; undone if it has not come to the seal within ``limit`` seconds."""

    to: str
    limit: float


@dataclass(frozen=True, slots=True)
class Answer(Event):
    id: int


@dataclass(frozen=True, slots=True)
class Done(Answer):
    pass


@dataclass(frozen=True, slots=True)
class Failed(Answer):
    """No answer, or an answer that says nothing about the term."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Undrained(Answer):
    """No new write begins, but ``left`` marks of writes under way still stand. Also an answer to ``Release``."""

    left: int


@dataclass(frozen=True, slots=True)
class Acquired(Answer):
    outcome: Won | Held


@dataclass(frozen=True, slots=True)
class Lost(Answer):
    """The election says that the token no longer leads."""


@dataclass(frozen=True, slots=True)
class Refused(Answer):
    """The store refused. ``regressed``: the election still names our token, so its issuer went back (rule R10)."""

    reason: ClaimRefused
    max_token_seen: int = 0
    regressed: bool = False


@dataclass(frozen=True, slots=True)
class Sealed(Answer):
    known: bool


@dataclass(frozen=True, slots=True)
class Released(Answer):
    released: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """How the last term of this elector ended."""

    token: int
    reason: str
    sealed: bool
    released: bool
