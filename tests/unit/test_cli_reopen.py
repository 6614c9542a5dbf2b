"""``fencegate reopen``: nothing happens without the word. To a real store: integration/store/test_rollback.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencegate.access.database import Database
from fencegate.cli import reopen as command
from fencegate.cli.rebase import EXIT_REFUSED
from fencegate.errors import Unavailable
from fencegate.store import rollback
from fencegate.store.rollback import Finding, NotMigrated

SETTINGS = ["--store-dsn", "postgresql://one@localhost/ledger"]
FOUND = Finding("gw-1#ab", "2026-01-01T00:00:00Z", 42, 40)


@pytest.fixture
def reopened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Which stores were, and by whom."""
    done: list[tuple[str, str]] = []

    async def find(database: Database, limit: float) -> list[Finding]:
        if "old" in database.dsn:
            raise NotMigrated("the store lacks migrations: run fencegate migrate")
        if "down" in database.dsn:
            raise Unavailable("the store takes no connection")
        return [] if "well" in database.dsn else [FOUND]

    async def reopen(database: Database, by: str, limit: float) -> int:
        done.append((database.dsn, by))
        return 1

    monkeypatch.setattr(rollback, "find", find)
    monkeypatch.setattr(rollback, "reopen", reopen)
    return done


def call(*arguments: str, settings: list[str] = SETTINGS, **options: Any) -> Result:
    return CliRunner().invoke(command.reopen, [*settings, *arguments], **options)


def test_it_takes_the_store_as_it_is_and_says_who_did(reopened: list[tuple[str, str]]) -> None:
    done = call("--confirm", "lost", "--by", "ops@desk", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"reopened": 1, "by": "ops@desk"}
    assert reopened == [(SETTINGS[1], "ops@desk")]


@pytest.mark.parametrize(
    ("settings", "word", "says"),
    [
        (SETTINGS, "ledger", "the word is 'lost', not 'ledger'"),
        (["--store-dsn", "postgresql://one@well/ledger"], "lost", "nobody has found"),
        (["--store-dsn", "postgresql://one@old/ledger"], "lost", "run fencegate migrate"),
        ([*SETTINGS, "--store", "south"], "lost", "there is no [[store]] 'south'"),
    ],
)
def test_what_is_refused_changes_nothing_and_exits_69(
    reopened: list[tuple[str, str]], settings: list[str], word: str, says: str
) -> None:
    done = call("--confirm", word, settings=settings)
    assert done.exit_code == EXIT_REFUSED
    assert "nothing was changed" in done.stderr
    assert says in done.stderr
    assert reopened == []


def test_of_several_stores_one_has_to_be_named(reopened: list[tuple[str, str]], two_stores: Path) -> None:
    unnamed = call("--confirm", "lost", settings=["--config", str(two_stores)])
    assert (unnamed.exit_code, reopened) == (EXIT_REFUSED, [])
    assert "north, south" in unnamed.stderr
    assert call("--confirm", "lost", "--store", "south", settings=["--config", str(two_stores)]).exit_code == 0
    assert [dsn for dsn, _ in reopened] == ["postgresql://s/l"]


def test_without_a_terminal_the_word_must_be_given(reopened: list[tuple[str, str]]) -> None:
    done = call(input="lost\n")
    assert done.exit_code == 2
    assert "--confirm lost" in done.stderr
    assert reopened == []


@pytest.mark.parametrize(("typed", "code"), [("lost\n", 0), ("yes\n", EXIT_REFUSED), ("\n", EXIT_REFUSED)])
def test_at_a_terminal_what_was_found_is_shown_and_the_word_is_typed(
    reopened: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    monkeypatch.setattr(command, "at_a_terminal", lambda: True)
    done = call(input=typed)
    assert done.exit_code == code
    assert "it had come to transaction 42, and set out again from 40" in done.output
    assert bool(reopened) is (code == 0)


def test_a_store_that_does_not_answer_is_a_failure_and_not_a_refusal(reopened: list[tuple[str, str]]) -> None:
    down = ["--store-dsn", "postgresql://one@down/ledger"]
    assert isinstance(call("--confirm", "lost", settings=down).exception, Unavailable)
