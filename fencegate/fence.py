"""The fence: may a write with this token land in this store now?

One row per role and store, and one rule, :func:`decide`. The rule is stated here once, without
I/O and with the store's clock as an argument; ``migrations/`` states it a second time in SQL,
where it runs under the row's lock inside the transaction of the write, and a property test holds
the two equal. A refusal may come from memory, since ``max_token_seen`` only grows; an admission
only ever comes from the store.

Rules about the rule:

* The row of a role is never deleted, and a missing row is closed: there is no "first writer".
* ``max_token_seen``, ``sealed`` and ``last_seq`` never fall.
* In *lease mode* only the elector's claim raises ``max_token_seen``. In *token mode* a write may
  raise it too, up to the highest token that the election store has proved to be issued.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from fencegate.telling import Tell

Mode = Literal["lease", "token"]
"""``lease``: regions with a store each, the store enforces the lease. ``token``: one shared store."""

PART_BYTES: Final = 256 * 1024
"""Bytes of bodies with which a part of a ledger is full, however few entries they are."""


StillLeads = Callable[[str, int, float], Awaitable[bool]]
"""``(role, token, time_limit)``: whether the token is its role's term, by a linearizable read begun after this call.

Rule R15. Raises :class:`fencegate.errors.Unavailable` where the election does not say so within ``time_limit`` s.
"""


class Verdict(enum.IntEnum):
    """What the fence says. The numbers are those of the SQL functions."""

    ADMIT = 0
    STALE = 1
    """The token is older than one already accepted."""
    NOT_LEADING = 2
    """No open term in this store: lease ended, sealed, or never claimed."""
    ABOVE = 3
    """Newer than any token accepted here; nothing proves that it was issued."""
    NO_FENCE = 4
    """No row for this role: closed."""
    OTHER_INCARNATION = 5
    """The server was promoted or restored since the term was claimed: a new term is needed."""
    DRAINING = 6
    """The term is ending: no new write begins."""
    UNDRAINED = 7
    """Older terms still have writes under way outside the store; ``WritePath.admit`` waits for them."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The row of one role. Times are seconds since the epoch on the *store's* clock.

    ``valid_until`` is ``-inf`` when no term is open and ``inf`` for an open term in token mode.
    ``incarnation`` names the server on which the term was claimed: system identifier and timeline.
    """

    role: str
    mode: Mode
    max_token_seen: int
    sealed: int
    valid_until: float
    incarnation: str
    holder: str
    last_seq: int = 0
    draining: bool = False
    """A planned handoff or resignation has been announced: no new write begins."""


def decide(fence: Fence | None, token: int, *, issued: int, now: float, incarnation: str) -> Verdict:
    """The verdict on one write.

    ``issued`` is the highest token proved to be issued by a linearizable read made after the request
    came (0 when none was made); ``now`` is the store's clock; ``incarnation`` is the server's own.
    The order is the wire contract's: leading, then stale, then issued. Any ``None`` is closed.
    """
    if fence is None:
        return Verdict.NO_FENCE
    if fence.sealed >= fence.max_token_seen or now >= fence.valid_until:
        return Verdict.NOT_LEADING
    if fence.incarnation != incarnation:
        return Verdict.OTHER_INCARNATION
    if fence.draining:
        return Verdict.DRAINING
    if token < fence.max_token_seen:
        return Verdict.STALE
    if token > fence.max_token_seen and (fence.mode == "lease" or token > issued):
        return Verdict.ABOVE
    return Verdict.ADMIT


class ClaimRefused(enum.StrEnum):
    """Why a store did not take a claim or a renewal."""

    SUPERSEDED = "superseded"
    """A newer token has been accepted here; for a claim, the issuer may have gone back."""
    SEALED = "sealed"
    INCARNATION = "incarnation"
    """Not the server on which the term was claimed."""
    EXPIRED = "expired"
    """The lease asked for was over before it could be written."""
    NO_FENCE = "no_fence"


@dataclass(frozen=True, slots=True)
class StoreClock:
    """The store's clock and incarnation, read in one session (rule R3, step a).

    ``started``: when the server was, by its own word; empty where it does not tell. It tells apart two servers of one
    incarnation, which two promoted standbys of one primary may be.
    """

    now: float
    incarnation: str
    started: str = ""


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: three of these a write, at a third of the cost.
class Entry:
    """One entry of the built-in ledger. ``hash`` chains it to the entry before. ``caller``: who wrote it, if known."""

    role: str
    seq: int
    token: int
    recorded_at: str
    body: bytes
    hash: str
    key: str | None = None
    caller: str | None = None


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: three of these a write, at a third of the cost.
class Write:
    """One write on its way to the store.

    ``key_digest`` is 16 bytes over (caller identity, idempotency key), empty without a key;
    ``payload_digest`` is 16 bytes over the payload. ``issued``: see :func:`decide`. ``caller``: who sends it, printable
    ASCII; empty for nobody that is known.
    ``enforce=False`` (observe mode) writes whatever the verdict, and only reports it; there ``token`` may be 0,
    for a write that presented none.
    """

    role: str
    token: int
    body: bytes
    issued: int = 0
    key: str = ""
    key_digest: bytes = b""
    payload_digest: bytes = b""
    enforce: bool = True
    context: dict[str, object] = field(default_factory=dict)
    caller: str = ""


class Effect(enum.IntEnum):
    """What became of one admitted (or replayed) write."""

    APPLIED = 0
    REPLAYED = 1
    KEY_REUSED = 2
    IN_PROGRESS = 3
    REJECTED = 4
    """The user's function raised an exception; nothing of this write was applied."""
    UNKNOWN = 5
    """An earlier try with this key has an unknown outcome (targets outside the store)."""


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: three of these a write, at a third of the cost.
class WriteResult:
    """The store's answer to one write.

    ``effect`` is ``None`` where the verdict refused it. A replay may come with any verdict: a stored
    result is given back to its caller even after a failover.
    """

    verdict: Verdict
    effect: Effect | None
    max_token_seen: int | None
    entry: Entry | None = None
    """The ledger entry written or replayed (without its body)."""
    answer: bytes | None = None
    """JSON: the function's result, or its error ``{"message", "sqlstate", "detail", "hint"}``."""
    status: int | None = None
    """HTTP status stored with a replayed answer."""
    headers: tuple[tuple[str, str], ...] = ()


