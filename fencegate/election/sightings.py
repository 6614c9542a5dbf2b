"""Signs of life: all that a candidate knows of how long a holder's lease still lasts.

No clock of a server or of the holder is read. A sign (a count of renewals, a record's version) says nothing of when it
was given, only that it is another than before; what counts is when it was first *seen*, on the candidate's own clock.
The holder renewed before that, so waiting the holder's lease from then is never too short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from fencegate.lease import SealRecord


@dataclass(frozen=True, slots=True)
class _Seen:
    sign: Hashable
    held_for: float
    since: float


class Sightings:
    """The latest sign of life of each role's holder. ``clock`` is monotonic, in seconds.

    ``hold_back``: seconds for which a role that was handed to another region is left to that one.
    """

    def __init__(self, clock: Callable[[], float], hold_back: float) -> None:
        self._clock = clock
        self._hold_back = hold_back
        self._seen: dict[str, _Seen] = {}

    def note(self, role: str, sign: Hashable, held_for: float) -> None:
        """``sign`` was seen; where it is a new one, the holder has its lease of ``held_for`` seconds from now on.

        Call it *after* the answer that carried the sign: it is no younger than that.
        """
        seen = self._seen.get(role)
        if seen is None or seen.sign != sign:
            self._seen[role] = _Seen(sign, held_for, self._clock())

    def idle(self, role: str) -> float:
        """Seconds since the latest sign was first seen; 0 where none was."""
        seen = self._seen.get(role)
        return self._clock() - seen.since if seen else 0.0

    def left(self, role: str) -> float:
        """Seconds until the latest sign is over, negative after that, though its record be deleted; 0 without one."""
        seen = self._seen.get(role)
        return seen.held_for - self.idle(role) if seen else 0.0

    def is_anothers(self, role: str, sealed: SealRecord | None, region: str) -> bool:
        """Whether the seal that is the latest sign leaves the role to another region than ``region``, for now."""
        if sealed is None or sealed.successor in (None, region):
            return False
        return self.idle(role) < self._hold_back
