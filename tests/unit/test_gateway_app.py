"""What the gateway remembers of paths; what it does with requests is told by the contract, tests/contract."""

from __future__ import annotations

import pytest

from fencegate.gateway.app import Gateway
from fencegate.gateway.request import BufferedBody, Request
from fencegate.gateway.routes import Route
from fencegate.testing.memory_write_path import MemoryWritePath
from fencegate.testing.scripted_view import ScriptedView


def gateway(members: int) -> Gateway:
    route = Route("/{shard}/entries", "ledger/{shard}", "ledger", members=frozenset(map(str, range(members))))
    return Gateway([route], MemoryWritePath(), ScriptedView(), region="eu")


def request(path: str, method: str = "POST") -> Request:
    return Request(method, path, "", [], BufferedBody(b""), 0, "::1", 0.0, "http", False)


async def test_the_paths_of_a_large_family_are_all_remembered() -> None:
    gate = gateway(5_000)
    for number in range(5_000):
        assert gate._way(request(f"/{number}/entries")) is not None
    assert len(gate._ways) == 5_000


@pytest.mark.parametrize(
    ("path", "method"),
    [("/3/entries/{}", "GET"), ("/3/entries", "M{}")],
    ids=["entries", "methods"],
)
async def test_whatever_clients_ask_for_no_more_paths_are_remembered_than_configured(path: str, method: str) -> None:
    gate = gateway(10)
    for number in range(5_000):
        gate._way(request(path.format(number), method.format(number)))
        assert len(gate._ways) <= 1024 + 10
    assert gate._ways
