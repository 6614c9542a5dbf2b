"""Header lines: each is judged by its name, and one that was read before is read the same again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway import header_lines
from fencegate.gateway.header_lines import CODING, HOST, KEY, LENGTH, TOKEN, mark_of, read_fields, read_line


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        (b"X-Fencing-Token", TOKEN),
        (b"x_fencing_token", -TOKEN),
        (b"IDEMPOTENCY-KEY", KEY),
        (b"Content_Length", -LENGTH),
        (b"Transfer-Encoding", CODING),
        (b"hOST", HOST),
        (b"X-Other", 0),
        (b"X_Other", 0),
        (b"X-Fencing-Role-", 0),
    ],
)
def test_a_name_says_what_a_line_is_to_the_gateway(name: bytes, mark: int) -> None:
    assert mark_of(name) == mark


@pytest.mark.parametrize("raw", [b"", b"a", b" a: b", b"a : b", b"a: b\r", b"a: b\nc: d", b"a: \0", b": b", b"\xe9: b"])
def test_what_the_grammar_does_not_allow_is_no_line(raw: bytes) -> None:
    assert read_line(raw) is None
    assert read_line(raw) is None


@given(st.binary(max_size=40))
def test_a_line_is_read_the_same_whether_or_not_it_is_remembered(tail: bytes) -> None:
    raw = b"X-Some: " + tail
    first = read_line(raw)
    again = read_line(raw)
    header_lines.remembered_lines.clear()
    assert first == again == read_line(raw)
    if first is not None:
        assert first[0][1] == tail.strip(b" \t")


def test_keys_and_secrets_are_not_remembered() -> None:
    header_lines.remembered_lines.clear()
    for raw in (b"Idempotency-Key: a-1", b"Authorization: Bearer x", b"Cookie: a=b", b"X-Long: " + b"x" * 300):
        assert read_line(raw) is not None
    assert not header_lines.remembered_lines


def test_no_client_makes_the_memory_grow() -> None:
    for number in range(3 * header_lines.MOST_REMEMBERED):
        read_line(b"X-Request-Id: %d" % number)
    assert len(header_lines.remembered_lines) <= header_lines.MOST_REMEMBERED


def test_a_request_without_marked_lines_says_nothing() -> None:
    fields = read_fields([(b"Accept", b"*/*")])
    assert (fields.token, fields.key, fields.hosts, fields.lengths) == ((), (), 0, ())
    assert fields.size == len(b"Accept: */*\r\n")


@pytest.mark.parametrize("more", [b"h2c, websocket", b"websocket", b"", b"h2", b"h2c2", b"h2c/1", b"TLS/1.2"])
def test_every_upgrade_is_one_but_the_offer_of_http_2_in_the_clear(more: bytes) -> None:
    assert not read_fields([(b"Upgrade", b"h2c"), (b"upgrade", b"H2C")]).upgrade
    assert read_fields([(b"Upgrade", more)]).upgrade
    assert read_fields([(b"Upgrade", b"h2c"), (b"Upgrade", more)]).upgrade
    assert read_fields([(b"Upgrade", more), (b"Upgrade", b"h2c")]).upgrade


def test_one_request_leaves_nothing_to_the_next() -> None:
    read_fields([(b"Connection", b"X-A"), (b"Upgrade", b"tcp"), (b"X-HTTP-Method", b"PUT"), (b"X_Fencing_Token", b"1")])
    clean = read_fields([])
    assert (clean.nominated, clean.upgrade, clean.override, clean.token_twin) == (frozenset(), False, False, False)
