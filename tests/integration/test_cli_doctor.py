"""``fencegate doctor`` over real servers: what it finds, that it changes nothing, and that it ends in time."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from fencegate.cli import doctor_measures
from fencegate.cli.doctor import EXIT_FAULTS, EXIT_WARNINGS, doctor
from fencegate.cli.doctor_checks import examine
from fencegate.cli.doctor_findings import Finding, Severity
from fencegate.cli.loading import load
from fencegate.election.etcd import EtcdElection
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.zookeeper import EmbeddedZookeeper
from fencegate.fence import StoreClock
from fencegate.lease import Candidate, LeaseTimings, Won
from fencegate.store import migrate, survey
from fencegate.store.postgres import PostgresStore

LIMIT = 15.0
EU = Candidate("gw-eu", "eu", "https://eu.example")

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration for this store and this election; its path."""

    def write(dsn: str, election: str = 'source = "postgres"', more: str = "") -> str:
        path = tmp_path / "fencegate.toml"
        path.touch(mode=0o600)
        path.write_text(
            'node = "gw-1"\nregion = "eu"\nadvertise = "http://127.0.0.1:9"\n'
            f'[store]\ndsn = "{dsn}"\n[election]\n{election}\n{more}\n'
            '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
        )
        return str(path)

    return write


