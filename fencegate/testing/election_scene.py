"""What the election contract's tests stand on: backends on one store, candidates, and a network that fails."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

import pytest
import pytest_asyncio

from fencegate.lease import Candidate, ElectionBackend, LeaseTimings, SealRecord, Won
from fencegate.testing.stalling_relay import StallingRelay
from fencegate.testing.tcp_server import TcpServer

LIMIT = 10.0
"""Seconds that one call may take, and what is waited for: servers that are well need a thousandth of it."""
Hint = TypeVar("Hint")

BackendAt = Callable[[list[str], LeaseTimings], ElectionBackend]
Join = Callable[..., ElectionBackend]


class Network(Protocol):
    """The way from one backend to its servers."""

    def stall(self) -> None:
        """From now on nothing arrives, and nothing breaks."""

    def resume(self) -> None:
        """What was sent meanwhile arrives."""

    def strand(self) -> None:
        """Nothing passes any more on the connections that are open now, and nobody is told; new ones are good."""

    def cut(self) -> None:
        """Every open connection breaks."""


class _Relays:
    def __init__(self, relays: list[StallingRelay]) -> None:
        self._relays = relays

    def stall(self) -> None:
        for relay in self._relays:
            relay.stall()

    def resume(self) -> None:
        for relay in self._relays:
            relay.resume()

    def strand(self) -> None:
        for relay in self._relays:
            relay.strand()

    def cut(self) -> None:
        for relay in self._relays:
            relay.cut()


def candidate(node: str) -> Candidate:
    return Candidate(node, f"region-{node}", f"https://{node}.example")


class WithSilentServer:
    """A server that takes connections and never answers."""

    @pytest_asyncio.fixture
    async def silent_server(self) -> AsyncIterator[str]:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        server = TcpServer(hang)
        await server.start()
        yield server.address
        await server.close()


@pytest.mark.asyncio
class ElectionScene(WithSilentServer):
    """Fixtures and acts of the contract's tests. A backend's own tests override the first three fixtures."""

    lease_duration = 3.0
    """Seconds. Where a lease is waited out: the longest that a busy machine may hold anybody up meanwhile."""
    renewals = 1000
    """How many renewals the token must survive."""
    cycles = 50
    """After how many terms nothing may have been left behind."""
    lapses_within = 10.0
    """Seconds beyond the lease by which another candidate must have won.

    The server's own rounding included, and what is given to each lease where servers elect a leader of their own anew.
    """
    tells_who_waits = True
    """Whether the backend has ``candidates``; else it must say that it has not."""
    untouched_by_steps: tuple[str, ...] = ()
    """Names of modules that hand ``time.time()`` to code in C, which reads the machine's clock: it did not step."""

    @pytest.fixture
    def servers(self) -> list[str]:
        """``host:port`` of every server of one election store that nothing else uses meanwhile."""
        raise NotImplementedError("override the fixture servers with the addresses of your election store")

    @pytest.fixture
    def backend_at(self) -> BackendAt:
        """Makes a further process' backend, which finds its servers at the addresses that it is given."""
        raise NotImplementedError("override the fixture backend_at with a factory of your backends")

    @pytest.fixture
    def wipe(self) -> Callable[[str], Awaitable[None]]:
        """Removes what the store holds of a role, past the election: as an operator's mistake would."""
        raise NotImplementedError("override the fixture wipe with a deletion of everything your store holds of a role")

    @pytest.fixture
    def hung_backend(self, backend_at: BackendAt, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        """A backend whose servers take connections and never answer."""
        return backend_at([silent_server] * 2, timings)

    @pytest_asyncio.fixture
    async def network(
        self, backend_at: BackendAt, servers: list[str], long_timings: LeaseTimings
    ) -> AsyncIterator[tuple[ElectionBackend, Network]]:
        """A backend with ``long_timings``, and the way to its servers, which fails as it is told to."""
        relays = [StallingRelay(server) for server in servers]
        backend = backend_at([await relay.start() for relay in relays], long_timings)
        yield backend, _Relays(relays)
        await backend.close()
        for relay in relays:
            await relay.close()

    @pytest.fixture
    def timings(self) -> LeaseTimings:
        return _in_proportion(self.lease_duration)

    @pytest.fixture
    def long_timings(self) -> LeaseTimings:
        """For tests in which time must not matter, however slow the machine is."""
        return _in_proportion(self.lease_duration * 3)

    @pytest.fixture
    def role(self) -> str:
        return f"ledger-{uuid.uuid4().hex}"

    @pytest_asyncio.fixture
    async def join(self, backend_at: BackendAt, servers: list[str], long_timings: LeaseTimings) -> AsyncIterator[Join]:
        """Makes a further process' backend, with ``long_timings`` or those that it is given."""
        made: list[ElectionBackend] = []

        def make(timings: LeaseTimings = long_timings) -> ElectionBackend:
            made.append(backend_at(servers, timings))
            return made[-1]

        yield make
        for backend in made:
            await backend.close()

    @pytest.fixture
    def join_briefly(self, join: Join, timings: LeaseTimings) -> Join:
        """As ``join``, with leases that the test waits out."""
        return lambda: join(timings)

    # -- steps --------------------------------------------------------------------------------------

    async def win(self, backend: ElectionBackend, role: str, node: str = "a", within: float = LIMIT) -> Won:
        """Campaign until won, at a pace of a tenth of a second."""
        async with asyncio.timeout(within):
            while True:
                outcome = await backend.acquire(role, candidate(node), LIMIT)
                if isinstance(outcome, Won):
                    return outcome
                await asyncio.sleep(0.1)

    async def lead(self, backend: ElectionBackend, role: str, node: str = "a", within: float = LIMIT) -> int:
        token = (await self.win(backend, role, node, within)).token
        await backend.renew(role, token, candidate(node), active=True, deadline=LIMIT)
        return token

    async def hinted(self, watch: Callable[[], AsyncIterator[Hint]], holder: ElectionBackend, role: str) -> Hint:
        """The first hint of a watch under which ``holder`` wins ``role`` and gives it back.

        A watch may end, as when the servers have elected a leader of their own anew: then once more from the start.
        Nor does anybody know when it has begun: on a busy machine the first changes may come before it.
        """
        for _ in range(3):
            hints = watch()
            first = asyncio.ensure_future(anext(hints))
            try:
                async with asyncio.timeout(2 * LIMIT):
                    while not first.done():
                        await asyncio.wait([first], timeout=0.3)
                        await self.give_back(holder, role, await self.lead(holder, role))
                    return await first
            except StopAsyncIteration:
                continue
            finally:
                first.cancel()
                await asyncio.wait([first])
                await hints.aclose()  # type: ignore[attr-defined]
        raise AssertionError("every watch ended without a hint")

    async def give_back(self, backend: ElectionBackend, role: str, token: int) -> bool:
        return await backend.release(role, token, SealRecord(token, "region-a"), LIMIT)


def _in_proportion(lease: float) -> LeaseTimings:
    return LeaseTimings(lease, lease * 0.6, lease * 0.15, lease * 0.1)
