"""A small server of Kafka's documented DescribeQuorum, with a KRaft quorum of controllers behind it.

For tests where no Kafka can be had. What it keeps: one epoch per election, which only grows; a broker that passes the
question on to the controller it knows; a controller that does not lead and says so; one that was cut off from the
others and goes on believing that it leads, nobody fetching from it any more; voters that fetch again and again. It is
no cluster: one process, all in memory, and it knows no other request.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from functools import partial

from fencegate.election.kafka_wire import API_KEY, API_VERSION, TOPIC, varint
from fencegate.testing.tcp_server import TcpServer

_NOT_CONTROLLER = 41


@dataclass(slots=True)
class _Reign:
    """What a controller believes of the term that it leads. ``fetched``: ms by voter."""

    leader: int
    epoch: int
    fetched: dict[int, int] = field(default_factory=dict)


class KafkaQuorum:
    """Controllers 1, 2 and 3; :attr:`brokers` each know one of them. ``fetch_period`` is in seconds."""

    def __init__(self, *, fetch_period: float = 0.05) -> None:
        self.epoch = 0
        self.error = 0
        """An error code that every question is answered with."""
        self.silent = False
        """Take questions, answer none."""
        self._period = fetch_period
        self._voters = (1, 2, 3)
        self._reigns: dict[int, _Reign] = {}
        self._cut_off: set[int] = set()
        self._clock = 1_700_000_000_000
        self._servers: list[TcpServer] = []
        self._knows: list[int] = []
        self._fetching: asyncio.Task[None] | None = None

    async def start(self, brokers: int = 3) -> None:
        self.elect(1)
        for number in range(brokers):
            self._knows.append(1)
            server = TcpServer(partial(self._serve, number))
            await server.start()
            self._servers.append(server)
        self._fetching = asyncio.create_task(self._fetch())

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        for server in self._servers:
            await server.close()

    @property
    def brokers(self) -> list[str]:
        """Each ``host:port``."""
        return [server.address for server in self._servers]

    # -- what a test does to it ---------------------------------------------------------------------

    def elect(self, leader: int, *, epoch: int | None = None) -> None:
        """A majority elects ``leader``; whoever is not cut off knows. ``epoch``: a log that was made anew."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        for controller in [each for each in self._reigns if each not in self._cut_off]:
            del self._reigns[controller]
        self._reigns[leader] = _Reign(leader, self.epoch, dict.fromkeys(self._voters, 0))
        self._knows = [leader if known not in self._cut_off else known for known in self._knows]

    def depose(self) -> None:
        """The quorum has no leader; the one there was says that it leads no more."""
        self._reigns = {each: reign for each, reign in self._reigns.items() if each in self._cut_off}

    def cut_off(self, controller: int) -> None:
        """Nobody hears it or fetches from it; brokers that know it still reach it."""
        self._cut_off.add(controller)

    def rejoin(self, controller: int) -> None:
        self._cut_off.discard(controller)
        reign = self._reigns.get(controller)
        if reign is not None and reign.epoch < self.epoch:
            del self._reigns[controller]
        newest = max(self._reigns.values(), key=lambda each: each.epoch, default=None)
        self._knows = [newest.leader if newest else known for known in self._knows]

    def send_broker(self, number: int, controller: int) -> None:
        """The broker takes that controller for the active one."""
        self._knows[number] = controller

    # -- how ----------------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            self._clock += 250
            for controller, reign in self._reigns.items():
                for voter in self._voters:
                    if voter != controller and not {voter, controller} & self._cut_off:
                        reign.fetched[voter] = self._clock

    async def _serve(self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            if self.silent:
                await asyncio.Event().wait()
            key, version, correlation = struct.unpack_from(">hhi", request)
            if (key, version) != (API_KEY, API_VERSION):
                return  # as a broker does with what it does not know
            answer = self._answer(self._knows[broker])
            response = struct.pack(">i", correlation) + b"\0" + answer
            writer.write(struct.pack(">i", len(response)) + response)
            await writer.drain()

    def _answer(self, controller: int) -> bytes:
        reign = self._reigns.get(controller)
        if self.error or reign is None:
            return struct.pack(">h", self.error or _NOT_CONTROLLER) + varint(1) + b"\0"
        voters = b"".join(
            struct.pack(">iqqq", voter, 100, -1 if voter == controller else reign.fetched[voter], -1) + b"\0"
            for voter in self._voters
        )
        partition = struct.pack(">ihiiq", 0, 0, reign.leader, reign.epoch, 100)
        partition += varint(len(self._voters) + 1) + voters + varint(1) + b"\0"
        topic = varint(len(TOPIC) + 1) + TOPIC.encode() + varint(2) + partition + b"\0"
        return struct.pack(">h", 0) + varint(2) + topic + b"\0"
