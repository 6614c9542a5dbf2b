"""What the election contract's tests stand on: backends on one store, candidates, a server that never answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from fencegate.lease import Candidate, ElectionBackend, LeaseTimings, SealRecord, Won
from fencegate.testing.tcp_server import TcpServer

LIMIT = 5.0

NewBackend = Callable[[LeaseTimings], ElectionBackend]
Join = Callable[..., ElectionBackend]


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
    """Fixtures and acts of the contract's tests. A backend's own tests override the first two fixtures."""

    lease_duration = 2.0
    renewals = 50
    """How many renewals the token must survive in the ordinary run."""
    cycles = 100
    lapses_within = 3.0
    """Seconds beyond the lease by which another candidate must have won, the server's own rounding included."""

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        raise NotImplementedError("override the fixture new_backend with a factory of your backends")

    @pytest.fixture
    def hung_backend(self, timings: LeaseTimings, silent_server: str) -> ElectionBackend:
        """A backend whose server takes connections and never answers: ``silent_server`` is such a host:port."""
        raise NotImplementedError("override the fixture hung_backend with a backend of silent_server")

    @pytest.fixture
    def timings(self) -> LeaseTimings:
        lease = self.lease_duration
        return LeaseTimings(lease, lease * 0.6, lease * 0.15, lease * 0.1)

    @pytest.fixture
    def role(self) -> str:
        return f"ledger-{uuid.uuid4().hex}"

    @pytest_asyncio.fixture
    async def join(self, new_backend: NewBackend, timings: LeaseTimings) -> AsyncIterator[Join]:
        made: list[ElectionBackend] = []

        def make(other: LeaseTimings | None = None) -> ElectionBackend:
            made.append(new_backend(other or timings))
            return made[-1]

        yield make
        for backend in made:
            await backend.close()

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

    async def give_back(self, backend: ElectionBackend, role: str, token: int) -> bool:
        return await backend.release(role, token, SealRecord(token, "region-a"), LIMIT)
