"""Bisection finds every fork in few looks; decisions are matched by key, one at a time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.fence import Entry
from fencegate.gameday.fork import Decision, Fate, bisect_fork, match, meaning


def searched(shared: int, common: int) -> tuple[int, int]:
    """What the search finds in two copies that agree up to ``common``, and the looks that it took."""
    search, looks = bisect_fork(shared), 0
    try:
        seq = next(search)
        while True:
            assert 1 <= seq <= shared
            looks += 1
            seq = search.send(seq <= common)
    except StopIteration as end:
        return end.value, looks


@given(st.integers(0, 10**7).flatmap(lambda shared: st.tuples(st.just(shared), st.integers(0, shared))))
def test_the_last_common_entry_is_found_in_about_log2_looks(case: tuple[int, int]) -> None:
    shared, common = case
    found, looks = searched(shared, common)
    assert found == common
    assert looks <= shared.bit_length() + 1


def test_two_copies_that_have_not_forked_take_one_look() -> None:
    assert searched(10**7, 10**7) == (10**7, 1)
    assert searched(0, 0) == (0, 0)


def written(key: str, seq: int = 1, body: bytes = b"{}", caller: str | None = None) -> Entry:
    return Entry("ledger", seq, 7, "2026-01-01T00:00:00.000000Z", body, "00", key, caller)


async def given_one_by_one(entries: Sequence[Entry]) -> AsyncIterator[Entry]:
    for entry in entries:
        yield entry


KEYS = st.lists(st.text(min_size=1, max_size=2), max_size=12)


@given(KEYS, KEYS)
async def test_every_entry_of_both_sides_lands_under_its_key_once(first: list[str], second: list[str]) -> None:
    sides = [[written(key, seq) for seq, key in enumerate(sorted(keys))] for keys in (first, second)]
    found = [decision async for decision in match(*map(given_one_by_one, sides))]
    assert [d.key for d in found] == sorted({*first, *second})
    assert [e for d in found for e in d.first] == sides[0]
    assert [e for d in found for e in d.second] == sides[1]
    assert all(e.key == d.key for d in found for e in (*d.first, *d.second))


async def test_two_callers_with_one_key_are_two_decisions() -> None:
    first = [written("k", 1), written("k", 3, caller="alice"), written("k", 2, b"2", "bob")]
    second = [written("k", 1, caller="alice"), written("k", 2, b"2", "carol")]
    found = [decision async for decision in match(given_one_by_one(first), given_one_by_one(second))]
    assert [(d.caller, d.fate) for d in found] == [
        ("", Fate.ONLY_FIRST),
        ("alice", Fate.SAME),
        ("bob", Fate.ONLY_FIRST),
        ("carol", Fate.ONLY_SECOND),
    ]


@pytest.mark.parametrize(
    ("first", "second", "fate"),
    [
        ([b'{"a":1,"b":2}'], [b'{ "b": 2, "a": 1 }'], Fate.SAME),
        ([b'{"a":1}'], [b'{"a":2}'], Fate.DIFFERENT),
        ([b"1", b"1"], [b"1"], Fate.SAME),
        ([b"1", b"2"], [b"1"], Fate.DIFFERENT),
        ([b"1"], [], Fate.ONLY_FIRST),
        ([], [b"1"], Fate.ONLY_SECOND),
    ],
)
def test_what_became_of_a_decision(first: list[bytes], second: list[bytes], fate: Fate) -> None:
    sides = [tuple(written("k", body=body) for body in bodies) for bodies in (first, second)]
    assert Decision("k", sides[0], sides[1]).fate is fate


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "true"),
        ("1", '"1"'),
        ("0", "-0"),
        ("1e2", "100"),
        ("18446744073709551617", "18446744073709551616"),
        ("[1, 2]", "[2, 1]"),
        ('["number", "1"]', "1"),
        ("null", '"null"'),
        ("{}", "[]"),
        ("[" * 990 + "1" + "]" * 990, "[" * 990 + " 1" + "]" * 990),
        ("[" * 5000 + "]" * 5000, "[" * 5000 + " " + "]" * 5000),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('{"a": 1, "a": 2}', '{"a":1,"a":2}'),
    ],
)
def test_what_a_machine_might_take_for_the_same_is_not(one: str, other: str) -> None:
    assert meaning(one.encode()) != meaning(other.encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_white_space_and_the_order_of_members_make_no_other_decision(value: object) -> None:
    tight = json.dumps(value, separators=(",", ":"), sort_keys=True)
    loose = json.dumps(value, indent=2, ensure_ascii=False)
    assert meaning(tight.encode()) == meaning(loose.encode())


@given(JSON, JSON)
def test_two_values_are_the_same_decision_only_if_they_say_the_same(one: object, other: object) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (meaning(json.dumps(one).encode()) == meaning(json.dumps(other).encode())) is same
