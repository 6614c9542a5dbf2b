"""Leases: their timings, the record of who leads, and the contract of an election backend.

The defaults are those of Kubernetes' leader election (client-go): 15 s lease, 10 s to renew it,
a try every 2 s, jitter 1.2. All durations are seconds; all instants handed to the rules are the
process' own monotonic clock, never a remote one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Final, Literal, Protocol

from fencegate.errors import FencegateError, Unavailable
from fencegate.tokens import MAX_TOKEN

JITTER_FACTOR: Final = 1.2
HIGHEST_BASE: Final = 2**62
"""How far up the numbers of a role may be moved: half of an int64 is left for them to grow."""


@dataclass(frozen=True, slots=True)
class LeaseTimings:
    """How long a lease lasts and how it is kept. :meth:`faults` says what is wrong with them.

    ``margin`` (rule R4) is what the store-side lease ends early: at least the clock drift over a
    lease, plus the longest stall between the clock check and COMMIT, plus the largest backward step.
    ``clock_offset`` is added to it where a store has several nodes (portability mode): the furthest that two of their
    clocks are apart. A lease that one of them wrote then ends on none of the others later than it should.
    """

    lease_duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    margin: float = 1.0
    clock_offset: float = 0.0

    def faults(self) -> list[str]:
        """One sentence per nonsense, each saying what would be right. Empty when the timings hold together."""
        found = []
        for name in ("lease_duration", "renew_deadline", "retry_period"):
            if getattr(self, name) <= 0:
                found.append(f"{name} must be more than 0 s, not {getattr(self, name):g}")
        for name in ("margin", "clock_offset"):
            if getattr(self, name) < 0:
                found.append(f"{name} must not be negative, not {getattr(self, name):g}")
        if self.lease_duration <= self.renew_deadline:
            found.append(
                f"lease_duration ({self.lease_duration:g} s) must be more than "
                f"renew_deadline ({self.renew_deadline:g} s)"
            )
        if self.renew_deadline <= self.retry_period * JITTER_FACTOR:
            found.append(
                f"renew_deadline ({self.renew_deadline:g} s) must be more than retry_period x "
                f"{JITTER_FACTOR} ({self.retry_period * JITTER_FACTOR:g} s)"
            )
        if self.store_lease <= self.renew_deadline:
            less = "margin - clock_offset" if self.clock_offset else "margin"
            found.append(
                f"lease_duration - {less} ({self.store_lease:g} s) must be more than "
                f"renew_deadline ({self.renew_deadline:g} s), or the store closes before the elector gives up"
            )
        return found

    @property
    def hold_back(self) -> float:
        """Seconds for which the role is left to the successor of a handoff: less than a lease (rule R14)."""
        return self.renew_deadline

    @property
    def hold_off(self) -> float:
        """Seconds out of the election after a resignation: a lease not given back lapses, another region wins."""
        return self.lease_duration + 2 * self.retry_period

    @property
    def store_lease(self) -> float:
        """Seconds from ``s0`` for which a renewal opens the store (rule R3, step c)."""
        return self.lease_duration - self.margin - self.clock_offset


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who campaigns: unique ``node``, its ``region``, and the origin that hints advertise.

    ``draining_to`` is the region that its term is being handed to, while it is: a renewal writes it
    into the record, or clears it there.
    """

    node: str
    region: str
    url: str
    draining_to: str | None = None

    @property
    def holder(self) -> str:
        return f"{self.region}/{self.node}"


@dataclass(frozen=True, slots=True)
class Term:
    """What an election store says of a role's current term.

    ``active`` is False until the holder has claimed its own store (rule R5): such a term is never
    announced. ``expires_in`` is what is left of the lease in seconds, where the store can tell.
    ``identity`` tells the holder from any other where ``node`` is but a text that it may change.
    """

    role: str
    token: int
    node: str
    region: str
    url: str
    active: bool
    lease_duration: float
    expires_in: float | None = None
    draining_to: str | None = None
    identity: str = ""

    @property
    def holder(self) -> str:
        """As it stands in the fence: the same for as long as the term lasts."""
        return self.identity or f"{self.region}/{self.node}"

    @property
    def shown_holder(self) -> str:
        return _shown(self.region, self.node)


