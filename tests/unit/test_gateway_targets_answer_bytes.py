"""An answer that is read in one go is read as llhttp reads it; all that is not plain is left to llhttp."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencegate.gateway.header_lines import Headers
from fencegate.gateway.targets import answer_bytes
from fencegate.gateway.targets.answer_bytes import whole_answer

PLAIN = b"HTTP/1.1 201 Created\r\nServer: x\r\nContent-Length: 4\r\nConnection: keep-alive\r\nX-A:\t b \r\n\r\nmade"


class Oracle:
    """What llhttp makes of the same bytes."""

    def __init__(self, data: bytes) -> None:
        self.headers: Headers = []
        self.body = b""
        self.messages = 0
        self.keep_alive = False
        self.parser: Any = httptools.HttpResponseParser(self)
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.keep_alive = self.parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1


def _mutated(base: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for at, piece in changes:
        at %= len(base)
        base = base[:at] + piece + base[at + 1 :]
    return base


PIECES = st.one_of(
    st.binary(max_size=2), st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\0", b"0", b"1"])
)


@settings(max_examples=800)
@given(st.lists(st.tuples(st.integers(0, 300), PIECES), max_size=3))
@example([])
def test_what_is_read_in_one_go_is_read_the_same_by_llhttp(changes: list[tuple[int, bytes]]) -> None:
    raw = _mutated(PLAIN, changes)
    found = whole_answer(raw)
    assert found == whole_answer(raw)  # As remembered.
    if found is None:
        return
    head, body = found
    oracle = Oracle(raw)
    assert oracle.messages == 1
    assert oracle.keep_alive
    assert (oracle.parser.get_status_code(), oracle.headers, oracle.body) == (head.status, head.headers, body)


def test_a_remembered_head_does_not_make_an_incomplete_answer_whole() -> None:
    assert whole_answer(PLAIN) is not None
    assert whole_answer(PLAIN[:-1]) is None
    assert whole_answer(PLAIN + b"x") is None


def test_no_remembered_head_holds_a_cookie() -> None:
    assert whole_answer(PLAIN.replace(b"X-A", b"Set-Cookie")) is not None
    assert whole_answer(PLAIN.replace(b"X-A", b"X-Seen")) is not None
    assert any(b"X-Seen" in head for head in answer_bytes._heads)
    assert not any(b"Set-Cookie" in head for head in answer_bytes._heads)


def test_the_usual_answer_is_read() -> None:
    found = whole_answer(PLAIN)
    assert found is not None
    assert (found[0].status, found[0].headers[-1], found[1]) == (201, (b"X-A", b"b"), b"made")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"1.1 201", b"1.0 201"),
        (b"201 Created", b"100 Continue"),
        (b"201 Created", b"101 Switching"),
        (b"201 Created", b"204 No Content"),
        (b"201 Created", b"304 Not Modified"),
        (b"made", b"mad"),
        (b"made", b"made\n"),
        (b"Content-Length: 4", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 4", b"Content-Length: 4\r\nContent-Length: 4"),
        (b"Content-Length: 4", b"Content-Length: 4\r\nTransfer-Encoding: chunked"),
        (b"Content-Length: 4", b"Content-Length: +4"),
        (b"Content-Length: 4", b"Content_Length: 4"),
        (b"Content-Length: 4", b"X: 4"),
        (b"Connection: keep-alive", b"Connection: close"),
        (b"Connection: keep-alive", b"Connection: keep-alive, X-A"),
        (b"Connection: keep-alive", b"Upgrade: h2c"),
        (b"Connection: keep-alive", b"Keep-Alive: timeout=1"),
        (b"Server: x", b" Server: x"),
        (b"Server: x", b"Server : x"),
    ],
)
def test_what_is_not_plain_is_left_to_the_full_parser(old: bytes, new: bytes) -> None:
    assert old in PLAIN
    assert whole_answer(PLAIN.replace(old, new)) is None
