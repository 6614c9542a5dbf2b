"""What a Postgres DSN says of the way to its servers."""

from __future__ import annotations

import pytest

from fencegate.config.dsn import has_password, hosts, over_sockets, parameters, stays_here


@pytest.mark.parametrize(
    ("dsn", "found", "here", "sockets"),
    [
        ("postgresql://u:p@db.example:5432/d", ["db.example"], False, False),
        ("postgresql://u@[::1]:2,a:1,b.example/d", ["::1", "a", "b.example"], False, False),
        ("postgresql://u@/d?host=a,[::1]&port=1,2", ["a", "::1"], False, False),
        ("postgresql://127.0.0.1,localhost:3/d", ["127.0.0.1", "localhost"], True, False),
        ("postgresql://u@/d?host=/run/postgresql", ["/run/postgresql"], True, True),
        ("postgresql://%2Frun%2Fpostgresql/d", ["/run/postgresql"], True, True),
        ("postgresql:///d", [], True, True),
        ("postgresql://u:p%40x@h/d?sslmode=require", ["h"], False, False),
    ],
)
def test_the_hosts_of_a_dsn(dsn: str, found: list[str], here: bool, sockets: bool) -> None:
    assert hosts(dsn) == found
    assert (stays_here(dsn), over_sockets(dsn)) == (here, sockets)


def test_the_last_of_two_parameters_counts() -> None:
    assert parameters("postgresql://h/d?sslmode=require&sslmode=disable") == {"sslmode": "disable"}


def test_a_password_may_stand_in_two_places() -> None:
    assert has_password("postgresql://u:p@h/d")
    assert has_password("postgresql://u@h/d?password=p")
    assert not has_password("postgresql://u@h/d")
