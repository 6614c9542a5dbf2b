"""Every fact worth a log line or a metric, one dataclass each.

The parts of fencegate only *say* what happened, by handing one of these to an ``Observer``; ``telemetry/`` listens
and turns them into metrics and log lines. One fact, one observation, one line. Durations are seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Observation:
    """Base of all. ``role`` is a configured role or family, never a value out of a request."""

    __slots__ = ()


Observer = Callable[[Observation], None]


def ignore(observation: Observation) -> None:
    """The observer that listens to nothing."""


# -- requests -----------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: one a request, at a third of the cost.
class WriteAccepted(Observation):
    role: str
    token: int
    replayed: bool
    check_duration: float


@dataclass(slots=True, unsafe_hash=True)  # Not frozen: one a request, at a third of the cost.
class WriteRefused(Observation):
    """``code`` is a problem code. ``client`` and what follows it are for the log only, never for a label.

    ``forwarded`` is whom a proxy in front says that it speaks for, by a header that anybody can send. ``member`` is
    the single role where ``role`` is a family. ``caller`` is the identity that was proved, ``""`` for none.
    """

    role: str
    code: str
    presented_token: int | None
    max_token_seen: int | None
    client: str
    agent: str
    forwarded: str = ""
    member: str = ""
    caller: str = ""


@dataclass(frozen=True, slots=True)
class WouldRefuse(Observation):
    """Observe mode: the write went through although the fence would have refused it. Fields as in a refusal."""

    role: str
    code: str
    presented_token: int | None
    client: str
    agent: str
    forwarded: str = ""
    member: str = ""
    caller: str = ""


@dataclass(frozen=True, slots=True)
class WriteOutcomeUnknown(Observation):
    role: str
    cause: str


@dataclass(frozen=True, slots=True)
class WriteHeld(Observation):
    """A write waits for the end of a handoff or an election instead of being refused."""

    role: str


@dataclass(frozen=True, slots=True)
class HoldEnded(Observation):
    """It waits no longer, after ``duration``. ``why``: news (somebody leads, or the fence says another word), expired
    (its time is over), stopping (the gateway is), left (the client has: no effect)."""

    role: str
    why: str
    duration: float


@dataclass(frozen=True, slots=True)
class HoldRefused(Observation):
    """A write that was worth holding found no place, and was refused at once."""

    role: str


@dataclass(frozen=True, slots=True)
class FenceChecked(Observation):
    """One question to the fence (one batch, of writes to ``roles``), for ``fencing_check_duration_seconds``."""

    roles: tuple[str, ...]
    duration: float


# -- leadership ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeadershipGained(Observation):
    role: str
    token: int


@dataclass(frozen=True, slots=True)
class LeadershipLost(Observation):
    """``reason``: resigned, handoff, renew_deadline, lost, store, sealed, incarnation, superseded, suspended,
    shutdown."""

    role: str
    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class HandoffBegan(Observation):
    """Term ``token`` is being handed to region ``to``."""

    role: str
    token: int
    to: str


@dataclass(frozen=True, slots=True)
class HandoffEnded(Observation):
    """``outcome``: released (the successor may open), undone (the old leader goes on), lapsing (no known seal or
    no release: the lease runs out by itself), abandoned (the term ended for another reason meanwhile)."""

    role: str
    token: int
    to: str
    outcome: str


@dataclass(frozen=True, slots=True)
class DrainBegan(Observation):
    """An operator stops writes of term ``token`` for at most ``limit`` seconds. Asking again moves the end."""

    role: str
    token: int
    limit: float


@dataclass(frozen=True, slots=True)
class DrainEnded(Observation):
    """``outcome``: resumed (writes are taken again), term_over (the term ended first)."""

    role: str
    token: int
    outcome: str


@dataclass(frozen=True, slots=True)
class LeaseRenewed(Observation):
    """``expires_at`` is wall-clock seconds since the epoch, for display only."""

    role: str
    backend: str
    duration: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class LeaseRenewalFailed(Observation):
    role: str
    backend: str
    cause: str
    detail: str


@dataclass(frozen=True, slots=True)
class ClaimWasRefused(Observation):
    role: str
    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class TokenRegressed(Observation):
    """The issuer went back (a restore): its token is below what this store has accepted. Closed until rebased."""

    role: str
    token: int
    max_token_seen: int


@dataclass(frozen=True, slots=True)
class EarlierTermEnded(Observation):
    """At its start this process sealed and gave back term ``token``, which an earlier life of its node left behind."""

    role: str
    token: int


@dataclass(frozen=True, slots=True)
class NodeNameShared(Observation):
    """Another process campaigns under our own ``node``, and won term ``token`` after one of ours: names must differ.

    Or, far less often, we won it ourselves, and lost it with the link before we heard of it.
    """

    role: str
    node: str
    token: int


@dataclass(frozen=True, slots=True)
class TokensRebased(Observation):
    """``by`` moved the issuer of ``role`` up: every later token is above ``after``, where it was ``before``."""

    role: str
    by: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class LeaderObserved(Observation):
    """The election store's word on who leads; ``token`` 0 and ``region`` "" where nobody does."""

    role: str
    token: int
    region: str
    node: str


