"""A gateway process, inside the test's own, that ends by itself."""

from __future__ import annotations

import asyncio
import signal

import asyncpg
import pytest

from fencegate.cli import parts, wiring
from fencegate.config import parse
from fencegate.errors import FencegateError
from fencegate.observations import Observation, Stopping
from fencegate.store.postgres import PostgresStore

SETTINGS = """\
node = "gw-1"
region = "eu"
advertise = "http://127.0.0.1:1"
listen = { data = "127.0.0.1:0", admin = "localhost:0" }
store = { dsn = "DSN" }
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""


# Field case 9: kubernetes-client/python#2075, kubernetes-client/python#2670.
async def test_a_part_that_fails_for_good_ends_the_whole_process_in_order(
    migrated_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse(file=("F", SETTINGS.replace("DSN", migrated_dsn)))
    service = wiring.Service(settings, store_dsn=migrated_dsn, reload=lambda: settings)
    at_once: list[None] = []
    monkeypatch.setattr(wiring, "leave_at_once", lambda: at_once.append(None))

    def told_once_meanwhile(fact: Observation) -> None:
        if isinstance(fact, Stopping):
            service._told_to_end(signal.SIGTERM)

    service.observers.listeners.append(told_once_meanwhile)
    led = asyncio.Event()
    service.observers.listeners.append(lambda fact: led.set() if type(fact).__name__ == "LeadershipGained" else None)

    async def fails(_: object, __: float) -> int:
        await led.wait()
        raise ZeroDivisionError

    monkeypatch.setattr(PostgresStore, "expire_keys", fails)
    monkeypatch.setattr(wiring, "EXPIRY_PERIOD", 0.05)
    for place, of_the_whole_process in ((parts, "log_as"), (wiring, "settle_garbage")):
        monkeypatch.setattr(place, of_the_whole_process, lambda *_: None)

    async with asyncio.timeout(20):
        with pytest.raises(FencegateError, match="the expiry of keys failed"):
            await service.run(lambda data, admin: None)
    assert not at_once, "that is for who is told twice"

    beside = await asyncpg.connect(migrated_dsn)
    row = await beside.fetchrow("SELECT token, sealed_token FROM fencegate.election")
    fence = await beside.fetchrow("SELECT max_token_seen, sealed FROM fencegate.fence")
    await beside.close()
    assert row is not None
    assert fence is not None
    assert row["token"] == row["sealed_token"] == fence["max_token_seen"] == fence["sealed"], "sealed and given back"
