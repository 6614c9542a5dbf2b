"""Several workers behind one data port: started, watched, started again, ended; and told what changes.

This process takes no requests. It has the electors, so that there is one campaign however many workers there are, and
no request can hold up a renewal. When it dies the kernel kills the workers, and the term lapses: as for one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import fencegate
from fencegate.cli import listening
from fencegate.cli.channel import Channel, Message
from fencegate.cli.data_plane import cannot_listen, url
from fencegate.cli.supervision import (
    FIRST_START,
    HELD_OPEN,
    LEAST_OUTAGE,
    LOOK_PERIOD,
    Outage,
    Restarts,
    Watch,
    not_ready,
)
from fencegate.cli.worker_facts import fact_of
from fencegate.config import Settings
from fencegate.config.values import split_address
from fencegate.embedded.process import afinish, dying_with_us, until_exit
from fencegate.errors import ConfigurationError, FencegateError
from fencegate.observations import Observer, WorkerEnded, WorkerServes
from fencegate.telemetry.senders import SendersOfAll
from fencegate.telemetry.shares import Whole

_log = logging.getLogger("fencegate.serve")

END_LIMIT: Final = 15.0
"""Seconds beyond the grace in which a worker gives its store's marks back and ends; after that it is killed."""
LAST_WORDS: Final = 5.0
"""Seconds between the last word of a worker and its end; after that it is killed."""

# The very code that runs here, whatever else is installed; and no look into the current directory.
_PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); import fencegate; del sys.path[0]; "
    "from fencegate.cli.worker import main; main(int(sys.argv[2]))"
)
_ROOT: Final = str(Path(fencegate.__file__).resolve().parent.parent)


@dataclass(slots=True)
class _Place:
    """One worker's place: the sockets that it accepts from, and whoever has it now."""

    number: int
    sockets: list[socket.socket] = field(default_factory=list)
    restarts: Restarts = field(default_factory=Restarts)
    watch: Watch = field(default_factory=Watch)
    process: subprocess.Popen[bytes] | None = None
    channel: Channel | None = None
    in_flight: int = 0
    abandoned: int = 0
    reason: str = ""
    """Why its process is about to end, where that is known."""


