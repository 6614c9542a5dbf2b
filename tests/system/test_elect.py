"""``fencegate elect``, the real one over a real election: whatever happens, its command does not outlive the lease."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencegate.cli import elect_warden
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from system.serving import environment, fencegate, until

pytestmark = pytest.mark.system

TIMINGS = {"lease_duration": "4", "renew_deadline": "2", "retry_period": "0.4", "margin": "0.5"}
LEASE = 4.0

# Says under which term it runs and that it lives, several times a second, with the clock that all processes share.
BEATS = """
import os, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "polite" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
if "offspring" in sys.argv:
    if os.fork() == 0:
        os.setsid()  # a daemon: in no group and no session of the command's
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        os.wait()
file = open(sys.argv[1], "a", buffering=1)
while True:
    file.write(f"{os.getpid()} {os.environ['FENCEGATE_TOKEN']} {time.monotonic()}\\n")
    time.sleep(0.02)
"""


@dataclass(frozen=True)
class Beat:
    pid: int
    token: int
    at: float


@dataclass
class Node:
    """One ``fencegate elect`` whose command writes its beats to a file."""

    process: subprocess.Popen[bytes]
    file: Path
    errors: Path

    def beats(self) -> list[Beat]:
        if not self.file.exists():
            return []
        found = re.findall(r"^(\d+) (\d+) ([\d.]+)\n", self.file.read_text(), re.MULTILINE)
        return [Beat(int(pid), int(token), float(at)) for pid, token, at in found]

    def runs(self, after: int = 0) -> int:
        """Wait until the command runs under a token above ``after``; that token."""

        def look() -> Beat | None:
            assert self.process.poll() is None, self.errors.read_text()
            return next((beat for beat in self.beats() if beat.token > after), None)

        return int(until("the command runs", look).token)

    def last_beat(self) -> float:
        return self.beats()[-1].at

    def pids(self) -> set[int]:
        return {beat.pid for beat in self.beats()}

    def living(self) -> list[int]:
        return [pid for pid in self.pids() if lives(pid)]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.fixture(scope="session")
def migrated() -> Callable[[str], str]:
    def migrate(dsn: str) -> str:
        done = fencegate("migrate", "--store-dsn", dsn)
        assert done.returncode == 0, done.stderr
        return dsn

    return migrate


@pytest.fixture
def election(request: pytest.FixtureRequest, migrated: Callable[[str], str]) -> list[str]:
    """The flags for a Postgres election of the test's own; ``etcd`` as parameter: for an etcd election."""
    if getattr(request, "param", "postgres") == "etcd":
        cluster: EmbeddedEtcd = request.getfixturevalue("etcd")
        prefix = request.getfixturevalue("fresh_prefix")
        return etcd_flags(cluster.endpoints, prefix)
    return postgres_flags(migrated(request.getfixturevalue("fresh_dsn")))


def postgres_flags(dsn: str) -> list[str]:
    return ["--election", "postgres", "--set", f"election.dsn={dsn}"]


def etcd_flags(endpoints: list[str], prefix: str) -> list[str]:
    return [
        "--election", "etcd", "--set", f"election.endpoints={','.join(endpoints)}", "--set", f"election.prefix={prefix}"
    ]  # fmt: skip


def settings(node: str, election: list[str]) -> list[str]:
    timings = [word for name, value in TIMINGS.items() for word in ("--set", f"election.{name}={value}")]
    return ["--node", node, "--region", "eu", *election, *timings]


