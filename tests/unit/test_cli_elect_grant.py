"""The grant of an elected command: in a file of its user alone, fresh while the term lasts, and gone at its end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import pytest

from fencegate.cli.elect_grant import GrantFile
from fencegate.client import LeaderTerm
from fencegate.errors import FencegateError


class Term:
    """What a term is here: who says what its grant is now."""

    def __init__(self, grant: str | None) -> None:
        self.now = grant

    def grant(self) -> str | None:
        return self.now


def of(term: Term) -> GrantFile:
    return GrantFile(cast("LeaderTerm", term))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_it_is_its_users_alone_is_kept_fresh_and_ends_with_the_term(folder: Path) -> None:
    term = Term("first")
    with of(term) as grant:
        assert grant.path is not None
        assert grant.path.read_text() == "first\n"
        assert (grant.path.stat().st_mode & 0o777, grant.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        before = grant.path.stat().st_ino
        grant.refresh()
        assert grant.path.stat().st_ino == before, "nothing new"
        term.now = "second"
        grant.refresh()
        assert grant.path.read_text() == "second\n"
        assert [entry.name for entry in grant.path.parent.iterdir()] == ["grant"]
    assert list(folder.iterdir()) == []


def test_a_term_without_grants_has_no_file(folder: Path) -> None:
    with of(Term(None)) as grant:
        grant.refresh()
        assert grant.path is None
        assert list(folder.iterdir()) == []


def test_a_file_that_cannot_be_kept_fresh_is_told_of_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    term = Term("first")
    with of(term) as grant:
        assert grant.path is not None
        grant.path.with_suffix(".new").mkdir()
        term.now = "second"
        with caplog.at_level(logging.WARNING):
            grant.refresh()
        assert "cannot be kept fresh" in caplog.text
        assert "second" not in caplog.text
        assert grant.path.read_text() == "first\n"


def test_where_it_cannot_be_written_the_command_is_not_begun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder / "none"))
    with pytest.raises(FencegateError, match="cannot write the grant"), of(Term("first")):
        pass
