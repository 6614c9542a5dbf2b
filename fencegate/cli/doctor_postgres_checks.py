"""Verdicts on a Postgres: a region's store, or the server of an election."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fencegate.cli.doctor_findings import Finding, fault, fine, listed, milliseconds, note, unknown, warning
from fencegate.cli.doctor_measures import Unmeasured
from fencegate.cli.look import counted
from fencegate.config import Settings
from fencegate.store.survey import PostgresSurvey

OLDEST: Final = 14
"""The oldest major version of Postgres that is still maintained, and that can end idle sessions."""
SESSIONS: Final = 10
"""What one gateway holds open: four for its elector and the admin pages, six for writes and reads."""
PROVING: Final = 3
"""More of them for validated roles."""
PENDING: Final = 2
"""What one process has pending at most: a batch for the ledger and one for a function."""
SLOW: Final = 0.5
"""Seconds of one round trip, of the 2 s that a renewal gives the store."""

_IN_THE_WAY: Final = "a pooler is in the way: the gateway refuses it, whichever way it pools"
_DIRECT: Final = "a direct connection"


def store(settings: Settings, found: PostgresSurvey | Unmeasured) -> Iterator[Finding]:
    """On the region's store."""
    if isinstance(found, Unmeasured):
        yield _unreachable("store", found)
        return
    yield fine("store.reachable", f"connected in {milliseconds(found.connecting)}", "an answer")
    yield from _server("store", found)
    yield _pooler(found)
    yield _replication(found)
    yield _sessions(settings, found)
    yield _schema(found)
    if found.fences is not None:
        yield _fences(settings, found)
        yield _incarnation(settings, found)
    if settings.store.portability:
        yield _portability(settings)
    elif found.fences is not None:
        yield _history(found)
    if settings.pending:
        yield _pending(settings, found)
    if any(route.parsed_target.kind == "function" for route in settings.route):
        yield _functions(found)


def election(found: PostgresSurvey | Unmeasured, *, own: bool) -> Iterator[Finding]:
    """On the Postgres of an election; ``own``: it is not the store's, and has not been judged with it."""
    if isinstance(found, Unmeasured):
        if own:
            yield _unreachable("election", found)
        return
    if own:
        yield from _server("election", found)
        yield _standing_by("election.replication", found, "a token that was issued")
        lacking = found.missing_migrations
        if lacking or found.schema_fault:
            measured = found.schema_fault or f"lacks {listed(lacking)}"
            yield fault("election.schema", measured, "every migration", "Run: fencegate migrate")
    expected = f"{_DIRECT} to the election's Postgres"
    if not found.pooled:
        yield fine("election.pooler", "every statement ran where the session began", expected)
    else:
        yield fault("election.pooler", _IN_THE_WAY, expected, "Set election.dsn to the server itself.")


def _unreachable(subject: str, found: Unmeasured) -> Finding:
    if "a pooler stands in between" in found.why:
        return fault(f"{subject}.pooler", found.why, _DIRECT, f"Set {subject}.dsn to the server itself.")
    advice = f"Start it, or mend {subject}.dsn. Until it answers every write is refused."
    return fault(f"{subject}.reachable", found.why, "an answer", advice)


def _server(subject: str, found: PostgresSurvey) -> Iterator[Finding]:
    """What must be so on any server that an acknowledged write or an issued token rests on."""
    version = found.settings.get("server_version", "")
    major = version.partition(".")[0]
    expected = f"{OLDEST} or newer"
    if major.isdecimal() and int(major) < OLDEST:
        advice = "Upgrade it: this version gets no fixes any more."
        yield warning(f"{subject}.version", f"Postgres {version}", expected, advice)
    else:
        yield fine(f"{subject}.version", f"Postgres {version}", expected)
    if found.standby:
        advice = "Point the DSN at the primary; with several hosts in it, leave target_session_attrs out."
        yield fault(f"{subject}.primary", "a standby", "the primary", advice)
    else:
        yield fine(f"{subject}.primary", "the primary", "the primary")
    lost = "a crash may lose what was acknowledged, and issue a token a second time"
    for name, severe in (("fsync", True), ("full_page_writes", False)):
        value = found.settings.get(name, "")
        if value != "off":
            yield fine(f"{subject}.{name}", value, "on")
        else:
            yield (fault if severe else warning)(f"{subject}.{name}", "off", "on", f"Turn it on: without it {lost}.")
    yield _commits(subject, found, lost)
    worst = max(found.round_trips)
    slow = f"{milliseconds(min(found.round_trips))} to {milliseconds(worst)}"
    if worst > SLOW:
        advice = "Put the gateway beside it, or give it air: renewals give the store 2 s and then fail."
        yield warning(f"{subject}.latency", slow, f"at most {milliseconds(SLOW)} a round trip", advice)
    else:
        yield fine(f"{subject}.latency", slow, f"at most {milliseconds(SLOW)} a round trip")


