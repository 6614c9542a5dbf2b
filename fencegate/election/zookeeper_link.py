"""A ZooKeeper session for asyncio: kazoo in threads of its own, and a limit on everything that waits for it.

* Nothing is started while the link is down (SUSPENDED): a call waits for the link, or for its limit.
* A member that takes connections and answers nothing is left: after an attempt's limit its socket is shut down,
  upon which kazoo goes to the next member with the same session. It is not asked again for a while: kazoo draws
  its members by lot, and a frozen one drawn twice would cost what the others need to elect a new leader. An attempt
  that had hardly any time proves nothing of the sort: everybody shares the link.
* What a session has seen is forgotten when it has been cut off for so long that it must be over: members of a
  restored ensemble, which hold less, would refuse it for ever.
* kazoo blocks in its own threads only. Stopping it may take long, and happens in a thread too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fencegate.access.refusals import advice
from fencegate.lease import ElectionUnavailable

try:
    from kazoo import exceptions as exceptions
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    from kazoo.protocol.states import KazooState, KeeperState
    from kazoo.security import CREATOR_ALL_ACL
except ImportError as error:
    raise ImportError("the ZooKeeper election needs kazoo: pip install 'fencegate[zookeeper]'") from error

_CONNECT_LIMIT: Final = 2.0
_STOP_LIMIT: Final = 2.0
_PATIENCE: Final = 0.25
"""Seconds in which a member that is well has answered; less under short sessions: a thirtieth."""
_FORGOTTEN_AFTER: Final = 2.0
"""Sessions without a link. Longer than any call lasts: none reads what is older than what it proved before the cut."""
_LOST: Final = (exceptions.ConnectionLoss, exceptions.ConnectionClosedError, exceptions.SessionExpiredError)


_LONGEST_FRAME: Final = 4 * 1024 * 1024
"""Bytes. A server's own limit (``jute.maxbuffer``) is 1 MB by default."""


class LinkLost(Exception):
    """The answer to a call is not known: the link broke, or the attempt's time was up."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Opens kazoo's sockets: never for long, with our TLS, and so that we can shut one down.

    A member that we hung up on is not asked again for ``leave_for`` seconds, while one of the ``members`` is left.
    """

    def __init__(self, tls: ssl.SSLContext | None, members: int, leave_for: float) -> None:
        super().__init__()
        self._tls = tls
        self._members = members
        self._leave_for = leave_for
        self._socket: socket.socket | None = None
        self._address: tuple[str, int] = ("", 0)
        self._opened = 0.0
        self._left: dict[tuple[str, int], float] = {}
        self.failure = ""
        """Why the latest try to connect failed; empty after one that succeeded."""

    def create_connection(self, address: tuple[str, int], hostname: str = "", **options: Any) -> socket.socket:
        now = time.monotonic()
        self._left = {member: until for member, until in self._left.items() if now < until}
        if address in self._left and len(self._left) < self._members:
            raise KazooTimeoutError("it did not answer a moment ago")
        limit = min(float(options.get("timeout") or _CONNECT_LIMIT), _CONNECT_LIMIT)
        try:
            connection = socket.create_connection(address, timeout=limit)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = _secured(connection, self._tls, hostname)
        except TimeoutError as error:
            self.failure = f"{hostname}:{address[1]}: no connection within {limit:g} s"
            raise KazooTimeoutError(self.failure) from error
        except OSError as error:
            self.failure = f"{hostname}:{address[1]}: {advice(error)}"
            raise
        self._socket, self._address, self._opened, self.failure = connection, address, time.monotonic(), ""
        return connection

    def waited(self, since: float) -> float:
        """Seconds for which the present connection left unanswered what was asked at ``since``, a monotonic time."""
        return time.monotonic() - max(since, self._opened)

    def hang_up(self) -> None:
        if self._socket is not None and self._socket.fileno() >= 0:
            self._left[self._address] = time.monotonic() + self._leave_for
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _secured(connection: socket.socket, tls: ssl.SSLContext, hostname: str) -> ssl.SSLSocket:
    try:
        return tls.wrap_socket(connection, server_hostname=hostname)
    except BaseException:
        connection.close()
        raise


@dataclass(slots=True, eq=False)
class _Hint:
    """Somebody who waits for changes around a node."""

    node: str
    event: asyncio.Event = field(default_factory=asyncio.Event)
    down: bool = False


