"""The second transport to etcd: members that die and freeze, passwords, watches, and the variable that it needs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from fencegate.election.etcd import EtcdElection
from fencegate.election.etcd_gateway import EtcdRefused, encode
from fencegate.election.etcd_grpc import EtcdGrpc
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.lease import Candidate, ElectionUnavailable, LeaseTimings, Won
from fencegate.testing.stalling_relay import StallingRelay

TIMINGS = LeaseTimings(8, 5, 1, 0.5)
ROLE = "ledger"
EU = Candidate("gw-eu", "eu", "https://eu.example")


async def test_a_killed_or_frozen_member_costs_a_moment_only(
    make_etcd: Callable[..., EmbeddedEtcd],
) -> None:
    cluster = make_etcd(unsafe_no_fsync=True)
    cluster.start_sync()
    transport = EtcdGrpc(cluster.endpoints)
    election = EtcdElection(cluster.endpoints, TIMINGS, transport=transport)
    try:
        won = await election.acquire(ROLE, EU, 5)
        assert isinstance(won, Won)
        for harm, undo in ((cluster.kill, cluster.restart), (cluster.freeze, cluster.thaw)):
            index = cluster.endpoints.index(transport.endpoint)
            harm(index)
            await election.renew(ROLE, won.token, EU, active=True, deadline=5)
            assert cluster.endpoints.index(transport.endpoint) != index
            if (undone := undo(index)) is not None:
                await undone
        for index in range(2):
            cluster.freeze(index)
        began = time.monotonic()
        with pytest.raises(ElectionUnavailable):
            await election.renew(ROLE, won.token, EU, active=True, deadline=3)
        assert time.monotonic() - began < 5.5
        for index in range(2):
            cluster.thaw(index)
        await election.renew(ROLE, won.token, EU, active=True, deadline=10)
    finally:
        await election.close()


async def test_a_call_that_is_given_up_at_once_takes_no_connection_from_the_others(
    etcd: EmbeddedEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencegate.election.etcd_grpc._PATIENCE", 30.0)  # however busy this machine is
    transport = EtcdGrpc(etcd.endpoints)
    try:
        endpoint = transport.endpoint
        await transport.call("/v3/kv/range", {"key": encode("/")}, 20)
        channel = transport._channels[endpoint]
        given_up = asyncio.create_task(transport.call("/v3/lease/grant", {"TTL": 5}, 20))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(ElectionUnavailable):
            await transport.call("/v3/lease/grant", {"TTL": 5}, 0.0001)
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert transport._channels.get(endpoint) is channel
    finally:
        await transport.close()


async def test_a_cluster_with_passwords_lets_in_who_knows_one(make_etcd: Callable[..., EmbeddedEtcd]) -> None:
    cluster = make_etcd(nodes=1, unsafe_no_fsync=True)
    cluster.start_sync()
    setup = EtcdElection(cluster.endpoints, TIMINGS)
    for path, body in (
        ("user/add", {"name": "root", "password": "s3cret"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("enable", {}),
    ):
        await setup.gateway.call(f"/v3/auth/{path}", body, 5)
    await setup.close()

    knows = EtcdGrpc(cluster.endpoints, username="root", password="s3cret")
    election = EtcdElection(cluster.endpoints, TIMINGS, transport=knows)
    assert isinstance(await election.acquire(ROLE, EU, 5), Won)
    await election.close()
    guesses = EtcdGrpc(cluster.endpoints, username="root", password="wrong")
    with pytest.raises(EtcdRefused, match="authentication failed"):
        await guesses.call("/v3/kv/range", {"key": encode("a")}, 5)
    await guesses.close()


async def test_a_watch_tells_of_changes_and_leaves_no_thread(etcd: EmbeddedEtcd, fresh_prefix: str) -> None:
    transport = EtcdGrpc(etcd.endpoints)
    key = fresh_prefix.encode()

    async def put_until(told: asyncio.Future[None]) -> None:
        while not told.done():
            await transport.call("/v3/kv/put", {"key": encode(key + b"a"), "value": encode("1")}, 5)
            await asyncio.sleep(0.05)

    await transport.call("/v3/kv/range", {"key": encode(key)}, 5)
    for _ in range(5):
        watch = transport.watch(key, key[:-1] + b"0")
        told = asyncio.ensure_future(anext(watch))
        async with asyncio.timeout(20):
            await put_until(told)
        await watch.aclose()  # type: ignore[attr-defined]
    await transport.close()

    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("etcd3:")]:
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive()


async def test_a_watch_on_a_killed_member_ends(make_etcd: Callable[..., EmbeddedEtcd]) -> None:
    cluster = make_etcd(nodes=1, unsafe_no_fsync=True)
    cluster.start_sync()
    transport = EtcdGrpc(cluster.endpoints)
    watch = transport.watch(b"/a", b"/b")
    ended = asyncio.ensure_future(anext(watch, "ended"))
    await asyncio.sleep(0.3)
    cluster.kill(0)
    async with asyncio.timeout(20):
        assert await ended == "ended"
    await transport.close()


@pytest.mark.parametrize(
    ("before", "variable", "loads"),
    [("", "", True), ("import google.protobuf.descriptor", "", False), ("", "upb", False)],
)
def test_protobuf_is_told_in_time_or_the_import_says_what_to_do(before: str, variable: str, loads: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PROTOCOL_BUFFERS")}
    if variable:
        environment["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = variable
    code = f"{before}\nimport fencegate.election.etcd_grpc"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == loads, done.stderr
    if not loads:
        assert "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python in the environment" in done.stderr


async def test_a_connection_that_leads_nowhere_any_more_is_left_for_a_new_one(
    etcd: EmbeddedEtcd, fresh_prefix: str
) -> None:
    relay = StallingRelay(etcd.endpoints[0].removeprefix("http://"))
    transport = EtcdGrpc([f"http://{await relay.start()}"])
    question = {"key": encode(fresh_prefix)}
    try:
        await transport.call("/v3/kv/range", question, 5)
        relay.strand()
        with pytest.raises(ElectionUnavailable):
            await transport.call("/v3/kv/range", question, 0.5)
        await transport.call("/v3/kv/range", question, 5)
    finally:
        await transport.close()
        await relay.close()
