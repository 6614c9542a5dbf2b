"""What an embedded Postgres decides before any server runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fencegate.embedded import postgres
from fencegate.embedded.postgres import Binaries, EmbeddedPostgres, EmbeddedServerError


@pytest.mark.parametrize("name", ["port", "listen_addresses", "data_directory", "fsync=off -c x", "", "Fsync", "a.b.c"])
def test_a_setting_that_is_ours_or_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be set on an embedded Postgres"):
        EmbeddedPostgres(tmp_path, settings={name: "1"})


def test_there_is_no_address_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="start it first"):
        _ = EmbeddedPostgres(tmp_path).dsn


def test_there_is_no_process_before_the_start(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    assert not server.running
    with pytest.raises(EmbeddedServerError, match="is not running"):
        _ = server.pid
    with pytest.raises(EmbeddedServerError, match="is not running"):
        server.freeze()


def test_killing_thawing_and_stopping_nothing_is_no_error(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    server.kill()
    server.thaw()
    server.stop_sync()


def _listening_in(directory: Path) -> EmbeddedPostgres:
    directory.mkdir(parents=True)
    server = EmbeddedPostgres(directory)
    server._prepare_socket("same")
    return server


def test_the_socket_lies_in_a_closed_directory_of_ours(tmp_path: Path) -> None:
    server = _listening_in(tmp_path / "d")
    assert f"host={tmp_path}/d/socket&port=5432" in server.dsn
    assert (tmp_path / "d" / "socket").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["x" * 100, "with,comma", "with space", "naïve"])
def test_a_path_that_is_no_good_for_a_socket_gets_a_short_closed_one(tmp_path: Path, name: str) -> None:
    server = _listening_in(tmp_path / name)
    assert server._socket is not None
    assert server._socket.parent == Path("/tmp")
    assert server._socket.stat().st_mode & 0o777 == 0o700
    server.stop_sync()
    assert not server._socket.exists()


def test_a_short_socket_directory_left_by_a_killed_process_is_tidied_away(tmp_path: Path) -> None:
    left = _listening_in(tmp_path / ("x" * 100))
    again = EmbeddedPostgres(left.directory)
    again._prepare_socket("same")
    assert left._socket is not None
    assert not left._socket.exists()
    again.stop_sync()


def _data_locked_by(tmp_path: Path, pid: int) -> Path:
    (tmp_path / "postmaster.pid").write_text(f"{pid}\n{tmp_path}\n", "ascii")
    return tmp_path


def test_the_lock_file_of_a_zombie_goes(tmp_path: Path) -> None:
    child = subprocess.Popen(["/bin/true"], cwd=tmp_path)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        postgres._drop_stale_lock_file(_data_locked_by(tmp_path, child.pid))
        assert not (tmp_path / "postmaster.pid").exists()
    finally:
        child.wait()


def test_the_lock_file_of_a_process_id_that_a_stranger_now_has_goes(tmp_path: Path) -> None:
    postgres._drop_stale_lock_file(_data_locked_by(tmp_path, os.getpid()))
    assert not (tmp_path / "postmaster.pid").exists()


def test_the_lock_file_of_a_living_server_stays_and_the_error_names_it(tmp_path: Path) -> None:
    child = subprocess.Popen(["/bin/cat"], cwd=tmp_path, stdin=subprocess.PIPE)
    try:
        with pytest.raises(EmbeddedServerError, match=rf"process {child.pid}\) already runs on {tmp_path}\. Stop"):
            postgres._drop_stale_lock_file(_data_locked_by(tmp_path, child.pid))
        assert (tmp_path / "postmaster.pid").exists()
    finally:
        child.communicate()


def test_data_of_another_major_version_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("15\n", "ascii")
    with pytest.raises(EmbeddedServerError, match=r"made by Postgres 15.*18\.6\. Point FENCEGATE_PG_BINDIR"):
        postgres._same_major(tmp_path, Binaries(Path("/x"), "of this system", "18.6"))
