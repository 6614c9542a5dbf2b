"""The command line's frame: what went wrong becomes words and an exit code, never a stack trace."""

from __future__ import annotations

import click
import pytest

from fencegate import __version__
from fencegate.cli import main as cli
from fencegate.errors import ConfigurationError, FencegateError, Unavailable


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[FencegateError]:
    """A command ``sql`` that raises what the test puts here."""

    class Raised:
        error: BaseException = FencegateError("?")

    @click.command()
    def sql() -> None:
        raise Raised.error

    monkeypatch.setattr("fencegate.cli.sql.sql", sql)
    return Raised  # type: ignore[return-value]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"fencegate {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert name in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_there_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    assert f"Usage: fencegate {name}" in capsys.readouterr().out


def test_an_unknown_command_or_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serv") == 2
    assert "No such command 'serv'" in capsys.readouterr().err
    assert run("serve", "--nod", "x") == 2
    assert "--node" in capsys.readouterr().err


def test_all_faults_of_a_configuration_are_a_list_and_exit_78(
    failing: type[FencegateError], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.error = ConfigurationError(["one is wrong", "two is wrong"])  # type: ignore[attr-defined]
    assert run("sql") == 78
    found = capsys.readouterr()
    assert found.err == "fencegate: the configuration has 2 faults:\n  - one is wrong\n  - two is wrong\n"
    assert found.out == ""


@pytest.mark.parametrize("error", [FencegateError("it failed"), Unavailable("it failed")])
def test_a_failure_is_one_sentence_and_exit_1(
    error: FencegateError, failing: type[FencegateError], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.error = error  # type: ignore[attr-defined]
    assert run("sql") == 1
    assert capsys.readouterr().err == "fencegate: it failed\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupted_command_ends_quietly(
    error: BaseException, failing: type[FencegateError], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.error = error  # type: ignore[attr-defined]
    assert run("sql") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_an_exit_code_of_a_command_is_passed_on(failing: type[FencegateError]) -> None:
    failing.error = click.exceptions.Exit(3)  # type: ignore[attr-defined]
    assert run("sql") == 3
