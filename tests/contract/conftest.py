"""The wire contract's fixtures: a started gateway over every stage, every edge and both event loops.

What the store decides runs over the memory's stage and over Postgres. What is refused before any store is
asked (framing, malformed tokens) runs over the memory's alone. What moves bytes runs on uvloop as well,
which ``fencegate serve`` uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
import uvloop

from fencegate.gateway.app import Gateway
from fencegate.gateway.caller import Callers
from fencegate.gateway.edge_aiohttp import EdgeServer
from fencegate.gateway.edge_protocol import ProtocolEdge
from fencegate.gateway.limits import Limits
from fencegate.testing.postgres_stage import PostgresStage
from fencegate.testing.wire_world import MemoryStage, World, WorldFactory, world_of

STAGES = ["memory", "postgres"]
EDGES: dict[str, Callable[..., Any]] = {"aiohttp": EdgeServer, "protocol": ProtocolEdge}

BEFORE_THE_STORE = {
    "test_wire_callers_tls.py",
    "test_wire_connection.py",
    "test_wire_framing.py",
    "test_wire_grants.py",
    "test_wire_hostile_upstream.py",
    "test_wire_tls.py",
    "test_wire_tokens.py",
}
ON_BOTH_LOOPS = {
    "test_wire_callers_tls.py",
    "test_wire_connection.py",
    "test_wire_framing.py",
    "test_wire_http.py",
    "test_wire_tls.py",
    "test_wire_uploads.py",
}


WITH_IDLE_CONNECTIONS = {
    "test_wire_callers.py",
    "test_wire_field_cases.py",
    "test_wire_holding.py",
    "test_wire_hostile_upstream.py",
    "test_wire_http.py",
    "test_wire_proof.py",
    "test_wire_refusals.py",
    "test_wire_stale.py",
    "test_wire_uploads.py",
    "test_wire_validated.py",
}
"""Also with connections to the upstream that are idle already: a request takes another way from there."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name in ON_BOTH_LOOPS:
        loops["uvloop"] = uvloop.new_event_loop
    return loops


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "new_world" in metafunc.fixturenames:
        stages = STAGES[:1] if metafunc.definition.path.name in BEFORE_THE_STORE else STAGES
        params = [(stage, edge) for stage in stages for edge in EDGES]
        if metafunc.definition.path.name in WITH_IDLE_CONNECTIONS:
            params += [(stage, "idle") for stage in stages]
        metafunc.parametrize("new_world", params, ids="-".join, indirect=True)


@pytest.fixture
def new_world(request: pytest.FixtureRequest) -> WorldFactory:
    """Starts a gateway, with limits or callers if asked: ``async with new_world(limits=…) as world``."""
    stage, edge = request.param
    idle, edge = (edge == "idle"), ("protocol" if edge == "idle" else edge)
    dsn = request.getfixturevalue("shared_dsn") if stage == "postgres" else ""

    def make(
        *,
        limits: Limits | None = None,
        callers: Callers | None = None,
        make: Callable[..., Gateway] = Gateway,
        **options: Any,
    ) -> AbstractAsyncContextManager[World]:
        on = PostgresStage(dsn) if dsn else MemoryStage()
        return world_of(on, partial(EDGES[edge], **options), limits=limits, callers=callers, make=make, idle=idle)

    return make


@pytest.fixture
async def world(new_world: WorldFactory) -> AsyncIterator[World]:
    async with new_world() as started:
        yield started