class ZookeeperLink:
    """One session, begun by the first call and begun anew after it has ended.

    ``hosts`` are ``host:port``; ``session`` is the session timeout asked for, in seconds: the server decides.
    """

    def __init__(
        self,
        hosts: list[str],
        session: float,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.hosts = hosts
        self.tls = tls
        self._session = session
        self._patience = min(_PATIENCE, session / 30)
        self._credentials = f"{username}:{password or ''}" if username is not None else None
        self._tls = tls
        self._client: KazooClient | None = None
        self._handler: _Handler | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved = asyncio.Event()
        self._closed = False
        self._down_since: float | None = None
        """When the link went down, on the loop's clock."""
        self._under_way = False
        """Whether the client has done anything: until its thread runs, kazoo calls a new one CLOSED."""
        self._hints: set[_Hint] = set()
        self._watchers: dict[str, Callable[[Any], None]] = {}

    @property
    def session_id(self) -> int:
        """The session's number; 0 while the link is down."""
        identity = self._client.client_id if self._client is not None else None
        return int(identity[0] or 0) if identity else 0

    @property
    def last_zxid(self) -> int:
        """The latest transaction that this session has seen; 0 without one."""
        return int(self._client.last_zxid or 0) if self._client is not None else 0

    async def call(self, request: Callable[[KazooClient], Any], limit: float) -> Any:
        """The answer to one of kazoo's ``…_async`` calls.

        Raises :class:`LinkLost`, or what kazoo raises for an answer that is no success.
        """
        self._allow_for_a_restore()
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, limit)):
                client = await self._connected()
                return await self._answer(request(client))
        except TimeoutError:
            self._under_way = True  # one that is still CLOSED by now has ended
            if self._handler is not None and self._handler.waited(began) >= self._patience:
                self._handler.hang_up()
            raise LinkLost(self.explained(f"no answer within {limit:.3g} s")) from None
        except _LOST as error:
            raise LinkLost(type(error).__name__) from error

    def explained(self, reason: str) -> str:
        """``reason``, and why no member could be connected to, where that is so."""
        failure = self._handler.failure if self._handler is not None else ""
        return f"{reason}; {failure}" if failure else reason

    async def hints(self, parent: str, node: str, limit: float) -> AsyncIterator[None]:
        """One item per change of ``parent``'s children, or of ``node``. Ends when the link goes down."""
        hint = _Hint(node)
        self._hints.add(hint)
        # One callback per node, however often it is asked: kazoo keeps each until its event comes.
        watcher = self._watchers.setdefault(node, functools.partial(self._on_event, node))
        try:
            while True:
                await self.call(lambda client: client.get_children_async(parent, watcher), limit)
                await self.call(lambda client: client.exists_async(node, watcher), limit)
                await hint.event.wait()
                hint.event.clear()
                if hint.down:
                    return
                yield
        except (LinkLost, ElectionUnavailable, exceptions.KazooException):
            return
        finally:
            self._hints.discard(hint)

    async def close(self) -> None:
        """Ends the session, within two seconds; a member that hangs keeps it until it times out. For good."""
        self._closed = True
        self._moved.set()
        await self._end()

    async def _end(self) -> None:
        client, self._client = self._client, None
        if client is None or self._loop is None:
            return
        if self._handler is not None and client.state != KazooState.CONNECTED:
            self._handler.hang_up()
        stopped, loop = asyncio.Event(), self._loop

        def stop() -> None:
            with contextlib.suppress(Exception):
                client.stop()
                client.close()
            with contextlib.suppress(RuntimeError):  # the loop may be gone by now
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=stop, name="zookeeper: stop", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_LIMIT):
                await stopped.wait()

    # -- the session --------------------------------------------------------------------------------

    async def _connected(self) -> KazooClient:
        while True:
            if self._closed:
                raise ElectionUnavailable("the election was closed", "refused")
            client = self._client or self._begin()
            state = client.client_state
            if state == KeeperState.CONNECTED:
                return client
            if state == KeeperState.AUTH_FAILED or (state == KeeperState.CLOSED and self._under_way):
                await self._end()
                if state == KeeperState.AUTH_FAILED:
                    raise ElectionUnavailable("ZooKeeper refuses election.username or its password", "refused")
                continue  # another call may have begun anew meanwhile: two sessions would be one too many
            self._under_way = self._under_way or state != KeeperState.CLOSED
            self._moved.clear()
            if client.client_state != KeeperState.CONNECTED:
                await self._moved.wait()

    def _allow_for_a_restore(self) -> None:
        if self._client is None or self._loop is None or self._down_since is None:
            return
        if self._loop.time() - self._down_since > _FORGOTTEN_AFTER * self._session:
            self._client.last_zxid = 0

    def _begin(self) -> KazooClient:
        self._loop = asyncio.get_running_loop()
        self._under_way = False
        self._handler = _Handler(self._tls, len(set(self.hosts)), self._session / 2)
        client = KazooClient(
            hosts=",".join(self.hosts),
            timeout=self._session,
            handler=self._handler,
            auth_data=[("digest", self._credentials)] if self._credentials else None,
            default_acl=CREATOR_ALL_ACL if self._credentials else None,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.25},
        )
        _bound(client)
        client.add_listener(functools.partial(self._on_state, client))
        self._client, self._down_since = client, None
        client.start_async()
        return client

    def _on_state(self, client: KazooClient, state: str) -> None:
        """In kazoo's thread."""
        self._in_loop(self._take_notice, client, state)

    def _take_notice(self, client: KazooClient, state: str) -> None:
        self._moved.set()
        if client is not self._client or self._loop is None:
            return
        self._under_way = True
        if state == KazooState.CONNECTED:
            self._down_since = None
        else:
            self._down_since = self._down_since or self._loop.time()
            for hint in self._hints:
                hint.down = True
                hint.event.set()

    def _on_event(self, node: str, _event: Any) -> None:
        """In kazoo's thread."""
        self._in_loop(self._wake, node)

    def _wake(self, node: str) -> None:
        for hint in self._hints:
            if hint.node == node:
                hint.event.set()

    def _in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *arguments)

    async def _answer(self, result: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle() -> None:
            if answer.done():  # nobody waits for it any more
                return
            if result.exception is not None:
                answer.set_exception(result.exception)
            else:
                answer.set_result(result.value)

        result.rawlink(lambda _: self._in_loop(settle))
        return await answer


def _bound(client: KazooClient) -> None:
    """kazoo itself reads as much as a frame says that it holds, and asks the system for that much memory at once."""
    connection: Any = client._connection
    read = connection._read

    def bounded(length: int, timeout: float) -> bytes:
        if not 0 <= length <= _LONGEST_FRAME:
            raise exceptions.ConnectionDropped(f"a frame of {length} bytes")
        found: bytes = read(length, timeout)
        return found

    connection._read = bounded
