"""The SDK. An ordinary client discovers the leader and follows it:

    async with FencedClient(["https://ledger.eu.example", "https://ledger.us.example"], "ledger") as client:
        try:
            entry = (await client.post("/v1/entries", json={"decision": "approve"})).json()
        except OutcomeUnknown as unknown:
            park(unknown.idempotency_key)  # may have been applied: ask again later with this key
        except FencedError as refused:
            print(refused.code, refused)  # surely not applied

A leader process writes under the token of its own term, which nothing can replace. It campaigns itself, and the
gateways follow that election (``mode = "follow"``):

    from fencegate.election.etcd import EtcdElection  # or postgres, zookeeper, kubernetes, consul
    from fencegate.lease import Candidate, LeaseTimings

    timings = LeaseTimings()  # 15 s, 10 s and 2 s
    backend = EtcdElection(["http://etcd-1:2379"], timings)
    me = Candidate(node="worker-1", region="eu", url="https://worker-1.eu.example")
    async with lead("nightly-cron", backend=backend, candidate=me, cancel_on_loss=True) as term:
        async with term.client(["https://ledger.eu.example"]) as client:
            await client.post("/v1/entries", json={"run": 7})

Both without an event loop, under the same names: :mod:`fencegate.client.sync`.
"""

from fencegate.client.aio import FencedClient
from fencegate.client.failures import (
    DeadlineExceeded,
    FencedError,
    LeadershipLost,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Refused,
    RetriesExhausted,
    StaleToken,
)
from fencegate.client.grants import Grants
from fencegate.client.leader import lead
from fencegate.client.request import Response
from fencegate.client.term import LeaderTerm

__all__ = [
    "DeadlineExceeded",
    "FencedClient",
    "FencedError",
    "Grants",
    "LeaderTerm",
    "LeadershipLost",
    "NoLeader",
    "NotLeader",
    "OutcomeUnknown",
    "Refused",
    "Response",
    "RetriesExhausted",
    "StaleToken",
    "lead",
]
