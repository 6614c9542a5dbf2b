"""The names are OpenTelemetry's own, and nothing that a client sends can break them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.semconv.attributes import (
    client_attributes,
    db_attributes,
    error_attributes,
    http_attributes,
    server_attributes,
    url_attributes,
    user_agent_attributes,
)

from fencegate.telemetry import conventions as names


def test_the_names_are_those_of_the_stable_conventions() -> None:
    theirs = {
        value
        for module in (
            client_attributes, db_attributes, error_attributes, http_attributes, server_attributes, url_attributes,
            user_agent_attributes,
        )
        for name, value in vars(module).items()
        if name.isupper()
    }  # fmt: skip
    ours = {value for name, value in vars(names).items() if name.isupper() and "." in str(value)}
    not_ours = {name for name in ours if not name.startswith("fencegate.")}
    assert not_ours <= theirs
    assert http_attributes.HttpRequestMethodValues.OTHER.value == names.OTHER
    assert db_attributes.DbSystemNameValues.POSTGRESQL.value == names.database("postgresql://h/d")[names.DB_SYSTEM]


def test_a_method_that_nobody_has_heard_of_makes_no_new_name() -> None:
    assert names.method("POST") == {names.METHOD: "POST"}
    assert names.method("BREW") == {names.METHOD: "_OTHER", names.METHOD_AS_SENT: "BREW"}
    assert (names.span_name("POST", "/v1/entries"), names.span_name("BREW")) == ("POST /v1/entries", "HTTP")


def test_a_path_is_text_and_of_no_more_length_than_is_good_for_anybody() -> None:
    assert names.path("/v1/%20") == "/v1/%20"
    assert names.path("/a\udcff").encode() == b"/a?"
    assert len(names.path("/" + "\u00e9" * 5000)) == 2048


@pytest.mark.parametrize(
    ("authority", "scheme", "found"),
    [
        ("ledger.example", "https", ("ledger.example", 443)),
        ("ledger.example:8080", "http", ("ledger.example", 8080)),
        ("[::1]:8080", "http", ("::1", 8080)),
        ("", "http", None),
        ("a:b:c", "http", None),
        ("h" * 300, "http", None),
        ("h/../../etc", "http", None),
        ("[::1", "http", None),
    ],
)
def test_a_server_is_a_host_and_a_port_or_nothing(authority: str, scheme: str, found: tuple[str, int] | None) -> None:
    told = names.server(authority, scheme)
    assert told == ({} if found is None else {names.SERVER: found[0], names.SERVER_PORT: found[1]})


@settings(max_examples=50)
@given(st.text(), st.sampled_from(["http", "https"]))
def test_whatever_a_client_calls_the_server_nothing_is_raised(authority: str, scheme: str) -> None:
    names.server(authority, scheme)


@pytest.mark.parametrize(
    ("dsn", "namespace", "host", "port"),
    [
        ("postgresql://u:s3cret@db:5433/ledger?sslmode=require", "ledger", "db", 5433),
        ("postgresql://db", None, "db", 5432),
        ("postgresql://a:1,b:2/ledger", "ledger", None, None),
        ("postgresql:///ledger?host=/run/pg", "ledger", None, None),
    ],
)
def test_of_the_store_its_place_is_told_and_never_a_password(
    dsn: str, namespace: str | None, host: str | None, port: int | None
) -> None:
    known = {"db.system.name": "postgresql", "db.namespace": namespace, "server.address": host, "server.port": port}
    assert names.database(dsn) == {name: value for name, value in known.items() if value is not None}


def test_what_the_contracts_headers_say_is_told_in_their_words() -> None:
    accepted = [("X-Fencing-Outcome", "accepted"), ("X-Fencing-Max-Seen", "42"), ("Idempotent-Replayed", "true")]
    assert names.fencing(accepted) == {names.OUTCOME: "accepted", names.MAX_SEEN: 42, names.REPLAYED: True}
    refused = [("x-fencing-outcome", "stale_token"), ("x-fencing-applied", "no"), ("X-Fencing-Max-Seen", "4_2")]
    assert names.fencing(refused) == {
        names.OUTCOME: "stale_token",
        names.REFUSAL: "stale_token",
        names.APPLIED: "no",
    }
