"""An upstream that means harm: what is no answer is ``outcome_unknown`` in its time, and nothing fills the memory."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.testing.hostile_server import NO_ANSWERS, PeakMemory, Say
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, eventually, request
from fencegate.testing.recording_upstream import Behaviour, Wire, well_behaved
from fencegate.testing.wire_world import HTTP, World

ROOM = 48.0
GOES_THROUGH = {
    "deep nesting",
    "deep nesting of objects",
    "a huge number",
    "bytes that are no text",
    "an empty answer",
    "packed, and it is not",
    "packed in an unknown way",
    "an unknown charset",
}
"""A whole answer: what is in it is between the upstream and the client."""
ENDLESS = {"a body that drips", "a body without an end", "chunks without an end", "a body up to the end"}
ENDLESS |= {"a chunk size without an end", "trailers without an end"}
"""A head, and so much or so little behind it that it is passed on before it can break off."""


def behaves(say: Say) -> Behaviour:
    async def behave(wire: Wire) -> None:
        await wire.read_body()
        await say(wire.writer)
        wire.close = True

    return behave


async def goes_on_as_before(world: World) -> None:
    """Nothing is under way any more, and the next write of the term is forwarded. (A mark stays: see rule R12.)"""
    await eventually(lambda: world.gateway.in_flight == 0, 5)
    world.upstream.behaviour = well_behaved
    assert_accepted(await world.ask(request("POST", HTTP.path)))


@pytest.mark.parametrize("what", sorted(set(NO_ANSWERS) - GOES_THROUGH - ENDLESS))
async def test_what_is_no_answer_leaves_the_outcome_unknown_in_its_time(world: World, what: str) -> None:
    world.upstream.behaviour = behaves(NO_ANSWERS[what])
    async with PeakMemory() as memory:
        answer = await world.ask(request("POST", HTTP.path), limit=20)
    assert_refusal(answer, "outcome_unknown", status=answer.status)
    assert answer.status in (502, 504)
    assert memory.grown < ROOM
    assert len(world.upstream.requests) == 1
    await goes_on_as_before(world)


@pytest.mark.parametrize("what", sorted(GOES_THROUGH))
async def test_what_a_whole_answer_holds_is_not_looked_at(world: World, what: str) -> None:
    world.upstream.behaviour = behaves(NO_ANSWERS[what])
    assert_accepted(await world.ask(request("POST", HTTP.path), limit=20))
    await goes_on_as_before(world)


@pytest.mark.parametrize("what", sorted(ENDLESS))
async def test_an_answer_without_an_end_passes_through_in_little_memory_until_the_client_leaves(
    world: World, what: str
) -> None:
    world.upstream.behaviour = behaves(NO_ANSWERS[what])
    async with PeakMemory() as memory, Line.to(world.port) as line:
        await line.send(request("POST", HTTP.path))
        try:
            async with asyncio.timeout(3 if what == "a body that drips" else 20):
                head = await line.reader.readuntil(b"\r\n\r\n")
                assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 504 "))
                await asyncio.sleep(0.3)  # unread
        except TimeoutError:
            assert what == "a body that drips"
    assert memory.grown < ROOM
    await goes_on_as_before(world)
