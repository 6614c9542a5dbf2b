"""How a process of the gateway runs: on the fastest event loop there is, with a collector that seldom looks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end on the fastest event loop there is."""
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        return runner.run(work)


def _event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform or interpreter
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def settle_garbage() -> None:
    """What was made so far lives as long as the process: the collector need not look at it with every write."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