def _commits(subject: str, found: PostgresSurvey, lost: str) -> Finding:
    check, value = f"{subject}.synchronous_commit", found.settings.get("synchronous_commit", "")
    standbys = found.settings.get("synchronous_standby_names", "")
    whose, mend = _origin_of_commits(found)
    if value == "off" and subject == "store":
        return fault(check, f"off{whose}", "on", f"{mend} Without it {lost}. Until then writes are refused.")
    if value in ("off", "local") and subject == "election" and not standbys:
        return fine(check, f"{value}{whose}, and turned on by each session of the election", "on")
    if value in ("local", "remote_write") and standbys:
        waits = "no standby" if value == "local" else "a standby's memory alone"
        advice = f"{mend} A commit waits for {waits} now, and a failover may lose it."
        return warning(check, f"{value}{whose}", "on, with synchronous standbys", advice)
    if value == "local" and whose:
        advice = f"{mend} Fine as long as there is no standby: of one that is added, commits would know nothing."
        return note(check, f"local{whose}", "on", advice)
    return fine(check, value, "on")


def _origin_of_commits(found: PostgresSurvey) -> tuple[str, str]:
    """Whose setting it is, where it is not the server's own, and what to do about it."""
    reset = "RESET synchronous_commit."
    places = {
        "user": (f"for the user {found.role}", f"ALTER ROLE {found.role} {reset}"),
        "database": (f"for the database {found.base}", f"ALTER DATABASE {found.base} {reset}"),
        "database user": (
            f"for the user {found.role} in the database {found.base}",
            f"ALTER ROLE {found.role} IN DATABASE {found.base} {reset}",
        ),
        "global": ("for every user", f"ALTER ROLE ALL {reset}"),
        "client": ("by the DSN", "Take it out of the DSN's options."),
    }
    place, mend = places.get(found.commits_by, ("", "Set it to on, in postgresql.conf or for this user."))
    return f", set {place}" if place else "", mend


def _pooler(found: PostgresSurvey) -> Finding:
    expected = f"{_DIRECT} to the store"
    if found.pooled or not found.settings_hold:
        return fault("store.pooler", _IN_THE_WAY, expected, "Set store.dsn to the server itself.")
    return fine("store.pooler", "every statement ran where the session began", expected)


def _replication(found: PostgresSurvey) -> Finding:
    return _standing_by("store.replication", found, "an acknowledged write")


def _standing_by(check: str, found: PostgresSurvey, what: str) -> Finding:
    """Rule R13: what only asynchronous replication holds is lost at an unplanned failover."""
    expected = "each commit on a second server before it is answered"
    names, states = found.settings.get("synchronous_standby_names", ""), found.standbys
    in_step = [state for state in states if state in ("sync", "quorum")]
    if names and in_step:
        return fine(check, f"{len(in_step)} of {len(states)} standbys in step", expected)
    if names and "hidden" in states:
        return note(check, f"synchronous, {len(states)} standbys, their state hidden", expected, "Grant pg_monitor.")
    if names:
        advice = (
            "Start a standby of synchronous_standby_names: until then every write waits, and ends as outcome_unknown."
        )
        return fault(check, f"synchronous_standby_names = {names!r} and none of them is connected", expected, advice)
    if states:
        advice = (
            f"Set synchronous_standby_names, or know that an unplanned failover may lose {what} (rule R13); "
            "a planned handoff is exact once the standby has caught up."
        )
        return warning(check, f"{counted(len(states), 'standby')}, none of them synchronous", expected, advice)
    advice = f"Fine for one server; whatever copies it by other means may lack {what} when this one is lost (rule R13)."
    return note(check, "no standby", expected, advice)


def _sessions(settings: Settings, found: PostgresSurvey) -> Finding:
    kept = sum(int(found.settings.get(n, "0")) for n in ("superuser_reserved_connections", "reserved_connections"))
    most = int(found.settings.get("max_connections", "0"))
    free = most - kept - found.connections
    processes = settings.workers + 1 if settings.workers > 1 else 1
    needed = (SESSIONS + (PROVING if settings.validated else 0)) * processes
    if settings.election.over_postgres and settings.election.dsn in (None, settings.store.dsn):
        needed += 2 * processes + (len(settings.roles) if settings.election.source == "postgres-advisory" else 0)
    measured = f"{max(free, 0)} of {most} free"
    expected = f"{needed} for one gateway"
    if free < needed:
        advice = "Raise max_connections. Where a gateway is running already, its own sessions are among those in use."
        return warning("store.connections", measured, expected, advice)
    return fine("store.connections", measured, expected)


