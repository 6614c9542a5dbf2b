"""The SDK for code without an event loop: the same client and the same ``lead``, called from ordinary threads:

    from fencegate.client.sync import FencedClient, lead
    from fencegate.election.etcd import EtcdElection
    from fencegate.lease import Candidate, LeaseTimings

    with FencedClient(["https://ledger.eu.example", "https://ledger.us.example"], "ledger") as client:
        entry = client.post("/v1/entries", json={"decision": "approve"}).json()

    endpoints, timings = ["http://etcd-1:2379"], LeaseTimings()
    me = Candidate(node="worker-1", region="eu", url="https://worker-1.eu.example")
    with lead("nightly", backend=lambda: EtcdElection(endpoints, timings), candidate=me, timings=timings) as term:
        with term.client(["https://ledger.eu.example"]) as client:
            for run in runs:
                term.check()
                client.post("/v1/entries", json=run)

Each call runs the async original on the SDK's one thread (:mod:`fencegate.client.loop_thread` says why) and waits for
it: same decisions, same exceptions, same deadlines. Objects may be shared by any number of threads. Called inside a
coroutine of your own, a call works and blocks your loop: use the async face there, or ``asyncio.to_thread``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from fencegate import observations
from fencegate.client import aio, leader
from fencegate.client.aio import Options
from fencegate.client.failures import LeadershipLost
from fencegate.client.grants import Grants
from fencegate.client.loop_thread import LoopThread, close_at_exit, closed, leave_behind, loop_thread
from fencegate.client.request import Response
from fencegate.client.term import LeaderTerm as AsyncTerm
from fencegate.lease import Candidate, ElectionBackend, LeaseTimings

_clients: weakref.WeakSet[FencedClient] = weakref.WeakSet()

__all__ = ["FencedClient", "LeaderTerm", "Leading", "lead"]


class FencedClient:
    """The synchronous :class:`fencegate.client.FencedClient`: the same arguments but ``session``. Use it as ``with``.

    A client that is used after a fork opens connections of its own in the child. One that is a term's does not: the
    child has no term (see :class:`LeaderTerm`).

    Raises :class:`fencegate.errors.ConfigurationError` for settings that make no sense.
    """

    def __init__(self, urls: Sequence[str], role: str, **options: Any) -> None:
        if "session" in options:
            raise TypeError("a synchronous client makes its own session: one of yours belongs to another event loop")
        self._begin(lambda: aio.FencedClient(urls, role, **options), None)

    @classmethod
    def _of_term(cls, make: Callable[[], aio.FencedClient], term: LeaderTerm) -> FencedClient:
        made = cls.__new__(cls)
        made._begin(make, term)
        return made

    def _begin(self, make: Callable[[], aio.FencedClient], term: LeaderTerm | None) -> None:
        self._make = make
        self._term = term
        self._client = make()  # opens nothing, and says what is wrong with the settings
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()
        self._open = False
        _clients.add(self)

    @property
    def role(self) -> str:
        return self._client.role

    @property
    def in_flight(self) -> int:
        """Operations under way, in all threads."""
        return self._client.in_flight

    def __enter__(self) -> Self:
        with self._lock:
            self._open = True
        self._running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the client. Operations under way in other threads raise, as in the async client."""
        with self._lock:
            thread, self._thread, self._open = self._thread, None, False
        closed(self)
        if thread is not None and thread.pid == os.getpid():
            thread.call(self._client.close)

    def post(self, path: str, *, json: object = None, **options: Unpack[Options]) -> Response:
        """``POST``: see :meth:`request`."""
        return self.request("POST", path, json=json, **options)

    def put(self, path: str, *, json: object = None, **options: Unpack[Options]) -> Response:
        """``PUT``: see :meth:`request`."""
        return self.request("PUT", path, json=json, **options)

    def patch(self, path: str, *, json: object = None, **options: Unpack[Options]) -> Response:
        """``PATCH``: see :meth:`request`."""
        return self.request("PATCH", path, json=json, **options)

    def delete(self, path: str, **options: Unpack[Options]) -> Response:
        """``DELETE``: see :meth:`request`."""
        return self.request("DELETE", path, **options)

    def get(self, path: str, **options: Unpack[Options]) -> Response:
        """A read, at the leader where one is known, else at any gateway: see :meth:`request`."""
        return self.request("GET", path, **options)

    def request(self, method: str, path: str, *, json: object = None, **options: Unpack[Options]) -> Response:
        """One logical operation: arguments, result and exceptions are those of the async client's ``request``.

        Ctrl-C while it waits cancels it: the write then may or may not have been applied.
        """
        if self._term is not None:
            self._term._in_this_process()
        thread, client = self._running()
        return thread.call(lambda: client.request(method, path, json=json, **options))

    def _running(self) -> tuple[LoopThread, aio.FencedClient]:
        with self._lock:
            if not self._open:
                raise RuntimeError("the client is not open: use it as 'with FencedClient(...) as client'")
            if self._thread is not None and self._thread.pid == os.getpid():
                return self._thread, self._client
            if self._thread is not None:  # forked: what the parent has open is the parent's
                leave_behind(self._client, self._thread)
                self._client = self._make()
            thread = loop_thread()
            thread.call(self._client.__aenter__)
            self._thread = thread
        close_at_exit(self, self.close)
        return thread, self._client


