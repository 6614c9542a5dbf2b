"""A request's body on its way in: what it takes in memory is what it says, however small its pieces are."""

from __future__ import annotations

from fencegate.gateway.arriving_body import HIGH_WATER, ArrivingBody
from fencegate.gateway.limits import Limits
from fencegate.gateway.request_bytes import Chunked


async def test_chunks_of_a_byte_or_two_take_no_more_memory_and_no_more_turns_than_large_ones() -> None:
    calls: list[str] = []
    body = ArrivingBody(Chunked(), Limits(), lambda: calls.append("pause"), lambda: calls.append("resume"))
    piece, pieces = b"2\r\nab\r\n" * 10_000, 0
    while not calls:
        assert body.feed(piece) is None
        pieces += 1
    assert pieces == HIGH_WATER // 20_000 + 1
    assert body.feed(b"0\r\n\r\nNEXT") == b"NEXT"
    handed_out = [chunk async for chunk in body]
    assert b"".join(handed_out) == b"ab" * 10_000 * pieces
    assert len(handed_out) == pieces
    assert calls == ["pause", "resume"]
