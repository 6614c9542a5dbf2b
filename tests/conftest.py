"""Real servers for every test that asks for one, started once per worker of the run; and: nothing is skipped unseen.

The servers are started without an event loop, so that no test's loop owns them. Unit tests may not ask for one.
Tests that freeze or kill a server take ``make_postgres`` or ``make_etcd`` and get one of their own.

``FENCEGATE_FAIL_ON_SKIP=1`` fails a run in which anything was skipped, and says what and why. Such a switch of the
tests looks like a setting to the product, which refuses settings that it does not know: a test's file reads its
switches when it is imported, and no test has them in its environment.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import settings

from fencegate.access.database import Database
from fencegate.embedded import process
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import EmbeddedServerError
from fencegate.embedded.zookeeper import EmbeddedZookeeper, command
from fencegate.store import migrate
from fencegate.testing import pgbouncer
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.patroni_pair import PatroniPair
from fencegate.testing.redis_sentinels import RedisSentinels, program

# Protobuf's implementation is chosen when it is first imported, and the package etcd3 can do with one alone.
with suppress(ImportError):
    import fencegate.election.etcd_grpc  # noqa: F401

_SERVERS = frozenset(
    {
        *("postgres", "etcd", "zookeeper", "make_postgres", "make_etcd", "make_zookeeper"),
        *(
            "fresh_dsn",
            "migrated_dsn",
            "portable_dsn",
            "shared_dsn",
            "fresh_prefix",
            "redis_sentinels",
            "patroni",
            "make_pgbouncer",
        ),
    }
)
# How long an example takes says something about the machine, and nothing about the product.
settings.register_profile("fencegate", deadline=None)
settings.load_profile("fencegate")

_UNIT = Path(__file__).parent / "unit"
_MOST_WORKERS = 8
_MUST_NOT_SKIP = os.environ.get("FENCEGATE_FAIL_ON_SKIP") == "1"
_KEPT = "FENCEGATE_PG_BINDIR"
"""Which Postgres the embedded servers are: meant for the product, in a test too."""


@pytest.fixture(scope="session", autouse=True)
def _no_switches_of_the_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("FENCEGATE_") and name != _KEPT]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def _ports_of_its_own() -> Iterator[None]:
    """Each worker draws the ports of its servers from others: a server that a test has killed finds its own again."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    with pytest.MonkeyPatch.context() as patch:
        all_ports = process._PORTS
        share = len(all_ports) // _MOST_WORKERS
        start = all_ports.start + number % _MOST_WORKERS * share
        patch.setattr(process, "_PORTS", range(start, start + share))
        yield


@pytest.fixture
def clock() -> HandClock:
    """A clock that stands still until the test moves it."""
    return HandClock()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One real Postgres for the whole run, over TCP and durable. Leave it running: see ``make_postgres``."""
    directory = tmp_path_factory.mktemp("postgres")
    server = EmbeddedPostgres(directory, port=0, settings={"max_connections": "200"})
    server.start_sync()
    yield server
    server.stop_sync()
    shutil.rmtree(directory / "data")


@pytest.fixture
def fresh_dsn(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The address of a new, empty database; dropped after the test, whoever is still connected."""
    with _database(postgres, "template1") as name:
        yield postgres.dsn_of(name)


@pytest.fixture(scope="session")
def migrated_template(postgres: EmbeddedPostgres) -> str:
    """The name of a migrated database to copy; nobody may be connected to it."""
    name = "migrated"
    _run(_execute(postgres.dsn, f"CREATE DATABASE {name} TEMPLATE template1"))
    _run(_migrate(postgres.dsn_of(name)))
    return name


