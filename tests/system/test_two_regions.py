"""Two regions with a store each over a real quorum: failover, a frozen leader that thaws, and the way back."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.gateway.targets.http import READ_FIRST
from system.regions import brisk
from system.serving import Answer, Serving, Upstream, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]


def told_of_itself(leader: Serving, token: int) -> str:
    """The address by which a region that leads under ``token`` calls itself."""
    found = leader.ask("GET", "/.well-known/fencegate/leader/ledger").json
    assert (found["token"], found["leader"]["region"]) == (token, found["region"])
    return str(found["leader"]["url"])


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
    primary = serve(*brisk("primary", fresh_dsn, etcd.endpoints, fresh_prefix, tmp_path)).listens()
    old = primary.leads()
    dr = serve(*brisk("dr", other.dsn, etcd.endpoints, fresh_prefix, tmp_path)).listens()
    assert primary.write(old, {"n": 1}).status == 201

    # The standing region refuses, and says where to go.
    refused = dr.write(old, {"n": 2})
    assert (refused.status, refused.outcome) == (409, "not_leader")
    assert refused.headers["x-fencing-leader"] == "https://primary.example"
    assert refused.json["leader"]["url"] == told_of_itself(primary, old), "and that place says the same of itself"

    primary.signal(signal.SIGSTOP)
    new = dr.leads()
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

    hint = until("the hint", hinted)
    assert hint.outcome == "not_leader"
    assert hint.json["leader"]["url"] == told_of_itself(dr, new)
    assert hint.json["leader"]["token"] == new

    # And back: DR is ended in order, so that the primary leads again without waiting for a lease.
    assert dr.stop() == 0
    until("the failback", lambda: len(primary.facts_of("leadership_gained")) == 2)
    newest = primary.leads()
    assert newest > new
    assert primary.write(newest, {"n": 7}).json["seq"] == 2
    for stale in (old, new):
        assert primary.write(stale, {"n": 8}).outcome == "stale_token"
    entries = primary.ask("GET", "/v1/entries?after=0&limit=10").json["entries"]
    assert [entry["token"] for entry in entries] == [old, newest]
    assert primary.stop() == 0


@pytest.mark.timeout(180)
def test_a_write_that_was_admitted_before_its_gateway_froze_is_not_sent_when_it_thaws_under_the_next_term(
    serve: Serve,
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    other_dsn: str,
    upstream: Upstream,
    tmp_path: Path,
) -> None:
    """The window between the store's yes and the first byte, held open: the client was asked for its body.

    One that is too large to be here before its write is admitted.
    """
    route = f'[[route]]\npath = "/v1/*"\nrole = "ledger"\ntarget = "{upstream.url}"\ntimeout = 60\n'
    primary = serve(*brisk("primary", fresh_dsn, etcd.endpoints, fresh_prefix, tmp_path, route=route)).listens()
    old = primary.leads()
    dr = serve(*brisk("dr", other_dsn, etcd.endpoints, fresh_prefix, tmp_path, route=route)).listens()
    upstream.let_go.set()
    host, port = primary.data.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 60) as line:
        line.sendall(
            b"POST /v1/thing HTTP/1.1\r\nHost: gate.example\r\nContent-Length: %d\r\nConnection: close\r\n"
            b"Expect: 100-continue\r\nX-Fencing-Token: %d\r\n\r\n" % (READ_FIRST + 1, old)
        )
        assert line.recv(1024).startswith(b"HTTP/1.1 100 ")
        primary.signal(signal.SIGSTOP)
        line.sendall(b"x" * (READ_FIRST + 1))
        new = dr.leads()
        assert dr.write(new, path="/v1/thing").outcome == "accepted"
        primary.signal(signal.SIGCONT)
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"X-Fencing-Outcome: fence_unavailable\r\n" in answer
    assert b"X-Fencing-Applied: no\r\n" in answer
    assert upstream.tokens == [str(new)]
