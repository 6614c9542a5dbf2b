"""Verdicts on an election: its members, its numbers, and whether its timings fit what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fencegate.cli.doctor_findings import Finding, fault, fine, listed, milliseconds, note, unknown, warning
from fencegate.cli.doctor_measures import Measures, Numbers, Unmeasured
from fencegate.config import Settings
from fencegate.config.values import is_loopback, split_address
from fencegate.election.shared_read import PROOF_LIMIT
from fencegate.election.survey import ElectionSurvey, Member
from fencegate.election.zookeeper_timings import EnsembleTimings
from fencegate.fence import Fence
from fencegate.lease import LeaseTimings
from fencegate.store.survey import PostgresSurvey

DRIFT: Final = 0.0005
"""How far two clocks drift apart in a second, at the most: five times what a cheap crystal does."""
CALLS: Final = 3
"""Questions to the election that one renewal may take, the grant of a lease included."""
READABLE: Final = 2.0
"""Seconds between two clocks from which on their logs cannot be read side by side."""


def election(settings: Settings, measures: Measures) -> Iterator[Finding]:
    """On the election itself, whatever it is over."""
    found = measures.election
    if isinstance(found, Unmeasured):
        advice = "Mend it, or the settings under [election]: until it answers nobody wins, and a leader steps down."
        yield fault("election.reachable", found.why, "an answer through the quorum", advice)
    else:
        yield fine("election.reachable", milliseconds(min(found.round_trips)), "an answer through the quorum")
    yield from _members(measures.members)
    if not isinstance(found, Unmeasured):
        yield from _voters(settings, found)
    yield from _transport(settings)
    if settings.election.over_postgres:
        yield _one_server(settings)


def _members(members: tuple[Member, ...]) -> Iterator[Finding]:
    """Where each can be asked by itself."""
    if not members:
        return
    silent = [member for member in members if member.why]
    majority = len(members) // 2 + 1
    answering = len(members) - len(silent)
    measured, expected = f"{answering} of {len(members)} answer", "all of them"
    if silent:
        kind = fault if answering < majority else warning
        advice = "Start what is missing, or take it off election.endpoints."
        yield kind("election.members", f"{measured}; {listed([each.why for each in silent])}", expected, advice)
    else:
        yield fine("election.members", measured, expected)
    clusters = {member.cluster for member in members if member.cluster}
    if len(clusters) > 1:
        advice = "Name the members of one cluster only: two clusters elect two leaders."
        yield fault("election.one_cluster", f"{len(clusters)} clusters", "one", advice)
    elif clusters:
        yield fine("election.one_cluster", f"cluster {next(iter(clusters))}", "one")
    complaints = {f"{member.endpoint}: {text}" for member in members for text in member.complaints}
    if complaints:
        advice = "See to it: etcdctl endpoint status, etcdctl alarm list."
        yield warning("election.alarms", listed(sorted(complaints)), "none", advice)
    yield from _clocks(members)


def _clocks(members: tuple[Member, ...]) -> Iterator[Finding]:
    told = [(m.endpoint, m.clock_offset, m.clock_error) for m in members if m.clock_offset is not None]
    if not told:
        return
    expected = f"within {READABLE:g} s of this machine's (read by people only: no election trusts a clock)"
    endpoint, offset, give_or_take = max(told, key=lambda each: abs(each[1]))
    measured = f"{offset:+.1f} s at {endpoint}, give or take {give_or_take:.1f} s"
    if abs(offset) - give_or_take > READABLE:
        yield note("election.clock", measured, expected, "Let NTP set both: else their logs cannot be read together.")
    else:
        yield fine("election.clock", measured, expected)


def _voters(settings: Settings, found: ElectionSurvey) -> Iterator[Finding]:
    voters, check = found.voters, "election.quorum_size"
    if voters is None and settings.election.source == "zookeeper":
        voters = len(settings.election.endpoints)
    if voters is None:
        return
    expected = "3 or 5, in three places"
    if voters == 1:
        advice = "Three members: while this one is away nobody can lead, and when its disk is lost its numbers are."
        yield warning(check, "1 member", expected, advice)
    elif voters % 2 == 0:
        advice = f"One more or one less: {voters} members survive no more losses than {voters - 1} do."
        yield warning(check, f"{voters} members", expected, advice)
    else:
        yield fine(check, f"{voters} members", expected)
    named = len(settings.election.endpoints)
    if voters > 1 and named == 1 and settings.election.source != "consul":
        advice = (
            "Name every member in election.endpoints: the one that is named takes the election along when it fails."
        )
        yield warning("election.endpoints", f"1 of {voters} members named", "all of them", advice)


def _transport(settings: Settings) -> Iterator[Finding]:
    election = settings.election
    secret = election.password_file or election.token_file
    bare = [each for each in election.endpoints if not each.startswith("https://") and not _is_here(each)]
    if secret and bare and election.source != "zookeeper":
        advice = "Use https:// endpoints: whoever reads the password or token can lead."
        yield warning("election.transport", f"a secret goes in the clear to {listed(bare)}", "TLS", advice)


def _is_here(endpoint: str) -> bool:
    address = endpoint.rpartition("://")[2]
    try:
        return is_loopback(split_address(address)[0])
    except ValueError:
        return is_loopback(address.strip("[]"))


def _one_server(settings: Settings) -> Finding:
    check, source = "election.one_server", settings.election.source
    expected = "a quorum, where two regions may lead"
    if settings.election.dsn in (None, settings.store.dsn):
        advice = (
            "Fine for one region. A second one with a store of its own would hold an election of its own: use etcd."
        )
        return note(check, f"{source}, in the store's own database", expected, advice)
    advice = "Use etcd: one Postgres is no quorum, and its failover may forget a token or leave two servers electing."
    return warning(check, f"{source}, on one server", expected, advice)


# -- numbers ----------------------------------------------------------------------------------------


def numbers(settings: Settings, measures: Measures) -> Iterator[Finding]:
    """Rule R10, for all roles together."""
    store = measures.store
    fences = {} if isinstance(store, Unmeasured) else {fence.role: fence for fence in store.fences or ()}
    told = {role: found for role, found in measures.numbers.items() if isinstance(found, Numbers)}
    expected = "issued up to at least what the store has accepted, for each role"
    behind = [
        f"{role} (issued up to {found.issued}, accepted {fences[role].max_token_seen})"
        for role, found in told.items()
        if role in fences and found.issued < fences[role].max_token_seen
    ]
    if behind:
        advice = "The election store was restored, or is another one: closed until you run: fencegate rebase ROLE"
        yield fault("tokens.issuer", f"behind: {listed(behind)}", expected, advice)
    elif not told:
        yield unknown("tokens.issuer", _first_reason(measures.numbers), expected)
    elif not fences:
        yield unknown("tokens.issuer", "the store has no fence yet, or did not tell", expected)
    else:
        yield fine("tokens.issuer", _ahead(told, fences), expected)
    fell = [f"{role} ({f.issued}, then {f.issued_later})" for role, f in told.items() if f.issued_later < f.issued]
    if fell:
        advice = (
            "Two clusters answer under one address, or one is being restored: find out which before anything leads."
        )
        yield fault("tokens.monotonic", f"fell: {listed(fell)}", "numbers that only rise", advice)
    elif told:
        yield fine("tokens.monotonic", "no number fell while this ran", "numbers that only rise")
    leaders = {role: found.leader for role, found in told.items()}
    if leaders:
        idle = [role for role, leader in leaders.items() if leader is None]
        measured = f"nobody leads {listed(idle)}" if idle else listed([f"{r}: {who}" for r, who in leaders.items()])
        yield note("tokens.leader", measured, "a leader, while gateways run")


def _ahead(told: Mapping[str, Numbers], fences: Mapping[str, Fence]) -> str:
    if len(told) > 1:
        return f"ahead, for {len(told)} roles"
    ((role, found),) = told.items()
    return f"issued up to {found.issued}, accepted {fences[role].max_token_seen if role in fences else 0}"


def _first_reason(numbers: Mapping[str, Numbers | Unmeasured]) -> str:
    return next((found.why for found in numbers.values() if isinstance(found, Unmeasured)), "no role")


# -- timings ----------------------------------------------------------------------------------------


def timings(
    settings: Settings, store: PostgresSurvey | Unmeasured, found: ElectionSurvey | Unmeasured
) -> Iterator[Finding]:
    """Whether lease, deadline, period and margin fit the latencies and clocks that were measured."""
    told = settings.timings
    ways = None if isinstance(found, Unmeasured) else max(found.round_trips)
    home = None if isinstance(store, Unmeasured) else max(store.round_trips)
    expected = f"well within retry_period ({told.retry_period:g} s)"
    if ways is None or home is None:
        yield unknown("timings.renewal", "store or election did not answer", expected)
    else:
        renewal = CALLS * ways + 2 * home
        attempt = max(told.retry_period, told.renew_deadline / 2)
        measured = f"up to {milliseconds(renewal)} (election {milliseconds(ways)}, store {milliseconds(home)} a call)"
        advice = "Move the gateway nearer, or lengthen lease_duration, renew_deadline and retry_period together."
        if renewal > attempt:
            yield fault("timings.renewal", measured, expected, advice)
        elif renewal > told.retry_period / 2:
            yield warning("timings.renewal", measured, expected, advice)
        else:
            yield fine("timings.renewal", measured, expected)
    if not isinstance(found, Unmeasured) and found.ensemble is not None:
        yield from _ensemble(told, found.ensemble)
    if settings.validated and ways is not None:
        yield _proof(ways)
    needed = DRIFT * told.lease_duration + 2 * (home or 0.0)
    expected = f"at least {milliseconds(needed)}: drift over a lease, and the stall of a commit (rule R4)"
    measured = f"{told.margin:g} s"
    if told.margin < needed:
        advice = "Raise election.margin: a write may be accepted after another region has opened."
        yield fault("timings.margin", measured, expected, advice)
    else:
        yield fine("timings.margin", measured, expected)
    yield from _store_clock(told.margin + told.clock_offset, store)


def _ensemble(told: LeaseTimings, found: EnsembleTimings) -> Iterator[Finding]:
    """ZooKeeper's own timings, which its sample configuration sets for other uses than leases of seconds."""
    bears = f"tickTime x syncLimit of less than half of renew_deadline ({told.renew_deadline / 2:g} s)"
    if found.why:
        yield unknown("timings.ensemble", found.why, bears)
        return
    if found.silence is not None:
        measured = f"{found.silence:g} s"
        if found.silence >= told.renew_deadline / 2:
            advice = (
                "Lower tickTime or syncLimit, or raise the lease's timings: until a member has given a silent "
                "leader up it answers nobody's writes, and every term ends meanwhile."
            )
            yield warning("timings.ensemble", measured, bears, advice)
        else:
            yield fine("timings.ensemble", measured, bears)
    granted = f"{found.shortest:g} s to {found.longest:g} s"
    expected = f"lease_duration ({told.lease_duration:g} s) among them"
    if found.shortest <= told.lease_duration <= found.longest:
        yield fine("timings.sessions", granted, expected)
    else:
        longer = told.lease_duration < found.shortest
        advice = "Set minSessionTimeout and maxSessionTimeout, or tickTime (sessions last 2 to 20 ticks): " + (
            "a candidate that died stays in line for longer than a lease."
            if longer
            else "a candidate loses its place in line by a shorter silence than a lease."
        )
        yield warning("timings.sessions", granted, expected, advice)


