"""Which of several stores holds a role: one answer for every role, by a rule that does not depend on any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.config.stores import Placement, check_patterns

ROLES = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3).map("/".join)
PATTERNS = st.one_of(ROLES, ROLES.map(lambda role: role + "*"), ROLES.map(lambda role: role + "/*"), st.just("*"))


def matches(pattern: str, role: str) -> bool:
    return role.startswith(pattern[:-1]) if pattern.endswith("*") else role == pattern


@given(st.lists(st.lists(PATTERNS, unique=True, max_size=4), min_size=1, max_size=3), ROLES)
def test_the_most_specific_pattern_that_matches_places_a_role_whatever_the_order(
    stores: list[list[str]], role: str
) -> None:
    found = Placement(stores)
    matching = [pattern for patterns in stores for pattern in patterns if matches(pattern, role)]
    if not matching:
        assert found.pattern_of(role) is None
        assert found.of(role) is None
        return
    best = max(matching, key=lambda pattern: (not pattern.endswith("*"), len(pattern)))
    assert found.pattern_of(role) == best
    assert best in stores[found.of(role) or 0]
    if not found.twice:
        turned = Placement([patterns[::-1] for patterns in reversed(stores)])
        assert turned.of(role) == len(stores) - 1 - (found.of(role) or 0)


def test_the_same_pattern_in_two_stores_is_told_with_both_places() -> None:
    assert Placement([["a/*", "b"], ["c"], ["a/*"]]).twice == [("a/*", 0, 2)]
    assert Placement([["a/*"], ["a*"], ["a/b"], ["a/"[:1]], ["*"]]).twice == []


@pytest.mark.parametrize("good", [["*"], ["ledger"], ["shards/*", "shards/eu-*"], ["a/b/c.d~e_f-1"]])
def test_a_pattern_is_a_role_or_the_beginning_of_some(good: list[str]) -> None:
    assert check_patterns(good) == good


@pytest.mark.parametrize("bad", [[""], ["a*b"], ["**"], ["/a"], ["a//b"], ["a/"], ["a/{x}"], ["../a"], ["a", "a"]])
def test_what_is_no_pattern_is_refused(bad: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^expected"):
        check_patterns(bad)
