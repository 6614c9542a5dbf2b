"""A real embedded Postgres through everything that may happen to it and to us."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from fencegate.embedded import identity, launch
from fencegate.embedded.postgres import EmbeddedPostgres, EmbeddedServerError
from fencegate.embedded.process import Steps, children_of, runs_in

MakePostgres = Callable[..., EmbeddedPostgres]

PARENT = """
import sys, time
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import children_of
server = EmbeddedPostgres(sys.argv[1])
server.start_sync()
if "frozen" in sys.argv:
    server.freeze()
print(server.pid, *children_of(server.pid), flush=True)
time.sleep(600)
"""


def until(condition: Callable[[], bool], limit: float = 20.0) -> bool:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def close(directory: Path) -> None:
    directory.chmod(0o700)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def owner_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


async def ask(dsn: str, question: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


def start_parent(*arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that runs a server of its own, and the process ids of that server."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as said:
        return parent, [int(pid) for pid in said.readline().split()]


async def test_it_starts_answers_and_stops_leaving_nothing_running(make_postgres: MakePostgres) -> None:
    server = make_postgres()
    await server.start()
    postmaster = server.pid
    assert await ask(server.dsn, "SELECT current_user || '@' || current_database()") == "fencegate@fencegate"
    assert await ask(server.dsn, "SHOW fsync") == "on"
    assert await ask(server.dsn, "SHOW listen_addresses") == ""
    await server.stop()
    assert not server.running
    assert not runs_in(postmaster, server.directory / "data")


async def test_what_was_committed_is_there_after_a_restart_at_the_same_address(make_postgres: MakePostgres) -> None:
    server = make_postgres(port=0)
    await server.start()
    address = server.dsn
    await ask(address, "CREATE TABLE kept AS SELECT 7 AS n")
    await server.restart()
    assert server.dsn == address
    assert await ask(address, "SELECT n FROM kept") == 7


async def test_over_tcp_nobody_gets_in_without_the_password(make_postgres: MakePostgres) -> None:
    server = make_postgres(port=0)
    await server.start()
    assert "@127.0.0.1:" in server.dsn
    scheme, _, rest = server.dsn.partition("fencegate:")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(f"{scheme}fencegate:wrong@{rest.partition('@')[2]}", timeout=60)
    assert mode_of(server.directory / "password") == 0o600


async def test_settings_reach_the_server(make_postgres: MakePostgres) -> None:
    async with make_postgres(settings={"max_connections": "17"}) as server:
        assert await ask(server.dsn, "SHOW max_connections") == "17"


async def test_variables_for_postgres_in_our_environment_do_not_reach_it(
    make_postgres: MakePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")
    async with make_postgres() as server:
        monkeypatch.undo()
        assert await ask(server.dsn, "SHOW port") == "5432"


async def test_a_start_that_fails_quotes_the_log(make_postgres: MakePostgres) -> None:
    server = make_postgres(settings={"max_connections": "none"})
    with pytest.raises(EmbeddedServerError, match=r"(?s)did not start in .*postgres\.log.*max_connections"):
        await server.start()
    assert not server.running


async def test_a_killed_postmaster_is_started_again_at_once_with_its_data(make_postgres: MakePostgres) -> None:
    server = make_postgres()
    await server.start()
    await ask(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    os.kill(server.pid, signal.SIGKILL)
    await server.start()
    assert await ask(server.dsn, "SELECT n FROM kept") == 7


async def test_kill_ends_the_backends_too_even_frozen_ones(make_postgres: MakePostgres) -> None:
    server = make_postgres()
    await server.start()
    data, pids = server.directory / "data", [server.pid, *children_of(server.pid)]
    assert len(pids) > 3
    server.freeze()
    server.kill()
    assert not server.running
    assert until(lambda: not any(runs_in(pid, data) for pid in pids))
    await server.start()
    assert await ask(server.dsn, "SELECT 1") == 1


async def test_a_frozen_server_answers_nobody_and_goes_on_when_thawed(make_postgres: MakePostgres) -> None:
    server = make_postgres()
    await server.start()
    connection = await asyncpg.connect(server.dsn)
    server.freeze()
    with pytest.raises(TimeoutError):
        await asyncpg.connect(server.dsn, timeout=0.3)
    server.thaw()
    assert await connection.fetchval("SELECT 1", timeout=60) == 1
    await connection.close()


async def test_a_frozen_server_stops_when_told_to(make_postgres: MakePostgres) -> None:
    server = make_postgres()
    await server.start()
    server.freeze()
    await server.stop()
    assert not server.running


@pytest.mark.parametrize("state", ["running", "frozen"])
async def test_a_parent_killed_with_9_leaves_no_postgres(
    make_postgres: MakePostgres, tmp_path: Path, state: str
) -> None:
    parent, pids = start_parent(str(tmp_path / "postgres"), state)
    try:
        assert len(pids) > 3
        assert all(runs_in(pid, tmp_path / "postgres" / "data") for pid in pids)
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: not any(runs_in(pid, tmp_path / "postgres" / "data") for pid in pids))
    assert not (tmp_path / "postgres" / "data" / "postmaster.pid").exists()  # it had time to shut down cleanly


async def test_after_a_parent_killed_with_9_the_next_start_works_at_once(
    make_postgres: MakePostgres, tmp_path: Path
) -> None:
    parent, _ = start_parent(str(tmp_path / "postgres"))
    parent.kill()
    parent.wait()
    async with make_postgres() as server:
        assert await ask(server.dsn, "SELECT 1") == 1


async def test_a_second_server_on_the_directory_is_refused_with_its_name_and_a_way_out(
    make_postgres: MakePostgres,
) -> None:
    first, second = make_postgres(), make_postgres()
    await first.start()
    with pytest.raises(EmbeddedServerError, match=r"is in use by another one .* Stop that one, or give") as raised:
        await second.start()
    assert str(first.directory) in str(raised.value)
    assert await ask(first.dsn, "SELECT 1") == 1


async def test_starting_a_running_server_is_refused(make_postgres: MakePostgres) -> None:
    async with make_postgres() as server:
        with pytest.raises(EmbeddedServerError, match="is running already"):
            await server.start()
        assert await ask(server.dsn, "SELECT 1") == 1


def test_a_first_start_that_was_cut_off_is_begun_again(make_postgres: MakePostgres) -> None:
    server = make_postgres()
    steps = server._starting()
    while not (server.directory / "data.new" / "PG_VERSION").exists():
        time.sleep(next(steps))
    steps.close()
    assert not (server.directory / "data").exists()
    server.start_sync()
    assert server.running


async def test_a_path_too_long_for_a_socket_works(make_postgres: MakePostgres) -> None:
    async with make_postgres("x" * 120) as server:
        assert await ask(server.dsn, "SELECT 1") == 1


async def test_it_works_from_a_closed_directory_and_opens_nothing(make_postgres: MakePostgres, tmp_path: Path) -> None:
    close(tmp_path)
    async with make_postgres() as server:
        assert await ask(server.dsn, "SELECT 1") == 1
        assert owner_of(server.pid) == os.geteuid()
    for path in (tmp_path, server.directory, server.directory / "data", server.directory / "socket"):
        assert mode_of(path) == 0o700


@pytest.fixture
def refused_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Steps[bool]:
        yield 0.0
        return False

    monkeypatch.setattr(identity, "_namespace_works", refused)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else; run the suite as root for this")
@pytest.mark.usefixtures("refused_namespaces")
async def test_root_without_user_namespaces_runs_it_as_nobody_in_a_directory_closed_to_nobody(
    make_postgres: MakePostgres, tmp_path: Path
) -> None:
    close(tmp_path)
    server = make_postgres()
    await server.start()
    nobody = int(identity._nobody().split(":")[0])
    assert owner_of(server.pid) == nobody
    assert (server.directory / "data").stat().st_uid == nobody
    assert mode_of(tmp_path) == 0o700
    await ask(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    os.kill(server.pid, signal.SIGKILL)
    await server.start()
    assert await ask(server.dsn, "SELECT n FROM kept") == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can meet data that it gave to nobody; run the suite as root")
async def test_root_moves_between_machines_with_and_without_user_namespaces(
    make_postgres: MakePostgres, request: pytest.FixtureRequest
) -> None:
    server = make_postgres()
    await server.start()  # in a namespace: the data is root's
    await ask(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    await server.stop()
    request.getfixturevalue("refused_namespaces")
    await server.restart()  # the data is nobody's from here on
    assert await ask(server.dsn, "SELECT n FROM kept") == 7
    request.getfixturevalue("monkeypatch").undo()
    await server.restart()
    assert owner_of(server.pid) != 0
    assert await ask(server.dsn, "SELECT n FROM kept") == 7


@pytest.fixture
def ordinary_parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The parent of above as an ordinary user: us, or nobody where we are root.

    As nobody it keeps the right to read everything, since the interpreter may lie below a closed directory of root.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    command = [sys.executable, "-c", PARENT, str(home / "postgres")]
    if os.geteuid() == 0:
        identity.chown_tree(home, "65534:65534")
        become = [sys.executable, launch.__file__, "run", str(os.getpid()), str(int(signal.SIGKILL)), "65534:65534"]
        command = [*become, *command]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as said:
        pids = [int(pid) for pid in said.readline().split()]
    yield parent, pids
    parent.kill()
    parent.wait()


def test_an_ordinary_user_runs_it_as_itself(ordinary_parent: tuple[subprocess.Popen[str], list[int]]) -> None:
    parent, pids = ordinary_parent
    user = owner_of(parent.pid)
    assert user != 0
    assert len(pids) > 3
    assert {owner_of(pid) for pid in pids} == {user}
    data = Path(os.readlink(f"/proc/{pids[0]}/cwd"))
    assert data.stat().st_uid == user
    parent.kill()
    parent.wait()
    assert until(lambda: not any(runs_in(pid, data) for pid in pids))
