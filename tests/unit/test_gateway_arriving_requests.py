"""The bytes of a connection taken apart into requests: what costs no more than it is long."""

from __future__ import annotations

import time
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway import arriving_requests
from fencegate.gateway.arriving_requests import ArrivingRequests
from fencegate.gateway.limits import Limits

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def test_empty_lines_before_a_request_are_read_over_in_one_go() -> None:
    """A megabyte of them would otherwise stop everything else of the process for seconds, its renewals too."""
    arriving = ArrivingRequests()
    arriving.add(b"\r\n" * 500_000 + GET)
    began = time.process_time()
    found = arriving.next_head(Limits())
    assert time.process_time() - began < 1.0
    assert found is not None
    assert (found[0].line.path, arriving.waiting) == ("/a", b"")


def test_empty_lines_alone_begin_no_head() -> None:
    arriving = ArrivingRequests()
    for data in (b"\r\n\r\n\r", b"\n", b"\r"):
        arriving.add(data)
        assert arriving.next_head(Limits()) is None
    arriving.add(b"\n" + GET)
    assert arriving.next_head(Limits()) is not None


def post(length: int) -> bytes:
    return b"POST /a HTTP/1.1\r\nHost: x\r\n\r\n" + b"b" * length


reads = st.lists(st.tuples(st.integers(1, 90), st.sampled_from([0.0, 0.5, 2.0])), min_size=1, max_size=90)
turns = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4), st.sampled_from([0.0, 1.0])), min_size=1, max_size=20)


@given(turns, reads)
def test_a_request_has_waited_since_its_last_byte_came_and_never_longer(
    turns: list[tuple[int, int, float]], reads: list[tuple[int, float]]
) -> None:
    """``turns``: of each request its body's length, how many reads come while it is answered, and for how long that is.

    ``reads``: how many bytes come at once, and after how many seconds.
    """
    now = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arriving_requests, "steady_clock", lambda: now)
        stream = b"".join(post(length) for length, _, _ in turns)
        ends = list(accumulate(len(post(length)) for length, _, _ in turns))
        arriving, came = ArrivingRequests(), [0.0] * len(stream)
        at, coming = 0, iter(reads)

        def read(*, busy: bool) -> None:
            nonlocal at, now
            size, pause = next(coming, (len(stream), 0.0))
            now += pause
            data = stream[at : at + size]
            came[at : at + size] = [now] * len(data)
            at += len(data)
            (arriving.add_behind if busy else arriving.add)(data)

        for (length, behind, takes), end in zip(turns, ends, strict=True):
            while arriving.next_head(Limits()) is None:
                read(busy=False)
            if whole := arriving.take(length) is not None:
                true = now - came[end - 1]
            else:
                rest, true = end - at, now - came[at - 1]
                arriving.drop()
            assert 0.0 <= arriving.waited() <= true
            if len(reads) < 60:
                assert arriving.waited() == true
            if not whole:  # The rest of a body is fed past what waits.
                at, now = at + rest, now + 1.0
                came[at - rest : at] = [now] * rest
            for _ in range(behind):
                if at < len(stream):
                    read(busy=True)
            now += takes


def test_however_many_pieces_come_behind_a_request_little_is_remembered_of_when() -> None:
    arriving = ArrivingRequests()
    for _ in range(10_000):
        arriving.add_behind(b"a")
    assert len(arriving.marks) <= 64
