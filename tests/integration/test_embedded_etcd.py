"""A real embedded etcd cluster through everything that may happen to its nodes and to us."""

from __future__ import annotations

import asyncio
import base64
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from fencegate.embedded.etcd import EmbeddedEtcd, EmbeddedServerError

MakeEtcd = Callable[..., EmbeddedEtcd]

PARENT = """
import sys, time
from fencegate.embedded.etcd import EmbeddedEtcd
cluster = EmbeddedEtcd(sys.argv[1])
cluster.start_sync()
cluster.freeze(2)
print(*[cluster.pid(index) for index in range(3)], flush=True)
time.sleep(600)
"""


def _text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


async def _post(endpoint: str, path: str, body: dict[str, str], limit: float) -> dict[str, object]:
    timeout = aiohttp.ClientTimeout(total=limit)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.post(endpoint + path, json=body) as answer:
        answer.raise_for_status()
        result: dict[str, object] = await answer.json()
        return result


async def put(endpoint: str, key: str, value: str, limit: float = 10.0) -> None:
    await _post(endpoint, "/v3/kv/put", {"key": _text(key), "value": _text(value)}, limit)


async def put_once_led(endpoint: str, key: str, value: str) -> None:
    """Writes, again and again while the cluster elects: the node that was taken away may have been the leader."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return await put(endpoint, key, value, limit=3)
        except (aiohttp.ClientResponseError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def get(endpoint: str, key: str, limit: float = 10.0) -> str | None:
    answer = await _post(endpoint, "/v3/kv/range", {"key": _text(key)}, limit)
    found = answer.get("kvs", [])
    assert isinstance(found, list)
    return base64.b64decode(found[0]["value"]).decode() if found else None


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], bool], limit: float = 60.0) -> bool:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


async def test_what_one_node_is_told_every_node_says(etcd: EmbeddedEtcd, fresh_prefix: str) -> None:
    assert len(etcd.endpoints) == 3
    await put(etcd.endpoints[0], fresh_prefix + "a", "1")
    assert [await get(endpoint, fresh_prefix + "a") for endpoint in etcd.endpoints] == ["1", "1", "1"]


async def test_the_cluster_survives_a_killed_node_which_catches_up_when_restarted(make_etcd: MakeEtcd) -> None:
    async with make_etcd() as cluster:
        cluster.kill(0)
        assert not cluster.running(0)
        await put_once_led(cluster.endpoints[1], "k", "written without node 0")
        await cluster.restart(0)
        assert await get(cluster.endpoints[0], "k") == "written without node 0"


async def test_the_cluster_survives_a_frozen_node_which_answers_nobody_until_thawed(make_etcd: MakeEtcd) -> None:
    async with make_etcd() as cluster:
        cluster.freeze(1)
        with pytest.raises(TimeoutError):
            # A key of its own: the kernel holds this write, and the node carries it out when it thaws.
            await put(cluster.endpoints[1], "late", "1", limit=0.5)
        await put_once_led(cluster.endpoints[2], "k", "written without node 1")
        cluster.thaw(1)
        assert await get(cluster.endpoints[1], "k") == "written without node 1"


async def test_a_majority_killed_comes_back_one_by_one_with_its_data(make_etcd: MakeEtcd) -> None:
    async with make_etcd() as cluster:
        await put(cluster.endpoints[0], "k", "kept")
        for index in range(3):
            cluster.kill(index)
        await cluster.restart(0, wait=False)
        await cluster.restart(1)
        await cluster.restart(2)
        assert await get(cluster.endpoints[2], "k") == "kept"


async def test_a_cluster_that_was_stopped_starts_again_at_the_same_addresses(make_etcd: MakeEtcd) -> None:
    cluster = make_etcd()
    await cluster.start()
    addresses = cluster.endpoints
    await put(addresses[0], "k", "kept")
    cluster.freeze(0)
    await cluster.stop()
    await cluster.start()
    assert cluster.endpoints == addresses
    assert await get(addresses[1], "k") == "kept"


async def test_a_remembered_port_that_somebody_took_is_an_error_that_says_what_to_do(make_etcd: MakeEtcd) -> None:
    cluster = make_etcd(nodes=1)
    await cluster.start()
    port = int(cluster.endpoints[0].rpartition(":")[2])
    await cluster.stop()
    refused = pytest.raises(EmbeddedServerError, match=r"is taken by another program.*use another directory")
    with socket.create_server(("127.0.0.1", port)), refused:
        await cluster.start()
    await cluster.start()


async def test_a_new_cluster_that_loses_a_race_for_a_port_takes_others(
    make_etcd: MakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        real, first = EmbeddedEtcd._new_nodes, [True]

        def raced(self: EmbeddedEtcd) -> object:
            nodes = real(self)
            if first:
                nodes[0].client_port = taken.getsockname()[1]
                first.clear()
            return nodes

        monkeypatch.setattr(EmbeddedEtcd, "_new_nodes", raced)
        async with make_etcd(nodes=1) as cluster:
            assert not first
            await put(cluster.endpoints[0], "k", "1")


async def test_variables_for_etcd_in_our_environment_do_not_reach_it(
    make_etcd: MakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_NAME", "somebody")
    monkeypatch.setenv("ETCD_AUTO_COMPACTION_MODE", "nonsense")
    async with make_etcd(nodes=1) as cluster:
        await put(cluster.endpoints[0], "k", "1")


async def test_a_second_cluster_on_the_directory_is_refused_with_its_name_and_a_way_out(make_etcd: MakeEtcd) -> None:
    first, second = make_etcd(nodes=1), make_etcd(nodes=1)
    await first.start()
    with pytest.raises(EmbeddedServerError, match="is in use by another one") as raised:
        await second.start()
    assert str(first.directory) in str(raised.value)


async def test_a_node_that_does_not_start_quotes_its_log(make_etcd: MakeEtcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedEtcd, "_options", lambda *_: ["--data-dir=/proc/none"])
    cluster = make_etcd(nodes=1)
    with pytest.raises(EmbeddedServerError, match=r"(?s)node-0 in .* did not start.*etcd\.log.*/proc/none"):
        await cluster.start()


def test_a_parent_killed_with_9_leaves_no_etcd_not_even_a_frozen_one(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        with parent.stdout as said:
            pids = [int(pid) for pid in said.readline().split()]
        assert len(pids) == 3
        assert all(lives(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: not any(lives(pid) for pid in pids))
