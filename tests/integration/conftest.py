"""Which event loop a test here runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from fencegate.testing.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A leader process without a gate has no sockets: its leases are waited out in no time, and exactly."""
    if item.path.name == "test_client_leader.py" and "gate" not in getattr(item, "fixturenames", ()):
        return {"virtual": VirtualTimeLoop}
    return {"asyncio": asyncio.new_event_loop}
