"""A secret in a file of its own: one line, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencegate.access.secret import secret_line


def test_the_line_is_the_secret(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("s3cret!\n")
    assert secret_line(str(tmp_path / "s")) == "s3cret!"


@pytest.mark.parametrize("content", [b"", b"\n", b"a b", b"s3cret\nagain", b"s3cret\xff"])
def test_what_is_no_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(ValueError, match="cannot use") as caught:
        secret_line(str(tmp_path / "s"))
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*/gone: No such file"):
        secret_line(str(tmp_path / "gone"))