def _proof(ways: float) -> Finding:
    """Rule R15: each batch of a validated role waits for one read of the election, under the fence's lock."""
    expected = f"well within the {PROOF_LIMIT:g} s that a proof may take"
    measured = f"up to {milliseconds(ways)} a batch"
    if ways > PROOF_LIMIT / 4:
        advice = "Move the election nearer, or leave validate out: renewals wait behind each batch, and slow ones fail."
        return (fault if ways > PROOF_LIMIT else warning)("timings.proof", measured, expected, advice)
    return fine("timings.proof", measured, expected)


def _store_clock(margin: float, store: PostgresSurvey | Unmeasured) -> Iterator[Finding]:
    check = "store.clock"
    expected = f"within margin ({margin:g} s) of this machine's"
    if isinstance(store, Unmeasured):
        yield unknown(check, "the store did not answer", expected)
        return
    measured = f"{store.clock_offset:+.3f} s, give or take {milliseconds(store.clock_error)}"
    if abs(store.clock_offset) - store.clock_error > max(margin, 0.1):
        advice = (
            "Let NTP set both, by slewing: the store's lease runs on the store's clock, and a step back that is larger "
            "than the margin keeps it open for too long."
        )
        yield warning(check, measured, expected, advice)
    else:
        yield fine(check, measured, expected)
