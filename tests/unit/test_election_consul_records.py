"""What stands in a Consul key, and when what it says still counts."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.consul_records import Entry, encoded, given_back, key_of, rebased, renewed, taken, term_of
from fencegate.lease import Candidate, SealRecord

EU = Candidate("gw-1", "eu", "https://eu.example")
SEAL = SealRecord(90, "us")


def entry(record: object, *, session: str = "s-1", index: int = 100, locks: int = 3) -> Entry:
    value = base64.b64encode(orjson.dumps(record)).decode()
    raw = {"Key": "k", "ModifyIndex": index, "LockIndex": locks, "Value": value, "Flags": 0}
    return Entry.of({**raw, "Session": session} if session else raw)


def won(before: SealRecord | None = None) -> Entry:
    seal = {"token": before.token, "region": before.region, "lock_index": 3} if before else None
    old = entry({"sealed": seal, "base": 5000}, session="") if before else None
    return entry(taken("s-1", EU, 15.0, old))


def led() -> Entry:
    return entry(renewed(won(), 100, EU, 15.0, active=True), index=104)


@given(st.sets(st.text(min_size=1, max_size=8), min_size=2))
def test_no_two_roles_share_a_key_or_lie_in_one_anothers_folder(roles: set[str]) -> None:
    names = [key_of("/fencegate/", role) for role in roles]
    assert len(set(names)) == len(roles)
    assert all(name.startswith("fencegate/") and name.count("/") == 1 for name in names)


def test_a_term_shows_its_token_only_after_a_renewal_wrote_it() -> None:
    fresh, shown = term_of("ledger", won(), 2.0), term_of("ledger", led(), 2.0)
    assert (fresh.token, fresh.active, fresh.node, fresh.lease_duration) == (100, False, "gw-1", 15.0)
    assert (shown.token, shown.active, shown.region, shown.url) == (100, True, "eu", "https://eu.example")


def test_each_renewal_is_another_sign_of_life_and_the_end_of_a_session_is_none() -> None:
    signs = [won().sign, led().sign, entry(renewed(led(), 100, EU, 15.0, active=True), index=109).sign]
    assert len(set(signs)) == 3
    assert entry(led().record, session="", index=120).sign == led().sign


def test_a_foreign_holder_is_shown_and_never_active() -> None:
    for record in (led().record, {"x": 1}, "text"):
        term = term_of("ledger", entry(record, session="s-2", index=130), 2.0)
        assert (term.token, term.node, term.active, term.expires_in) == (130, "session s-2", False, None)


def test_a_seal_counts_until_somebody_locks_the_key_again() -> None:
    record = given_back(led(), SealRecord(100, "eu"))
    freed = entry(record, session="", index=110)
    assert freed.sealed == SealRecord(100, "eu")
    assert entry(record, session="", locks=4).sealed is None
    assert entry(record, session="s-2").sealed is None
    assert freed.token == 100


def test_the_seal_of_the_term_before_is_carried_through_the_term() -> None:
    assert won(SEAL).predecessor == SEAL
    assert entry(renewed(won(SEAL), 100, EU, 15.0, active=True)).predecessor == SEAL
    assert won().predecessor is None


def test_the_base_is_carried_through_every_term_and_a_rebase_ends_the_seals_word() -> None:
    assert [won(SEAL).base, entry(renewed(won(SEAL), 100, EU, 15.0, active=True)).base, won().base] == [5000, 5000, 0]
    freed = entry(given_back(led(), SealRecord(100, "eu")), session="", index=110)
    moved = entry(rebased(freed, 9000, "ops@desk", "now", 8.0), session="", index=111)
    assert (moved.base, moved.sealed, moved.token, moved.lease_duration) == (9000, None, freed.token, 15.0)
    assert moved.sign != freed.sign  # a sign of life: whoever comes next waits for a lease
    made = entry(rebased(None, 9000, "ops@desk", "now", 8.0), session="")
    assert (made.base, made.lease_duration, made.renewals, made.token) == (9000, 8.0, 0, None)


@pytest.mark.parametrize(
    "record",
    [
        None,
        3,
        [],
        {},
        {"session": "s-1", "token": "7", "sealed": 3, "predecessor": [], "renewals": "x", "lease_duration": -1},
        {"session": "s-1", "token": True, "sealed": {"token": "1"}, "predecessor": {}, "lease_duration": True},
        {"session": "s-1", "token": 2**63, "base": 2**62 + 1, "renewals": 2**64 - 1},
    ],
)
def test_a_value_that_somebody_mangled_counts_as_none(record: object) -> None:
    for session in ("s-1", ""):
        found = entry(record, session=session)
        assert (found.token, found.sealed, found.predecessor, found.lease_duration, found.base) == (
            None,
            None,
            None,
            0.0,
            0,
        )
    assert renewed(entry(record), 100, EU, 15.0, active=True)["renewals"] == 0


def test_a_value_that_is_no_json_is_read_as_none() -> None:
    for value in (None, "", "!!", base64.b64encode(b"\xff").decode()):
        assert Entry.of({"ModifyIndex": 1, "LockIndex": 0, "Value": value}).record is None
    assert encoded({"a": 1}) == base64.b64encode(b'{"a":1}').decode()


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"ModifyIndex": 1},
        {"ModifyIndex": "1", "LockIndex": 0},
        {"ModifyIndex": 0, "LockIndex": 0},
        {"ModifyIndex": 2**63, "LockIndex": 0},
        {"ModifyIndex": 1.5, "LockIndex": 0},
        {"ModifyIndex": True, "LockIndex": 0},
        {"ModifyIndex": 1, "LockIndex": -1},
    ],
)
def test_an_entry_without_proper_indexes_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"entry|int64"):
        Entry.of(raw)