class FenceStore(Protocol):
    """What a region's store can do for the elector and the admin pages. ``store/postgres.py`` is the one that ships.

    Every method raises :class:`fencegate.errors.Unavailable` when the store cannot answer in its
    time limit. All of them work on a connection that no flood of writes can take away.
    """

    async def clock(self) -> StoreClock:
        """Rule R3, step a: the clock and incarnation, before the quorum is asked."""
        ...

    async def claim(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        """Open a term (rule R5): raise ``max_token_seen`` to ``token``, valid until ``clock.now + valid_for`` s.

        Taken only if ``token`` is above ``max_token_seen``, or equal with the same holder; above
        ``sealed``; and the server is still ``clock.incarnation``. ``None`` means taken. Idempotent.
        In token mode ``valid_for`` is ``inf``.
        """
        ...

    async def extend(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        """Rule R3, step c: ``valid_until := greatest(valid_until, clock.now + valid_for)``. ``None`` means extended.

        Refused unless ``token`` is exactly the open term's, unsealed, on the incarnation of its claim.
        """
        ...

    async def seal(self, role: str, token: int, incarnation: str) -> bool:
        """Rule R7: end term ``token`` here for good, after all transactions under way.

        True only where the seal is *known* to stand on the server where the term was open
        (``incarnation``): only then may the lease be given back early.
        """
        ...

    async def set_draining(self, role: str, token: int, draining: bool) -> bool:
        """Announce (or take back) that term ``token`` is ending. True if the row is that term's."""
        ...

    async def in_flight(self, role: str, token: int) -> int:
        """Marks of writes under way outside the store, of terms up to ``token``, whose limit has not passed.

        A mark whose limit has passed was left by a gateway that is gone: it is said once, and removed.
        """
        ...

    async def read(self, role: str) -> Fence | None:
        """The row as it is now, or ``None``."""
        ...

    async def read_some(self, roles: Sequence[str]) -> list[Fence]:
        """The rows of ``roles`` as they are now; none for a role without one."""
        ...

    async def read_all(self) -> list[Fence]:
        """Every row, for admin pages and metrics."""
        ...


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What an upstream answered, kept under an idempotency key so that a retry gets the same.

    ``body`` is ``None`` where it was too large to keep. ``payload_digest`` is 16 bytes over the
    request that was answered; a retry with another payload is refused.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    payload_digest: bytes


def never() -> bool:
    """For a caller whose leaving cannot be seen."""
    return False


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: see Write.
class Forward:
    """A write that a gateway wants to send to an upstream outside the store.

    ``has_left``: whether its caller has gone, asked while it waits for older terms' writes to end.

    ``upstream_limit`` is how long the upstream may take, in seconds from the moment ``admit`` is called: a
    mark left by a crash blocks the next term for so long and a second or two of grace (rule R12).
    """

    role: str
    token: int
    upstream_limit: float
    issued: int = 0
    key_digest: bytes = b""
    enforce: bool = True
    has_left: Callable[[], bool] = never


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: see Write.
class Admission:
    """The store's answer to a :class:`Forward`.

    ``effect``: ``APPLIED`` means "go and send it, then settle ``ticket``"; ``REPLAYED`` comes with
    ``stored``; ``IN_PROGRESS`` and ``UNKNOWN`` mean that an earlier try with this key is under way, or ended
    without an answer. ``None`` where the verdict refused it. Only ``APPLIED`` carries a ticket (> 0).

    ``good_until``: when the lease ends under which it was given, in seconds of
    :func:`fencegate.steady_clock.steady_clock`, never too late; ``inf`` where no lease bounds it (token mode,
    observe mode). A write whose first byte has not been sent by then is not sent.
    """

    verdict: Verdict
    effect: Effect | None
    max_token_seen: int | None
    ticket: int = 0
    stored: StoredAnswer | None = None
    good_until: float = math.inf


class _Settled:
    def __await__(self) -> Generator[None, None, None]:
        return
        yield


SETTLED: Final[Awaitable[None]] = _Settled()
"""What :meth:`WritePath.settle` returns where nothing has to be waited for."""


class WritePath(Protocol):
    """What the gateway's targets ask of a region's store. Many writes travel in one transaction.

    Each method ends within ``time_limit`` seconds. :class:`fencegate.errors.Unavailable` means that
    nothing was applied; :class:`fencegate.errors.OutcomeUnknown` that the answer to a sent commit was lost.
    """

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        """One entry of the built-in ledger, in the fenced transaction."""
        ...

    def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
        """As :meth:`append`, but nobody waits: ``tell`` hears what it gives or raises, never before this returns.

        Raises as :meth:`append` where the write is not taken at all.
        """
        ...

    async def call(self, function: str, write: Write, time_limit: float) -> WriteResult:
        """``function(body jsonb, context jsonb) returns jsonb``, run in the fenced transaction."""
        ...

    def admit(self, forward: Forward, time_limit: float) -> Awaitable[Admission]:
        """Mark in flight, then check the fence (rule R12); waits up to ``time_limit`` for older terms to drain.

        Gives ``DRAINING`` where they did not, or where the caller has left before they had.
        """
        ...

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        """As :meth:`admit`, but nobody waits: ``tell`` hears what it gives or raises, never before this returns.

        It need not wait for older terms: ``UNDRAINED`` says that :meth:`admit` would. Raises as :meth:`admit` where it
        is not asked at all.
        """
        ...

    def settle(self, ticket: int, answer: StoredAnswer | None, *, sent: bool = True) -> Awaitable[None]:
        """The forwarded write has ended; ``answer=None``: without a known outcome. Never raises.

        What it returns has to be awaited, but for :data:`SETTLED`: all is done then.

        With an answer the key's result is stored before this returns; without one the mark stands
        until the upstream's limit has passed. ``sent=False``: not one byte reached the upstream, so
        the mark and the key are taken back.
        """
        ...

    async def peek(self, role: str, token: int, time_limit: float) -> tuple[Verdict, int | None]:
        """The verdict as things stand and ``max_token_seen``, applying nothing: for ``Expect: 100-continue``."""
        ...

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        """``tell`` hears, as of :meth:`send`, whether an earlier write left its key here, whatever became of it.

        A write that the fence refuses may still have an answer to be given again.
        """
        ...

    async def entry(self, role: str, seq: int) -> Entry | None:
        """One ledger entry."""
        ...

    async def entries(self, role: str, after: int, limit: int) -> list[Entry]:
        """Up to ``limit`` entries with ``seq > after``, in order; the one that fills :data:`PART_BYTES` is the last."""
        ...
