"""The servers that the suite starts, and its promise that nothing is skipped unseen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
SKIPPING = "import pytest\n@pytest.mark.skip(reason='no moon')\ndef test_x(): pass\ndef test_y(): pass\n"


async def test_every_test_gets_an_empty_database_of_its_own(fresh_dsn: str, postgres: object) -> None:
    connection = await asyncpg.connect(fresh_dsn)
    assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    assert str(await connection.fetchval("SELECT current_database()")).startswith("t_")
    await connection.execute("CREATE TABLE mine ()")
    await connection.close()


def test_a_synchronous_test_gets_a_database_too(fresh_dsn: str) -> None:
    assert fresh_dsn.startswith("postgresql://fencegate:")


def run_suite(
    directory: Path, file: str, text: str, *flags: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a suite of one file under the project's conftest."""
    shutil.copy(CONFTEST, directory / "conftest.py")
    (directory / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", "ascii")
    path = directory / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "ascii")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "FENCEGATE"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags, str(directory)],
        capture_output=True,
        text=True,
        cwd=directory,
        env=kept | environment,
        timeout=180,  # a run of two workers on a busy machine
        check=False,
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_skip_fails_the_run_where_it_must_and_is_named_with_its_reason(tmp_path: Path, workers: str) -> None:
    run = run_suite(tmp_path, "test_it.py", SKIPPING, "--numprocesses", workers, FENCEGATE_FAIL_ON_SKIP="1")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "the run fails, since these were skipped" in run.stdout
    assert "test_it.py::test_x: Skipped: no moon" in run.stdout
    assert "test_y" not in run.stdout


def test_a_module_that_skips_itself_fails_the_run_too(tmp_path: Path) -> None:
    text = "import pytest\npytest.importorskip('no_such_module')\n"
    (tmp_path / "test_other.py").write_text("def test_z(): pass\n", "ascii")
    run = run_suite(tmp_path, "test_it.py", text, FENCEGATE_FAIL_ON_SKIP="1")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "could not import 'no_such_module'" in run.stdout


@pytest.mark.parametrize(("text", "setting"), [(SKIPPING, "0"), ("def test_y(): pass\n", "1")])
def test_a_run_without_skips_or_where_they_are_allowed_passes(tmp_path: Path, text: str, setting: str) -> None:
    assert run_suite(tmp_path, "test_it.py", text, FENCEGATE_FAIL_ON_SKIP=setting).returncode == 0


def test_a_switch_of_the_tests_is_seen_by_their_files_and_by_nothing_that_they_start(tmp_path: Path) -> None:
    text = (
        "import os, subprocess, sys\n"
        "SECONDS = os.environ.get('FENCEGATE_FUZZ_SECONDS')\n"
        "def test_x():\n"
        "    assert SECONDS == '300'\n"
        "    child = 'import os; print(sorted(each for each in os.environ if each.startswith(\"FENCEGATE\")))'\n"
        "    assert subprocess.check_output([sys.executable, '-c', child], text=True).strip() == '[]'\n"
    )
    switches = {"FENCEGATE_FUZZ_SECONDS": "300", "FENCEGATE_FAIL_ON_SKIP": "1"}
    run = run_suite(tmp_path, "test_it.py", text, "--numprocesses", "1", **switches)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_unit_test_that_asks_for_a_server_is_refused(tmp_path: Path) -> None:
    run = run_suite(tmp_path, "unit/test_it.py", "def test_x(fresh_dsn): pass\n")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "is a unit test but asks for a server: fresh_dsn, postgres" in run.stderr
