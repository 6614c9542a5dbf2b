from __future__ import annotations

import pytest

from fencegate.gameday.plain_http import NoAnswer, NotSent, _parsed, ask


def test_an_answer_is_read_with_its_headers_and_body():
    answer = _parsed(b"HTTP/1.1 409 Conflict\r\nX-Fencing-Outcome: not_leader\r\nContent-Length: 2\r\n\r\n{}")
    assert (answer.status, answer.body) == (409, b"{}")
    assert answer.header("x-fencing-outcome") == "not_leader"
    assert answer.header("Retry-After") == ""


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 20\r\n\r\n{}",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 twohundred\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_whole_is_no_answer(raw):
    with pytest.raises(NoAnswer):
        _parsed(raw)


async def test_where_nobody_listens_nothing_was_sent():
    with pytest.raises(NotSent, match=r"127\.0\.0\.1:1 takes no connection"):
        await ask("GET", "http://127.0.0.1:1/", limit=2.0)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_body_in_chunks_is_put_together():
    assert _parsed(CHUNKED + b"3\r\n{\r\n\r\n2;x=y\r\n}\n\r\n0\r\n\r\n").body == b"{\r\n}\n"


@pytest.mark.parametrize("body", [b"", b"3\r\nab", b"3\r\nabc\r\n", b"zz\r\nab\r\n0\r\n\r\n", b"-1\r\n\r\n"])
def test_a_body_whose_last_chunk_is_missing_is_no_answer(body):
    with pytest.raises(NoAnswer):
        _parsed(CHUNKED + body)