@pytest.fixture
def hung() -> Iterator[str]:
    """Takes connections and never answers: host and port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def examined(path: str, limit: float = LIMIT) -> dict[str, Finding]:
    settings = load(path, [], environment={})
    found = examine(settings, await doctor_measures.measure(settings, limit, path))
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def etcd_of(cluster: EmbeddedEtcd, prefix: str = "/fencegate") -> str:
    return f'source = "etcd"\nendpoints = {cluster.endpoints}\nprefix = "{prefix.rstrip("/")}"'


# -- all is well ------------------------------------------------------------------------------------


async def test_of_healthy_servers_nothing_is_worse_than_a_note(
    migrated_dsn: str, etcd: EmbeddedEtcd, fresh_prefix: str, write: Write
) -> None:
    found = await examined(write(migrated_dsn, etcd_of(etcd, fresh_prefix)))

    worse = [f for f in found.values() if f.severity in (Severity.WARNING, Severity.FAULT)]
    # Nobody serves at the address that hints give out, and it is this machine's own.
    assert {finding.check for finding in worse} <= {
        "advertise.address",
        "advertise.reachable",
        "machine.open_files",
        "timings.renewal",  # on a machine that is busy with other tests
        "store.latency",
    }
    assert found["election.quorum_size"].measured == "3 members"
    assert found["election.members"].measured == "3 of 3 answer"
    assert found["store.schema"].severity is Severity.FINE
    assert found["tokens.monotonic"].severity is Severity.FINE


async def test_nothing_is_changed_by_an_examination(
    migrated_dsn: str, etcd: EmbeddedEtcd, fresh_prefix: str, write: Write
) -> None:
    connection = await asyncpg.connect(migrated_dsn)
    election = EtcdElection(etcd.endpoints, LeaseTimings(), prefix=fresh_prefix)
    before = await _rows(connection), await election.issued_up_to("ledger", LIMIT)

    await examined(write(migrated_dsn, etcd_of(etcd, fresh_prefix)))
    await examined(write(migrated_dsn))

    assert (await _rows(connection), await election.issued_up_to("ledger", LIMIT)) == before
    await election.close()
    await connection.close()


async def test_a_zookeeper_has_no_more_after_an_examination_than_the_empty_parent_nodes_of_an_election(
    migrated_dsn: str, zookeeper: EmbeddedZookeeper, write: Write
) -> None:
    prefix = f"/{uuid.uuid4().hex}"
    await examined(write(migrated_dsn, f'source = "zookeeper"\nendpoints = {zookeeper.hosts}\nprefix = "{prefix}"'))

    assert await asyncio.to_thread(_nodes_under, zookeeper, prefix) == [prefix, f"{prefix}/term"]


def _nodes_under(zookeeper: EmbeddedZookeeper, path: str) -> list[str]:
    """All nodes from ``path`` on, which hold nothing."""
    client = KazooClient(hosts=",".join(zookeeper.hosts))
    client.start()
    try:
        found, look = [], [path]
        while look:
            node = look.pop()
            assert client.get(node)[0] == b""
            found.append(node)
            look += [f"{node}/{child}" for child in client.get_children(node)]
        return sorted(found)
    finally:
        client.stop()
        client.close()


async def _rows(connection: asyncpg.Connection) -> list[Any]:
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'fencegate' ORDER BY 1")
    return [await connection.fetch(f"SELECT * FROM fencegate.{row['tablename']}") for row in tables]


# -- the store --------------------------------------------------------------------------------------


async def test_the_timings_of_a_zookeeper_are_held_against_the_leases(
    migrated_dsn: str, zookeeper: EmbeddedZookeeper, write: Write
) -> None:
    found = await examined(write(migrated_dsn, f'source = "zookeeper"\nendpoints = {zookeeper.hosts}'))

    # 20 ticks of half a second, and a lease of 15 s. A single server waits for no other.
    assert (found["timings.sessions"].severity, found["timings.sessions"].measured) == ("warning", "1 s to 10 s")
    assert "timings.ensemble" not in found


async def test_a_server_that_may_forget_what_it_acknowledged_is_a_fault(
    make_postgres: Callable[..., EmbeddedPostgres], write: Write
) -> None:
    server = make_postgres(port=0, settings={"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"})
    server.start_sync()
    found = await examined(write(server.dsn))

    assert found["store.fsync"].severity is Severity.FAULT
    assert found["store.synchronous_commit"].severity is Severity.FAULT
    assert found["store.full_page_writes"].severity is Severity.WARNING
    assert (found["store.schema"].severity, "fencegate migrate" in found["store.schema"].advice) == ("fault", True)


@pytest.mark.parametrize(
    ("statement", "whose"),
    [
        ("ALTER DATABASE {base} SET synchronous_commit = off", "for the database {base}"),
        ("ALTER ROLE lax IN DATABASE {base} SET synchronous_commit = off", "for the user lax in the database {base}"),
        ("ALTER ROLE lax SET synchronous_commit = off", "for the user lax"),
    ],
)
async def test_commits_that_are_lax_for_one_user_or_database_are_told_with_where_that_is_set(
    migrated_dsn: str, write: Write, statement: str, whose: str
) -> None:
    base = urlsplit(migrated_dsn).path[1:]
    connection = await asyncpg.connect(migrated_dsn)
    try:
        await connection.execute("CREATE ROLE lax LOGIN SUPERUSER PASSWORD 'x'")
        await connection.execute(statement.format(base=base))
        parts = urlsplit(migrated_dsn)
        dsn = parts._replace(netloc=f"lax:x@{parts.hostname}:{parts.port}").geturl()
        found = (await examined(write(dsn)))["store.synchronous_commit"]
    finally:
        await connection.execute("DROP ROLE lax")
        await connection.close()
    assert (found.severity, found.measured) == (Severity.FAULT, f"off, set {whose.format(base=base)}")
    assert found.advice.startswith(statement.format(base=base).replace(" SET synchronous_commit = off", " RESET "))


@pytest.mark.parametrize("lenient", [False, True])
async def test_a_transaction_pooler_in_the_way_is_found(
    migrated_dsn: str, make_pgbouncer: Callable[..., str], write: Write, lenient: bool
) -> None:
    options = {"ignore_startup_parameters": "statement_timeout"} if lenient else {}
    address = make_pgbouncer(migrated_dsn, pool_mode="transaction", **options)
    found = await examined(write(address))

    assert found["store.pooler"].severity is Severity.FAULT
    assert "server itself" in found["store.pooler"].advice


async def test_a_pooler_before_the_election_alone_is_found_too(
    migrated_dsn: str, make_pgbouncer: Callable[..., str], write: Write
) -> None:
    address = make_pgbouncer(migrated_dsn, pool_mode="transaction", ignore_startup_parameters="statement_timeout")
    row = await examined(write(migrated_dsn, f'source = "postgres"\ndsn = "{address}"'))
    lock = await examined(write(migrated_dsn, f'source = "postgres-advisory"\ndsn = "{address}"'))

    assert row["store.pooler"].severity is Severity.FINE
    assert row["election.pooler"].severity is Severity.FAULT
    assert lock["election.pooler"].severity is Severity.FAULT


async def test_a_clock_that_is_apart_is_measured(
    migrated_dsn: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's clock is the one that goes wrong here, by half a minute: the difference is the same."""

    class Fast:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def time() -> float:
            return time.time() + 30

    monkeypatch.setattr(survey, "time", Fast)
    found = await examined(write(migrated_dsn))

    assert found["store.clock"].severity is Severity.WARNING
    assert found["store.clock"].measured.startswith(("-30.", "-29."))


