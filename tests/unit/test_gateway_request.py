"""What the header lines say, and what is refused before any station sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway.header_lines import Headers, read_fields
from fencegate.gateway.request import (
    BufferedBody,
    Refused,
    budget,
    check_connection,
    check_framing,
    idempotency_key,
    presented_token,
)

HOST = (b"Host", b"x")


def _code(headers: Headers) -> str:
    with pytest.raises(Refused) as caught:
        presented_token(read_fields(headers))
    return caught.value.refusal.problem.code


def test_one_well_formed_line_is_the_token() -> None:
    assert presented_token(read_fields([(b"x-FENCING-token", b"42")])) == 42


def test_no_line_two_lines_and_a_twin_are_told_apart() -> None:
    assert _code([]) == "token_required"
    assert _code([(b"X-Fencing-Token", b"4"), (b"X-Fencing-Token", b"4")]) == "token_malformed"
    assert _code([(b"X_Fencing_Token", b"4")]) == "token_malformed"


@given(st.binary(max_size=30))
def test_bytes_are_a_token_only_if_they_are_its_one_spelling(value: bytes) -> None:
    try:
        token = presented_token(read_fields([(b"X-Fencing-Token", value)]))
    except Refused:
        return
    assert str(token).encode() == value
    assert 0 < token < 2**63


@pytest.mark.parametrize(
    ("headers", "length"),
    [([HOST], 0), ([HOST, (b"Content-Length", b"7")], 7), ([HOST, (b"Transfer-Encoding", b"Chunked")], None)],
)
def test_the_framing_is_read(headers: Headers, length: int | None) -> None:
    assert check_framing(read_fields(headers), http_1_0=False) == length


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [HOST, HOST],
        [HOST, (b"Content-Length", b"1"), (b"Content-Length", b"1")],
        [HOST, (b"Content-Length", b"1"), (b"Transfer-Encoding", b"chunked")],
        [HOST, (b"Content_Length", b"1")],
        [HOST, (b"Content-Length", b"+1")],
        [HOST, (b"Content-Length", b"")],
        [HOST, (b"Transfer-Encoding", b"gzip, chunked")],
    ],
)
def test_an_ambiguous_framing_is_refused_and_ends_the_connection(headers: Headers) -> None:
    with pytest.raises(Refused) as caught:
        check_framing(read_fields(headers), http_1_0=False)
    assert caught.value.close


def test_http_1_0_has_no_chunks_and_needs_no_host() -> None:
    assert check_framing(read_fields([]), http_1_0=True) == 0
    with pytest.raises(Refused):
        check_framing(read_fields([(b"Transfer-Encoding", b"chunked")]), http_1_0=True)


# Field case A6: dadrus/heimdall#653, boringproxy/boringproxy#124.
@pytest.mark.parametrize("name", [b"X-Fencing-Token", b"x_fencing_timeout_ms", b"Idempotency-Key", b"Content-Length"])
def test_connection_may_not_nominate_what_the_fence_depends_on(name: bytes) -> None:
    with pytest.raises(Refused):
        check_connection(read_fields([(b"Connection", b"close, " + name)]))
    check_connection(read_fields([(b"Connection", b"close, X-Other")]))


@pytest.mark.parametrize("lines", [[b"1"], [b"1", b"1"], [b"1, 1"], [b"0"], [b""]], ids=repr)
@pytest.mark.parametrize("name", [b"Early-Data", b"Early_Data"])
def test_early_data_that_is_repeated_or_nonsense_is_early_data(name: bytes, lines: list[bytes]) -> None:
    assert read_fields([(name, value) for value in lines]).early_data


def test_what_was_well_formed_once_is_judged_again_where_it_counts() -> None:
    """Requests with the same lines share what is known of them, and may be of another version of HTTP."""
    no_host = read_fields([(b"Content-Length", b"3")])
    assert check_framing(no_host, http_1_0=True) == 3
    with pytest.raises(Refused):
        check_framing(no_host, http_1_0=False)
    with_host = read_fields([(b"Host", b"x"), (b"Content-Length", b"3"), (b"X-Fencing-Token", b"42")])
    for _ in range(2):
        assert check_framing(with_host, http_1_0=False) == 3
        assert presented_token(with_host) == 42
    twins = read_fields([(b"X-Fencing-Token", b"42"), (b"X_Fencing_Token", b"43")])
    for _ in range(2):
        with pytest.raises(Refused):
            presented_token(twins)


def test_a_key_whose_line_was_taken_out_is_the_key() -> None:
    assert idempotency_key(read_fields([]), b'"a-1"', required=True) == "a-1"
    with pytest.raises(Refused):
        idempotency_key(read_fields([]), b"", required=False)


def test_both_spellings_of_a_key_are_one_key() -> None:
    spellings = [(b"Idempotency-Key", b"a-1")], [(b"Idempotency-Key", b'"a-1"')]
    assert {idempotency_key(read_fields(headers), required=True) for headers in spellings} == {"a-1"}
    assert idempotency_key(read_fields([]), required=False) == ""


def test_the_budget_is_in_seconds() -> None:
    assert budget(read_fields([(b"X-Fencing-Timeout-Ms", b"1500")])) == 1.5
    assert budget(read_fields([])) is None


async def test_a_body_over_the_limit_is_refused() -> None:
    assert await BufferedBody(b"abc").read(3) == b"abc"
    with pytest.raises(Refused) as caught:
        await BufferedBody(b"abcd").read(3)
    assert caught.value.refusal.problem.code == "body_too_large"