@pytest.fixture
def migrated_dsn(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[str]:
    """As ``fresh_dsn``, with fencegate's schema in it."""
    with _database(postgres, migrated_template) as name:
        yield postgres.dsn_of(name)


@pytest.fixture(scope="session")
def portable_template(postgres: EmbeddedPostgres) -> str:
    """As ``migrated_template``, for stores in portability mode."""
    name = "portable"
    _run(_execute(postgres.dsn, f"CREATE DATABASE {name} TEMPLATE template1"))
    _run(_migrate(Database(postgres.dsn_of(name), portable=True)))
    return name


@pytest.fixture
def portable_dsn(postgres: EmbeddedPostgres, portable_template: str) -> Iterator[str]:
    """As ``migrated_dsn``, of a store in portability mode."""
    with _database(postgres, portable_template) as name:
        yield postgres.dsn_of(name)


@pytest.fixture(scope="session")
def shared_dsn(postgres: EmbeddedPostgres, migrated_template: str) -> Iterator[str]:
    """One migrated database for the whole run. A test that takes it empties it first."""
    with _database(postgres, migrated_template) as name:
        yield postgres.dsn_of(name)


@pytest.fixture
def make_postgres(tmp_path: Path) -> Iterator[Callable[..., EmbeddedPostgres]]:
    """Makes further Postgres servers, not started yet, that the test may freeze, kill and restart; stopped after it."""
    with ExitStack() as stack:

        def make(name: str = "postgres", **options: Any) -> EmbeddedPostgres:
            server = EmbeddedPostgres(tmp_path / name, **options)
            stack.callback(server.stop_sync)
            return server

        yield make


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    """One real three-node etcd for the whole run. Leave all its nodes running: see ``make_etcd``."""
    directory = tmp_path_factory.mktemp("etcd")
    cluster = EmbeddedEtcd(directory)
    cluster.start_sync()
    yield cluster
    cluster.stop_sync()
    shutil.rmtree(directory)


@pytest.fixture
def fresh_prefix(etcd: EmbeddedEtcd) -> str:
    """A key prefix in the run's etcd that nothing else uses."""
    return f"/t/{uuid.uuid4().hex}/"


@pytest.fixture
def make_pgbouncer(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Puts a PgBouncer before the database at a DSN, with further settings; its own DSN."""
    if pgbouncer.program() is None:
        pytest.skip("pgbouncer is not installed (Debian: pgbouncer)")
    with ExitStack() as stack:

        def make(dsn: str, **settings: str) -> str:
            pooler = pgbouncer.Pgbouncer(dsn, tmp_path, **settings)
            stack.callback(pooler.stop)
            return pooler.dsn

        yield make


@pytest.fixture
def make_etcd(tmp_path: Path) -> Iterator[Callable[..., EmbeddedEtcd]]:
    """Makes further etcd clusters, not started yet, that the test may freeze and kill; stopped after it."""
    with ExitStack() as stack:

        def make(name: str = "etcd", **options: Any) -> EmbeddedEtcd:
            cluster = EmbeddedEtcd(tmp_path / name, **options)
            stack.callback(cluster.stop_sync)
            return cluster

        yield make


@pytest.fixture(scope="session")
def redis_sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSentinels]:
    """A real primary, replica and three sentinels for the whole run. Leave them running, whoever is the primary."""
    try:
        program("redis-server"), program("redis-sentinel")
    except EmbeddedServerError as problem:
        pytest.skip(str(problem))
    directory = tmp_path_factory.mktemp("redis")
    servers = RedisSentinels(directory)
    servers.start_sync()
    yield servers
    servers.stop_sync()
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def patroni(tmp_path_factory: pytest.TempPathFactory, etcd: EmbeddedEtcd) -> Iterator[PatroniPair]:
    """A real Patroni cluster of two for the whole run, over the run's etcd. A test that kills a member revives it."""
    directory = tmp_path_factory.mktemp("patroni")
    pair = PatroniPair(directory, etcd.endpoints, f"t-{uuid.uuid4().hex}")
    pair.start_sync()
    yield pair
    pair.stop_sync()
    shutil.rmtree(directory)


@contextmanager
def _database(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex}"
    _run(_execute(postgres.dsn, f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield name
    _run(_execute(postgres.dsn, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZookeeper]:
    """One real ZooKeeper of one node for the whole run. Leave it running: see ``make_zookeeper``."""
    _skip_without_zookeeper()
    directory = tmp_path_factory.mktemp("zookeeper")
    server = EmbeddedZookeeper(directory)
    server.start_sync()
    yield server
    server.stop_sync()
    shutil.rmtree(directory)


@pytest.fixture
def make_zookeeper(tmp_path: Path) -> Iterator[Callable[..., EmbeddedZookeeper]]:
    """Makes further ZooKeeper ensembles, not started yet, that the test may freeze and kill; stopped after it."""
    _skip_without_zookeeper()
    with ExitStack() as stack:

        def make(name: str = "zookeeper", **options: Any) -> EmbeddedZookeeper:
            server = EmbeddedZookeeper(tmp_path / name, **options)
            stack.callback(server.stop_sync)
            return server

        yield make


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _skip_without_zookeeper() -> None:
    try:
        command()
    except EmbeddedServerError as problem:
        pytest.skip(str(problem))


def _run(work: Coroutine[Any, Any, None]) -> None:
    # A loop factory, since a plain Runner would replace the thread's current event loop under pytest-asyncio.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(work)


async def _migrate(address: str | Database) -> None:
    await migrate.apply(address)


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers a core: most tests wait for a lease to end, and a worker's servers are small."""
    return min(_MOST_WORKERS, 2 * (os.cpu_count() or 1))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        asked = _SERVERS.intersection(getattr(item, "fixturenames", ()))
        if asked and _UNIT in item.path.parents:
            raise pytest.UsageError(f"{item.nodeid} is a unit test but asks for a server: {', '.join(sorted(asked))}")
    # What may take minutes begins first, or the run waits for it alone at its end.
    items.sort(key=lambda item: -_minutes(item))


def _minutes(item: pytest.Item) -> int:
    marker = item.get_closest_marker("timeout")
    return int(marker.args[0]) // 60 if marker is not None and marker.args else 0


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skips(session.config) and session.exitstatus == pytest.ExitCode.OK and _MUST_NOT_SKIP:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = _skips(config)
    if skipped and _MUST_NOT_SKIP:
        terminalreporter.section("FENCEGATE_FAIL_ON_SKIP: the run fails, since these were skipped", red=True)
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            terminalreporter.write_line(f"{report.nodeid}: {reason}")


def _skips(config: pytest.Config) -> list[Any]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return list(reporter.stats.get("skipped", [])) if reporter else []
