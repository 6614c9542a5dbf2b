"""A real ZooKeeper on loopback, of one node or several, every node a direct child: for the tests.

It needs Java and ZooKeeper's jars, as Debian's package ``zookeeper`` installs them. The nodes die with us.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fencegate.embedded.process import (
    POLL,
    EmbeddedServerError,
    Freezer,
    Steps,
    afinish,
    clean_environment,
    finish,
    free_port,
    last_lines,
    lock_directory,
    open_log,
    prepare_directory,
    spawn,
    until_exit,
)

JARS_VARIABLE: Final = "FENCEGATE_ZOOKEEPER_JARS"
SYSTEM_JARS: Final = "/usr/share/java/zookeeper.jar"
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_LIMIT: Final = 60.0
_STOP_LIMIT: Final = 1.0


def command() -> list[str]:
    """What starts a node, up to its configuration's path. Raises :class:`EmbeddedServerError` saying what is missing.

    ``$FENCEGATE_ZOOKEEPER_JARS`` is a class path (``*`` allowed) for where the jars are not Debian's.
    """
    java = shutil.which("java")
    if java is None:
        raise EmbeddedServerError("no Java to run ZooKeeper with. Install one (Debian: default-jre-headless).")
    jars = os.environ.get(JARS_VARIABLE, SYSTEM_JARS)
    if not any(glob.glob(part) for part in jars.split(":")):
        raise EmbeddedServerError(
            f"no ZooKeeper to run: there is no {jars}. Install it (Debian: zookeeper), or name its jars in"
            f" {JARS_VARIABLE}."
        )
    return [java, "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars, _MAIN]


@dataclass(slots=True)
class _Node:
    directory: Path
    number: int
    client_port: int
    peer_port: int
    election_port: int
    process: subprocess.Popen[bytes] | None = None
    freezer: Freezer | None = None
    log_start: int = 0

    @property
    def log(self) -> Path:
        return self.directory / "zookeeper.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class EmbeddedZookeeper:
    """An ensemble of ``nodes`` members in ``directory``. ``tick`` is ZooKeeper's tickTime in milliseconds:
    it grants sessions of 2 to 20 ticks. Every waiting operation exists twice, as in :class:`EmbeddedEtcd`.
    """

    def __init__(self, directory: Path | str, nodes: int = 1, *, tick: int = 500) -> None:
        if nodes < 1:
            raise ValueError(f"an ensemble has at least one node, not {nodes}")
        self.directory = Path(directory).absolute()
        self._count = nodes
        self._tick = tick
        self._nodes: list[_Node] = []
        self._lock: int | None = None

    @property
    def hosts(self) -> list[str]:
        """``host:port`` per node, by index; known once started."""
        if not self._nodes:
            raise EmbeddedServerError(f"the ZooKeeper in {self.directory} has no address yet: start it first")
        return [f"127.0.0.1:{node.client_port}" for node in self._nodes]

    async def start(self) -> None:
        """Starts every node and returns when each serves clients. Raises :class:`EmbeddedServerError`."""
        await afinish(self._starting())

    async def stop(self) -> None:
        """Stops every node, by force after a second. Idempotent."""
        await afinish(self._stopping())

    def start_sync(self) -> None:
        """:meth:`start` where no event loop runs."""
        finish(self._starting())

    def stop_sync(self) -> None:
        """:meth:`stop` where no event loop runs."""
        finish(self._stopping())

    async def restart(self, index: int) -> None:
        """Starts a killed node again, at the same address, and waits until it serves clients."""
        node = self._node(index)
        self.kill(index)
        self._launch(node)
        await afinish(self._until_serving([node]))

    def kill(self, index: int) -> None:
        """Kills the node with -9, at once, frozen or not."""
        node = self._node(index)
        if node.process is not None:
            node.process.kill()
            node.process.wait()
            node.process = None
        self.thaw(index)

    def freeze(self, index: int) -> None:
        """SIGSTOP: its connections stay open, nothing answers. Idempotent."""
        node = self._node(index)
        if not node.running or node.process is None:
            raise EmbeddedServerError(f"ZooKeeper node {index} in {self.directory} is not running")
        if node.freezer is None:
            node.freezer = Freezer()
            node.freezer.freeze(node.process.pid)

    def thaw(self, index: int) -> None:
        """SIGCONT to a frozen node. Idempotent."""
        node = self._node(index)
        if node.freezer is not None:
            node.freezer.thaw()
            node.freezer = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- starting -----------------------------------------------------------------------------------

    def _starting(self) -> Steps[None]:
        if self._lock is not None:
            raise EmbeddedServerError(f"the ZooKeeper in {self.directory} is running already")
        command()  # before anything is made
        prepare_directory(self.directory)
        self._lock = yield from lock_directory(self.directory, "ZooKeeper")
        try:
            if not self._nodes:
                self._nodes = self._new_nodes()
            for node in self._nodes:
                self._launch(node)
            yield from self._until_serving(self._nodes)
        except BaseException:
            self._kill_all()
            raise

    def _new_nodes(self) -> list[_Node]:
        ports: set[int] = set()
        while len(ports) < 3 * self._count:
            ports.add(free_port())
        nodes = []
        for number in range(1, self._count + 1):
            directory = self.directory / f"node-{number - 1}"
            (directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
            (directory / "data" / "myid").write_text(f"{number}\n")
            nodes.append(_Node(directory, number, ports.pop(), ports.pop(), ports.pop()))
        return nodes

    def _configuration(self, node: _Node) -> str:
        lines = [
            f"tickTime={self._tick}",
            f"dataDir={node.directory / 'data'}",
            f"clientPort={node.client_port}",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,conf",
            "maxClientCnxns=0",
            "initLimit=10",
            "syncLimit=5",
        ]
        if self._count > 1:
            peers = self._nodes
            lines += [f"server.{peer.number}=127.0.0.1:{peer.peer_port}:{peer.election_port}" for peer in peers]
        return "\n".join(lines) + "\n"

    def _launch(self, node: _Node) -> None:
        assert self._lock is not None
        configuration = node.directory / "zoo.cfg"
        configuration.write_text(self._configuration(node))
        node.log_start = open_log(node.log)
        node.process = spawn(
            [*command(), configuration],
            log=node.log,
            death_signal=signal.SIGKILL,
            environment=clean_environment("ZOO", "JAVA_TOOL", "JDK_JAVA"),
            keep_open=[self._lock],
        )

    def _until_serving(self, nodes: list[_Node]) -> Steps[None]:
        deadline = time.monotonic() + _START_LIMIT
        for node in nodes:
            while not _serves(node.client_port):
                if not node.running or time.monotonic() >= deadline:
                    what = "does not serve clients" if node.running else "did not start"
                    raise EmbeddedServerError(
                        f"ZooKeeper in {node.directory} {what}. Its log, {node.log}, ends:\n"
                        + last_lines(node.log, node.log_start)
                    )
                yield POLL * 5

    # -- stopping -----------------------------------------------------------------------------------

    def _stopping(self) -> Steps[None]:
        for node in self._nodes:
            self.thaw(node.number - 1)
            if node.process is not None:
                node.process.terminate()
        for node in self._nodes:
            if node.process is not None:
                yield from until_exit(node.process, _STOP_LIMIT)
        self._kill_all()

    def _kill_all(self) -> None:
        for index in range(len(self._nodes)):
            self.kill(index)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _node(self, index: int) -> _Node:
        if not self._nodes:
            raise EmbeddedServerError(f"the ZooKeeper in {self.directory} is not started")
        return self._nodes[index]


def _serves(port: int) -> bool:
    """Whether the node says which mode it is in: it does so only as part of a quorum."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
        connection.sendall(b"srvr")
        answer = b""
        while part := connection.recv(4096):
            answer += part
        return b"\nMode: " in answer
    return False
