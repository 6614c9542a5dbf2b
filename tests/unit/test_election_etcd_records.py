from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.etcd_gateway import encode
from fencegate.election.etcd_records import (
    KeyValue,
    Names,
    candidate_value,
    last_claimed,
    role_of,
    seal_of,
    seal_value,
    term_of,
)
from fencegate.lease import Candidate, SealRecord

WHO = Candidate("gw-1", "eu", "https://eu.example")


def key(value: bytes, created: int = 42) -> KeyValue:
    return KeyValue(b"k", value, created, 43, 7)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), st.integers(1, 2**63 - 1))
def test_no_candidate_of_one_role_lies_in_the_range_of_another(one: str, other: str, lease: int) -> None:
    names, others = Names("/fencegate", one), Names("/fencegate", other)

    inside = names.line <= others.candidate(lease) < names.line_end

    assert inside is (one == other)


@given(st.text(min_size=1, max_size=20), st.integers(1, 2**63 - 1), st.sampled_from(["/fencegate", "/a/b"]))
def test_a_candidates_key_tells_its_role_and_no_other_key_does(role: str, lease: int, prefix: str) -> None:
    names = Names(prefix, role)

    assert role_of(prefix, names.candidate(lease)) == role
    assert role_of(prefix, f"{prefix}/stray".encode()) is None


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_records_lie_outside_every_line(one: str, other: str) -> None:
    names, others = Names("/fencegate", one), Names("/fencegate", other)

    for record in (others.term, others.sealed, others.base):
        assert not names.line <= record < names.line_end
    assert (names.term == others.term) is (one == other)


def test_the_layout_is_that_of_etcds_own_election() -> None:
    names = Names("/fencegate", "ledger")

    assert names.candidate(0x694D_7A1B) == b"/fencegate/ledger/694d7a1b"
    assert (names.line, names.line_end) == (b"/fencegate/ledger/", b"/fencegate/ledger0")


def test_a_record_comes_back_as_the_term_it_stands_for() -> None:
    term = term_of("ledger", key(candidate_value(WHO, active=True, lease_duration=15.0)), 42, 5.0)

    assert (term.role, term.token, term.node, term.region, term.url) == ("ledger", 42, "gw-1", "eu", WHO.url)
    assert (term.active, term.lease_duration, term.draining_to) == (True, 15.0, None)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"p1", "p1"),
        (b"", "unknown"),
        (b"\xff\xfe\x00", "\ufffd\ufffd"),
        (b"[1]", "[1]"),
        (b"7", "7"),
        (b'{"holder": "x"}', '{"holder": "x"}'),
        (b'{"node": 7}', '{"node": 7}'),
        (b"x" * 5000, "x" * 120),
        (b"a\nb\x1b[31m", "ab[31m"),
    ],
)
def test_a_foreign_holder_is_shown_by_its_text_and_has_no_origin(value: bytes, shown: str) -> None:
    term = term_of("ledger", key(value), 42, 5.0)

    assert (term.node, term.region, term.url, term.active) == (shown, "", "", True)
    assert (term.token, term.lease_duration) == (42, 5.0)


@pytest.mark.parametrize("lease", [None, 0, -3, "15", [1]])
def test_a_nonsense_lease_in_a_record_is_replaced_by_our_own(lease: object) -> None:
    value = orjson.dumps({"node": "n", "lease_duration": lease})

    assert term_of("ledger", key(value), 42, 5.0).lease_duration == 5.0


def test_activity_is_only_what_says_so_plainly() -> None:
    assert not term_of("ledger", key(b'{"node": "n", "active": "yes"}'), 42, 5.0).active
    assert not term_of("ledger", key(b'{"node": "n"}'), 42, 5.0).active


def test_a_seal_record_comes_back() -> None:
    record = SealRecord(2**53 + 1, "eu")

    assert seal_of(key(seal_value(record))) == record


@pytest.mark.parametrize("value", [b"", b"{}", b"7", b'{"token": "7"}', b'{"token": true}', b"nonsense"])
def test_what_is_no_seal_record_seals_nothing(value: bytes) -> None:
    assert seal_of(key(value)) is None
    assert seal_of(None) is None


def test_the_last_claimed_term_is_a_number_or_none_at_all() -> None:
    assert (last_claimed(key(b"7")), last_claimed(key(b"x")), last_claimed(None)) == (7, 0, 0)


def test_fields_that_the_gateway_leaves_out_are_zero() -> None:
    assert KeyValue.of({"key": encode("k")}) == KeyValue(b"k", b"", 0, 0, 0)
