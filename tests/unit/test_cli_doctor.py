"""The verdicts of ``fencegate doctor``, each over measurements that were made up. Real servers: tests/integration."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencegate.cli.doctor import EXIT_FAULTS, EXIT_WARNINGS, document, exit_code, lines
from fencegate.cli.doctor_checks import examine
from fencegate.cli.doctor_findings import Finding, Severity, fault, fine, note, unknown, warning
from fencegate.cli.doctor_measures import Advertised, Certificate, Measures, Numbers, Secret, Unmeasured
from fencegate.cli.look import console
from fencegate.config import Settings, parse
from fencegate.election.survey import ElectionSurvey, Member
from fencegate.election.zookeeper_timings import EnsembleTimings
from fencegate.fence import Fence
from fencegate.store.survey import PostgresSurvey

CONFIGURED = """
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[store]
dsn = "postgresql://fencegate@db/ledger?sslmode=verify-full"
[election]
source = "etcd"
endpoints = ["https://etcd-1:2379", "https://etcd-2:2379", "https://etcd-3:2379"]
[admin]
token_file = "/etc/fencegate/token"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
[[route]]
path = "/v1/calls"
role = "ledger"
target = "function:app.record"
[[route]]
path = "/v1/upstream"
role = "ledger"
target = "http://upstream:9000"
"""
POSTGRES = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "ANY 1 (a, b)",
    "max_connections": "100",
    "superuser_reserved_connections": "3",
    "server_version": "18.6",
}
FENCE = Fence("ledger", "lease", 42, 41, 0.0, "7/1", "eu/gw-1")
STORE = PostgresSurvey(
    connecting=0.004,
    round_trips=(0.001, 0.002),
    clock_offset=0.01,
    clock_error=0.001,
    standby=False,
    pooled=False,
    settings_hold=True,
    settings=POSTGRES,
    standbys=("quorum", "quorum"),
    connections=20,
    incarnation="7/1",
    fences=(FENCE,),
)
MEMBERS = tuple(Member(f"https://etcd-{n}:2379", "", "c1", (), 0.2, 0.5) for n in (1, 2, 3))
HEALTHY = Measures(
    store=STORE,
    election=ElectionSurvey((0.003, 0.004), 3),
    members=MEMBERS,
    election_postgres=None,
    numbers={"ledger": Numbers(42, 44, "eu/gw-1, token 42")},
    advertised=Advertised(("192.0.2.7",), "eu"),
    upstreams={"http://upstream:9000": ""},
    secrets={"admin.token_file": Secret("/etc/fencegate/token", 0o600)},
    open_files=65536,
)


def certified(found: Certificate) -> Measures:
    return replace(HEALTHY, certificates={"listen.certificate": found})


def settings(*changes: tuple[str, str]) -> Settings:
    text = CONFIGURED
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(file=("fencegate.toml", text), environment={}, flags=[])


def over_postgres(more: str = "", source: str = "postgres") -> Settings:
    endpoints = 'endpoints = ["https://etcd-1:2379", "https://etcd-2:2379", "https://etcd-3:2379"]'
    return settings(('source = "etcd"', f'source = "{source}"'), (endpoints, more))


def findings(measures: Measures, configured: Settings | None = None) -> dict[str, Finding]:
    found = examine(configured or settings(), measures)
    assert len({finding.check for finding in found}) == len(found), "each check once"
    return {finding.check: finding for finding in found}


def store(**changes: Any) -> Measures:
    return replace(HEALTHY, store=replace(STORE, **changes))


def test_of_a_store_in_portability_mode_it_says_what_is_weaker_and_judges_the_clock_by_the_offset_too() -> None:
    portable = ("[store]\n", "[store]\nportability = true\nclock_offset = 0.5\n")
    found = findings(HEALTHY, settings(portable))
    assert found["store.portability"].severity is Severity.NOTE
    assert "fencegate rebase" in found["store.portability"].advice
    assert "within margin (1.5 s)" in found["store.clock"].expected
    assert "store.portability" not in findings(HEALTHY)
    moved = findings(store(incarnation="another"), settings(portable))["store.incarnation"]
    assert "given a new incarnation since" in moved.measured


def test_each_of_several_stores_has_findings_of_its_own_on_its_own_roles() -> None:
    configured = settings(
        (
            '[store]\ndsn = "postgresql://fencegate@db/ledger?sslmode=verify-full"',
            '[[store]]\nname = "north"\ndsn = "postgresql://n/l"\nroles = ["ledger"]\n'
            '[[store]]\nname = "south"\ndsn = "postgresql://s/l"\nroles = ["shards/*"]',
        ),
        (
            'path = "/v1/calls"\nrole = "ledger"\ntarget = "function:app.record"',
            'path = "/shards/{s}"\nrole = "shards/{s}"\nmembers = 2\ntarget = "ledger"',
        ),
    )
    numbers = {role: Numbers(40, 40, None) for role in ("shards/0", "shards/1")} | HEALTHY.numbers
    measures = replace(HEALTHY, numbers=numbers, stores={"north": STORE, "south": replace(STORE, fences=())})
    found = findings(measures, configured)
    assert found["store.fences[north]"].severity is Severity.FINE
    assert found["store.fences[south]"].measured == "no row yet: shards/0, shards/1"
    assert "store.reachable" not in found
    assert found["tokens.leader[south]"].measured == "nobody leads shards/0, shards/1"
    gone = findings(replace(measures, stores={"north": Unmeasured("gone"), "south": STORE}), configured)
    assert gone["store.reachable[north]"].severity is Severity.FAULT
    assert gone["store.reachable[south]"].severity is Severity.FINE
    assert gone["store.transport[north]"].severity is gone["store.transport[south]"].severity is Severity.WARNING


def ensemble(found: EnsembleTimings) -> Measures:
    return replace(HEALTHY, election=ElectionSurvey((0.003,), 3, found))


def postgres(**changes: str) -> Measures:
    return store(settings=POSTGRES | changes)


def members(*changes: dict[str, Any]) -> Measures:
    changed = [replace(member, **change) for member, change in zip(MEMBERS, changes, strict=False)]
    return replace(HEALTHY, members=(*changed, *MEMBERS[len(changes) :]))


def test_of_what_is_healthy_every_check_is_fine() -> None:
    found = examine(settings(), HEALTHY)

    assert [f for f in found if f.severity is not Severity.FINE and f.check != "tokens.leader"] == []
    assert len(found) > 25


DOWN = Unmeasured("no answer within 5 s")

TABLE: list[tuple[Measures, str, str, str]] = [
    # the store
    (replace(HEALTHY, store=DOWN), "store.reachable", "fault", "no answer within 5 s"),
    (
        replace(HEALTHY, store=Unmeasured("the store takes no connection: a pooler stands in between")),
        "store.pooler",
        "fault",
        "stands",
    ),
    (store(standby=True), "store.primary", "fault", "a standby"),
    (postgres(fsync="off"), "store.fsync", "fault", "off"),
    (postgres(full_page_writes="off"), "store.full_page_writes", "warning", "off"),
    (postgres(synchronous_commit="off"), "store.synchronous_commit", "fault", "off"),
    (postgres(synchronous_commit="local"), "store.synchronous_commit", "warning", "local"),
    (
        store(
            settings=POSTGRES | {"synchronous_commit": "local", "synchronous_standby_names": ""}, commits_by="global"
        ),
        "store.synchronous_commit",
        "note",
        "local, set for every user",
    ),
    (postgres(synchronous_commit="remote_write"), "store.synchronous_commit", "warning", "remote_write"),
    (postgres(synchronous_commit="remote_apply"), "store.synchronous_commit", "fine", "remote_apply"),
    (postgres(server_version="13.4"), "store.version", "warning", "13.4"),
    (store(round_trips=(0.01, 0.7)), "store.latency", "warning", "700 ms"),
    (store(pooled=True), "store.pooler", "fault", "a pooler"),
    (store(pooled=True, settings_hold=False), "store.pooler", "fault", "a pooler"),
    (store(settings_hold=False), "store.pooler", "fault", "a pooler"),
    (store(standbys=()), "store.replication", "fault", "none of them is connected"),
    (store(standbys=("async", "potential")), "store.replication", "fault", "none of them is connected"),
    (store(standbys=("hidden",)), "store.replication", "note", "hidden"),
    (
        store(settings=POSTGRES | {"synchronous_standby_names": ""}, standbys=("async",)),
        "store.replication",
        "warning",
        "1 standby, none of them synchronous",
    ),
    (
        store(settings=POSTGRES | {"synchronous_standby_names": ""}, standbys=()),
        "store.replication",
        "note",
        "no standby",
    ),
    (store(connections=90), "store.connections", "warning", "7 of 100 free"),
    (store(missing_migrations=("0004_add_floor",)), "store.schema", "fault", "0004_add_floor"),
    (store(schema_fault="migrated by a newer fencegate"), "store.schema", "fault", "newer"),
    (store(fences=()), "store.fences", "note", "no row yet: ledger"),
    (store(fences=(replace(FENCE, mode="token"),)), "store.fences", "fault", "other mode: ledger"),
    (
        store(now=50.0, fences=(replace(FENCE, holder="dr/gw-1", valid_until=60.0),)),
        "store.fences",
        "warning",
        "held by another region: ledger by dr/gw-1",
    ),
    (store(now=70.0, fences=(replace(FENCE, holder="dr/gw-1", valid_until=60.0),)), "store.fences", "fine", "all"),
    (store(incarnation="7/2"), "store.incarnation", "note", "ledger"),
    (store(incarnation=""), "store.incarnation", "unknown", "standby"),
    (store(gone_back="found by gw-1"), "store.history", "fault", "found by gw-1"),
    (store(missing_functions=("app.record",)), "store.functions", "fault", "app.record"),
    (store(clock_offset=-1.2), "store.clock", "warning", "-1.200 s"),
    (store(clock_offset=-1.2, clock_error=0.5), "store.clock", "fine", "-1.200 s"),
    (replace(HEALTHY, store=DOWN), "store.clock", "unknown", "did not answer"),
    # the election
    (replace(HEALTHY, election=DOWN), "election.reachable", "fault", "no answer"),
    (members({"why": "https://etcd-1:2379: refused"}), "election.members", "warning", "2 of 3 answer; https://etcd-1"),
    (members({"why": "a"}, {"why": "b"}), "election.members", "fault", "1 of 3 answer; a, b"),
    (members({"cluster": "c2"}), "election.one_cluster", "fault", "2 clusters"),
    (members({"complaints": ("NOSPACE",)}), "election.alarms", "warning", "etcd-1:2379: NOSPACE"),
    (members({"clock_offset": -3.1}), "election.clock", "note", "-3.1 s at https://etcd-1"),
    (members({"clock_offset": -2.4}), "election.clock", "fine", "-2.4 s"),
    (replace(HEALTHY, election=ElectionSurvey((0.1,), 1)), "election.quorum_size", "warning", "1 member"),
    (replace(HEALTHY, election=ElectionSurvey((0.1,), 4)), "election.quorum_size", "warning", "4 members"),
    (replace(HEALTHY, election=ElectionSurvey((0.1,), 5)), "election.quorum_size", "fine", "5 members"),
    # the numbers
    (
        replace(HEALTHY, numbers={"ledger": Numbers(41, 41, None)}),
        "tokens.issuer",
        "fault",
        "ledger (issued up to 41, accepted 42)",
    ),
    (replace(HEALTHY, numbers={"ledger": DOWN}), "tokens.issuer", "unknown", "no answer"),
    (store(fences=None), "tokens.issuer", "unknown", "no fence yet"),
    (replace(HEALTHY, numbers={"ledger": Numbers(50, 49, None)}), "tokens.monotonic", "fault", "ledger (50, then 49)"),
    (replace(HEALTHY, numbers={"ledger": Numbers(50, 50, None)}), "tokens.leader", "note", "nobody leads ledger"),
    # the timings
    (replace(HEALTHY, election=ElectionSurvey((0.5,), 3)), "timings.renewal", "warning", "1504 ms"),
    (replace(HEALTHY, election=ElectionSurvey((2.0,), 3)), "timings.renewal", "fault", "6004 ms"),
    (replace(HEALTHY, election=DOWN), "timings.renewal", "unknown", "did not answer"),
    (ensemble(EnsembleTimings(10.0, 4, 40)), "timings.ensemble", "warning", "10 s"),
    (ensemble(EnsembleTimings(2.5, 4, 40)), "timings.ensemble", "fine", "2.5 s"),
    (ensemble(EnsembleTimings(why="not allowed")), "timings.ensemble", "unknown", "not allowed"),
    (ensemble(EnsembleTimings(None, 4, 40)), "timings.sessions", "fine", "4 s to 40 s"),
    (ensemble(EnsembleTimings(None, 1, 10)), "timings.sessions", "warning", "1 s to 10 s"),
    (ensemble(EnsembleTimings(None, 20, 200)), "timings.sessions", "warning", "20 s to 200 s"),
    (store(round_trips=(0.6,)), "timings.margin", "fault", "1 s"),
    # the ways in and out
    (replace(HEALTHY, advertised=Advertised(("127.0.0.1",), "eu")), "advertise.address", "warning", "own"),
    (replace(HEALTHY, advertised=DOWN), "advertise.reachable", "warning", "no answer"),
    (replace(HEALTHY, advertised=Advertised(("192.0.2.7",), "")), "advertise.reachable", "warning", "no gateway"),
    (replace(HEALTHY, advertised=Advertised(("192.0.2.7",), "dr")), "advertise.reachable", "fault", "region dr"),
    (
        replace(HEALTHY, upstreams={"http://a": "", "http://u": "refused"}),
        "upstream.reachable",
        "warning",
        "http://u: refused",
    ),
    (replace(HEALTHY, secrets={"a": Secret("/t", 0, "No such file")}), "files.a", "fault", "/t: No such file"),
    (replace(HEALTHY, secrets={"a": Secret("/t", 0o644)}), "files.a", "warning", "0644"),
    (replace(HEALTHY, secrets={"a": Secret("/t", 0o600, faulty="line 1 is none")}), "files.a", "fault", "line 1"),
    (
        certified(Certificate("/c", 90 * 86400.0, 86400.0)),
        "listen.certificate",
        "fine",
        "/c expires in 90 days",
    ),
    (
        certified(Certificate("/c", 3 * 86400.0, 4 * 86400.0)),
        "listen.certificate",
        "warning",
        "in 3 days",
    ),
    (certified(Certificate("/c", 0.0)), "listen.certificate", "fault", "/c has expired"),
    (certified(Certificate("/c", None)), "listen.certificate", "unknown", "/c"),
    (
        certified(Certificate("/c", None, faults=("k: bad",))),
        "listen.certificate",
        "fault",
        "k: bad",
    ),
    (replace(HEALTHY, secrets={"a": Secret("/t", 0o622)}), "files.a", "fault", "0622"),
    (replace(HEALTHY, secrets={"a": Secret("/t", 0o640)}), "files.a", "fine", "0640"),
    (replace(HEALTHY, open_files=1024), "machine.open_files", "warning", "1024"),
    (replace(HEALTHY, open_files=-1), "machine.open_files", "fine", "no limit"),
]


@pytest.mark.parametrize(
    ("measures", "check", "severity", "words"),
    [
        (postgres(), "store.prepared_transactions", "fault", "0"),
        (postgres(max_prepared_transactions="1"), "store.prepared_transactions", "warning", "1"),
        (postgres(max_prepared_transactions="8"), "store.prepared_transactions", "fine", "8"),
        (HEALTHY, "timings.proof", "fine", "4.0 ms a batch"),
        (replace(HEALTHY, election=ElectionSurvey((0.3,), 3)), "timings.proof", "warning", "300 ms a batch"),
        (replace(HEALTHY, election=ElectionSurvey((1.5,), 3)), "timings.proof", "fault", "1500 ms a batch"),
    ],
)
def test_a_validated_role_needs_prepared_transactions_and_an_election_that_is_near(
    measures: Measures, check: str, severity: str, words: str
) -> None:
    found = findings(measures, settings(("[[route]]", "[[route]]\nvalidate = true")))[check]
    assert found.severity == severity
    assert words in found.measured
    assert check not in findings(measures)


def test_each_worker_has_batches_of_its_own_pending() -> None:
    configured = settings(("[[route]]", "[[route]]\nvalidate = true"), ("node =", "workers = 5\nnode ="))
    found = findings(postgres(max_prepared_transactions="8"), configured)["store.prepared_transactions"]
    assert (found.severity, found.expected) == ("warning", "max_prepared_transactions of 10 for each gateway")


@pytest.mark.parametrize(
    ("measures", "check", "severity", "words"), TABLE, ids=[f"{c}-{s}-{n}" for n, (_, c, s, _) in enumerate(TABLE)]
)
def test_each_measurement_has_its_verdict(measures: Measures, check: str, severity: str, words: str) -> None:
    found = findings(measures)[check]

    assert (found.severity, words in found.measured) == (severity, True), found
    assert found.expected
    assert bool(found.advice) is (severity not in ("fine", "unknown")) or check == "tokens.leader"


CONFIGURED_TABLE: list[tuple[Callable[[], Settings], Measures, str, str]] = [
    (lambda: over_postgres(), HEALTHY, "election.one_server", "note"),
    (
        lambda: over_postgres('dsn = "postgresql://election/db"'),
        replace(HEALTHY, election_postgres=STORE),
        "election.one_server",
        "warning",
    ),
    (lambda: over_postgres(), store(pooled=True), "election.pooler", "fault"),
    (lambda: over_postgres(source="postgres-advisory"), store(pooled=True), "election.pooler", "fault"),
    (lambda: over_postgres(), HEALTHY, "election.pooler", "fine"),
    (
        lambda: over_postgres('dsn = "postgresql://election/db"'),
        replace(HEALTHY, election_postgres=replace(STORE, settings=POSTGRES | {"fsync": "off"})),
        "election.fsync",
        "fault",
    ),
    (
        lambda: over_postgres('dsn = "postgresql://election/db"'),
        replace(HEALTHY, election_postgres=replace(STORE, missing_migrations=("0004_add_floor",))),
        "election.schema",
        "fault",
    ),
    (
        lambda: over_postgres('dsn = "postgresql://election/db"'),
        replace(
            HEALTHY,
            election_postgres=replace(
                STORE, settings=POSTGRES | {"synchronous_commit": "off", "synchronous_standby_names": ""}
            ),
        ),
        "election.synchronous_commit",
        "fine",
    ),
    (lambda: settings(), HEALTHY, "routes.enforcing", "fine"),
    (
        lambda: settings(('target = "ledger"', 'target = "ledger"\nmode = "observe"')),
        HEALTHY,
        "routes.enforcing",
        "warning",
    ),
    (lambda: settings(("[admin]", "margin = 0\n[admin]")), HEALTHY, "timings.margin", "fault"),
    (lambda: settings(("https://ledger.eu.example", "http://localhost:8080")), HEALTHY, "advertise.address", "warning"),
    (lambda: settings(("[admin]", '[listen]\nadmin = "0.0.0.0:8081"\n[admin]')), HEALTHY, "admin.listener", "warning"),
    (
        lambda: settings(("[admin]", '[listen]\nadmin = "0.0.0.0:8081"\ntls = { cert = "/c", key = "/k" }\n[admin]')),
        HEALTHY,
        "admin.listener",
        "fine",
    ),
    (lambda: settings(('token_file = "/etc/fencegate/token"', "")), HEALTHY, "admin.actions", "note"),
    (
        lambda: settings(("https://etcd", "http://etcd"), ("[admin]", 'username = "u"\npassword_file = "/p"\n[admin]')),
        HEALTHY,
        "election.transport",
        "warning",
    ),
    (
        lambda: settings((', "https://etcd-2:2379", "https://etcd-3:2379"', "")),
        HEALTHY,
        "election.endpoints",
        "warning",
    ),
]


@pytest.mark.parametrize(("configured", "measures", "check", "severity"), CONFIGURED_TABLE)
def test_each_setting_has_its_verdict(
    configured: Callable[[], Settings], measures: Measures, check: str, severity: str
) -> None:
    assert findings(measures, configured())[check].severity == severity


def test_a_password_over_loopback_is_in_nobodys_way() -> None:
    here = settings(
        *((f"https://etcd-{n}:2379", f"http://127.0.0.1:{2378 + n}") for n in (1, 2, 3)),
        ("[admin]", 'username = "u"\npassword_file = "/p"\n[admin]'),
    )
    assert "election.transport" not in findings(HEALTHY, here)


# -- what is said -----------------------------------------------------------------------------------

ONE_OF_EACH = [
    fine("a.fine", "1", "1"),
    unknown("a.unknown", "asleep", "2"),
    note("a.note", "3", "3", "Read this."),
    warning("a.warning", "4", "5", "Do that."),
    fault("a.fault", "6", "7", "Do that at once."),
]


@pytest.mark.parametrize(
    ("found", "code"), [(ONE_OF_EACH[:3], 0), (ONE_OF_EACH[:4], EXIT_WARNINGS), (ONE_OF_EACH, EXIT_FAULTS)]
)
def test_the_gravest_finding_decides_the_exit_code(found: list[Finding], code: int) -> None:
    assert exit_code(found) == code


def said(found: list[Finding], **options: Any) -> str:
    out = io.StringIO()
    for line in lines(settings(), found, **options):
        console(out).print(line, soft_wrap=True)
    return out.getvalue()


def test_what_needs_doing_is_said_with_what_was_expected_and_the_rest_in_a_line() -> None:
    assert said(ONE_OF_EACH).splitlines() == [
        "node gw-1  region eu",
        "fine    a.fine     1",
        "unknown a.unknown  not measured: asleep",
        "note    a.note     3",
        "        Read this.",
        "warning a.warning  4",
        "        expected  5",
        "        Do that.",
        "fault   a.fault    6",
        "        expected  7",
        "        Do that at once.",
        "1 fault and 1 warning in 5 checks.",
    ]
    assert "a.fine" not in said(ONE_OF_EACH, quiet=True)
    assert said(ONE_OF_EACH[:3]).endswith("Nothing to do; 3 checks.\n")


def test_json_says_the_same() -> None:
    found = json.loads(json.dumps(document(settings(), ONE_OF_EACH)))

    assert found["counts"] == {"fine": 1, "unknown": 1, "note": 1, "warning": 1, "fault": 1}
    quiet = document(settings(), ONE_OF_EACH, quiet=True)
    assert (quiet["counts"], quiet["checks"]) == (found["counts"], found["checks"][1:])
    assert found["checks"][3] == {
        "check": "a.warning",
        "severity": "warning",
        "measured": "4",
        "expected": "5",
        "advice": "Do that.",
    }
    assert (found["node"], found["region"]) == ("gw-1", "eu")


def transport(dsn: str = "", top: str = "", upstream: str = "http://upstream:9000", default: str = "") -> list[Finding]:
    text = CONFIGURED.replace("postgresql://fencegate@db/ledger?sslmode=verify-full", dsn or "postgresql://db/ledger")
    text = text.replace("http://upstream:9000", upstream) + top
    found = examine(parse(file=("F", text)), replace(HEALTHY, default_sslmode=default))
    return [each for each in found if each.check in ("store.transport", "upstream.transport")]


@pytest.mark.parametrize(
    ("dsn", "default", "severity", "words"),
    [
        ("postgresql://db/ledger", "", "warning", "no sslmode in the DSN"),
        ("postgresql://db/ledger?sslmode=prefer", "", "warning", "only while the server offers it"),
        ("postgresql://db/ledger?sslmode=require", "", "warning", "with whoever answers"),
        ("postgresql://db/ledger?sslmode=verify-ca", "", "warning", "any server of the CA's"),
        ("postgresql://db/ledger?sslmode=disable", "verify-full", "warning", "in the clear"),
        ("postgresql://db/ledger", "verify-full", "fine", "verify-full"),
        ("postgresql://db/ledger?sslmode=verify-full", "", "fine", "verify-full"),
        ("postgresql://127.0.0.1,localhost/ledger?sslmode=disable", "", "fine", "this machine only"),
        ("postgresql://127.0.0.1,db/ledger", "", "warning", "no sslmode"),
    ],
)
def test_what_goes_to_the_store_unverified_is_said(dsn: str, default: str, severity: str, words: str) -> None:
    (finding,) = transport(dsn, default=default)
    assert (finding.check, finding.severity) == ("store.transport", severity)
    assert words in finding.measured


def test_the_tables_of_tls_are_taken_at_their_word() -> None:
    (store, upstream) = transport(top='[store.tls]\nca = "/ca"\n', upstream="https://upstream")
    assert (store.severity, store.measured) == (Severity.FINE, "[store.tls]")
    assert (upstream.severity, upstream.measured) == (Severity.FINE, "https://upstream")


def test_one_upstream_in_the_clear_beside_one_that_is_not_is_noted() -> None:
    clear = '[[route]]\npath = "/v2"\nrole = "ledger"\ntarget = "http://other:9000"\n'
    (_, found) = transport(top=clear, upstream="https://upstream")
    assert found.severity is Severity.NOTE
    assert "http://other:9000" in found.measured
