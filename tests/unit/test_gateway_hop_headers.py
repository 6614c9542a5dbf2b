"""Which headers travel on, in both directions."""

from __future__ import annotations

import pytest

from fencegate.gateway.header_lines import Headers, read_fields
from fencegate.gateway.hop_headers import end_to_end_request, end_to_end_response, forwarded, passed_on
from fencegate.gateway.request import BufferedBody, Request
from fencegate.gateway.request_bytes import read_head


def test_hop_by_hop_nominated_and_fencing_headers_end_here() -> None:
    kept: Headers = [(b"Accept", b"*/*"), (b"X-Two", b"1"), (b"X-Two", b"2")]
    dropped: Headers = [
        *((name, b"x") for name in (b"TE", b"Trailer", b"Upgrade", b"Keep-Alive", b"Proxy-Connection", b"Expect")),
        *((name, b"x") for name in (b"X-Fencing-Leader", b"x_fencing_region", b"X-Forwarded-For", b"Forwarded")),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"X_Forwarded_For", b"1"),
        (b"Idempotency-Key", b"k"),
    ]
    headers = [*kept[:1], *dropped, *kept[1:]]
    assert end_to_end_request(headers, read_fields(headers)) == kept


@pytest.mark.parametrize(
    "name",
    [
        *(b"X-Original-URL", b"X-Rewrite-URL", b"x_original_url"),
        *(b"SCRIPT_NAME", b"script-name", b"PATH_INFO", b"X-Script-Name", b"Daphne-Root-Path"),
    ],
)
def test_no_header_takes_a_request_to_another_path_than_the_one_that_was_checked(name: bytes) -> None:
    headers: Headers = [(name, b"/admin"), (b"X-End", b"2")]
    assert end_to_end_request(headers, read_fields(headers)) == [(b"X-End", b"2")]


@pytest.mark.parametrize(
    "name",
    [
        *(b"X-Envoy-Retry-On", b"x_envoy_retry_on", b"x-envoy-retry-grpc-on", b"x-envoy-max-retries"),
        *(b"x-envoy-retriable-status-codes", b"x-envoy-retriable-header-names", b"x-envoy-hedge-on-per-try-timeout"),
        *(b"x-envoy-upstream-rq-timeout-ms", b"x-envoy-upstream-rq-per-try-timeout-ms"),
        *(b"l5d-retry-http", b"l5d-retry-grpc", b"l5d-retry-limit", b"l5d-retry-timeout"),
        *(b"l5d-timeout", b"l5d-response-timeout"),
    ],
)
def test_no_client_has_a_proxy_behind_the_gateway_send_a_write_again_or_give_it_up(name: bytes) -> None:
    headers: Headers = [(name, b"5xx,reset"), (b"X-Envoy-Decorator-Operation", b"x"), (b"X-End", b"2")]
    assert end_to_end_request(headers, read_fields(headers)) == headers[1:]


# Field case 86: dadrus/heimdall#653, cloudflare/pingora#734, google/capsem#119.
@pytest.mark.parametrize("named", [b"X-Hop", b"X_Hop", b"x_hOp"])
@pytest.mark.parametrize("sent", [b"X-Hop", b"X_Hop"])
def test_what_is_called_hop_by_hop_ends_here_however_it_is_spelled(named: bytes, sent: bytes) -> None:
    headers: Headers = [(b"Connection", b"keep-alive , " + named), (sent, b"1"), (b"X-End", b"2")]
    assert end_to_end_request(headers, read_fields(headers)) == [(b"X-End", b"2")]
    assert end_to_end_response(headers) == [(b"X-End", b"2")]


def test_an_answer_cannot_speak_for_the_gateway() -> None:
    headers: Headers = [
        (b"Location", b"/x"),
        (b"X-Fencing-Outcome", b"accepted"),
        (b"x_fencing_applied", b"no"),
        (b"Idempotent-Replayed", b"true"),
        (b"Fencegate-Origin", b"gateway"),
        (b"Connection", b"X-Hop"),
        (b"X-Hop", b"1"),
        (b"Transfer-Encoding", b"chunked"),
    ]
    assert end_to_end_response(headers) == [(b"Location", b"/x")]


def test_this_hop_is_added_to_what_came() -> None:
    headers: Headers = [(b"Host", b"gate"), (b"X-Forwarded-For", b"10.0.0.1"), (b"Forwarded", b"for=10.0.0.1")]
    request = Request("POST", "/", "", headers, BufferedBody(), 0, "::1", 0.0, scheme="https")
    assert dict(forwarded(request)) == {
        b"Forwarded": b'for=10.0.0.1, for="[::1]";proto=https;host="gate"',
        b"X-Forwarded-For": b"10.0.0.1, ::1",
        b"X-Forwarded-Proto": b"https",
        b"X-Forwarded-Host": b"gate",
    }


LINES = b"Host: gate.example\r\nAccept: */*\r\nX-Fencing-Token: 42\r\nX-Forwarded-For: 192.0.2.9\r\n"


def asked(peer: str, scheme: str = "http", lines: bytes = LINES, key: bytes = b"") -> Request:
    keyed = b"Idempotency-Key: %b\r\n" % key if key else b""
    head, value = read_head(b"POST /x HTTP/1.1\r\n" + lines + keyed + b"\r\n")
    return Request(
        "POST", "/x", "", head.headers, BufferedBody(), 0, peer, 0.0, scheme, fields=head.fields, key=value
    )  # fmt: skip


def anew(request: Request) -> bytes:
    assert request.fields is not None
    lines = [*end_to_end_request(request.headers, request.fields), *forwarded(request)]
    return b"".join(b"%b: %b\r\n" % line for line in lines)


def test_lines_that_recur_travel_on_as_they_did_and_each_client_under_its_own_address() -> None:
    for request in (
        asked("192.0.2.1"),
        asked("192.0.2.1", key=b"a"),
        asked("192.0.2.2", key=b"b"),
        asked("192.0.2.1", "https"),
        asked("192.0.2.1"),
        asked("192.0.2.1", lines=LINES.replace(b"gate.example", b"other.example")),
    ):
        assert request.fields is not None
        block = passed_on(request, request.fields)
        assert block == passed_on(request, request.fields) == anew(request)
        assert b"X-Forwarded-For: 192.0.2.9, %b\r\n" % request.peer.encode() in block
        assert b"Idempotency" not in block
        assert b"Fencing" not in block


def test_no_line_break_travels_on() -> None:
    request = asked("192.0.2.1")
    request.headers = [(b"Accept", b"x\r\nX-Fencing-Token: 43")]
    with pytest.raises(ValueError, match="line break"):
        passed_on(request, read_fields(request.headers))
