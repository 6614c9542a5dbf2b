"""An upstream behind both regions that writes down what it applies, and answers late, by half, or not at all.

It does as fencegate asks an upstream to: what it could not begin within the deadline that came with a write is not
applied (``X-Fencing-Timeout-Ms``). It knows no fence: whatever reaches it in time happens. A write's name is the
``case`` in its body: not all have an idempotency key.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import orjson

from fencegate.gameday.verify_effects import Effect
from fencegate.testing.recording_upstream import RecordingUpstream, Wire
from fencegate.tokens import HEADER_TIMEOUT, HEADER_TOKEN

_BROKEN: Final = ("slow", "slow", "late", "reset", "half")
_BROKEN_SHARE: Final = 0.1
_LONGEST: Final = 1024
"""Bytes of a body."""


class EffectsUpstream:
    """``effects`` are in the order in which they happened; ``under_way`` writes are waiting to.

    ``wait``, where it is set, makes every write that comes wait for so many seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.effects: list[Effect] = []
        self.wait = 0.0
        self.under_way = 0
        self.steady = False
        """No misbehaviour of its own."""
        self._clock = clock
        self._upstream = RecordingUpstream(self._behave, keep_bytes=_LONGEST)

    @property
    def port(self) -> int:
        return self._upstream.port

    async def start(self) -> None:
        await self._upstream.start()

    async def stop(self) -> None:
        await self._upstream.stop()

    async def _behave(self, wire: Wire) -> None:
        arrived = self._clock()
        await wire.read_body()
        self._upstream.requests.clear()  # what is kept is the effects
        limit = int(wire.request.values(HEADER_TIMEOUT)[0]) / 1000
        manner = random.choice(_BROKEN) if random.random() < _BROKEN_SHARE and not self.steady else ""
        if self.wait or manner == "slow":
            self.under_way += 1
            await asyncio.sleep(self.wait or random.uniform(0.1, 0.8) * limit)
            self.under_way -= 1
        if self._clock() - arrived >= limit:
            return await wire.answer(503, b"too late to begin")
        self._apply(wire)
        if manner == "late":
            await asyncio.sleep(limit + 0.3)
        if manner in ("reset", "half"):
            wire.close = True
        if manner == "half":
            return await wire.send(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf of")
        if manner != "reset":
            await wire.answer(201, b"done")
        return None

    def _apply(self, wire: Wire) -> None:
        name, token = orjson.loads(wire.request.body)["case"], int(wire.request.values(HEADER_TOKEN)[0])
        self.effects.append(Effect(name, token, self._clock()))
