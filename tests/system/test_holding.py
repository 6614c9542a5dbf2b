"""Routes with ``hold_ms``, real gateways and real clients: a planned handoff is a pause and no refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from system.regions import LEDGER, Writers, arguments, counted, entries_of, hand
from system.serving import Serving

pytestmark = pytest.mark.system


@pytest.mark.timeout(180)
async def test_writers_see_no_refusal_of_a_handoff_that_holding_can_spare_them_and_nothing_is_lost_or_doubled(
    serve: Callable[..., Serving], fresh_dsn: str, other_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> None:
    election = f'source = "postgres"\ndsn = "{fresh_dsn}"\n'
    addresses = [f"127.0.0.1:{port}" for port in unused_ports]
    route = f"{LEDGER}hold_ms = 8000\n"
    eu = serve(*arguments("eu", addresses[0], fresh_dsn, election, tmp_path, route=route)).listens()
    await asyncio.to_thread(eu.leads)
    dr = serve(*arguments("dr", addresses[1], other_dsn, election, tmp_path, route=route)).listens()

    writers = Writers([f"http://{address}" for address in addresses], 8)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(hand, eu, "dr", tmp_path)
    await asyncio.sleep(0.5)
    await writers.end()

    names = [name for gateway in (eu, dr) for _, name in await asyncio.to_thread(entries_of, gateway)]
    assert not writers.failures
    assert sorted(names) == sorted(set(names)), "applied twice"
    assert set(writers.acknowledged) == set(names), "lost"
    refused = [await asyncio.to_thread(counted, gateway, "fencing_rejections_total") for gateway in (eu, dr)]
    held = [await asyncio.to_thread(counted, gateway, "fencing_holds_total") for gateway in (eu, dr)]
    print(f"\nrefused {refused}, held {held}, {len(names)} writes")
    # What a held write is told at its end is who leads now. Never that it should come back in a second.
    assert all(set(reasons) <= {"not_leader", "stale_token"} for reasons in refused)
    assert set(held[0]) == {"news"}
    assert 1 <= held[0]["news"] <= refused[0]["not_leader"]
    for gateway in (eu, dr):
        assert await asyncio.to_thread(counted, gateway, "fencing_held_writes") == {}
        assert await asyncio.to_thread(gateway.stop) == 0
