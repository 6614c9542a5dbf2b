"""The grants that a process signs for its own term: always fresh, by the newest key, and for its own name alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.access import key_file
from fencegate.client import Grants
from fencegate.errors import ConfigurationError
from fencegate.grant import Grant, verify
from fencegate.key_ring import SharedKey

NOW = 1_796_000_000.0
OLD, NEW = SharedKey("old", b"o" * 32), SharedKey("new", b"n" * 32)
ME = "CN=node-1,O=Example"


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets both clocks to so many seconds after :data:`NOW`."""

    passed = [0.0]
    monkeypatch.setattr(time, "time", lambda: NOW + passed[0])
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    return lambda seconds: passed.__setitem__(0, seconds)


def keys(path: Path, *ring: SharedKey) -> Path:
    path.write_text("".join(f"{key.id} {key.secret.decode()}\n" for key in ring))
    path.chmod(0o600)
    return path


def read(text: str, token: int = 7, later: float = 0.0) -> Grant:
    return verify((OLD, NEW), text.encode(), "cron", token, ME, NOW + later)


def test_a_term_has_one_grant_until_half_of_its_lifetime_has_gone(tmp_path: Path, at: Callable[[float], None]) -> None:
    grants = Grants(keys(tmp_path / "k", OLD), ME, lifetime=100)
    first = grants.of("cron", 7)
    assert read(first).expires == (NOW + 100) * 1000
    at(49.0)
    assert grants.of("cron", 7) == first
    at(51.0)
    second = grants.of("cron", 7)
    assert second != first
    assert read(second, later=51.0).expires == (NOW + 151) * 1000


def test_a_clock_that_is_set_back_leaves_no_grant_of_a_time_to_come(
    tmp_path: Path, at: Callable[[float], None]
) -> None:
    grants = Grants(keys(tmp_path / "k", OLD), ME, lifetime=100)
    at(1000.0)
    grants.of("cron", 7)
    at(0.0)
    assert read(grants.of("cron", 7)).issued == NOW * 1000


def test_another_term_has_another_grant(tmp_path: Path) -> None:
    grants = Grants(keys(tmp_path / "k", OLD), ME)
    found = verify((OLD,), grants.of("cron", 7).encode(), "cron", 7, ME, time.time())
    assert (found.token, found.subject) == (7, ME)
    assert grants.of("cron", 8) != grants.of("cron", 7)


def test_a_key_file_that_changes_is_taken_within_a_second_and_a_faulty_one_is_not(
    tmp_path: Path, at: Callable[[float], None]
) -> None:
    file = keys(tmp_path / "k", OLD)
    grants = Grants(file, ME)
    keys(file, NEW, OLD)
    at(key_file.LOOK_PERIOD)
    assert grants.of("cron", 7).startswith("fg1.new.")
    file.write_text("nonsense")
    at(3 * key_file.LOOK_PERIOD)
    assert grants.of("cron", 8).startswith("fg1.new.")


@pytest.mark.parametrize(
    ("text", "subject", "lifetime", "words"),
    [
        (None, ME, 60, "grant_key_file: cannot read"),
        ("one short", ME, 60, "grant_key_file: expected on each line"),
        (f"k {'s' * 32}", "", 60, "subject = "),
        (f"k {'s' * 32}", "Zoë", 60, "subject = "),
        (f"k {'s' * 32}", ME, 0.5, "lifetime = 0.5"),
        (f"k {'s' * 32}", ME, 90_000, "lifetime = 90000"),
    ],
)
def test_what_no_gateway_would_take_is_refused_at_the_start(
    tmp_path: Path, text: str | None, subject: str, lifetime: float, words: str
) -> None:
    file = tmp_path / "k"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        Grants(file, subject, lifetime=lifetime)
    assert words in str(refused.value)
    assert "sss" not in str(refused.value)