@dataclass(frozen=True, slots=True)
class SourceUnavailable(Observation):
    role: str
    backend: str
    detail: str


@dataclass(frozen=True, slots=True)
class StrangerLeads(Observation):
    """Somebody holds the role who is not among ``election.holders``; ``region`` "" in a system without regions."""

    role: str
    token: int
    region: str
    node: str


@dataclass(frozen=True, slots=True)
class TermSealed(Observation):
    role: str
    token: int
    known: bool


# -- store --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreWentDown(Observation):
    """``store``: its name where there are several, else empty; as of :class:`StoreCameUp`."""

    detail: str
    store: str = ""


@dataclass(frozen=True, slots=True)
class StoreCameUp(Observation):
    incarnation: str
    store: str = ""


@dataclass(frozen=True, slots=True)
class StoreWentBack(StoreWentDown):
    """It lacks what it had acknowledged, as files of an earlier moment are in their place. Closed until reopened."""


@dataclass(frozen=True, slots=True)
class FenceSeen(Observation):
    role: str
    max_token_seen: int
    draining: bool


@dataclass(frozen=True, slots=True)
class KeysExpired(Observation):
    count: int


@dataclass(frozen=True, slots=True)
class OrphanedMarkExpired(Observation):
    """A gateway that is gone left a write under way in the upstream; its limit has passed.

    ``token`` is the term that found the mark: a newer one, or the mark's own at its orderly end.
    """

    role: str
    token: int


# -- process ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PendingVoided(Observation):
    """Batches that a gateway had left pending, unconfirmed and unanswered, were rolled back (rule R15)."""

    count: int


@dataclass(frozen=True, slots=True)
class Started(Observation):
    version: str
    node: str
    region: str
    data: str
    admin: str


@dataclass(frozen=True, slots=True)
class NotEnforcing(Observation):
    """At the start: a route of this role, or family, is in observe mode. Nothing stale is refused there."""

    role: str


@dataclass(frozen=True, slots=True)
class Reloaded(Observation):
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReloadRefused(Observation):
    """The settings on disk are faulty: those in use are kept. One sentence per fault, without secrets."""

    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificatesLoaded(Observation):
    """``setting`` is the table that names the files. New connections are accepted with them from now on."""

    setting: str
    cert: str


@dataclass(frozen=True, slots=True)
class CertificatesRefused(Observation):
    """The files have changed and cannot be used: those loaded before are kept. One sentence per fault."""

    setting: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificateExpiring(Observation):
    """The certificate in use is valid for ``left`` s more; expired: 0 or less."""

    setting: str
    cert: str
    left: float


@dataclass(frozen=True, slots=True)
class Stopping(Observation):
    reason: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Stopped(Observation):
    abandoned: int


@dataclass(frozen=True, slots=True)
class WorkerServes(Observation):
    """Worker ``number`` of this gateway, the process ``pid``, takes requests."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerEnded(Observation):
    """It ended without having been told to; another takes its place ``restart_in`` seconds later."""

    number: int
    pid: int
    reason: str
    restart_in: float
