"""What this process takes: its memory and open files under Prometheus' usual names, and the tasks of its event loop.

A leak shows here before it hurts: each of these is flat under a steady load, however often leadership moves.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector


def register_process(registry: CollectorRegistry) -> None:
    """Add ``process_*`` (on Linux) and ``asyncio_tasks`` to the page. Read them on the event loop."""
    ProcessCollector(registry=registry)
    tasks = Gauge("asyncio_tasks", "Tasks of the event loop that have not ended.", registry=registry)
    tasks.set_function(lambda: len(asyncio.all_tasks()))
