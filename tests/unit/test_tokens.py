"""What spells a fencing token or an idempotency key, and what only looks like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.tokens import MAX_TOKEN, MalformedKey, MalformedToken, parse_idempotency_key, parse_token

NOT_TOKENS = [
    "",
    " ",
    "0",
    "00",
    "007",
    "-1",
    "-0",
    "+7",
    " 7",
    "7 ",
    "7\t",
    "7\n",
    "7\r",
    "\n7",
    "7\x00",
    "7\u00a0",
    "7,8",
    "7, 7",
    "7;8",
    "7;q=1",
    '"7"',
    "'7'",
    "1_000",
    "1.0",
    "1e3",
    "1E3",
    "0x10",
    "0o7",
    "0b1",
    "10L",
    "seven",
    "NaN",
    "Infinity",
    "null",
    "true",
    "７",
    "७",
    "٧",
    "²",
    "1²",
    "Ⅶ",
    "௧",
    "1\u200b",
    "\ufeff7",
    "9223372036854775808",
    "9999999999999999999",
    "18446744073709551615",
    "10000000000000000000",
    "9" * 5000,
    "1" * 20,
]


@pytest.mark.parametrize("text", NOT_TOKENS)
def test_what_only_looks_like_a_token_is_malformed(text: str) -> None:
    with pytest.raises(MalformedToken):
        parse_token(text)


@pytest.mark.parametrize("text", ["+7", "007", "9" * 5000])
def test_the_message_never_echoes_the_text(text: str) -> None:
    with pytest.raises(MalformedToken) as caught:
        parse_token(text)
    assert text not in str(caught.value)


@pytest.mark.parametrize("text", ["1", "9", "10", "42", "9007199254740993", str(MAX_TOKEN)])
def test_a_token_is_read_exactly(text: str) -> None:
    assert parse_token(text) == int(text)


@given(st.integers(min_value=1, max_value=MAX_TOKEN))
def test_every_token_survives_being_written_and_read(number: int) -> None:
    assert parse_token(str(number)) == number


@given(st.text(max_size=30))
def test_any_text_is_the_one_spelling_of_its_number_or_malformed(text: str) -> None:
    try:
        value = parse_token(text)
    except MalformedToken:
        return
    assert str(value) == text
    assert 1 <= value <= MAX_TOKEN


@pytest.mark.parametrize("key", ["a", "8e03978e-40d5-43e8-bc93-6894a57f9324", "!~#$%", "a" * 255, "a,b", "a;b"])
def test_both_spellings_of_a_key_are_the_same_key(key: str) -> None:
    assert parse_idempotency_key(key) == key
    assert parse_idempotency_key(f'"{key}"') == key


def test_escapes_in_a_quoted_key_are_undone() -> None:
    assert parse_idempotency_key(r'"a\"b\\c"') == 'a"b\\c'


@pytest.mark.parametrize(
    "text",
    [
        "",
        '""',
        "a b",
        '"a b"',
        " a",
        "a ",
        "a\t",
        "a\n",
        "ключ",
        "a" * 256,
        '"' + "a" * 256 + '"',
        '"a',
        '"a"b',
        '"a";p=1',
        r'"a\b"',
        '"a\\"',
        "\x7f",
        "\x00",
    ],
)
def test_what_is_no_key_is_malformed(text: str) -> None:
    with pytest.raises(MalformedKey):
        parse_idempotency_key(text)


@given(st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255))
def test_any_visible_ascii_key_survives_quoting(key: str) -> None:
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_idempotency_key(quoted) == key
