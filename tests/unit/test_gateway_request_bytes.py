"""The strict parser: what it takes, llhttp reads the same; what two readers could frame differently, it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencegate.gateway import request_bytes
from fencegate.gateway.request import Refused
from fencegate.gateway.request_bytes import Chunked, Head, Malformed, RequestLine, Sized, read_head, target_parts
from fencegate.gateway.routes import NoSuchPath, segments_of

HEAD = b"POST /v1/entries?a=b HTTP/1.1\r\nHost: x\r\nX-Fencing-Token:\t 42 \r\nX-Empty:\r\nX-Raw: caf\xe9 d\r\n\r\n"


class Oracle:
    """What llhttp makes of the same bytes."""

    def __init__(self, data: bytes) -> None:
        self.url, self.body, self.messages = b"", b"", 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parser: Any = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.strip(b" \t")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1


def test_the_parts_of_a_head_are_as_sent() -> None:
    head, _ = read_head(HEAD)
    assert head.line == RequestLine("POST", b"/v1/entries?a=b", False, "/v1/entries", "a=b")
    assert head.headers == [(b"Host", b"x"), (b"X-Fencing-Token", b"42"), (b"X-Empty", b""), (b"X-Raw", b"caf\xe9 d")]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://x/web/x?a=b", "/web/x", "a=b"),
        ("HTTPS://x:80", "/", ""),
        ("http://x?a=1", "/", "a=1"),
        ("http://x?next=/web/x", "/", "next=/web/x"),
        ("http://x?next=http://y/web/x", "/", "next=http://y/web/x"),
        ("/web/x?next=http://y/web/y", "/web/x", "next=http://y/web/y"),
    ],
)
def test_a_targets_authority_ends_where_rfc_3986_ends_it(target: str, path: str, query: str) -> None:
    """Another reader would see another path, and what is in a query would choose the route."""
    assert target_parts(target) == (path, query)


def test_a_fragment_makes_no_path_that_has_a_route() -> None:
    with pytest.raises(NoSuchPath):
        segments_of(target_parts("http://x#/web/x")[0])


@pytest.mark.parametrize("target", ["*", "x:443", "ftp://x/web/x", "http:/web/x", "http:web/x", "http:///web/x"])
def test_what_is_no_path_and_no_http_url_is_no_target(target: str) -> None:
    with pytest.raises(Refused):
        target_parts(target)


@pytest.mark.parametrize(
    ("lines", "version", "keep"),
    [
        (b"", b"1.1", True),
        (b"Connection: close\r\n", b"1.1", False),
        (b"Connection: X-Hop, Close\r\n", b"1.1", False),
        (b"Connection: close\r\nConnection: keep-alive\r\n", b"1.1", False),
        (b"", b"1.0", False),
        (b"Connection: Keep-Alive\r\n", b"1.0", True),
    ],
)
def test_whether_the_connection_is_kept(lines: bytes, version: bytes, keep: bool) -> None:
    assert read_head(b"GET / HTTP/" + version + b"\r\n" + lines + b"\r\n")[0].keep_alive is keep


def test_only_a_client_of_http_1_1_waits_for_a_continue() -> None:
    lines = b"\r\nExpect: 100-Continue\r\n\r\n"
    assert read_head(b"PUT / HTTP/1.1" + lines)[0].expects_continue
    assert not read_head(b"PUT / HTTP/1.0" + lines)[0].expects_continue
    assert not read_head(b"PUT / HTTP/1.1\r\nExpect: other\r\n\r\n")[0].expects_continue


def _mutated(base: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for at, piece in changes:
        at %= len(base)
        base = base[:at] + piece + base[at + 1 :]
    return base


PIECES = st.one_of(st.binary(max_size=2), st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\r\n ", b"\0"]))


@settings(max_examples=600)
@given(st.lists(st.tuples(st.integers(0, 300), PIECES), max_size=3))
@example([])
def test_a_head_that_is_taken_is_read_the_same_by_llhttp(changes: list[tuple[int, bytes]]) -> None:
    raw = _mutated(HEAD, changes)
    try:
        head, key = read_head(raw)
    except (Malformed, Refused):
        return
    if any(name.lower() in (b"content-length", b"transfer-encoding", b"upgrade") for name, _ in head.headers):
        return  # framing is judged by check_framing
    try:
        oracle = Oracle(raw)
    except httptools.HttpParserInvalidMethodError:
        return  # llhttp knows a list of methods; ours is any upper-case token
    except httptools.HttpParserInvalidURLError:
        assert not head.line.target.startswith(b"/") or not head.line.target.isascii()
        return
    assert oracle.messages == 1
    assert oracle.url == head.line.target
    if key is not None:
        oracle.headers.remove((b"Idempotency-Key", key))
    assert oracle.headers == head.headers


KEYED = (
    b"POST /v1 HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a-1 \r\nX-Fencing-Token: 42\r\n"
    b"Content-Length: 3\r\nAuthorization: Bearer s\r\n\r\n"
)
KEY_LINES = st.sampled_from(
    [b"\r\nIdempotency-Key: b", b"\r\nidempotency-key:c", b"\r\nIdempotency_Key: d", b"\r\n\r\n"]
)


@settings(max_examples=600)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.one_of(PIECES, KEY_LINES)), max_size=3), st.sampled_from([HEAD, KEYED])
)
@example([], KEYED)
@example([(23, b"\r\nIdempotency-Key: b\r\n")], KEYED)
def test_a_head_is_read_the_same_whatever_was_remembered(changes: list[tuple[int, bytes]], base: bytes) -> None:
    raw = _mutated(base, changes)

    def read(reader: Callable[[bytes], tuple[Head, bytes | None]]) -> tuple[object, ...] | type[Exception]:
        try:
            head, key = reader(raw)
        except (Malformed, Refused) as error:
            return type(error)
        fields = head.fields
        keys = fields.key if key is None else (key,)
        others = [line for line in head.headers if line != (b"Idempotency-Key", *keys)]
        said = vars(fields) | {"key": keys, "size": 0}
        return head.line, others, keys, said, head.keep_alive, head.expects_continue

    def read_in_one(raw: bytes) -> tuple[Head, None]:
        return request_bytes._read_head(raw), None

    request_bytes._blocks.clear()
    request_bytes._heads.clear()
    assert read(read_head) == read(read_head) == read(read_in_one)


def test_no_remembered_head_holds_a_key_or_a_credential() -> None:
    for raw in (
        KEYED,
        KEYED.replace(b"Authorization", b"Cookie"),
        KEYED.replace(b"Idempotency-Key", b"Idempotency_Key"),
    ):
        read_head(raw)
    read_head(HEAD)
    assert HEAD[HEAD.index(b"\r\n") :] in request_bytes._blocks
    assert HEAD in request_bytes._heads
    for block in (*request_bytes._blocks, *request_bytes._heads):
        assert b"a-1" not in block
        assert b"Bearer" not in block


def _through(framing: Sized | Chunked, data: bytes, size: int) -> tuple[bytes, bytes | None]:
    body = b""
    for start in range(0, len(data), size):
        parts, rest = framing.feed(data[start : start + size])
        body += b"".join(parts)
        if rest is not None:
            return body, rest + data[start + size :]
    return body, None


@given(st.binary(max_size=40), st.binary(max_size=10), st.integers(1, 20))
def test_a_sized_body_ends_where_it_says(body: bytes, rest: bytes, size: int) -> None:
    found = _through(Sized(len(body)), body + rest, size)
    assert found == ((body, rest) if body else (b"", rest)) or not (body + rest)


CHUNKS = st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.sampled_from([b"", b";a", b" ;a=b", b';a="b c"'])))


@given(CHUNKS, st.sampled_from([b"", b"X-Sum: 1\r\n"]), st.binary(max_size=10), st.integers(1, 20))
def test_a_chunked_body_is_whole_however_it_arrives(
    chunks: list[tuple[bytes, bytes]], trailer: bytes, rest: bytes, size: int
) -> None:
    data = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk, extension in chunks)
    found = _through(Chunked(), data + b"0\r\n" + trailer + b"\r\n" + rest, size)
    assert found == (b"".join(chunk for chunk, _ in chunks), rest)


BODY = b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n"


@settings(max_examples=600)
@given(st.lists(st.tuples(st.integers(0, 60), PIECES), max_size=2), st.integers(1, 50))
def test_a_chunked_body_that_is_taken_is_read_the_same_by_llhttp(changes: list[tuple[int, bytes]], size: int) -> None:
    raw = _mutated(BODY, changes)
    try:
        body, rest = _through(Chunked(), raw, size)
    except Malformed:
        return
    if rest is None:
        return
    try:
        oracle = Oracle(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + raw[: len(raw) - len(rest)]
        )
    except httptools.HttpParserError:
        return  # llhttp is the stricter one in what a chunk extension may hold
    assert (oracle.messages, oracle.body) == (1, body)


@pytest.mark.parametrize(
    "data",
    [
        b"5\nhello",
        b"5 \r\nhello\r\n",
        b"-5\r\nhello",
        b"0x5\r\nhello",
        b"5;a\nb\r\nhello",
        b"12345678901234567\r\n",
        b"\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\n",
        b"0\r\nX-A : b\r\n\r\n",
        b"0\r\n folded\r\n\r\n",
        b"0\r\nX-A: b\n\r\n",
        b"1;" + b"a" * 300,
        b"1;" + b"a" * 300 + b"\r\n",
        b"0\r\n" + b"X-A: b\r\n" * 2000,
    ],
)
def test_a_badly_chunked_body_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        Chunked().feed(data)


def test_a_hostile_head_takes_no_longer_than_its_length() -> None:
    # Possessive: half a megabyte of what almost matches is refused in one pass.
    for raw in (b"A" * 500_000, b"GET /" + b"a" * 500_000, b"GET / HTTP/1.1\r\n" + b"a: \t \r\n" * 70_000 + b"b"):
        with pytest.raises(Malformed):
            read_head(raw)