async def test_a_store_of_an_older_version_and_one_of_a_newer_one_are_told_apart(
    migrated_dsn: str, write: Write
) -> None:
    connection = await asyncpg.connect(migrated_dsn)
    await connection.execute("INSERT INTO fencegate.migration (name, digest) VALUES ('9999_from_tomorrow', 'x')")
    await connection.close()
    found = await examined(write(migrated_dsn))

    assert found["store.schema"].severity is Severity.FAULT
    assert "newer fencegate" in found["store.schema"].measured


# -- the election -----------------------------------------------------------------------------------


async def test_a_member_that_was_killed_is_named_and_a_lost_majority_is_a_fault(
    migrated_dsn: str, make_etcd: Callable[..., EmbeddedEtcd], write: Write
) -> None:
    cluster = make_etcd(unsafe_no_fsync=True)
    cluster.start_sync()
    path = write(migrated_dsn, etcd_of(cluster))
    cluster.kill(1)
    one = await examined(path)
    cluster.freeze(2)
    began = time.monotonic()
    two = await examined(path, limit=2.0)

    assert one["election.reachable"].severity is Severity.FINE
    assert one["election.members"].severity is Severity.WARNING
    assert cluster.endpoints[1] in one["election.members"].measured
    assert two["election.reachable"].severity is Severity.FAULT
    assert two["election.members"].severity is Severity.FAULT
    assert time.monotonic() - began < 15


async def test_two_clusters_under_one_list_of_endpoints_are_a_fault(
    migrated_dsn: str, etcd: EmbeddedEtcd, make_etcd: Callable[..., EmbeddedEtcd], write: Write
) -> None:
    other = make_etcd(nodes=1, unsafe_no_fsync=True)
    other.start_sync()
    endpoints = [etcd.endpoints[0], other.endpoints[0]]
    found = await examined(write(migrated_dsn, f'source = "etcd"\nendpoints = {endpoints}'))

    assert found["election.one_cluster"].severity is Severity.FAULT


@pytest.mark.parametrize("client", ["json", "etcd3"])
async def test_an_issuer_behind_the_fence_is_a_fault_that_names_the_way_out(
    migrated_dsn: str, etcd: EmbeddedEtcd, fresh_prefix: str, write: Write, client: str
) -> None:
    election = EtcdElection(etcd.endpoints, LeaseTimings(), prefix=fresh_prefix.rstrip("/"))
    store = await PostgresStore.open(migrated_dsn, gateway="gw-1")
    await store.ensure_roles({"ledger": "lease"})
    seen = await election.issued_up_to("ledger", LIMIT) + 10_000_000
    clock: StoreClock = await store.clock()
    assert await store.claim("ledger", seen, EU.holder, clock, 0.5) is None
    path = write(migrated_dsn, etcd_of(etcd, fresh_prefix) + f'\nclient = "{client}"')
    behind = await examined(path)
    await election.rebase("ledger", seen, "ops", LIMIT)
    assert isinstance(await election.acquire("ledger", EU, LIMIT), Won)
    ahead = await examined(path)
    await election.close()
    await store.close()

    assert behind["tokens.issuer"].severity is Severity.FAULT
    assert "fencegate rebase" in behind["tokens.issuer"].advice
    assert str(seen) in behind["tokens.issuer"].measured
    assert ahead["tokens.issuer"].severity is Severity.FINE


# -- the ways in and out ----------------------------------------------------------------------------


@pytest.fixture
def answering() -> Iterator[Callable[[str | None], str]]:
    """Starts an HTTP server that answers everything, as a gateway of this region or as none; its origin."""
    with ExitStack() as stack:

        def start(region: str | None) -> str:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    self.send_response(503)
                    if region is not None:
                        self.send_header("X-Fencing-Region", region)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

                def log_message(self, format: str, *args: object) -> None:
                    pass

            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