def _shown(region: str, node: str) -> str:
    return f"{region}/{node}" if region else node


def is_among(patterns: Sequence[str], region: str, node: str) -> bool:
    """Whether a holder is named by one of ``patterns``: ``REGION/NODE``, or ``NODE`` of a system without regions.

    ``*`` stands for any text, ``?`` for any character.
    """
    return any(fnmatchcase(_shown(region, node), pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class SealRecord:
    """Left in the election store, in one transaction with the end of the term: the old store is known to be sealed.

    ``successor`` is the region that the term was handed to: candidates of other regions hold back for
    :attr:`LeaseTimings.hold_back` after they first saw the record, or until a newer term has claimed.
    """

    token: int
    region: str
    successor: str | None = None


@dataclass(frozen=True, slots=True)
class Won:
    """We hold the role under ``token``. ``predecessor_sealed``: the seal record that names the term before, if any.

    Raises :class:`ElectionUnavailable` for a number that is no token: nothing may be led under it.
    """

    token: int
    predecessor_sealed: SealRecord | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.token <= MAX_TOKEN:
            raise ElectionUnavailable(f"the election gave {self.token}, no token (1 to {MAX_TOKEN})", "refused")


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else holds the role, or we wait in line; ``term`` is what is known of theirs."""

    term: Term | None


@dataclass(frozen=True, slots=True)
class Rebased:
    """No token up to ``before`` was to be issued any more; now none up to ``after`` is. Equal: nothing was moved."""

    before: int
    after: int


class LeaseLost(FencegateError):
    """The election store says, linearizably, that this token no longer leads."""


Cause = Literal["timeout", "connection", "quorum", "refused", "lost", "store"]


class ElectionUnavailable(Unavailable):
    """The election store could not answer; nothing is known to have changed. ``cause`` is for the metrics."""

    def __init__(self, message: str, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


Reading = Term | Unavailable | None
"""What one read of a role came to; ``None``: nobody leads."""


class LeadershipSource(ABC):
    """Anything that can say who leads a role and under which token. Somebody else may be doing the electing.

    * Each call ends by ``deadline`` seconds from its start, or raises
      :class:`fencegate.errors.Unavailable`; a call whose time is up has no later effect on
      what this object believes.
    * A token grows with every change of the holder, and is the number that the system itself
      assigned in the act of electing.
    * No method trusts a remote clock, and a watch is only a hint.
    * Where no majority can be asked, or those asked do not agree, nobody leads: the last known
      term is never given as the current one.
    """

    name: str
    proves_terms: ClassVar[bool] = False
    """Whether :meth:`read` can stand in each batch's way (rule R15): linearizable, and done in a round trip or two."""
    roles_a_read: int = 32
    """How many roles are best given to :meth:`read_many` at once."""
    roles_a_watch: int = 1
    """How many roles one :meth:`changes_among` may watch; each costs a link of its own where it is 1."""

    @abstractmethod
    async def read(self, role: str, deadline: float) -> Term | None:
        """The current term, by a linearizable read made after this call began; ``None`` if nobody leads."""

    async def read_many(self, roles: Sequence[str], deadline: float) -> Mapping[str, Reading]:
        """:meth:`read` of each of ``roles`` (best :attr:`roles_a_read`) by one question, asked after this call began.

        What fails for one role is that role's value, and no other's. Raises ``NotImplementedError`` where one question
        does not answer for many: then each is read by itself. Raises ``Unavailable`` where it fails for all.
        """
        raise NotImplementedError(f"the election {self.name} is asked for each role by itself")

    @abstractmethod
    def changes(self, role: str) -> AsyncIterator[None]:
        """Hints that something may have changed. May be silent for ever; ends when the link is lost."""

    async def changes_among(self, roles: Sequence[str]) -> AsyncIterator[str | None]:
        """:meth:`changes` of all of ``roles`` (:attr:`roles_a_watch` at most), each naming its role; ``None``: any.

        May name others as well. Overridden, with :attr:`roles_a_watch`, where one link tells of many.
        """
        (role,) = roles
        async for _ in self.changes(role):
            yield role

    async def probe(self, deadline: float) -> None:
        """Raises ``Unavailable`` saying why where the election cannot be used."""
        await self.read("probe", deadline)

    async def issued_up_to(self, role: str, deadline: float) -> int:
        """A number that no token issued so far is above and every later one is, by a linearizable read (rule R10).

        Raises ``NotImplementedError`` where the election cannot tell, or ``Unavailable``.
        """
        raise NotImplementedError(f"the election {self.name} does not tell which numbers it has issued")

    async def candidates(self, role: str, deadline: float) -> list[Candidate]:
        """Who waits in line for the role now, the holder left out; one that died is shown for up to its lease.

        Raises ``NotImplementedError`` where the election cannot tell, or ``Unavailable``.
        """
        raise NotImplementedError(f"the election {self.name} does not tell who waits in line")

    @abstractmethod
    async def close(self) -> None:
        """Close every connection, for good. Leaves any held lease to lapse; later calls raise ``Unavailable``."""


class ElectionBackend(LeadershipSource):
    """An election that we campaign in. One contract, one contract suite, every backend.

    Beyond what a :class:`LeadershipSource` promises, a token is never issued twice: it grows with
    every term, that of the same node after a restart included.
    """

    @abstractmethod
    async def acquire(self, role: str, candidate: Candidate, deadline: float) -> Won | Held:
        """One try at winning, or a sign of life while waiting in line. Idempotent."""

    @abstractmethod
    async def renew(self, role: str, token: int, candidate: Candidate, *, active: bool, deadline: float) -> None:
        """Extend our term by a full ``lease_duration``, counted from no earlier than this call's start.

        Proved by a linearizable transaction "the leader's record still carries ``token``".
        ``active`` and the candidate's ``draining_to`` are written into the record.
        Raises :class:`LeaseLost` or ``Unavailable``.
        """

    @abstractmethod
    async def release(self, role: str, token: int, sealed: SealRecord, deadline: float) -> bool:
        """End the term ``token`` now, leaving ``sealed`` in the same transaction. Idempotent.

        Conditional on the token: a repeated or late call cannot remove a newer holder. False if
        the term had ended already. Call it only after the seal is known (rule R8).
        """

    @abstractmethod
    async def withdraw(self, role: str, deadline: float) -> None:
        """Leave the line. Never ends a term that was won, which lapses: the next :meth:`acquire` stands anew."""

    async def rebase(self, role: str, above: int, by: str, deadline: float) -> Rebased:
        """See to it that every token issued from now on is above ``above``: the way out of rule R10.

        Recorded in the election store itself, where every elector reads it in the act of winning, with ``by``: who
        did it. Idempotent, and only ever upwards; a term under way keeps its number. Raises ``NotImplementedError``
        where the election's numbers cannot be moved, ``ValueError`` where ``above`` is too high, or ``Unavailable``
        (nothing is known to have been moved: ask again).
        """
        raise NotImplementedError(f"the numbers of the election {self.name} cannot be moved by fencegate")


@dataclass(frozen=True, slots=True)
class Observed:
    """What this process believes of a role's leadership. For hints and refusals only; it never admits a write.

    ``known`` is False while the election store has not answered for a lease's length. ``term`` is
    ``None`` where nobody leads; only an *active* (claimed) term is ever given here. ``observed_at`` is
    wall-clock seconds since the epoch, for display; ``age`` is seconds since the last answer.
    ``candidacy`` tells what the local elector does: "leading", "campaigning",
    "claiming", "handing over", "resigning" or "" (none here).
    """

    known: bool
    term: Term | None
    observed_at: float
    age: float
    candidacy: str = ""


class LeadershipView(Protocol):
    """What the gateway asks about leadership. ``election/`` provides it, from an elector or a follower."""

    def observed(self, role: str) -> Observed:
        """The latest observation, from memory."""
        ...

    async def issued(self, role: str, time_limit: float) -> Term | None:
        """The current term by a linearizable read begun after this call (rule R11).

        Reads are shared and rate-limited: callers that arrive while one is under way wait for the next.
        Raises :class:`fencegate.errors.Unavailable`.
        """
        ...

    def listen(self, changed: Callable[[str], None]) -> None:
        """Have ``changed(role)`` called whenever the term that :meth:`observed` gives is another one than before.

        Another token, another holder, none any more, or a handoff of it begun or taken back. It is called after the
        change, in the event loop, and must neither wait nor raise.
        """
        ...
