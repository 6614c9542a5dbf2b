"""One running gateway: its parts wired in order, run until a signal, and ended in the reverse order.

It comes up closed. Listeners first, so that health checks and refusals work from the start; the
electors begin only once the store answered, has its tables, and has a row for every role. Until
then ``/ready`` says no and every privileged write is refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

from fencegate import __version__
from fencegate.access.database import Database
from fencegate.cli import connections, elections, parts, schema
from fencegate.cli.data_plane import DataPlane, Here, cannot_listen, url, url_here
from fencegate.cli.loading import admin_tokens, console_token, route_keys
from fencegate.cli.loops import settle_garbage
from fencegate.cli.migrate import databases
from fencegate.cli.service_manager import ServiceManager
from fencegate.cli.supervisor import Workers
from fencegate.config import Settings, differences, faults_of_halves, taken
from fencegate.config.several_stores import by_store
from fencegate.config.values import split_address
from fencegate.console.memory import Memory
from fencegate.console.routes import Console
from fencegate.election.elector import Elector
from fencegate.election.followers import Followers
from fencegate.election.view import ElectionView
from fencegate.errors import ConfigurationError, FencegateError, Unavailable
from fencegate.fence import WritePath
from fencegate.gateway.actions import Action
from fencegate.gateway.admin import AdminParts, AdminServer
from fencegate.gateway.certificates import Certificates
from fencegate.observations import NotEnforcing, Reloaded, ReloadRefused, Started, Stopped, Stopping, ignore
from fencegate.store.postgres import PostgresStore
from fencegate.store.several import RegionStores
from fencegate.telemetry.logs import Logs
from fencegate.telemetry.metrics import Metrics
from fencegate.telemetry.process_metrics import register_process
from fencegate.telemetry.senders import SendersOfAll, StaleSenders
from fencegate.telemetry.shares import Whole

_log = logging.getLogger("fencegate.serve")

RESIGN_LIMIT: Final = 8.0
"""Seconds in which a term is drained, sealed and given back; after that the lease lapses by itself."""
LAST_SPANS: Final = 2.0
"""Seconds at the very end, when the term has been given back, for the spans that are left; not beyond the grace."""
EXPIRY_PERIOD: Final = 60.0
FLUSH_PERIOD: Final = 1.0


class Service:
    """A gateway process. :meth:`run` returns when it has ended in order.

    ``store_dsn`` is the store's address; ``reload`` reads the settings anew; ``grace`` is the seconds that
    requests under way get at the end; ``migrate`` applies missing migrations.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store_dsn: str,
        reload: Callable[[], Settings],
        grace: float = 10.0,
        migrate: bool = False,
    ) -> None:
        self.settings = settings
        self._store_dsn = store_dsn
        self._reload = reload
        self._grace = grace
        self._migrate = migrate
        self._waiting_for = dict.fromkeys(by_store(settings), "the store has not answered yet")
        self._starting: asyncio.Task[Any] | None = None
        self._ending, self._told = asyncio.Event(), False
        self._hung_up = asyncio.Event()
        """Told to reload during the start: it is done once requests are taken."""
        self._reason = ""
        self._failure: BaseException | None = None
        self._certificates: Certificates | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._origins = {settings.region: settings.advertise}
        self._tokens = admin_tokens(settings)
        self._keys = route_keys(settings)
        self._metrics = parts.metrics(settings)
        register_process(self._metrics.registry)
        self._logs = Logs(settings.families)
        self._memory = Memory(settings.roles)
        self._console_token = console_token(settings)
        self.observers = parts.Observers(_listener_failed, [self._metrics, self._logs, self._memory])
        self._exporting = parts.tracing(settings)
        self._leadership_spans = parts.leadership_spans(self._exporting, self.observers)
        self._page: Metrics | Whole = self._metrics
        self._senders: StaleSenders | SendersOfAll
        if settings.workers == 1:
            self._senders = StaleSenders()
            self.observers.add(self._senders)
        else:
            self._senders = SendersOfAll()
            self._page = Whole(self._metrics)
            self.observers.add(self._page)

    # -- from start to end ------------------------------------------------------------------------

    async def run(self, ready: Callable[[str, str], None]) -> None:
        """Run until told to end. ``ready`` is called with both addresses once they listen.

        Raises :class:`FencegateError` where the start cannot work, and what made a part fail for good.
        """
        self._starting = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._told_to_end, number)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hung_up.set)
        try:
            await self._run(ready)
        except asyncio.CancelledError:
            if not self._ending.is_set():
                raise  # whoever did that waits for it

    async def _run(self, ready: Callable[[str, str], None]) -> None:
        parts.log_as(self.settings, self.observers)
        # Of one process one listener tells of its certificates; with workers the data listener is in theirs.
        told = self.observers if self.settings.workers > 1 else ignore
        self._certificates = parts.certificates(self.settings, told, operators=True)
        async with AsyncExitStack() as stack:
            observe = connections.on_this_loop(self.observers)
            places = connections.stores(self.settings, self._store_dsn, observe)
            home = connections.home(self.settings, places)
            elected_in = connections.election(self.settings, home)
            tables = {name: databases(self.settings, [place], elected_in) for name, place in places.items()}
            await schema.first_look(tables.values(), apply=self._migrate)
            addresses = parts.addresses(self.settings, places)
            stores = await RegionStores.open(addresses, gateway=self.settings.node, observe=self.observers)
            stack.push_async_callback(stores.close)
            source = elections.source(self.settings, home, observe)
            stack.push_async_callback(source.close)
            electors: dict[str, Elector] = {}
            for name, part in by_store(self.settings).items():
                electors |= parts.electors(part, source, stores.by_name[name], self.observers)
            timings = self.settings.election.timings
            believed = elections.believed(self.settings, source, self.observers)
            view = ElectionView(
                self.settings.roles, believed, timings, self.observers, electors=electors, origins=self._origins
            )
            stores.validate(self.settings.validated, view.still_leads)
            stack.push_async_callback(self._cancel_tasks)
            self._background(view.run(), "the view of the election")
            actions = parts.actions(self.settings, source, electors, stores.of, self.observers, RESIGN_LIMIT)

            async def act(name: str, role: str, asked: Mapping[str, object]) -> tuple[int, Mapping[str, Any]]:
                acted = await admin.act(name, role, asked)
                return acted.status, acted.document

            console = Console(
                lambda: admin.document(),
                self._memory,
                may_act=lambda token: admin.may_act(token),
                act=act,
                here=lambda: url_here(self.settings.listen.admin, admin.port, self.settings.listen.scheme),
                peers=self.settings.console.peers,
                peer_token=self._console_token,
            )
            plane = self._data_plane(stores.write_path, view)
            parts_of_admin = self._admin_parts(stores, view, actions, plane)
            admin = AdminServer(
                replace(parts_of_admin, pages=console.pages, forms=console.forms),
                ssl_context=self._certificates.context if self._certificates is not None else None,
            )
            listening = await self._listen(stack, plane, admin)
            stack.push_async_callback(console.close)
            if self._certificates is not None:
                self._background(self._certificates.follow(admin.use_tls), "the certificates of the admin listener")
            self._starting = None
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reloaded, plane, admin)
            settle_garbage()
            ready(*listening)
            manager = ServiceManager.of_this_process()
            manager.ready(f"requests at {listening[0]}, operators at {listening[1]}")
            self._background(manager.say_alive(), "the sign of life")
            self.observers(Started(__version__, self.settings.node, self.settings.region, *listening))
            self._warn()
            if self._hung_up.is_set():
                asyncio.get_running_loop().call_soon(self._reloaded, plane, admin)
            for name, part in by_store(self.settings).items():
                followers = parts.followers(part, believed, stores.by_name[name], self.observers)
                led = [electors[role] for role in part.roles if role in electors]
                begin = self._begin(name, part, tables[name], stores, led, followers)
                self._background(begin, f"the start {name}".strip())
            if isinstance(plane, Workers):
                self._background(plane.run(), "the supervision of the workers")
            self._background(self._every(FLUSH_PERIOD, self._flush_logs), "the log")
            self._background(self._every(EXPIRY_PERIOD, lambda: self._expire_keys(stores)), "the expiry of keys")
            await self._ending.wait()
            manager.stopping(self._reason)
            await self._end(plane, electors)
        self._logs.flush()
        if isinstance(self._failure, ConfigurationError):
            raise self._failure
        if self._failure is not None:
            raise FencegateError(f"{self._reason}: {self._failure}") from self._failure

    def _data_plane(self, store: WritePath, view: ElectionView) -> DataPlane:
        settings = self.settings
        if not (isinstance(self._page, Whole) and isinstance(self._senders, SendersOfAll)):
            spans, dsn = self._exporting, self._store_dsn
            return Here(settings, store, view, self.observers, self._origins, exporting=spans, store_dsn=dsn)
        connections.upstream_tls(settings)  # files that cannot be used are a fault here, not in each worker
        workers = Workers(
            settings,
            self._store_dsn,
            self.observers,
            whole=self._page,
            senders=self._senders,
            hear=self._memory,
            grace=self._grace,
        )
        view.listen(workers.hint)
        return workers

    async def _listen(self, stack: AsyncExitStack, plane: DataPlane, admin: AdminServer) -> tuple[str, str]:
        host, port = split_address(self.settings.listen.admin)
        try:
            await admin.start(host, port)
        except OSError as error:
            raise cannot_listen("listen.admin", self.settings.listen.admin, error) from None
        stack.push_async_callback(admin.stop)
        return await plane.start(), url(host, admin.port, self.settings.listen.scheme)

    def _admin_parts(
        self, stores: RegionStores, view: ElectionView, actions: dict[str, Action], plane: DataPlane
    ) -> AdminParts:
        act_token, read_token = self._tokens
        return AdminParts(
            node=self.settings.node,
            region=self.settings.region,
            roles=self.settings.roles,
            stores=stores.by_name,
            store_of=stores.name_of,
            view=view,
            metrics=self._page.render,
            actions=actions,
            rejections=self._page.rejections,
            stale_senders=self._senders.document,
            timings=self.settings.election.timings,
            observed=self.settings.observed_roles,
            rehearsal=self.settings.rehearsals,
            advertise=self.settings.advertise,
            stopping=self._ending.is_set,
            waiting_for=plane.waiting_for,
            store_waits_for=lambda name: self._waiting_for[name],
            act_token=act_token,
            read_token=read_token,
        )

    async def _begin(
        self,
        name: str,
        part: Settings,
        tables: Sequence[Database],
        stores: RegionStores,
        electors: list[Elector],
        followers: Followers | None,
    ) -> None:
        """Of the store of that name, which waits for no other; ``part``: the settings for its roles."""

        def waits(reason: str) -> None:
            if reason and reason != self._waiting_for[name]:
                _log.warning("not ready: %s", f"store {name}: {reason}" if name else reason)
            self._waiting_for[name] = reason

        await schema.prepared(part, tables, name, stores, apply=self._migrate, waiting=waits)
        waits("")
        for elector in electors:
            self._background(elector.run(), f"the elector of {elector.role}")
        if followers is not None:
            self._background(followers.run(), "the followers")

    async def _end(self, plane: DataPlane, electors: dict[str, Elector]) -> None:
        self.observers(Stopping(self._reason, plane.in_flight))
        until = time.monotonic() + self._grace
        abandoned = await plane.stop(self._grace)
        await asyncio.gather(*(elector.stop(RESIGN_LIMIT) for elector in electors.values()))
        self.observers(Stopped(abandoned))
        if self._exporting is not None and self._leadership_spans is not None:
            self._leadership_spans.close()
            await self._exporting.close(min(LAST_SPANS, max(0.5, until - time.monotonic())))

    # -- background -------------------------------------------------------------------------------

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work``; if it fails, the process ends in order and says so."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if error is not None and self._failure is None:
                self._failure = error
                if not isinstance(error, FencegateError):
                    _log.error("%s failed", name, exc_info=error)
                self.end(f"{name} failed")

        task.add_done_callback(done)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=RESIGN_LIMIT)

    @staticmethod
    async def _every(period: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(period)
            await work()

    async def _flush_logs(self) -> None:
        self._logs.flush()

    async def _expire_keys(self, stores: RegionStores) -> None:
        async def expire(store: PostgresStore) -> None:
            try:
                await store.expire_keys(self.settings.idempotency.keep)
            except Unavailable as error:
                _log.info("idempotency keys were not expired: %s", error)

        await asyncio.gather(*map(expire, stores.by_name.values()))

    # -- signals ----------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """End in order; only the first reason counts."""
        self._reason = self._reason or reason
        self._ending.set()

    def _told_to_end(self, number: signal.Signals) -> None:
        if self._told:
            # Told twice: whoever asks does not want to wait. The leases lapse by themselves.
            leave_at_once()
        self._told = True
        self.end(number.name)
        if self._starting is not None:
            self._starting.cancel()  # nothing is led yet, and what was begun is ended on the way out

    def _reloaded(self, plane: DataPlane, admin: AdminServer) -> None:
        """SIGHUP: take what can be taken from the new settings; with a fault in them, nothing."""
        old = self.settings
        try:
            new = self._reload()
            if faults := faults_of_halves(old, new):
                raise ConfigurationError(faults)
            now = taken(old, new)
            tokens, keys = admin_tokens(now), route_keys(now)
            parts.check_routes(new)
        except ConfigurationError as error:
            self.observers(ReloadRefused(tuple(error.faults)))
            return
        changed, needs_restart = differences(old, new)
        if tokens != self._tokens and not any(key.startswith("admin.") for key in changed):
            changed = (*changed, "admin tokens")
        changed = (*changed, *keys.changed_from(self._keys, changed))
        self.settings, self._tokens, self._keys = now, tokens, keys
        self._metrics.only_observe(now.observed)
        admin.use_observed(now.observed_roles)
        admin.use_tokens(*tokens)
        plane.use(self.settings)
        if self._certificates is not None:
            self._certificates.look_now()
        parts.log_as(new, self.observers)
        self.observers(Reloaded(changed, needs_restart))
        self._warn()

    def _warn(self) -> None:
        """Say what these settings leave open."""
        for role in sorted(self.settings.observed):
            self.observers(NotEnforcing(role))
        for sentence in (*parts.exposures(self.settings), *parts.weaker(self.settings)):
            _log.warning("%s", sentence)


def leave_at_once() -> None:
    """End the process without any more ado."""
    os._exit(1)


def _listener_failed(error: Exception) -> None:
    _log.error("a listener to observations failed", exc_info=error)