class Workers:
    """A :class:`fencegate.cli.data_plane.DataPlane` of ``settings.workers`` processes.

    ``whole`` and ``senders`` take what the workers report; ``hear`` gets their further facts. :meth:`run` watches
    them, and raises :class:`FencegateError` once none has served for a lease.
    """

    def __init__(
        self,
        settings: Settings,
        store_dsn: str,
        observe: Observer,
        *,
        whole: Whole,
        senders: SendersOfAll,
        hear: Observer,
        grace: float,
    ) -> None:
        self._settings = settings
        self._store_dsn = store_dsn
        self._observe = observe
        self._whole = whole
        self._senders = senders
        self._hear = hear
        self._grace = grace
        self._places = [_Place(number) for number in range(1, settings.workers + 1)]
        self._port: listening.SharedPort | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._all_serve = asyncio.Event()
        self._stopping = asyncio.Event()
        self._clock: Callable[[], float] = time.monotonic

    @property
    def in_flight(self) -> int:
        return sum(place.in_flight for place in self._places)

    def waiting_for(self) -> str:
        return not_ready([place.watch for place in self._places])

    async def start(self) -> str:
        """As :meth:`DataPlane.start`: once every worker takes requests."""
        host, port = split_address(self._settings.listen.data)
        try:
            self._port = listening.SharedPort(host, port)
            for place in self._places:
                place.sockets = self._port.sockets()
        except OSError as error:
            raise cannot_listen("listen.data", self._settings.listen.data, error) from None
        self._keepers = [
            asyncio.create_task(self._keep(place), name=f"worker {place.number}") for place in self._places
        ]
        watching = asyncio.create_task(self._watch(Outage(FIRST_START)))
        serving = asyncio.create_task(self._all_serve.wait())
        try:
            await asyncio.wait([serving, watching, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
            self._raise_what_failed()
            if watching.done():
                watching.result()
        except BaseException:
            await self.stop(0.0)
            raise
        finally:
            serving.cancel()
            watching.cancel()
        return url(host, self._port.port, self._settings.listen.scheme)

    async def run(self) -> None:
        """Watch the workers until cancelled. Raises what no restart can mend."""
        await self._watch(Outage(max(LEAST_OUTAGE, self._settings.election.lease_duration)))

    async def _watch(self, outage: Outage) -> None:
        while True:
            await asyncio.sleep(LOOK_PERIOD)
            self._raise_what_failed()
            if self._stopping.is_set():
                continue
            for place in self._places:
                if place.process is not None and place.watch.looked():
                    place.reason = f"killed: it said nothing for {place.watch.silent * LOOK_PERIOD:g} s"
                    place.process.kill()
            if outage.looked(sum(place.watch.serves for place in self._places)):
                raise FencegateError(f"no worker has taken requests for {outage.limit:g} s")

    def use(self, settings: Settings) -> None:
        self._settings = settings
        for place in self._places:
            if place.channel is not None:  # choked or not: nobody says it again
                place.channel.tell("settings", settings=settings.document())

    def hint(self, role: str) -> None:
        """The leadership of ``role`` has changed: have the workers look for themselves."""
        for place in self._places:
            if place.channel is not None and not place.channel.is_choked:
                place.channel.tell("hint", role=role)

    async def stop(self, time_limit: float) -> int:
        """As :meth:`DataPlane.stop`; returns when every worker has ended."""
        self._stopping.set()
        for place in self._places:
            listening.close_all(place.sockets)
            if place.process is not None:
                place.process.terminate()
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=time_limit + END_LIMIT)
            for place in self._places:
                if place.process is not None:
                    _log.warning("worker %d has not ended in time, and is killed", place.number)
                    place.process.kill()
            if late:
                await asyncio.wait(late, timeout=END_LIMIT)
            for keeper in self._keepers:
                if keeper.done() and not keeper.cancelled():
                    keeper.exception()  # The first was raised by whoever waited; several workers fail alike.
        return sum(place.abandoned for place in self._places)

    def _raise_what_failed(self) -> None:
        for keeper in self._keepers:
            if keeper.done() and not keeper.cancelled() and (error := keeper.exception()) is not None:
                raise error

    # -- one worker after another -------------------------------------------------------------------

    async def _keep(self, place: _Place) -> None:
        """Have a worker in this place until told to stop."""
        assert self._port is not None
        while not self._stopping.is_set():
            began, pid = self._clock(), 0
            place.watch, place.reason, place.in_flight = Watch(), "", 0
            try:
                place.sockets = place.sockets or self._port.sockets()
                pid = await self._one_life(place)
            except OSError as error:
                place.reason = f"it could not be started: {error.strerror or error}"
            if self._stopping.is_set():
                return
            delay = place.restarts.after(self._clock() - began)
            self._observe(WorkerEnded(place.number, pid, place.reason, delay))
            if delay > HELD_OPEN:
                listening.close_all(place.sockets)
                place.sockets = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()

    async def _one_life(self, place: _Place) -> int:
        """From the start of a worker to its end; its process id. Raises ``OSError`` where it cannot be started."""
        ours, process = _spawned(place.sockets)
        place.process = process
        try:
            place.channel = channel = await Channel.over(ours)
            channel.tell(
                "begin",
                number=place.number,
                settings=self._settings.document(),
                store_dsn=self._store_dsn,
                sockets=[each.fileno() for each in place.sockets],
                grace=self._grace,
            )
            async for message in channel.messages():
                self._take(place, process.pid, message)
        finally:
            place.watch.serves = False
            if place.channel is not None:
                await place.channel.close()
                place.channel = None
            await self._bury(place, process)
        return process.pid

    async def _bury(self, place: _Place, process: subprocess.Popen[bytes]) -> None:
        """See the process to its end: it has closed its channel, and nothing else will tell of it."""
        if not await afinish(until_exit(process, LAST_WORDS)):
            process.kill()
            await afinish(until_exit(process, END_LIMIT))
        place.process = None
        self._whole.ended(place.number)
        self._senders.ended(place.number)
        place.reason = place.reason or _end_of(process.returncode)

    def _take(self, place: _Place, pid: int, message: Message) -> None:
        place.watch.heard()
        match message["kind"]:
            case "serves":
                place.watch.serves = True
                self._observe(WorkerServes(place.number, pid))
                if all(each.watch.serves for each in self._places):
                    self._all_serve.set()
            case "report":
                place.in_flight = message["in_flight"]
                self._whole.take(place.number, message["rows"])
                if message["senders"] is not None:
                    self._senders.take(place.number, message["senders"])
                for name, fields in message["facts"]:
                    self._hear(fact_of(name, fields))
            case "stopped":
                place.abandoned += message["abandoned"]
            case "failed":
                place.reason = message["reason"]
            case "faults" if not self._all_serve.is_set():
                raise ConfigurationError(message["faults"])
            case "faults":
                place.reason = "; ".join(message["faults"])


def _spawned(sockets: list[socket.socket]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A worker that has these sockets, and our end of the channel to it. Raises ``OSError``."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-c", _PROGRAM, _ROOT, str(theirs.fileno())]
        handed = [theirs.fileno(), *(each.fileno() for each in sockets)]
        try:
            return ours, subprocess.Popen(
                dying_with_us(command, signal.SIGKILL), stdin=subprocess.DEVNULL, pass_fds=handed
            )
        except OSError:
            ours.close()
            raise


def _end_of(code: int | None) -> str:
    if code is None:
        return "it could not be ended"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"signal {-code}"
    return f"exit code {code}"
