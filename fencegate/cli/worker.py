"""One worker: the gateway, its own links to the store and to the election, and no elector. Started by a supervisor.

A program of its own and no fork: nothing of the supervisor's is shared but the listening sockets. What tells this
process from every other (the marks that it leaves in the store, the owners of keys, the instances of refusals) is
made here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

from fencegate.cli import connections, elections, parts
from fencegate.cli.channel import Channel, Message
from fencegate.cli.data_plane import Here
from fencegate.cli.loops import run, settle_garbage
from fencegate.cli.supervision import share
from fencegate.cli.worker_facts import Facts
from fencegate.config import Settings
from fencegate.election.view import ElectionView
from fencegate.errors import ConfigurationError
from fencegate.observations import LeaderObserved, Observation
from fencegate.store.several import RegionStores
from fencegate.telemetry.logs import Logs
from fencegate.telemetry.process_metrics import register_process
from fencegate.telemetry.senders import StaleSenders
from fencegate.telemetry.shares import Changes

_log = logging.getLogger("fencegate.serve")

REPORT_PERIOD: Final = 0.5
LAST_SPANS: Final = 0.5
"""Seconds for the spans that are left. The term is given back after the workers' end: it must not wait."""
_TASKS_LIMIT: Final = 5.0


class OwnLines(Logs):
    """The lines of one worker: who leads is said once, by the supervisor."""

    def hearer(self, kind: type[Observation]) -> Callable[[Observation], None] | None:
        return None if kind is LeaderObserved else super().hearer(kind)


class Worker:
    """:meth:`run` returns the exit code when the process has ended in order."""

    def __init__(self, channel: Channel, begin: Message) -> None:
        self._channel = channel
        self._number: int = begin["number"]
        self._settings = share(Settings.model_validate(begin["settings"]))
        self._store_dsn: str = begin["store_dsn"]
        self._sockets = [socket.socket(fileno=number) for number in begin["sockets"]]
        self._grace: float = begin["grace"]
        self._ending = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        settings = self._settings
        self._metrics = parts.metrics(settings)
        register_process(self._metrics.registry)
        self._changes = Changes(self._metrics)
        self._senders = StaleSenders()
        self._senders_told = 0
        self._exporting = parts.tracing(settings, worker=self._number)
        self._facts = Facts()
        self._logs = OwnLines(settings.families)
        self._observe = parts.Observers(_listener_failed, [self._metrics, self._logs, self._senders, self._facts])

    async def run(self) -> int:
        settings = self._settings
        self._configure_log()
        async with AsyncExitStack() as stack:
            # The number, so that a look into the store tells whose mark it is; the store makes the name unique.
            name = f"{settings.node}/{self._number}"
            observe = connections.on_this_loop(self._observe)
            places = connections.stores(settings, self._store_dsn, observe)
            addresses = parts.addresses(settings, places)
            stores = await RegionStores.open(addresses, gateway=name, observe=self._observe)
            stack.push_async_callback(stores.close)
            source = elections.source(settings, connections.home(settings, places), observe)
            stack.push_async_callback(source.close)
            origins = {settings.region: settings.advertise}
            believed = elections.believed(settings, source, self._observe)
            view = ElectionView(settings.roles, believed, settings.election.timings, self._observe, origins=origins)
            stores.validate(settings.validated, view.still_leads)
            stack.push_async_callback(self._cancel_tasks)
            self._background(view.run(), "the view of the election")
            plane = Here(
                settings,
                stores.write_path,
                view,
                self._observe,
                origins,
                exporting=self._exporting,
                store_dsn=self._store_dsn,
            )
            self._background(self._listen(view, plane), "the supervisor's word")
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._ending.set)
            await plane.start_on(self._sockets)
            settle_garbage()
            self._channel.tell("serves")
            reports = asyncio.create_task(self._report_now_and_then(plane))
            await self._ending.wait()
            abandoned = await plane.stop(self._grace)
            if self._exporting is not None:
                await self._exporting.close(LAST_SPANS)
            reports.cancel()
            self._channel.tell("stopped", abandoned=abandoned)
        self._logs.flush()
        self._report(plane)
        if self._failure is not None:
            self._channel.tell("failed", reason=str(self._failure) or type(self._failure).__name__)
            return 1
        return 0

    def _configure_log(self) -> None:
        parts.log_as(self._settings, self._observe, also={"worker": self._number})

    async def _listen(self, view: ElectionView, plane: Here) -> None:
        async for message in self._channel.messages():
            match message["kind"]:
                case "settings":
                    self._settings = share(Settings.model_validate(message["settings"]))
                    self._configure_log()
                    self._metrics.only_observe(self._settings.observed)
                    plane.use(self._settings)
                case "hint":
                    view.hint(message["role"])
        # Nobody supervises any more; where the kernel does not see to it, we do.
        os._exit(1)

    async def _report_now_and_then(self, plane: Here) -> None:
        while True:
            await asyncio.sleep(REPORT_PERIOD)
            self._logs.flush()
            if not self._channel.is_choked:
                self._report(plane)

    def _report(self, plane: Here) -> None:
        senders = self._senders.document() if self._senders.counted != self._senders_told else None
        self._senders_told = self._senders.counted
        self._channel.tell(
            "report",
            in_flight=plane.in_flight,
            rows=self._changes.rows(),
            senders=senders,
            facts=self._facts.taken(),
        )

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work``; if it fails, this worker ends in order and says so."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("%s failed", name, exc_info=error)
                self._failure = self._failure or error
                self._ending.set()

        task.add_done_callback(done)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_TASKS_LIMIT)


def _listener_failed(error: Exception) -> None:
    _log.error("a listener to observations failed", exc_info=error)


async def _work(descriptor: int) -> int:
    channel = await Channel.over(socket.socket(fileno=descriptor))
    begin = await anext(channel.messages(), None)
    if begin is None:
        return 1
    try:
        return await Worker(channel, begin).run()
    except ConfigurationError as error:
        channel.tell("faults", faults=error.faults)
        return 78
    finally:
        await channel.close()


def main(descriptor: int) -> None:
    """The worker whose supervisor is at the other end of the socket ``descriptor``."""
    # A Ctrl-C reaches every process of the terminal; the order in which they end is the supervisor's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(run(_work(descriptor)))
