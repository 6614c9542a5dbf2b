"""The kinds of values that settings have: what is taken, and what is said of the rest."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from pydantic import TypeAdapter, ValidationError

from fencegate.config import values
from fencegate.config.routes import upstream
from fencegate.config.values import Dsn, origin, split_url

UNREADABLE = ["http://[::1", "http://[no]:1", "https://a]b"]


@pytest.mark.parametrize("read", [origin, upstream])
@pytest.mark.parametrize("text", UNREADABLE)
def test_what_no_python_reads_as_a_url_is_told_what_was_expected(read: object, text: str) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match=r"^expected an (origin|upstream)"):
        read(text)


@pytest.mark.parametrize("read", [origin, upstream])
@pytest.mark.parametrize("port", ["0", "65536", "x", "-1"])
def test_a_port_that_is_none_is_told_what_was_expected(read: object, port: str) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match="port of 1 to 65535"):
        read(f"https://ledger.example:{port}")


def test_a_dsn_that_this_python_cannot_split_says_how_several_hosts_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_later_pythons_do(text: str) -> object:
        if ",[" in text:
            raise ValueError("Invalid IPv6 URL")
        return urlsplit(text)

    monkeypatch.setattr(values, "urlsplit", as_later_pythons_do)
    several = "postgresql://u@a:1,[::1]:2/ledger"
    with pytest.raises(ValidationError, match=r"several hosts .*host=db\.example,\[2001:db8::1\]"):
        TypeAdapter(Dsn).validate_python(several)
    assert TypeAdapter(Dsn).validate_python("postgresql://u@[::1]:2,a:1/ledger")


def test_a_url_that_can_be_read_is_split() -> None:
    assert split_url("https://a.example:1/b", "expected something else").port == 1
