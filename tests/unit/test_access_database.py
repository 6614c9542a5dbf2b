"""How a Postgres is come to: what the driver is given beside the DSN, read anew for each connection."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from fencegate.access.database import Database, PasswordUnreadable


def test_a_dsn_by_itself_is_a_database() -> None:
    found = Database.at("postgresql://h/d")
    assert found.options(writable=True) == {"target_session_attrs": "read-write"}
    assert found.options(writable=False) == {}
    assert Database.at(found) is found


def test_a_dsn_that_says_which_server_it_means_is_taken_at_its_word() -> None:
    assert Database("postgresql://a,b/d?target_session_attrs=primary").options(writable=True) == {}


def test_the_password_is_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    found = Database("postgresql://h/d", password_file=str(file), name="election")
    with pytest.raises(PasswordUnreadable, match=r"^election\.password_file: cannot read .*No such file"):
        found.options(writable=False)
    for secret in ("first", "second"):
        file.write_text(f"{secret}\n")
        assert found.options(writable=False) == {"password": secret}
    file.write_text("two words")
    with pytest.raises(PasswordUnreadable) as caught:
        found.options(writable=False)
    assert "two words" not in str(caught.value)


def test_what_failed_for_reasons_of_tls_names_the_table() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = 20, "unable to get local issuer certificate"
    assert "set store.tls.ca" in Database("postgresql://h/d").tls_advice(error)
    assert Database("postgresql://h/d").tls_advice(OSError("refused")) == ""
