"""Two regions with a store each over a real quorum: failover, a frozen leader that thaws, and the way back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from system.regions import brisk
from system.serving import Answer, Serving, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]


# Field case 88: AutoMQ/automq#3546.
@pytest.mark.timeout(180)
def test_a_frozen_leader_that_thaws_after_its_lease_lands_no_write(
    serve: Serve,
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    make_postgres: Callable[..., EmbeddedPostgres],
    tmp_path: Path,
) -> None:
    other = make_postgres(port=0)
    other.start_sync()
    primary = serve(*brisk("primary", fresh_dsn, etcd, fresh_prefix, tmp_path)).listens()
    old = primary.leads()
    dr = serve(*brisk("dr", other.dsn, etcd, fresh_prefix, tmp_path)).listens()
    assert primary.write(old, {"n": 1}).status == 201

    # The standing region refuses, and says where to go.
    refused = dr.write(old, {"n": 2})
    assert (refused.status, refused.outcome) == (409, "not_leader")
    assert refused.headers["x-fencing-leader"] == "https://primary.example"

    primary.signal(signal.SIGSTOP)
    new = dr.leads(limit=20)
    assert new > old
    assert dr.write(new, {"n": 3}).status == 201
    assert dr.write(old, {"n": 4}).outcome == "stale_token"

    primary.signal(signal.SIGCONT)
    # Its first answers after the thaw, before it can have learnt anything: the store refuses by itself.
    for token in (old, new, old, new):
        answer = primary.write(token, {"n": 5})
        assert (answer.status, answer.headers["x-fencing-applied"]) in ((409, "no"), (503, "no")), answer
    until("the loss of leadership", lambda: primary.facts_of("leadership_lost"))

    def hinted() -> Answer | None:
        answer = primary.write(old, {"n": 6})
        assert answer.status in (409, 503)
        return answer if answer.headers.get("x-fencing-leader") == "https://dr.example" else None

    assert until("the hint", hinted).outcome == "not_leader"

    # And back: DR is ended in order, so that the primary leads again without waiting for a lease.
    assert dr.stop() == 0
    until("the failback", lambda: len(primary.facts_of("leadership_gained")) == 2, 20)
    newest = primary.leads()
    assert newest > new
    assert primary.write(newest, {"n": 7}).json["seq"] == 2
    for stale in (old, new):
        assert primary.write(stale, {"n": 8}).outcome == "stale_token"
    entries = primary.ask("GET", "/v1/entries?after=0&limit=10").json["entries"]
    assert [entry["token"] for entry in entries] == [old, newest]
    assert primary.stop() == 0