both = pytest.mark.parametrize("election", ["postgres", "etcd"], indirect=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    started: list[Node] = []

    def begin(name: str, election: list[str], *options: str, how: str = "plain") -> Node:
        file, errors = tmp_path / f"{name}.beats", tmp_path / f"{name}.err"
        command = [sys.executable, "-m", "fencegate", "elect", "cron", *settings(name, election), *options]
        with open(errors, "wb") as stderr:
            process = subprocess.Popen(
                [*command, "--", sys.executable, "-c", BEATS, str(file), how],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment(),
                start_new_session=True,
            )
        started.append(Node(process, file, errors))
        return started[-1]

    yield begin
    for node in started:
        node.process.kill()
        node.process.wait()
        until("its command is gone", lambda node=node: not node.living())


def elect(*arguments: str, election: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return fencegate("elect", "cron", *settings("n1", election), *arguments, **more)


# -- one leads ------------------------------------------------------------------------------------


@both
def test_one_of_two_runs_and_when_it_is_killed_the_other_runs_under_a_higher_token(
    election: list[str], start: Callable[..., Node]
) -> None:
    first = start("n1", election)
    token = first.runs()
    second = start("n2", election, "--grace", "1")
    time.sleep(1)
    assert second.beats() == []
    first.process.kill()
    assert second.runs() > token
    assert not first.living()
    assert first.last_beat() < second.beats()[0].at


@both
def test_a_stop_is_passed_on_and_the_other_runs_once_the_lease_has_lapsed(
    election: list[str], start: Callable[..., Node]
) -> None:
    first = start("n1", election, how="polite")
    token = first.runs()
    first.process.terminate()
    assert first.process.wait(30) == 7
    assert not first.living()
    second = start("n2", election)
    assert second.runs() > token
    assert second.beats()[0].at - first.last_beat() > 1.0


@contextmanager
def inherited(number: signal.Signals, disposition: Any) -> Iterator[None]:
    """What is started meanwhile finds the signal so: ignored, or (with any handler here) at its default."""
    before = signal.signal(number, disposition)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_the_command_gets_the_very_signal_that_elect_got(
    election: list[str], start: Callable[..., Node], number: signal.Signals
) -> None:
    with inherited(number, lambda *_: None):
        node = start("n1", election)
    node.runs()
    node.process.send_signal(number)
    assert node.process.wait(30) == 128 + number
    assert not node.living()


def test_what_elect_was_told_to_ignore_is_ignored_by_the_command_as_well(
    election: list[str], start: Callable[..., Node]
) -> None:
    with inherited(signal.SIGHUP, signal.SIG_IGN):
        node = start("n1", election)
    node.runs()
    node.process.send_signal(signal.SIGHUP)
    os.kill(node.beats()[0].pid, signal.SIGHUP)
    time.sleep(0.3)
    assert node.process.poll() is None
    assert node.living()


def test_with_one_shared_store_the_lease_is_given_back_at_once(election: list[str], start: Callable[..., Node]) -> None:
    first = start("n1", election, "--shared-store")
    token = first.runs()
    second = start("n2", election)
    until("it campaigns", lambda: handles_term(second.process.pid))
    first.process.terminate()
    assert first.process.wait(30) == 128 + signal.SIGTERM
    assert second.runs() > token
    assert 0 < second.beats()[0].at - first.last_beat() < 2.0


# -- the term is lost -----------------------------------------------------------------------------


def frozen_postgres(make_postgres: Callable[..., EmbeddedPostgres], migrated: Callable[[str], str]) -> EmbeddedPostgres:
    server = make_postgres(port=0)
    server.start_sync()
    migrated(server.dsn)
    return server


# Field case 19: hashicorp/consul#9788.
@pytest.mark.parametrize("how", ["plain", "stubborn", "offspring"])
def test_when_the_election_store_stands_still_the_command_is_dead_before_the_lease_can_end(
    make_postgres: Callable[..., EmbeddedPostgres],
    migrated: Callable[[str], str],
    start: Callable[..., Node],
    how: str,
) -> None:
    server = frozen_postgres(make_postgres, migrated)
    node = start("n1", postgres_flags(server.dsn), how=how)
    node.runs()
    if how == "offspring":
        until("its offspring", lambda: len(node.pids()) == 2)
    server.freeze()
    frozen = time.monotonic()
    try:
        assert node.process.wait(30) == 75
        assert not node.living()
        assert node.last_beat() < frozen + LEASE
        if how == "stubborn":
            assert node.last_beat() > frozen + 1.0  # it did get time to end by itself
    finally:
        server.thaw()


def test_after_a_lost_term_it_can_run_again_under_a_higher_token(
    make_postgres: Callable[..., EmbeddedPostgres], migrated: Callable[[str], str], start: Callable[..., Node]
) -> None:
    server = frozen_postgres(make_postgres, migrated)
    node = start("n1", postgres_flags(server.dsn), "--on-lost", "restart")
    token = node.runs()
    server.freeze()
    until("the command is gone", lambda: not node.living())
    server.thaw()
    assert node.runs(after=token) > token
    node.process.terminate()
    assert node.process.wait(30) == 128 + signal.SIGTERM


def test_an_etcd_without_its_majority_loses_the_term_too(
    make_etcd: Callable[..., EmbeddedEtcd], start: Callable[..., Node]
) -> None:
    cluster = make_etcd()
    cluster.start_sync()
    node = start("n1", etcd_flags(cluster.endpoints, "/elect"), how="stubborn")
    node.runs()
    cluster.freeze(0)
    cluster.freeze(1)
    frozen = time.monotonic()
    try:
        assert node.process.wait(30) == 75
        assert not node.living()
        assert node.last_beat() < frozen + LEASE
    finally:
        cluster.thaw(0)
        cluster.thaw(1)


def test_a_lease_that_another_holds_by_the_elections_word_leaves_no_time_to_end_in(
    fresh_dsn: str, migrated: Callable[[str], str], start: Callable[..., Node]
) -> None:
    node = start("n1", postgres_flags(migrated(fresh_dsn)), how="stubborn")
    node.runs()
    taken = "UPDATE fencegate.election SET token = token + 1, renewals = 0, campaign = gen_random_uuid()"
    asyncio.run(execute(fresh_dsn, taken))
    lost = time.monotonic()
    assert node.process.wait(30) == 75
    assert not node.living()
    assert node.last_beat() < lost + 1.5, "at the next renewal, and without grace"


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


# -- elect itself is hit --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "stubborn", "offspring"])
def test_a_killed_elect_takes_its_command_with_it(election: list[str], start: Callable[..., Node], how: str) -> None:
    node = start("n1", election, "--grace", "0.5", how=how)
    node.runs()
    if how == "offspring":
        until("its offspring", lambda: len(node.pids()) == 2)
    node.process.kill()
    killed = time.monotonic()
    until("the command is gone", lambda: not node.living(), limit=LEASE)
    assert node.last_beat() < killed + LEASE


def test_a_frozen_elect_cannot_keep_its_command_alive_past_the_lease(
    election: list[str], start: Callable[..., Node]
) -> None:
    node = start("n1", election, how="stubborn")
    token = node.runs()
    second = start("n2", election)
    node.process.send_signal(signal.SIGSTOP)
    frozen = time.monotonic()
    assert second.runs() > token
    assert not node.living()
    assert node.last_beat() < min(frozen + LEASE, second.beats()[0].at)
    node.process.send_signal(signal.SIGCONT)
    assert node.process.wait(30) == 75


def guard_of(node: Node) -> int:
    """The process between elect and its command."""
    pid = node.beats()[0].pid
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_elect_and_its_guard_thawed_together_end_the_command_first_thing(
    election: list[str], start: Callable[..., Node]
) -> None:
    node = start("n1", election, how="stubborn")
    node.runs()
    guard, elect = guard_of(node), node.process.pid
    for pid in (elect, guard):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(LEASE + 0.5)
    assert node.living()  # nobody is there to end it: this is what the token is for
    thawed = time.monotonic()
    for pid in (elect, guard):
        os.kill(pid, signal.SIGCONT)
    assert node.process.wait(30) == 75
    assert not node.living()
    assert node.last_beat() < thawed + 2.0


def test_a_frozen_guard_is_done_for_by_elect_before_the_lease_can_end(
    make_postgres: Callable[..., EmbeddedPostgres], migrated: Callable[[str], str], start: Callable[..., Node]
) -> None:
    server = frozen_postgres(make_postgres, migrated)
    node = start("n1", postgres_flags(server.dsn), how="offspring")
    until("its offspring", lambda: len(node.pids()) == 2)
    os.kill(guard_of(node), signal.SIGSTOP)
    server.freeze()
    frozen = time.monotonic()
    try:
        assert node.process.wait(30) == 75
        assert not node.living()
        assert node.last_beat() < frozen + LEASE
    finally:
        server.thaw()


def test_a_killed_guard_takes_the_command_with_it_and_elect_the_rest(
    election: list[str], start: Callable[..., Node]
) -> None:
    node = start("n1", election, how="offspring")
    until("its offspring", lambda: len(node.pids()) == 2)
    os.kill(guard_of(node), signal.SIGKILL)
    assert node.process.wait(30) == 128 + signal.SIGKILL
    assert not node.living()


# -- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_is_the_commands(election: list[str], script: str, code: int) -> None:
    done = elect("--once", "--shared-store", "--", "sh", "-c", script, election=election)
    assert done.returncode == code, done.stderr


def test_the_command_gets_its_term_and_its_streams_untouched(election: list[str]) -> None:
    script = 'echo $FENCEGATE_TOKEN $FENCEGATE_ROLE ${FENCEGATE_URL-none} "$@"; cat; echo oops >&2'
    command = [sys.executable, "-m", "fencegate", "elect", "cron", *settings("n1", election)]
    for advertise, url in (([], "none"), (["--advertise", "https://gw.example"], "https://gw.example")):
        done = subprocess.run(
            [
                *command,
                *advertise,
                "--log-format",
                "json",
                "--shared-store",
                "--",
                "sh",
                "-c",
                script,
                "sh",
                "--once",
                "a b",
            ],
            input=b"\x00\xffin",
            capture_output=True,
            env=environment(FENCEGATE_URL="http://outer", FENCEGATE_TOKEN="999"),
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        words, rest = done.stdout.split(b"\n", 1)
        assert re.fullmatch(rf"\d+ cron {url} --once a b".encode(), words)
        assert not words.startswith(b"999 ")
        assert rest == b"\x00\xffin"
        assert b"oops\n" in done.stderr


def test_with_restart_and_once_a_job_runs_to_its_end_once(election: list[str]) -> None:
    done = elect("--once", "--on-lost", "restart", "--", "sh", "-c", "echo run; exit 4", election=election)
    assert (done.returncode, done.stdout) == (4, "run\n")


def test_with_restart_a_command_that_ends_is_started_again_under_a_higher_token(
    election: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    command = [sys.executable, "-m", "fencegate", "elect", "cron", *settings("n1", election), "--shared-store"]
    process = subprocess.Popen(
        [*command, "--on-lost", "restart", "--", "sh", "-c", f"echo $FENCEGATE_TOKEN >> {file}; sleep 0.5"],
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    try:
        until("three runs", lambda: file.exists() and len(file.read_text().split()) >= 3)
    finally:
        process.terminate()
        code = process.wait(30)
    tokens = [int(word) for word in file.read_text().split()]
    assert tokens == sorted(set(tokens))
    assert code == 128 + signal.SIGTERM


def test_a_stop_while_waiting_to_lead_is_not_taken_for_a_run(election: list[str], start: Callable[..., Node]) -> None:
    start("n1", election).runs()
    second = start("n2", election)
    until("it campaigns", lambda: second.process.poll() is None and handles_term(second.process.pid))
    second.process.terminate()
    assert second.process.wait(30) == 128 + signal.SIGTERM
    assert second.beats() == []


def handles_term(pid: int) -> bool:
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught.group(1), 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize(
    ("program", "code"), [("/no/such/program", 127), ("no-such-program", 127), ("/etc/passwd", 126)]
)
def test_a_command_that_cannot_be_run_is_told_before_any_campaign(program: str, code: int) -> None:
    done = elect("--", program, election=postgres_flags("postgresql://127.0.0.1:1/nowhere"))
    assert done.returncode == code
    assert program in done.stderr


def test_a_bad_configuration_is_78_with_every_fault() -> None:
    done = fencegate("elect", "cron", "--set", "election.lease_duration=1", "--", "true")
    assert done.returncode == 78
    for word in ("node: missing", "region: missing", "election.dsn: missing", "lease_duration"):
        assert word in done.stderr
    assert "store.dsn" not in done.stderr
    assert "advertise" not in done.stderr


@pytest.mark.parametrize("role", ["shards/{shard}", "a b", ""])
def test_a_role_that_is_none_is_78(role: str) -> None:
    done = fencegate("elect", role, *settings("n1", postgres_flags("postgresql://h/d")), "--", "true")
    assert done.returncode == 78
    assert "ROLE" in done.stderr


def test_processes_are_found_without_proc_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    # The shell's child is a grandchild of this process.
    process = subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        by_proc = elect_warden.descendants(os.getpid())
        assert process.pid in by_proc
        assert len(elect_warden.descendants(process.pid)) == 1
        monkeypatch.setattr(elect_warden, "_HAS_PROC", False)
        assert set(elect_warden.descendants(os.getpid())) == set(by_proc)
        assert len(elect_warden.descendants(process.pid)) == 1
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
