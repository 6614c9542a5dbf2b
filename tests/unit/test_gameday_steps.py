"""Steps of the protocol, read off bytes as they pass: whole, in pieces, and not where there is none."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election import etcd_txn as txn
from fencegate.gameday.fault_proxy import Dropped
from fencegate.gameday.steps import QuorumReader, StepTap, StoreReader, Trap, transaction
from fencegate.store import admissions, control, forward, ledger, look
from fencegate.store.portability import writing_first

READY = b"Z\x00\x00\x00\x05I"


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


GREETING = message(b"", struct.pack("!I", 80877103)) + message(b"", struct.pack("!I", 196608) + b"user\0x\0\0")
PARSE = message(b"P", b"stmt_1\0SELECT fencegate.claim($1, $2)\0\x00\x00")
OTHER = message(b"P", b"stmt_2\0SELECT 1\0\x00\x00")


def bound(name: bytes) -> bytes:
    return message(b"B", b"\0" + name + b"\0" + bytes(6)) + message(b"E", b"\0" + bytes(4)) + message(b"S", b"")


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_stores_steps_are_seen_however_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = GREETING + PARSE + OTHER + bound(b"stmt_2") + bound(b"stmt_1") + bound(b"stmt_1")
    reader, found = StoreReader(), []
    for cut in cuts:
        found += reader.steps(stream[:cut])
        stream = stream[cut:]
    assert found + reader.steps(stream) == ["claim", "claim"]


def test_an_elections_transactions_are_told_apart() -> None:
    move = {"compare": [txn.created(b"k", 1), txn.modified(b"k", 2)], "success": [txn.put(b"k", b"v", 3)]}
    join = {"compare": [txn.created(b"k", 0)], "success": [txn.put(b"k", b"v", 3)], "failure": [txn.get(b"k")]}
    end = {"compare": [txn.created(b"k", 1)], "success": [txn.delete(b"k"), txn.put(b"s", b"v")]}
    look = {"success": [txn.get(b"k")]}
    assert [transaction(json.dumps(each).encode()) for each in (move, join, end, look)] == [
        "renew",
        "join",
        "release",
        "",
    ]


def test_a_quorums_request_counts_once_its_body_is_whole() -> None:
    body = json.dumps({"success": [txn.delete(b"k")]}).encode()
    head = b"POST /v3/kv/txn HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    reader = QuorumReader()
    assert reader.steps(head + body[:5]) == []
    assert reader.steps(body[5:] + head) == ["release"]
    assert reader.steps(body) == ["release"]


class Owner:
    def __init__(self, *traps: Trap) -> None:
        self.traps = list(traps)


def test_a_trap_springs_once_at_its_moment_in_its_region() -> None:
    struck: list[str] = []
    trap = Trap("claim", "after", "dr", lambda: struck.append("now"))
    owner = Owner(trap)
    for region, expected in (("primary", []), ("dr", ["now"])):
        tap = StepTap(owner, region, StoreReader())
        tap.asked(GREETING + PARSE + bound(b"stmt_1"))
        tap.answered(b"some rows")
        assert not struck
        if expected:
            with pytest.raises(Dropped):
                tap.answered(READY)
        else:
            tap.answered(READY)
        assert struck == expected
    again = StepTap(owner, "dr", StoreReader())
    again.asked(GREETING + PARSE + bound(b"stmt_1"))
    again.answered(READY)
    assert struck == ["now"]


def test_a_trap_that_freezes_lets_the_bytes_go_on() -> None:
    struck: list[str] = []
    tap = StepTap(Owner(Trap("claim", "before", "dr", lambda: struck.append("now"), drops=False)), "dr", StoreReader())
    tap.asked(GREETING + PARSE + bound(b"stmt_1"))
    assert struck == ["now"]


@pytest.mark.parametrize(
    ("statement", "step"),
    [
        (ledger._APPEND, "append"),
        (writing_first(ledger._APPEND), "append"),
        (admissions._ADMIT, "admit"),
        (look._LOOK, "look"),
        (forward._SETTLE, "settle"),
        (control._CLAIM, "claim"),
        (control._EXTEND, "extend"),
        (control._SEAL, "seal"),
        (control._DRAINING, "set_draining"),
    ],
)
def test_each_statement_of_the_store_is_read_as_its_step(statement: str, step: str) -> None:
    reader = StoreReader()
    reader.steps(GREETING)
    reader.steps(message(b"P", b"s\0%b\0\x00\x00" % statement.encode()))
    assert reader.steps(bound(b"s")) == [step]
