"""``mode = "follow"``: applications campaign for the role, one shared store, and the gateway enforces their tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fencegate.client import FencedClient, StaleToken, lead
from fencegate.election.postgres import PostgresElection
from fencegate.lease import Candidate, LeaseTimings
from system.serving import Serving

pytestmark = pytest.mark.system

TIMINGS = LeaseTimings(6.0, 4.0, 0.5, 0.5)
CONFIGURATION = """\
node = "gw-1"
region = "eu"
advertise = "http://127.0.0.1:1"
[store]
dsn = "{dsn}"
[election]
source = "postgres"
mode = "follow"
lease_duration = 6
renew_deadline = 4
retry_period = 0.5
margin = 0.5
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""


async def test_each_leader_process_writes_under_its_own_term_and_the_one_before_is_refused(
    fresh_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str]
) -> None:
    gateway = serve("--migrate", "--config", configuration(CONFIGURATION.format(dsn=fresh_dsn))).listens()
    urls = [f"http://{gateway.data}"]

    async def one_term(name: str) -> tuple[int, dict[str, object]]:
        backend = PostgresElection(fresh_dsn, TIMINGS)
        me = Candidate(name, "eu", urls[0])
        try:
            async with (
                lead("ledger", backend=backend, candidate=me, timings=TIMINGS, shared_store=True) as term,
                term.client(urls) as ledger,
            ):
                return term.token, (await ledger.post("/v1/entries", json={"by": name})).json()
        finally:
            await backend.close()

    first, entry = await one_term("a")
    second, after = await one_term("b")
    assert second > first
    assert [(entry["seq"], entry["token"]), (after["seq"], after["token"])] == [(1, first), (2, second)]

    async with FencedClient(urls, "ledger", deadline=5) as ledger:
        with pytest.raises(StaleToken):
            await ledger.post("/v1/entries", json={"by": "a, late"}, token=first)
        entries = (await ledger.get("/v1/entries")).json()["entries"]
    assert [e["body"] for e in entries] == [{"by": "a"}, {"by": "b"}], "the late write is nowhere"
    assert gateway.stop() == 0
