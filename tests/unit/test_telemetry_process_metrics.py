"""What the process takes, as Prometheus reads it."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from fencegate.telemetry.process_metrics import register_process


async def test_a_task_that_never_ends_is_counted_until_it_does() -> None:
    registry = CollectorRegistry()
    register_process(registry)
    before = registry.get_sample_value("asyncio_tasks")
    assert before is not None
    waiting = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    assert registry.get_sample_value("asyncio_tasks") == before + 3
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert registry.get_sample_value("asyncio_tasks") == before


async def test_memory_and_open_files_have_their_usual_names() -> None:
    registry = CollectorRegistry()
    register_process(registry)
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        value = registry.get_sample_value(name)
        assert value is not None
        assert value > 0
