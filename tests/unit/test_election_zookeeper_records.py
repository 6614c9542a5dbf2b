"""What is read out of ZooKeeper's nodes, in which order candidates stand, and how long each has to wait."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.zookeeper_records import (
    Names,
    Record,
    ahead_of,
    candidate_of,
    candidate_value,
    decode,
    wait,
)
from fencegate.lease import Candidate, SealRecord

EU = Candidate("gw-1", "eu", "https://eu.example")
RECORD = Record.of(7, "/f/line/ledger/a-0000000001", EU, 15.0, active=True)


# Field case 21: python-zk/kazoo#730, python-zk/kazoo#606.
# Field case 22: apache/zookeeper#262.
def test_the_order_in_line_is_that_of_the_czxid_and_never_of_the_suffix() -> None:
    line = {
        "x-2147483647": 0x1_FFFFFFFF,
        "y--2147483648": 0x2_00000000,  # the suffix turned negative, and the zxid's epoch rose
        "z-0000000000": 0x2_00000001,
    }
    assert ahead_of("z-0000000000", line) == ["x-2147483647", "y--2147483648"]
    assert ahead_of("y--2147483648", line) == ["x-2147483647"]
    assert ahead_of("x-2147483647", line) == []


@pytest.mark.parametrize("seal", [None, SealRecord(7, "eu")])
def test_a_record_comes_back_as_it_was_written(seal: SealRecord | None) -> None:
    record = Record(7, "/p", "gw-1", "eu", "https://eu.example", True, 2.5, seal, SealRecord(6, "dr"), "dr")
    assert decode(record.encode()) == record


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        RECORD.encode().replace(b'"token":7', b'"token":"7"'),
        RECORD.encode().replace(b'"token":7', b'"token":0'),
        RECORD.encode().replace(b"15.0", b"0"),
        RECORD.encode().replace(b"15.0", b"null"),
        RECORD.encode().replace(b'"sealed":null', b'"sealed":{"token":"x"}'),
    ],
)
def test_what_is_no_record_is_refused_and_never_guessed_at(value: bytes) -> None:
    with pytest.raises(ValueError, match="not a record of a term"):
        decode(value)


def test_a_candidate_is_known_by_its_node_and_a_node_of_somebody_else_is_nobody() -> None:
    assert candidate_of(candidate_value(EU)) == EU
    for foreign in (b"", b"nonsense", b"[]", b"7", b'{"node":"gw-1"}'):
        assert candidate_of(foreign) is None


def test_a_term_shows_what_is_left_of_its_lease_and_never_less_than_nothing() -> None:
    assert RECORD.term("ledger", 5.0).expires_in == 10.0
    assert RECORD.term("ledger", 50.0).expires_in == 0.0


def test_only_a_term_that_was_given_back_is_followed_at_once() -> None:
    sealed = Record(7, "/p", "gw-1", "eu", "", False, 15.0, SealRecord(7, "eu"))
    assert wait(sealed, 0, 2.0) == 0
    assert wait(RECORD, 0, 2.0) == 15.0
    assert wait(None, 0, 2.0) == 0


def test_every_living_candidate_before_us_has_a_lease_to_use_its_turn() -> None:
    sealed = Record(7, "/p", "gw-1", "eu", "", False, 15.0, SealRecord(7, "eu"))
    assert (wait(RECORD, 2, 2.0), wait(sealed, 2, 2.0), wait(None, 2, 2.0)) == (45.0, 30.0, 4.0)


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_roles_never_share_a_node_nor_does_one_lie_within_the_other(one: str, other: str) -> None:
    first, second = Names("/f", one), Names("/f", other)
    assert (first.line == second.line) == (one == other)
    for path in (first.line, first.term):
        assert path.count("/") == 3
        assert not {".", ".."} & set(path.split("/"))


def test_a_term_that_was_handed_over_is_the_successors_at_once_and_nobody_elses_for_a_while() -> None:
    candidate = Candidate("gw-1", "eu", "https://eu.example")
    held = Record.of(7, "/line/x", candidate, 15.0)
    handed = decode(replace(held, sealed=SealRecord(7, "eu", "dr")).encode())
    assert handed.sealed == SealRecord(7, "eu", "dr")
    assert wait(handed, 2, 15.0, "dr", 10.0) == 0.0
    assert wait(handed, 0, 15.0, "us", 10.0) == 10.0
    assert wait(handed, 2, 15.0, "us", 10.0) == 30.0
    assert wait(replace(held, sealed=SealRecord(7, "eu")), 0, 15.0, "us", 10.0) == 0.0


def test_the_record_names_the_region_that_a_term_is_being_handed_to() -> None:
    candidate = Candidate("gw-1", "eu", "https://eu.example", draining_to="dr")
    assert decode(Record.of(7, "/line/x", candidate, 15.0).encode()).draining_to == "dr"


@pytest.mark.parametrize("token", [0, -1, 2**63, 7.5, "7", True, None, []])
@pytest.mark.parametrize("place", ["token", "sealed", "before"])
def test_what_is_no_token_is_no_record_and_no_seal(place: str, token: object) -> None:
    whole = {"token": 7, "place": "p", "node": "n", "region": "eu", "url": "", "active": True, "lease_duration": 3}
    seal = {"token": token, "region": "eu"}
    with pytest.raises(ValueError, match="not a record"):
        decode(json.dumps({**whole, place: token if place == "token" else seal}).encode())
