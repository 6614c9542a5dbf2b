"""What ``test_chaos_packets.py`` runs in a network of its own, and nobody anywhere else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd, Place
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.gameday import private_network
from fencegate.gameday.chaos import run
from fencegate.gameday.chaos_stage import TIMINGS, Shape
from fencegate.gameday.faults import Fault
from fencegate.gameday.plain_http import ask
from system.regions import brisk
from system.serving import Serving, until

LONG, SHORT = TIMINGS.lease_duration + 1.0, 1.0
FAULTS = [
    Fault(0.2, "lose-requests", "primary-quorum-link", LONG),
    Fault(0.2, "lose-requests", "dr-store-link", SHORT),
    Fault(4.5, "lose-answers", "dr-quorum-link", LONG),
    Fault(4.5, "lose-answers", "primary-store-link", SHORT),
    Fault(6.5, "lose-all", "primary-store-link", SHORT),
    Fault(9.0, "lose-all", "dr-store-link", LONG),
    Fault(9.0, "lose-requests", "quorum-0", LONG),
    Fault(10.0, "lose-answers", "quorum-1", SHORT),
]


@pytest.mark.system
@pytest.mark.timeout(200)
async def test_inside(tmp_path: Path) -> None:
    private_network.prepare()
    assert not private_network.missing()
    outcome = await run(tmp_path, [FAULTS], seconds=13.5, shape=Shape(packets=True), say=print)
    print(outcome)
    assert outcome.ok, outcome
    assert not outcome.figures.left_out
    assert outcome.figures.changes > 1, "nobody was cut off for long enough"


async def _is_led_by(member: str, endpoints: list[str]) -> bool:
    """Whether the quorum is led by the member at this address; its leader is asked to see to it."""
    ids = {url: (await _asked(url, "status", {}))["header"]["member_id"] for url in endpoints}
    leader = (await _asked(member, "status", {}))["leader"]
    for url in endpoints:
        if ids[url] == leader != ids[member]:
            await _asked(url, "transfer-leadership", {"targetID": ids[member]})
    return bool(leader == ids[member])


async def _asked(url: str, what: str, body: object) -> Any:
    answer = await ask("POST", f"{url}/v3/maintenance/{what}", body=json.dumps(body).encode())
    return json.loads(answer.body)


@pytest.mark.system
@pytest.mark.timeout(200)
async def test_cut_off(
    serve: Callable[..., Serving], make_postgres: Callable[..., EmbeddedPostgres], tmp_path: Path
) -> None:
    """One member of the quorum is on a machine of its own. A gateway knows no other, and is its only client."""
    private_network.prepare()
    stores = [make_postgres(name, port=0) for name in ("primary", "dr")]
    await asyncio.gather(*(store.start() for store in stores))
    with private_network.Beyond() as beyond:
        places = {0: Place(beyond.there, beyond.enter), 1: Place(beyond.here), 2: Place(beyond.here)}
        async with EmbeddedEtcd(tmp_path / "etcd", places=places) as etcd:
            alone, *rest = etcd.endpoints
            primary = await asyncio.to_thread(serve(*brisk("primary", stores[0].dsn, [alone], "/p", tmp_path)).listens)
            old = await asyncio.to_thread(primary.leads)
            dr = await asyncio.to_thread(serve(*brisk("dr", stores[1].dsn, rest, "/p", tmp_path)).listens)
            # The member that leads the quorum answers longest by itself once it is cut off.
            for _ in range(100):
                if await _is_led_by(alone, etcd.endpoints):
                    break
                await asyncio.sleep(0.1)
            else:
                pytest.fail("the member does not lead the quorum")
            assert primary.write(old).outcome == "accepted"

            port = int(alone.rpartition(":")[2])
            beyond.cut(but=port)
            cut_at = last = time.monotonic()
            while (answer := await asyncio.to_thread(primary.write, old)).outcome == "accepted":
                last = time.monotonic()
                assert last - cut_at < 30, "it never closes"
            assert answer.headers["x-fencing-applied"] == "no"
            assert last - cut_at < 3.0 + 1.0, "it went on for longer than its lease"
            new = await asyncio.to_thread(dr.leads)
            assert new > old
            assert time.monotonic() > last
            assert (await asyncio.to_thread(dr.write, new)).outcome == "accepted"
            # The cut-off gateway's own fence has no open term, whatever it is told.
            for token in (old, new):
                assert (await asyncio.to_thread(primary.write, token)).headers["x-fencing-applied"] == "no"
            assert primary.facts_of("leadership_lost")

            beyond.mend(but=port)
            assert await asyncio.to_thread(until, "the way to the leader", lambda: primary.discovered() == new)
