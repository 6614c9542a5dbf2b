"""A real embedded ZooKeeper: it serves, it keeps its data, and it leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from fencegate.embedded.process import EmbeddedServerError, runs_in
from fencegate.embedded.zookeeper import EmbeddedZookeeper

MakeZookeeper = Callable[..., EmbeddedZookeeper]


async def test_what_was_written_survives_a_kill_and_a_stop(make_zookeeper: MakeZookeeper) -> None:
    server = make_zookeeper()
    server.start_sync()
    client = KazooClient(server.hosts[0])
    client.start(10)
    client.create("/kept", b"yes")
    server.kill(0)
    await server.restart(0)
    assert client.retry(client.get, "/kept")[0] == b"yes"
    await server.stop()
    client.stop()
    client.close()
    await server.start()
    client.start(10)
    assert client.get("/kept")[0] == b"yes"
    client.stop()
    client.close()


async def test_a_stop_frees_the_ports_and_the_directory(make_zookeeper: MakeZookeeper) -> None:
    server = make_zookeeper()
    await server.start()
    with pytest.raises(EmbeddedServerError, match="running already"):
        await server.start()
    port = int(server.hosts[0].rpartition(":")[2])
    server.freeze(0)
    await server.stop()
    await server.stop()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass
    with pytest.raises(EmbeddedServerError, match="is not running"):
        server.freeze(0)


PARENT = """
import sys, time
from fencegate.embedded.zookeeper import EmbeddedZookeeper
server = EmbeddedZookeeper(sys.argv[1])
server.start_sync()
print(server._nodes[0].process.pid, flush=True)
time.sleep(600)
"""


def test_a_parent_that_is_killed_takes_its_node_along(make_zookeeper: MakeZookeeper, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "z")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as output:
        pid = int(output.readline())
        assert runs_in(pid, Path.cwd())
        parent.kill()
        parent.wait()
    again = EmbeddedZookeeper(tmp_path / "z")
    again.start_sync()  # waits for the lock, which the node holds as long as it lives
    again.stop_sync()
    assert not runs_in(pid, Path.cwd())


async def test_a_node_that_does_not_start_is_quoted(
    make_zookeeper: MakeZookeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_zookeeper(tick=-1)
    with pytest.raises(EmbeddedServerError, match=r"did not start\. Its log, .* ends:\n"):
        await server.start()
