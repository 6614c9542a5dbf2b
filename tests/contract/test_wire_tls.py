"""The contract under TLS, on either edge and loop: who gets in, certificates that change, handshakes that never end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trustme

from fencegate.client import FencedClient
from fencegate.gateway.limits import Limits
from fencegate.testing.raw_http import eventually
from fencegate.testing.wire_world import World, WorldFactory

OURS, OTHERS = trustme.CA(), trustme.CA()
WRITE = b"POST /v1/entries HTTP/1.1\r\nHost: h\r\nX-Fencing-Token: 42\r\nContent-Length: 1\r\n%s\r\n1"
OPEN = WRITE % b""
LAST = WRITE % b"Connection: close\r\n"


def accepting(clients: ssl.VerifyMode = ssl.CERT_NONE, ca: trustme.CA = OURS) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    context.verify_mode = clients
    ca.configure_trust(context)
    return context


def calling(signer: trustme.CA | None = None, trusted: trustme.CA = OURS) -> ssl.SSLContext:
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if signer is not None:
        signer.issue_cert("caller@example.org").configure_cert(context)
    return context


@dataclass
class Call:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> bytes:
        """The head of the answer, after which its body is read away. ``b""``: there was none."""
        self.writer.write(request)
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            return b""
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self.reader.readexactly(int(length.partition(b":")[2]))
        return head


@asynccontextmanager
async def call(world: World, context: ssl.SSLContext) -> AsyncIterator[Call]:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=context)
    try:
        yield Call(reader, writer)
    finally:
        writer.transport.abort()


async def status(world: World, context: ssl.SSLContext, request: bytes = OPEN) -> int | None:
    """The status of one write on a connection of its own; ``None``: the handshake or the connection came to nothing."""
    try:
        async with asyncio.timeout(20), call(world, context) as one:
            head = await one.ask(request)
    except OSError:
        return None
    return int(head.split()[1]) if head else None


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_writes_are_taken_refused_and_answered_under_tls(
    new_world: WorldFactory, version: ssl.TLSVersion
) -> None:
    context = calling()
    context.minimum_version = context.maximum_version = version
    async with new_world(ssl_context=accepting()) as world, call(world, context) as one:
        heads = [await one.ask(WRITE % more) for more in (b"", b"Early-Data: 1\r\n", b"")]
        assert [int(head.split()[1]) for head in heads] == [201, 425, 201]
        head = await one.ask(LAST)
        assert head.split()[1] == b"201"
        assert await one.reader.read() == b"", "ended in order"


async def test_an_upstream_is_told_https(new_world: WorldFactory) -> None:
    async with new_world(ssl_context=accepting()) as world:
        request = b"POST /big/x HTTP/1.1\r\nHost: h\r\nX-Fencing-Token: 42\r\nContent-Length: 200000\r\n\r\n"
        assert await status(world, calling(), request + b"x" * 200_000) == 200
        (sent,) = world.upstream.requests
        assert len(sent.body) == 200_000
        assert sent.values("x-forwarded-proto") == ["https"]


async def test_without_tls_and_with_an_unknown_server_nothing_comes_of_it(new_world: WorldFactory) -> None:
    async with new_world(ssl_context=accepting()) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(OPEN)
        async with asyncio.timeout(20):
            assert b"HTTP/" not in await _rest(reader)
        writer.transport.abort()
        with pytest.raises(ssl.SSLCertVerificationError):
            async with call(world, calling(trusted=OTHERS)):
                pass
        assert await status(world, calling()) == 201


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except OSError:
        return b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_where_a_certificate_is_required_nobody_gets_in_without_one_of_the_ca(
    new_world: WorldFactory, version: ssl.TLSVersion
) -> None:
    contexts = [calling(), calling(OTHERS), calling(OURS)]
    for context in contexts:
        context.minimum_version = context.maximum_version = version
    async with new_world(ssl_context=accepting(ssl.CERT_REQUIRED)) as world:
        assert [await status(world, context) for context in contexts] == [None, None, 201]
        assert world.edge.connections <= 1, "what failed is no connection"


async def test_where_one_is_optional_none_will_do_and_a_strangers_will_not(new_world: WorldFactory) -> None:
    async with new_world(ssl_context=accepting(ssl.CERT_OPTIONAL)) as world:
        assert [await status(world, calling(signer)) for signer in (None, OURS, OTHERS)] == [201, 201, None]


async def test_new_certificates_are_for_new_connections_and_the_old_ones_go_on(new_world: WorldFactory) -> None:
    async with new_world(ssl_context=accepting()) as world, call(world, calling()) as before:
        assert (await before.ask(OPEN)).split()[1] == b"201"
        port = world.port
        await world.edge.use_tls(accepting(ca=OTHERS))
        assert world.port == port
        assert (await before.ask(OPEN)).split()[1] == b"201"
        assert await status(world, calling(trusted=OTHERS)) == 201
        assert await status(world, calling(trusted=OURS)) is None
        for _ in range(5):
            await world.edge.use_tls(accepting())
            assert await status(world, calling()) == 201
        assert (await before.ask(OPEN)).split()[1] == b"201"


async def test_a_write_under_way_and_clients_that_come_meanwhile_lose_nothing_by_a_change(
    new_world: WorldFactory,
) -> None:
    async with new_world(ssl_context=accepting()) as world, call(world, calling()) as slow:
        world.store.hold = asyncio.Event()
        held = world.store.hold
        answer = asyncio.create_task(slow.ask(OPEN))
        crowd = [asyncio.create_task(status(world, calling())) for _ in range(8)]
        for _ in range(5):
            await world.edge.use_tls(accepting())
            await asyncio.sleep(0.01)
        assert world.store.waiting > 0
        held.set()
        assert (await answer).split()[1] == b"201"
        assert await asyncio.gather(*crowd) == [201] * 8


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_whose_ca_was_taken_away_cannot_resume_its_session(
    new_world: WorldFactory, version: ssl.TLSVersion
) -> None:
    context = calling(OURS)
    context.minimum_version = context.maximum_version = version
    async with new_world(ssl_context=accepting(ssl.CERT_REQUIRED)) as world:
        session, _ = await asyncio.to_thread(_session, world.port, context, None)
        session, resumed = await asyncio.to_thread(_session, world.port, context, session)
        assert resumed, "as long as nothing changes"
        changed = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        OURS.issue_cert("127.0.0.1").configure_cert(changed)
        changed.verify_mode = ssl.CERT_REQUIRED
        OTHERS.configure_trust(changed)
        await world.edge.use_tls(changed)
        assert await asyncio.to_thread(_session, world.port, context, session) == (None, False)


def _session(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
    """After a write with ``session``: the session, and whether it was resumed. ``None``: there was no answer."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as line,
        ):
            line.sendall(OPEN)
            answered = line.recv(4096).startswith(b"HTTP/1.1 201")
            return (line.session, bool(line.session_reused)) if answered else (None, False)
    except OSError:
        return None, False


async def test_a_handshake_that_never_ends_is_cut_off_at_the_limit_of_a_head(new_world: WorldFactory) -> None:
    async with new_world(ssl_context=accepting(), limits=Limits(header_timeout=2.0)) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
        async with asyncio.timeout(20):
            assert b"HTTP/" not in await _rest(reader)
        writer.transport.abort()
        await eventually(lambda: world.edge.connections == 0)
        assert await status(world, calling()) == 201


async def test_the_sdk_speaks_tls_and_shows_its_certificate(new_world: WorldFactory) -> None:
    async with new_world(ssl_context=accepting(ssl.CERT_REQUIRED)) as world:
        url = f"https://127.0.0.1:{world.port}"
        world.view.lead("ledger", 42, "eu", url)
        async with FencedClient([url], "ledger", ssl=calling(OURS)) as client:
            response = await client.post("/v1/entries", json={"n": 1})
        assert (response.status, response.token) == (201, 42)
