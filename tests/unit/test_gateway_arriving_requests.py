"""The bytes of a connection taken apart into requests: what costs no more than it is long."""

from __future__ import annotations

import time

from fencegate.gateway.arriving_requests import ArrivingRequests
from fencegate.gateway.limits import Limits

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def test_empty_lines_before_a_request_are_read_over_in_one_go() -> None:
    """A megabyte of them would otherwise stop everything else of the process for seconds, its renewals too."""
    arriving = ArrivingRequests()
    arriving.add(b"\r\n" * 500_000 + GET)
    began = time.process_time()
    head = arriving.next_head(Limits())
    assert time.process_time() - began < 1.0
    assert head is not None
    assert (head.line.path, arriving.waiting) == ("/a", b"")


def test_empty_lines_alone_begin_no_head() -> None:
    arriving = ArrivingRequests()
    for data in (b"\r\n\r\n\r", b"\n", b"\r"):
        arriving.add(data)
        assert arriving.next_head(Limits()) is None
    arriving.add(b"\n" + GET)
    assert arriving.next_head(Limits()) is not None
