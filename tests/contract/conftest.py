"""The wire contract's fixtures: a started gateway over every stage and every edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from fencegate.gateway.app import Gateway, Limits
from fencegate.gateway.edge_aiohttp import EdgeServer
from fencegate.testing.wire_world import MemoryStage, Stage, World, WorldFactory, world_of

STAGES: dict[str, Callable[[], Stage]] = {"memory": MemoryStage}
EDGES: dict[str, Callable[[Gateway], Any]] = {"aiohttp": EdgeServer}


@pytest.fixture(params=[(stage, edge) for stage in STAGES for edge in EDGES], ids="-".join)
def new_world(request: pytest.FixtureRequest) -> WorldFactory:
    """Starts a gateway, with other limits if asked: ``async with new_world(limits=…) as world``."""
    stage, edge = request.param

    def make(*, limits: Limits | None = None) -> AbstractAsyncContextManager[World]:
        return world_of(STAGES[stage](), EDGES[edge], limits=limits)

    return make


@pytest.fixture
async def world(new_world: WorldFactory) -> AsyncIterator[World]:
    async with new_world() as started:
        yield started
