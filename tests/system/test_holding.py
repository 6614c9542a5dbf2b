"""Routes with ``hold_ms``, real gateways and real clients: a planned handoff is a pause and no refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.election.postgres import PostgresElection
from fencegate.lease import Candidate, LeaseTimings, SealRecord, Won
from system.regions import LEDGER, Writers, arguments, counted, entries_of, hand
from system.serving import Answer, Serving, until

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


FOLLOWS = """\
node = "gw-1"
region = "eu"
advertise = "http://127.0.0.1:1"
[store]
dsn = "{dsn}"
[election]
source = "postgres"
mode = "follow"
lease_duration = 15
renew_deadline = 10
retry_period = 0.5
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
hold_ms = 14000
"""
TIMINGS = LeaseTimings(15.0, 10.0, 0.5)


async def test_a_write_before_its_terms_announcement_waits_for_it_and_the_end_of_the_process_lets_all_go(
    serve: Callable[..., Serving], fresh_dsn: str, configuration: Callable[[str], str]
) -> None:
    gateway = serve("--migrate", "--config", configuration(FOLLOWS.format(dsn=fresh_dsn))).listens()
    backend = PostgresElection(fresh_dsn, TIMINGS)
    me = Candidate("app", "eu", f"http://{gateway.data}")

    async def begin(token: int) -> asyncio.Task[Answer]:
        asking = asyncio.create_task(asyncio.to_thread(gateway.write, token))
        await asyncio.to_thread(until, "the hold", lambda: counted(gateway, "fencing_held_writes") == {"": 1})
        return asking

    try:
        won = await backend.acquire("ledger", me, 20.0)
        assert isinstance(won, Won)
        asking = await begin(won.token)
        await backend.renew("ledger", won.token, me, active=True, deadline=20.0)
        answer = await asking
        assert (answer.status, answer.json["token"]) == (201, won.token)

        await backend.release("ledger", won.token, SealRecord(won.token, "eu"), 20.0)
        await asyncio.to_thread(until, "nobody leads", lambda: _leaderless(gateway))
        asking = await begin(won.token + 1)
        began = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(gateway.stop) == 0
        assert (await asking).outcome == "no_leader"
        assert asyncio.get_running_loop().time() - began < 8
    finally:
        await backend.close()


def _leaderless(gateway: Serving) -> bool:
    return gateway.ask("GET", "/.well-known/fencegate/leader/ledger").status == 503
