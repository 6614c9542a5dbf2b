"""The chain's verifier: it finds whatever was changed, left out, added or moved."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.fence import Entry
from fencegate.store.chain import genesis, link, verify_chain

AT = "2026-11-29T14:17:17.000001Z"


def ledger(bodies: list[bytes], role: str = "ledger") -> list[Entry]:
    entries, previous = [], genesis(role)
    for n, body in enumerate(bodies):
        entry = Entry(role, n + 1, 7, AT, body, "", f"k{n}" if n % 2 else None, "alice" if n % 3 == 1 else None)
        previous = link(previous, entry)
        entries.append(replace(entry, hash=previous.hex()))
    return entries


def test_a_whole_chain_is_whole_and_so_is_its_rest() -> None:
    entries = ledger([b"1", b"2", b"3"])
    assert verify_chain("ledger", entries) is None
    assert verify_chain("ledger", []) is None
    assert verify_chain("ledger", entries[1:], after=(1, bytes.fromhex(entries[0].hash))) is None


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"9"},
        {"token": 8},
        {"key": "other"},
        {"caller": "bob"},
        {"caller": None},
        {"recorded_at": "2026-11-29T14:17:17.000002Z"},
        {"hash": "00"},
    ],
)
def test_any_change_is_found_where_it_was_made(change: dict[str, Any]) -> None:
    entries = ledger([b"1", b"2", b"3"])
    entries[1] = replace(entries[1], **change)
    broken = verify_chain("ledger", entries)
    assert broken is not None
    assert broken.seq == 2


def test_a_missing_a_moved_and_a_strange_entry_are_found() -> None:
    entries = ledger([b"1", b"2", b"3"])
    for wrong in (entries[1:], [entries[0], entries[2]], [entries[1], entries[0]]):
        assert verify_chain("ledger", wrong) is not None
    assert verify_chain("other", entries) is not None
    assert verify_chain("other", [replace(e, role="other") for e in entries]) is not None


def test_an_entry_without_a_caller_is_hashed_as_before_there_were_any() -> None:
    entry = Entry("ledger", 1, 7, AT, b'{"n": 1}', "", "k")
    message = genesis("ledger") + (1).to_bytes(8) + (7).to_bytes(8) + (1795961837000001).to_bytes(8) + b'k\x1f{"n": 1}'
    assert link(genesis("ledger"), entry) == sha256(message).digest()
    assert link(genesis("ledger"), replace(entry, caller="")) == sha256(message).digest()
    assert link(genesis("ledger"), replace(entry, caller="alice")) == sha256(message + b"\x1falice").digest()


@pytest.mark.parametrize(
    "posing",
    [
        {"body": b"2\x1falice", "caller": None},
        {"key": "k1\x1f2", "body": b"alice", "caller": None},
    ],
)
def test_an_entry_with_a_caller_cannot_pass_for_one_without(posing: dict[str, Any]) -> None:
    entries = ledger([b"1", b"2", b"3"])
    posed = replace(entries[1], **posing)
    assert link(bytes.fromhex(entries[0].hash), posed).hex() == posed.hash, "the hash alone does not tell"
    entries[1] = posed
    broken = verify_chain("ledger", entries)
    assert broken is not None
    assert broken.seq == 2


def test_the_same_instant_in_another_offset_is_the_same_and_one_without_is_refused() -> None:
    [entry] = ledger([b"1"])
    assert verify_chain("ledger", [replace(entry, recorded_at="2026-11-29T16:17:17.000001+02:00")]) is None
    with pytest.raises(ValueError, match="offset"):
        verify_chain("ledger", [replace(entry, recorded_at="2026-11-29T14:17:17.000001")])


@given(st.lists(st.binary(min_size=1, max_size=5).filter(lambda b: 0x1F not in b), min_size=1, max_size=8), st.data())
def test_no_flipped_byte_goes_unseen(bodies: list[bytes], data: st.DataObject) -> None:
    entries = ledger(bodies)
    at = data.draw(st.integers(0, len(entries) - 1))
    changed = bytearray(entries[at].body)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    entries[at] = replace(entries[at], body=bytes(changed))
    broken = verify_chain("ledger", entries)
    assert broken is not None
    assert broken.seq == at + 1