class LeaderTerm:
    """One term of this process. ``lost`` is a ``threading.Event``, set when it is over, for whatever reason.

    **A thread can't be cancelled.** When the term is lost, nothing stops the thread that works under it: it has to
    look, by ``lost.is_set()``, by ``check()`` before every step that counts, or by ``lost.wait(seconds)`` in place of
    a sleep. Until it does, only the token protects what it writes.

    In a child made by ``os.fork()`` the term is over (``reason`` ``"forked"``): nobody renews it there.
    """

    def __init__(self, term: AsyncTerm, thread: LoopThread) -> None:
        self.role = term.role
        self.token = term.token
        self.lost = threading.Event()
        self._term = term
        self._thread = thread
        term.on_loss(self.lost.set)

    @property
    def reason(self) -> str:
        """How the term ended; empty while it lasts."""
        return "forked" if self._forked() else self._term.reason

    def remaining(self) -> float:
        """Seconds for which this process may still take itself for the leader; 0 when the term is over."""
        return 0.0 if self._forked() or self.lost.is_set() else self._term.remaining()

    def check(self) -> None:
        """Raise :class:`LeadershipLost` if the term is over by now. It looks at the clock, not only at ``lost``."""
        self._in_this_process()
        if self.remaining() <= 0:
            self.lost.set()
            self._thread.tell(lambda: self._term.end("renew_deadline"))
            raise self._loss(self._term.reason or "renew_deadline")

    def grant(self) -> str | None:
        """The value of ``X-Fencing-Grant`` that goes with the token now; ``None`` without ``grants``."""
        return self._term.grant()

    def client(self, urls: Sequence[str], **options: Any) -> FencedClient:
        """A client that presents this term's token and can present no other: as in the async ``LeaderTerm.client``."""
        if "session" in options:
            raise TypeError("a synchronous client makes its own session: one of yours belongs to another event loop")
        self._in_this_process()

        async def make() -> aio.FencedClient:
            return self._term.client(urls, **options)

        return FencedClient._of_term(lambda: self._thread.call(make), self)

    def _forked(self) -> bool:
        if self._thread.pid == os.getpid():
            return False
        self.lost.set()
        return True

    def _in_this_process(self) -> None:
        if self._forked():
            raise self._loss("forked")

    def _loss(self, reason: str) -> LeadershipLost:
        message = f"{self.role!r}: the term with token {self.token} is over ({reason}); lead() again for a new one"
        return LeadershipLost(message, role=self.role, token=self.token, reason=reason)


class Leading:
    """What :func:`lead` returns: entering it campaigns, leaving it ends the term."""

    def __init__(self, make: Callable[[ElectionBackend], leader.Leading], backend: Any, timeout: float | None) -> None:
        self._make = make
        self._given = backend
        self._timeout = timeout
        self._backend: ElectionBackend | None = None
        self._leading: leader.Leading | None = None
        self._thread: LoopThread | None = None
        self._pid = 0
        self._term: AsyncTerm | None = None

    def __enter__(self) -> LeaderTerm:
        self._thread, self._pid = loop_thread(), os.getpid()
        close_at_exit(self, lambda: self._leave(RuntimeError("the interpreter ends")))
        try:
            return self._thread.call(self._enter)
        except BaseException as error:
            # Also where Ctrl-C came between the win and our return: a term that nobody has must not be renewed.
            self._leave(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        closed(self)
        if self._thread is not None and self._pid == os.getpid():
            self._thread.call(lambda: self._exit(error))

    async def _enter(self) -> LeaderTerm:
        self._backend = self._given if isinstance(self._given, ElectionBackend) else self._given()
        self._leading = self._make(self._backend)
        async with asyncio.timeout(self._timeout):
            self._term = term = await self._leading.__aenter__()
        assert self._thread is not None
        return LeaderTerm(term, self._thread)

    async def _exit(self, error: BaseException | None) -> None:
        try:
            if self._leading is not None and self._term is not None:
                await self._leading.__aexit__(None if error is None else type(error), error, None)
        finally:
            if self._backend is not None:
                await self._backend.close()


def lead(
    role: str,
    *,
    backend: ElectionBackend | Callable[[], ElectionBackend],
    candidate: Candidate,
    timings: LeaseTimings | None = None,
    timeout: float | None = None,
    grants: Grants | None = None,
    shared_store: bool = False,
    observer: observations.Observer = observations.ignore,
    clock: Callable[[], float] = leader.own_clock,
) -> Leading:
    """Campaign for ``role`` and lead it for the length of a ``with`` block, which gets the :class:`LeaderTerm`.

    As the async ``lead``, with these differences. ``backend`` is used on the SDK's thread and *closed at the end of the
    block*: give each ``lead()`` a new one, or what makes one. ``timeout``: seconds to wait for the role, then
    ``TimeoutError``. There is no ``cancel_on_loss``: a thread can't be cancelled; see :class:`LeaderTerm`.
    ``observer`` is called on the SDK's thread, and must not block. Raises
    :class:`fencegate.errors.ConfigurationError` for timings that make no sense.
    """

    def make(made: ElectionBackend) -> leader.Leading:
        return leader.lead(
            role,
            backend=made,
            candidate=candidate,
            timings=timings,
            grants=grants,
            shared_store=shared_store,
            observer=observer,
            clock=clock,
        )

    leader.check_timings(timings or LeaseTimings())
    return Leading(make, backend, timeout)


def _new_locks() -> None:
    """In the child of a fork: a lock that another thread held at that moment would be held for ever."""
    for client in tuple(_clients):
        client._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_locks)
