"""One elector as a process of its own, for tests that freeze and kill it. Prints its state, one line per change.

Usage: elector_process.py ROLE TIMINGS NODE REGION STORE_DSN PREFIX ENDPOINT…
TIMINGS are the four numbers of LeaseTimings, with commas.
"""

from __future__ import annotations

import asyncio
import sys

from fencegate.election.elector import Elector
from fencegate.election.etcd import EtcdElection
from fencegate.lease import Candidate, LeaseTimings
from fencegate.store.postgres import PostgresStore


async def main(role: str, numbers: str, node: str, region: str, dsn: str, prefix: str, *endpoints: str) -> None:
    timings = LeaseTimings(*(float(number) for number in numbers.split(",")))
    store = await PostgresStore.open(dsn, gateway=node)
    backend = EtcdElection(list(endpoints), timings, prefix=prefix)
    who = Candidate(node, region, f"https://{region}.example")
    elector = Elector(role, who, backend, store, timings, lambda fact: print(fact, flush=True))
    running = asyncio.create_task(elector.run())
    while not running.done():
        print("state", elector.state, elector.token, flush=True)
        await elector.changed()
    await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