def _schema(found: PostgresSurvey) -> Finding:
    expected = "every migration"
    if found.schema_fault:
        return fault("store.schema", found.schema_fault, expected, "Run the version of fencegate that migrated it.")
    if found.missing_migrations:
        measured = f"lacks {listed(found.missing_migrations)}"
        return fault("store.schema", measured, expected, "Run: fencegate migrate")
    return fine("store.schema", "up to date", expected)


def _fences(settings: Settings, found: PostgresSurvey) -> Finding:
    roles, mode = dict.fromkeys(settings.roles), settings.election.store_mode
    rows = {fence.role: fence for fence in found.fences or () if fence.role in roles}
    wrong = [role for role in roles if role in rows and rows[role].mode != mode]
    lacking = [role for role in roles if role not in rows]
    open_rows = [row for row in rows.values() if mode == "lease" and row.valid_until > found.now]
    others = [f"{row.role} by {row.holder}" for row in open_rows if row.holder.partition("/")[0] != settings.region]
    expected = f"a row in {mode} mode for each of {len(roles)}"
    if wrong:
        advice = "A role cannot be moved between campaign and follow: give it another name, or set election.mode back."
        return fault("store.fences", f"in the other mode: {listed(wrong)}", expected, advice)
    if others:
        advice = "Two regions write to one store: compare store.dsn of both, and the region that each is told to be."
        return warning("store.fences", f"held by another region: {listed(others)}", "a store for each", advice)
    if lacking:
        return note("store.fences", f"no row yet: {listed(lacking)}", expected, "The first start makes them, closed.")
    return fine("store.fences", "all there", expected)


def _history(found: PostgresSurvey) -> Finding:
    check, expected = "store.history", "everything that it had acknowledged"
    if not found.gone_back:
        return fine(check, "nobody has found that anything is lost", expected)
    advice = "Put its newest files back; or take it as it is, with what is lost: fencegate reopen."
    return fault(check, f"went back in time, {found.gone_back}", expected, advice)


def _incarnation(settings: Settings, found: PostgresSurvey) -> Finding:
    """Rule R9: a promoted or restored server is another one than the row speaks of."""
    kept = settings.store.portability
    expected = "the history in which the term was claimed" if kept else "the server on which the term was claimed"
    if not found.incarnation:
        return unknown("store.incarnation", "a standby has none", expected)
    roles = set(settings.roles)
    other = [
        fence.role
        for fence in found.fences or ()
        if fence.role in roles
        and fence.incarnation not in ("", found.incarnation)
        and fence.sealed < fence.max_token_seen
    ]
    if other:
        advice = "Closed until a new term claims it, which the elector sees to: nothing to do unless it stays so."
        since = "given a new incarnation" if kept else "promoted or restored"
        measured = f"{since} since, for {listed(other)}"
        return note("store.incarnation", measured, expected, advice)
    return fine("store.incarnation", found.incarnation, expected)


def _portability(settings: Settings) -> Finding:
    """Rule R9, as far as it holds where the server's own word is not asked."""
    advice = (
        "A copy of this store carries its incarnation along: after a restore or a failover run fencegate rebase for "
        "one of its roles before a gateway uses it. There is no SQL guard and no validate = true here."
    )
    offset = f"clock_offset = {settings.store.clock_offset or 0:g} s, which nothing here measures"
    return note("store.portability", f"row conflicts alone; {offset}", "a PostgreSQL", advice)


def _pending(settings: Settings, found: PostgresSurvey) -> Finding:
    """Rule R15: what is not proved yet is a prepared transaction."""
    check, expected = (
        "store.prepared_transactions",
        f"max_prepared_transactions of {PENDING * settings.workers} for each gateway",
    )
    value = int(found.settings.get("max_prepared_transactions", "0"))
    if value < PENDING * settings.workers:
        advice = (
            "Set it, and restart Postgres: until then no gateway with validate = true leads."
            if value == 0
            else "Raise it: a batch that finds none free is refused."
        )
        return (fault if value == 0 else warning)(check, str(value), expected, advice)
    return fine(check, str(value), expected)


def _functions(found: PostgresSurvey) -> Finding:
    expected = "each f(jsonb, jsonb) returns jsonb, for this user to execute"
    if found.missing_functions:
        advice = "Create it, or grant EXECUTE on it."
        return fault("store.functions", f"missing: {listed(found.missing_functions)}", expected, advice)
    return fine("store.functions", "all there", expected)