@pytest.mark.parametrize(
    ("region", "severity"), [("eu", Severity.FINE), ("dr", Severity.FAULT), (None, Severity.WARNING)]
)
async def test_the_advertised_address_is_asked_whose_gateway_it_is(
    migrated_dsn: str, write: Write, answering: Callable[[str | None], str], region: str | None, severity: Severity
) -> None:
    origin = answering(region)
    path = write(migrated_dsn, more=f'[[route]]\npath = "/up"\nrole = "up"\ntarget = "{origin}"\n')
    Path(path).write_text(Path(path).read_text().replace("http://127.0.0.1:9", origin))
    found = await examined(path)

    assert found["advertise.reachable"].severity is severity
    assert found["advertise.address"].severity is Severity.WARNING  # this machine's own
    assert found["upstream.reachable"].severity is Severity.FINE


async def test_an_upstream_that_is_away_is_named(migrated_dsn: str, write: Write) -> None:
    found = await examined(
        write(migrated_dsn, more='[[route]]\npath = "/up"\nrole = "up"\ntarget = "http://127.0.0.1:9"')
    )
    assert found["upstream.reachable"].severity is Severity.WARNING
    assert "http://127.0.0.1:9" in found["upstream.reachable"].measured


async def test_key_files_are_looked_into_each_once_and_no_secret_is_shown(
    migrated_dsn: str, write: Write, tmp_path: Path
) -> None:
    good, bad = f"one {'s' * 32}\n", f"one {'s' * 31}\n"
    files = {name: tmp_path / name for name in ("proof", "grant", "open", "none")}
    for name, mode, text in (("proof", 0o600, good), ("grant", 0o600, bad), ("open", 0o644, good)):
        files[name].touch(mode)
        files[name].chmod(mode)
        files[name].write_text(text)
    more = '[identity]\nheader = "X-User"\nfrom = ["127.0.0.1"]\n' + "".join(
        f'[[route]]\npath = "/{role}"\nrole = "{role}"\ntarget = "http://127.0.0.1:9"\n'
        f'proof_key_file = "{files[proof]}"\ngrant_key_file = "{files[grant]}"\n'
        for role, proof, grant in (("a", "proof", "grant"), ("b", "proof", "open"), ("c", "none", "open"))
    )
    found = await examined(write(migrated_dsn, more=more))
    severities = {check: one.severity for check, one in found.items() if "key_file" in check}
    assert severities == {
        "files.route.proof_key_file[1]": Severity.FINE,
        "files.route.grant_key_file[1]": Severity.FAULT,
        "files.route.grant_key_file[2]": Severity.WARNING,
        "files.route.proof_key_file[3]": Severity.FAULT,
    }
    assert "line 1 is none" in found["files.route.grant_key_file[1]"].measured
    assert "No such file" in found["files.route.proof_key_file[3]"].measured
    assert "sss" not in str(found)


# -- the command ------------------------------------------------------------------------------------


def test_it_ends_in_time_where_every_server_hangs_and_exits_69(hung: str, write: Write) -> None:
    path = write(f"postgresql://nobody@{hung}/none", f'source = "etcd"\nendpoints = ["http://{hung}"]')
    began = time.monotonic()
    done = CliRunner().invoke(doctor, ["--config", path, "--limit", "1", "--json"])

    assert time.monotonic() - began < 10
    assert done.exit_code == EXIT_FAULTS
    checks = {check["check"]: check for check in json.loads(done.output)["checks"]}
    for check in ("store.reachable", "election.reachable", "election.members"):
        assert checks[check]["severity"] == "fault", check
    assert checks["tokens.issuer"]["severity"] == "unknown"


def test_what_only_warns_exits_75_and_is_said_in_plain_lines(migrated_dsn: str, write: Write) -> None:
    path = write(migrated_dsn)
    Path(path).chmod(0o644)
    done = CliRunner().invoke(doctor, ["--config", path])

    assert done.exit_code == EXIT_WARNINGS, done.output
    assert "\x1b" not in done.output
    assert "warning files.config" in done.output
    assert f"chmod 600 {path}" in done.output
    assert "warnings in" in done.output.splitlines()[-1]


def test_a_bad_configuration_is_told_before_anything_is_asked(write: Write) -> None:
    done = CliRunner().invoke(doctor, ["--config", write("mysql://x")])
    assert "store.dsn" in str(getattr(done.exception, "faults", ""))


async def test_the_schema_may_be_missing_altogether(fresh_dsn: str, write: Write) -> None:
    found = await examined(write(fresh_dsn))
    assert found["store.schema"].severity is Severity.FAULT
    assert found["election.reachable"].severity is Severity.FAULT
    await migrate.apply(fresh_dsn)
    assert (await examined(write(fresh_dsn)))["store.schema"].severity is Severity.FINE
