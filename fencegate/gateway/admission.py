"""What the fence said, as an answer: each verdict becomes the wire contract's refusal, with the hint where it is known.

Nothing here admits: an admission only ever comes out of the store. What this process believes of the
leadership (:class:`fencegate.lease.Observed`) decides only *which* refusal is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from fencegate.errors import Leader, Refusal, Unavailable, problem
from fencegate.fence import Verdict
from fencegate.gateway.request import Refused, refused
from fencegate.lease import LeadershipView, Observed, Term

SOON_MS = 1000
"""``Retry-After`` where nothing better is known."""
_LONGEST_MS = 15_000


@dataclass(frozen=True, slots=True)
class Presented:
    """The write as far as a refusal speaks of it."""

    role: str
    token: int | None


@dataclass(frozen=True, slots=True)
class Places:
    """Where this gateway stands: its ``region``, and the advertised origin of each region known by configuration."""

    region: str
    origins: Mapping[str, str]


def rfc3339(seconds: float) -> str:
    """``seconds`` since the epoch as UTC, to the second; ``""`` for none."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds > 0 else ""


def left_ms(observed: Observed, term: Term) -> int | None:
    """Milliseconds left of the lease when it was observed, or ``None`` where the election store cannot tell."""
    return None if term.expires_in is None else max(0, round(term.expires_in * 1000))


def leader_of(observed: Observed) -> Leader | None:
    """The active leader as observed, for a hint; ``None`` while unknown or unclaimed (rule R5)."""
    term = observed.term
    if not observed.known or term is None or not term.active:
        return None
    return Leader(term.url, term.region, term.token, "active", rfc3339(observed.observed_at), left_ms(observed, term))


def successor_of(observed: Observed, places: Places) -> Leader | None:
    """Who takes over in a planned handoff, if the running term names it and its origin is configured."""
    term = observed.term
    if term is None or not term.draining_to:
        return None
    url = places.origins.get(term.draining_to)
    return None if url is None else Leader(url, term.draining_to, 0, "incoming", rfc3339(observed.observed_at))


def refusal_for(
    verdict: Verdict, write: Presented, max_seen: int | None, observed: Observed, places: Places
) -> Refusal:
    """The refusal for a verdict other than ``ADMIT``. ``ABOVE`` is taken as lease mode's: see :func:`judge_above`."""
    if verdict is Verdict.STALE:
        return _stale(write, max_seen, observed)
    if verdict in (Verdict.NOT_LEADING, Verdict.ABOVE):
        return _not_leading(write, max_seen, observed, places)
    if verdict in (Verdict.DRAINING, Verdict.UNDRAINED):
        return _draining(verdict, write, max_seen, observed, places)
    if verdict is Verdict.NO_FENCE:
        detail = f'The store has no fence for role "{write.role}": closed until its first term is claimed.'
    else:
        detail = f'The store of role "{write.role}" was promoted or restored: closed until a new term is claimed.'
    return _refusal("fence_unavailable", detail, write, max_seen, retry_after_ms=SOON_MS)


def unavailable(detail: str, write: Presented | None = None) -> Refusal:
    """Fail closed: the store or the election could not be asked."""
    return _refusal("fence_unavailable", detail, write or Presented("", None), None, retry_after_ms=SOON_MS)


def _refusal(
    code: str,
    detail: str,
    write: Presented,
    max_seen: int | None,
    leader: Leader | None = None,
    retry_after_ms: int | None = None,
) -> Refusal:
    return Refusal(problem(code), detail, write.role or None, write.token, max_seen, leader, retry_after_ms)


def _stale(write: Presented, max_seen: int | None, observed: Observed) -> Refusal:
    detail = (
        f'Token {write.token} is older than {max_seen}, the highest token already accepted for role "{write.role}".'
    )
    leader = leader_of(observed)
    if leader is not None and max_seen is not None and leader.token < max_seen:
        leader = None  # The observation is older than the fence: such a hint would send the caller in a circle.
    return _refusal("stale_token", detail, write, max_seen, leader, None if leader else SOON_MS)


def _not_leading(write: Presented, max_seen: int | None, observed: Observed, places: Places) -> Refusal:
    leader = leader_of(observed)
    if not observed.known:
        detail = f'The election store has not answered; who leads role "{write.role}" is unknown.'
        return _refusal("fence_unavailable", detail, write, max_seen, retry_after_ms=SOON_MS)
    if leader is None:
        detail = f'Nobody leads role "{write.role}" at present.'
        return _refusal("no_leader", detail, write, max_seen, retry_after_ms=_wait_ms(observed))
    if leader.region == places.region:
        detail = f'Region "{places.region}" leads role "{write.role}", but its store is not open yet or no longer.'
        return _refusal("no_leader", detail, write, max_seen, retry_after_ms=SOON_MS)
    detail = f'Region "{places.region}" does not hold the lease of role "{write.role}"; region "{leader.region}" does.'
    return _refusal("not_leader", detail, write, max_seen, leader)


def _wait_ms(observed: Observed) -> int:
    """What is left of an unclaimed term's lease, 1 to 15 s; 1 s where nothing holds the role."""
    term = observed.term
    if term is None or term.expires_in is None:
        return SOON_MS
    return min(_LONGEST_MS, max(SOON_MS, round((term.expires_in - observed.age) * 1000)))


def _draining(verdict: Verdict, write: Presented, max_seen: int | None, observed: Observed, places: Places) -> Refusal:
    if verdict is Verdict.UNDRAINED:
        detail = f'Writes of an older term of role "{write.role}" are still under way at the upstream.'
        return _refusal("draining", detail, write, max_seen, retry_after_ms=SOON_MS)
    handed = observed.term is not None and observed.term.draining_to
    detail = (
        f'The leadership of role "{write.role}" is being handed over.'
        if handed
        else f'Writes of role "{write.role}" are stopped for a while.'
    )
    return _refusal("draining", detail, write, max_seen, successor_of(observed, places), SOON_MS)


@dataclass(frozen=True, slots=True)
class Above:
    """What became of a token above the fence: ``issued`` proves it (ask the store again), or ``refusal`` ends it."""

    issued: int = 0
    refusal: Refusal | None = None


async def judge_above(
    view: LeadershipView, write: Presented, max_seen: int | None, places: Places, time_limit: float
) -> Above:
    """Rule R11: a token above the fence against the election store's word, read after the request came.

    Only the exact token of the current term is proof. Raises nothing: an election store that cannot
    answer is a refusal.
    """
    assert write.token is not None
    try:
        term = await view.issued(write.role, time_limit)
    except Unavailable as error:
        return Above(refusal=unavailable(f"The election store could not be asked about the token: {error}", write))
    observed = view.observed(write.role)
    if term is None:
        nobody = Observed(True, None, observed.observed_at, observed.age)
        return Above(refusal=_not_leading(write, max_seen, nobody, places))
    if write.token == term.token:
        return Above(issued=term.token)
    if write.token > term.token:
        detail = f'Token {write.token} was never issued for role "{write.role}".'
        return Above(refusal=_refusal("token_not_issued", detail, write, max_seen))
    current = Observed(True, term, observed.observed_at, 0.0)
    leader = leader_of(current)
    detail = f'Token {write.token} is older than the current term of role "{write.role}", {term.token}.'
    return Above(refusal=_refusal("not_leader", detail, write, max_seen, leader, None if leader else SOON_MS))


def too_early() -> Refused:
    return refused(
        "too_early",
        "A write may not travel in TLS early data, which can be replayed; send it again after the handshake.",
        retry_after_ms=SOON_MS,
    )
