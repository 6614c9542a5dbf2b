"""A real etcd cluster on loopback, every node a direct child: for the demo, the game day and the tests.

The nodes die with us (SIGKILL, which reaches a frozen one too; etcd is made to survive that). The directory holds
``node-0`` … (data and ``etcd.log`` each), ``cluster.json`` (the ports, which the members remember) and ``lock``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from fencegate.embedded.binaries import describe_etcd as describe
from fencegate.embedded.binaries import etcd_binary as binary
from fencegate.embedded.health import Health
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

__all__ = ["EmbeddedEtcd", "EmbeddedServerError", "Place", "binary", "describe"]

_START_LIMIT: Final = 60.0
_STOP_LIMIT: Final = 1.0  # a cluster that stops whole has nobody left to hand the leadership to
_ATTEMPTS: Final = 5


class _PortTaken(Exception):
    """Somebody else took a port between our choosing it and etcd's binding it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node runs: the address that it listens at, and the command that leads there, put before its own."""

    host: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


@dataclass(slots=True)
class _Node:
    directory: Path
    client_port: int
    peer_port: int
    place: Place = Place()
    process: subprocess.Popen[bytes] | None = None
    freezer: Freezer | None = None
    log_start: int = 0

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def log(self) -> Path:
        return self.directory / "etcd.log"

    @property
    def client_url(self) -> str:
        return f"http://{self.place.host}:{self.client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.place.host}:{self.peer_port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class EmbeddedEtcd:
    """A cluster of ``nodes`` members in ``directory``, made there at the first start; the data stays when it stops.

    ``places`` are those of nodes that are not to run as we do, on loopback. ``unsafe_no_fsync`` is for speed where
    losing the data at a power cut does not matter. Nodes are named by their index. Every waiting operation exists
    twice: ``await start()`` and ``start_sync()``; starting must happen in the main thread, whose end stops the nodes.
    """

    def __init__(
        self,
        directory: Path | str,
        nodes: int = 3,
        *,
        unsafe_no_fsync: bool = False,
        places: Mapping[int, Place] = MappingProxyType({}),
    ) -> None:
        if nodes < 1:
            raise ValueError(f"a cluster has at least one node, not {nodes}")
        self.directory = Path(directory).absolute()
        self._count = nodes
        self._unsafe_no_fsync = unsafe_no_fsync
        self._places = places
        self._nodes: list[_Node] = []
        self._lock: int | None = None

    @property
    def endpoints(self) -> list[str]:
        """The client URLs, one per node by index; known once started, and the same over restarts."""
        if not self._nodes:
            raise EmbeddedServerError(f"the etcd in {self.directory} has no address yet: start it first")
        return [node.client_url for node in self._nodes]

    def pid(self, index: int) -> int:
        """The process id of a node. Raises :class:`EmbeddedServerError` when it is not running."""
        process = self._node(index).process
        if process is None or process.poll() is not None:
            raise EmbeddedServerError(f"etcd {self._node(index).name} in {self.directory} is not running")
        return process.pid

    def peer_port(self, index: int) -> int:
        """The port at which the other nodes speak to a node."""
        return self._node(index).peer_port

    def running(self, index: int) -> bool:
        return self._node(index).running

    # -- the cluster ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts every node and returns when each answers a linearizable read.

        Raises :class:`EmbeddedServerError`, quoting a log, when that does not happen in 30 seconds, when another
        cluster uses the directory, or when there is no etcd.
        """
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

    # -- one node -------------------------------------------------------------------------------

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
        if node.freezer is None:
            pid = self.pid(index)
            node.freezer = Freezer()
            node.freezer.freeze(pid)

    def thaw(self, index: int) -> None:
        """SIGCONT to a frozen node. Idempotent."""
        node = self._node(index)
        if node.freezer is not None:
            node.freezer.thaw()
            node.freezer = None

    async def restart(self, index: int, *, wait: bool = True) -> None:
        """Starts a killed or stopped node again, or stops and starts a running one, at the same address.

        ``wait`` returns only when it is healthy, which needs a majority: without one, start all but the last with
        ``wait=False``. Raises :class:`EmbeddedServerError` as :meth:`start` does.
        """
        await afinish(self._restarting(index, wait))

    def restart_sync(self, index: int, *, wait: bool = True) -> None:
        """:meth:`restart` where no event loop runs."""
        finish(self._restarting(index, wait))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- starting -------------------------------------------------------------------------------

    def _starting(self) -> Steps[None]:
        if self._lock is not None:
            raise EmbeddedServerError(f"the etcd in {self.directory} is running already")
        program = binary()
        prepare_directory(self.directory)
        self._lock = yield from lock_directory(self.directory, "etcd")
        try:
            yield from self._start_all(program)
        except BaseException:
            self._kill_all()
            raise

    def _start_all(self, program: Path) -> Steps[None]:
        record = self.directory / "cluster.json"
        for attempt in range(1, _ATTEMPTS + 1):
            fresh = not record.exists()
            self._nodes = self._new_nodes() if fresh else self._recorded_nodes(record)
            for node in self._nodes:
                self._launch(program, node)
            try:
                yield from self._until_healthy(self._nodes)
            except _PortTaken as problem:
                for index in range(len(self._nodes)):
                    self.kill(index)
                if not fresh or attempt == _ATTEMPTS:
                    raise EmbeddedServerError(self._port_problem(problem)) from None
            else:
                break
        # Only now: a start that was cut off before leaves nothing that the next one would have to live with.
        ports = [[node.client_port, node.peer_port] for node in self._nodes]
        record.write_text(json.dumps({"ports": ports}), "utf-8")

    def _new_nodes(self) -> list[_Node]:
        for leftover in self.directory.glob("node-*"):
            shutil.rmtree(leftover)
        ports: set[int] = set()
        while len(ports) < 2 * self._count:
            ports.add(free_port())
        return [self._node_of(index, ports.pop(), ports.pop()) for index in range(self._count)]

    def _recorded_nodes(self, record: Path) -> list[_Node]:
        ports = json.loads(record.read_text("utf-8"))["ports"]
        if len(ports) != self._count:
            raise EmbeddedServerError(
                f"the etcd in {self.directory} was made with {len(ports)} nodes, not {self._count}: ask for that many,"
                " or use another directory."
            )
        return [self._node_of(index, client, peer) for index, (client, peer) in enumerate(ports)]

    def _node_of(self, index: int, client_port: int, peer_port: int) -> _Node:
        directory = self.directory / f"node-{index}"
        directory.mkdir(mode=0o700, exist_ok=True)
        return _Node(directory, client_port, peer_port, self._places.get(index, Place()))

    def _launch(self, program: Path, node: _Node) -> None:
        assert self._lock is not None
        node.log_start = open_log(node.log)
        node.process = spawn(
            [*node.place.enter, program, *self._options(node)],
            log=node.log,
            death_signal=signal.SIGKILL,
            environment=clean_environment("ETCD"),
            keep_open=[self._lock],
        )

    def _options(self, node: _Node) -> list[str]:
        options = {
            "name": node.name,
            "data-dir": str(node.directory / "data"),
            "listen-client-urls": node.client_url,
            "advertise-client-urls": node.client_url,
            "listen-peer-urls": node.peer_url,
            "initial-advertise-peer-urls": node.peer_url,
            "initial-cluster": ",".join(f"{each.name}={each.peer_url}" for each in self._nodes),
            "initial-cluster-token": f"fencegate-{self._nodes[0].peer_port}",
            "initial-cluster-state": "new",
            "logger": "zap",
            "log-outputs": "stderr",
            "log-level": "warn",
        }
        unsafe = ["--unsafe-no-fsync"] if self._unsafe_no_fsync else []
        return [f"--{key}={value}" for key, value in options.items()] + unsafe

    def _until_healthy(self, nodes: list[_Node]) -> Steps[None]:
        deadline = time.monotonic() + _START_LIMIT
        for node in nodes:
            with Health(node.client_port, node.place.host) as health:
                while not health.look():
                    for each in nodes:
                        self._still_runs(each)
                    if time.monotonic() >= deadline:
                        raise EmbeddedServerError(
                            self._log_problem(node, f"was not healthy after {_START_LIMIT:.0f} s")
                        )
                    yield POLL

    def _still_runs(self, node: _Node) -> None:
        if node.running:
            return
        if "address already in use" in last_lines(node.log, node.log_start):
            raise _PortTaken(node.name)
        raise EmbeddedServerError(self._log_problem(node, "did not start"))

    def _log_problem(self, node: _Node, what: str) -> str:
        return f"etcd {node.name} in {self.directory} {what}. Its log, {node.log}, ends:\n" + last_lines(
            node.log, node.log_start
        )

    def _port_problem(self, problem: _PortTaken) -> str:
        return (
            f"a port that etcd {problem} in {self.directory} needs is taken by another program, and the members"
            f" remember their ports: stop that program, or use another directory."
        )

    def _restarting(self, index: int, wait: bool) -> Steps[None]:
        node = self._node(index)
        if self._lock is None:
            raise EmbeddedServerError(f"the etcd in {self.directory} is not started: start() starts all of its nodes")
        yield from self._stop_nodes([index])
        self._launch(binary(), node)
        try:
            if wait:
                yield from self._until_healthy([node])
        except _PortTaken as problem:
            raise EmbeddedServerError(self._port_problem(problem)) from None

    # -- stopping -------------------------------------------------------------------------------

    def _stopping(self) -> Steps[None]:
        yield from self._stop_nodes(range(len(self._nodes)))
        self._kill_all()

    def _stop_nodes(self, indexes: range | list[int]) -> Steps[None]:
        for index in indexes:
            self.thaw(index)
            process = self._nodes[index].process
            if process is not None:
                process.terminate()
        for index in indexes:
            process = self._nodes[index].process
            if process is not None:
                yield from until_exit(process, _STOP_LIMIT)
            self.kill(index)

    def _kill_all(self) -> None:
        for index in range(len(self._nodes)):
            self.kill(index)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _node(self, index: int) -> _Node:
        if not self._nodes:
            raise EmbeddedServerError(f"the etcd in {self.directory} is not started")
        return self._nodes[index]
