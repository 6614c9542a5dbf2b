"""The generators that start and stop things, and what surrounds them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from fencegate.embedded import process
from fencegate.embedded.process import EmbeddedServerError, Steps, afinish, finish


def _steps(log: list[str], count: int) -> Steps[int]:
    try:
        for _ in range(count):
            yield 0.0
        return count
    finally:
        log.append("cleaned up")


def test_finish_returns_what_the_steps_return() -> None:
    log: list[str] = []
    assert finish(_steps(log, 3)) == 3
    assert log == ["cleaned up"]


async def test_afinish_returns_what_the_steps_return() -> None:
    log: list[str] = []
    assert await afinish(_steps(log, 3)) == 3
    assert log == ["cleaned up"]


async def test_a_cancelled_afinish_lets_the_steps_clean_up() -> None:
    log: list[str] = []
    task = asyncio.create_task(afinish(_steps(log, 10**9)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["cleaned up"]


def test_a_server_is_not_started_from_a_worker_thread(tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def start() -> None:
        try:
            process.spawn(["/bin/true"], log=tmp_path / "log", death_signal=signal.SIGKILL, environment={})
        except EmbeddedServerError as problem:
            raised.append(problem)

    worker = threading.Thread(target=start)
    worker.start()
    worker.join()
    assert "must be started from the main thread" in str(raised[0])


def test_variables_that_steer_a_server_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_NAME", "mine")
    monkeypatch.setenv("PGDATA", "/mine")
    monkeypatch.setenv("KEPT", "yes")
    environment = process.clean_environment("ETCD", "PG")
    assert "ETCD_NAME" not in environment
    assert "PGDATA" not in environment
    assert (environment["KEPT"], environment["LC_ALL"]) == ("yes", "C")


def test_a_locked_directory_is_named_in_the_error(tmp_path: Path) -> None:
    held = finish(process.lock_directory(tmp_path, "Postgres", limit=0))
    with pytest.raises(EmbeddedServerError, match=r"cannot start etcd: the directory .*in use.*of its own") as raised:
        finish(process.lock_directory(tmp_path, "etcd", limit=0))
    assert str(tmp_path) in str(raised.value)
    os.close(held)
    os.close(finish(process.lock_directory(tmp_path, "etcd", limit=0)))


def test_a_lock_that_is_no_longer_waited_for_leaves_no_descriptor_open(tmp_path: Path) -> None:
    held = finish(process.lock_directory(tmp_path, "Postgres", limit=0))
    waiting = process.lock_directory(tmp_path, "Postgres", limit=60)
    next(waiting)
    before = len(os.listdir("/dev/fd"))
    waiting.close()
    assert len(os.listdir("/dev/fd")) == before - 1
    os.close(held)


def test_a_directory_that_cannot_be_made_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedServerError, match=r"cannot keep a server's files in .*file/below.*Give a directory"):
        process.prepare_directory(tmp_path / "file" / "below")


def test_a_new_directory_is_closed_to_others(tmp_path: Path) -> None:
    process.prepare_directory(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_log_that_has_grown_large_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LOG_LIMIT", 10)
    log = tmp_path / "server.log"
    assert process.open_log(log) == 0
    log.write_text("short", "ascii")
    assert process.open_log(log) == 5
    log.write_text("much longer than that", "ascii")
    assert process.open_log(log) == 0
    assert (tmp_path / "server.log.1").read_text("ascii") == "much longer than that"


def test_the_last_lines_begin_after_what_was_there_before(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"old\n1\n2\n\xff\n")
    assert process.last_lines(log, start=4, count=2) == "2\n\N{REPLACEMENT CHARACTER}"
    assert process.last_lines(log, start=10) == "(the log is empty)"
    assert "no log" in process.last_lines(tmp_path / "none")


def test_only_a_living_process_that_works_there_runs_in_a_directory(tmp_path: Path) -> None:
    assert process.runs_in(os.getpid(), Path.cwd())
    assert not process.runs_in(os.getpid(), tmp_path)


def test_a_zombie_runs_nowhere() -> None:
    child = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not reaped
    try:
        assert not process.runs_in(child.pid, Path.cwd())
    finally:
        child.wait()
    assert not process.runs_in(child.pid, Path.cwd())


def test_the_children_of_a_process_are_found() -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert child.pid in process.children_of(os.getpid())
        assert process.children_of(child.pid) == []
    finally:
        child.communicate()


def test_a_servers_port_is_never_one_that_an_outgoing_connection_may_be_given() -> None:
    ports = {process.free_port() for _ in range(200)}
    assert len(ports) == 200, "none is given twice"
    assert max(ports) < 32_768


def test_a_port_that_somebody_listens_at_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(process, "_PORTS", range(port, port + 50))
        assert port not in {process.free_port() for _ in range(25)}
        monkeypatch.setattr(process, "_PORTS", range(port, port + 1))
        with pytest.raises(EmbeddedServerError, match="none was free"):
            process.free_port()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="nobody else tells the state of a process")
def test_whoever_is_frozen_stands_still_once_that_has_returned() -> None:
    """Also who is no child of ours: of a Postgres the backends."""
    parent = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 60 & echo $!; wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    freezer = process.Freezer()
    freezer.freeze_family(parent.pid)
    freezer.freeze(child)
    assert [process._stat(pid)[0] for pid in (parent.pid, child)] == ["T", "T"]
    freezer.thaw()
    for pid in (child, parent.pid):
        process.send(pid, signal.SIGKILL)
    parent.communicate()


def test_to_wait_for_somebody_who_is_gone_to_stand_still_takes_no_time() -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    process.until_still(gone.pid)
