"""An upstream that is as slow as a test wants it to be."""

from __future__ import annotations

import asyncio

from fencegate.testing.recording_upstream import Recorded, RecordingUpstream, Wire

SLOW = {"X-Slow": "yes"}


def token_of(request: Recorded) -> int:
    return int(request.values("X-Fencing-Token")[0])


def slow_upstream() -> tuple[RecordingUpstream, asyncio.Event, list[int]]:
    """Answers at once, but a write marked as slow only after the event. The list: the tokens of what has ended."""
    let_go, finished = asyncio.Event(), []

    async def behave(wire: Wire) -> None:
        await wire.read_body()
        if wire.request.values("X-Slow"):
            await let_go.wait()
        finished.append(token_of(wire.request))
        await wire.answer()

    return RecordingUpstream(behave), let_go, finished
