"""The key ring: what a file of keys may hold, and how what is signed is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.key_ring import SharedKey, framed, key_of, parse_keys

KEY = SharedKey("2026-11", b"a" * 32)
OTHER = SharedKey("2026-12", b"b" * 32)


def test_the_first_key_of_a_file_signs_and_comments_are_read_over() -> None:
    keys = parse_keys(f"# newest first\n2026-12 {'b' * 32}\n\n  2026-11\t{'a' * 32}  \n")
    assert keys == (OTHER, KEY)
    assert "aaaa" not in repr(keys)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at least one line"),
        ("# none\n", "at least one line"),
        (f"{'s' * 64}\n", "line 1"),
        (f"a {'s' * 31}\n", "line 1"),
        (f"a {'s' * 32}\nb c d\n", "line 2"),
        (f"a/b {'s' * 32}\n", "line 1"),
        (f"a {'s' * 32}\na {'t' * 32}\n", "each id once"),
        (f"a {'é' * 32}\n", "line 1"),
    ],
)
def test_a_faulty_key_file_says_which_line_and_shows_no_secret(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        parse_keys(text)
    assert "sss" not in str(refused.value)


def test_a_key_is_found_by_its_name_alone() -> None:
    assert key_of((OTHER, KEY), "2026-11") is KEY
    assert key_of((OTHER, KEY), "2026-1") is None


@given(st.lists(st.binary(max_size=6), max_size=5), st.lists(st.binary(max_size=6), max_size=5))
def test_no_two_lists_of_parts_share_a_text(one: list[bytes], other: list[bytes]) -> None:
    assert (framed(one) == framed(other)) == (one == other)
