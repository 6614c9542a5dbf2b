"""As whom Postgres runs, for each kind of user and each owner of the data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencegate.embedded import identity
from fencegate.embedded.process import Steps, finish


def _answer(works: bool) -> Steps[bool]:
    yield 0.0
    return works


class _Owned:
    """A path that exists and belongs to somebody."""

    def __init__(self, uid: int, gid: int) -> None:
        self.uid, self.gid = uid, gid

    def exists(self) -> bool:
        return True

    def stat(self) -> os.stat_result:
        return os.stat_result((0o40700, 0, 0, 1, self.uid, self.gid, 0, 0, 0, 0))


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(identity, "_namespace_works", lambda: _answer(True))
    monkeypatch.setattr(identity, "_nobody", lambda: "65534:65533")
    return monkeypatch


def test_an_ordinary_user_stays_what_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert finish(identity.identity_for(tmp_path)) == "same"


def test_root_hides_in_a_user_namespace(as_root: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert finish(identity.identity_for(tmp_path / "new")) == "namespace"


def test_root_becomes_nobody_where_namespaces_are_refused(as_root: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_root.setattr(identity, "_namespace_works", lambda: _answer(False))
    assert finish(identity.identity_for(tmp_path / "new")) == "65534:65533"


def test_root_becomes_the_ordinary_owner_of_the_data(as_root: pytest.MonkeyPatch) -> None:
    assert finish(identity.identity_for(_Owned(1001, 1002))) == "1001:1002"  # type: ignore[arg-type]


def test_data_of_root_is_given_to_nobody_where_namespaces_are_refused(as_root: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, str]] = []
    as_root.setattr(identity, "_namespace_works", lambda: _answer(False))
    as_root.setattr(identity, "chown_tree", lambda path, user: given.append((path, user)))
    data = _Owned(0, 0)
    assert finish(identity.identity_for(data)) == "65534:65533"  # type: ignore[arg-type]
    assert given == [(data, "65534:65533")]


def test_a_tree_changes_hands_whole_and_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "file").touch()
    (tmp_path / "tree" / "link").symlink_to(tmp_path)
    given: list[tuple[str, int, int, bool]] = []
    monkeypatch.setattr(
        os, "chown", lambda path, uid, gid, *, follow_symlinks: given.append((str(path), uid, gid, follow_symlinks))
    )
    identity.chown_tree(tmp_path / "tree", "7:8")
    paths = {"tree", "tree/below", "tree/file", "tree/link"}
    assert {row[0] for row in given} == {str(tmp_path / path) for path in paths}
    assert {row[1:] for row in given} == {(7, 8, False)}


@pytest.mark.parametrize("same", ["same", "namespace"])
def test_nothing_changes_hands_where_the_owner_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: str
) -> None:
    monkeypatch.setattr(os, "chown", lambda *_, **__: pytest.fail("changed hands"))
    identity.chown_tree(tmp_path, same)
