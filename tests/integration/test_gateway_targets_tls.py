"""Upstreams behind ``https://``: verified, by a name of theirs, with our certificate, and by files that rotate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from fencegate.access.client_tls import ClientFiles, ClientTls
from fencegate.gateway.targets.answers import collect
from fencegate.gateway.targets.pool import ConnectFailed, UpstreamPool
from fencegate.gateway.targets.sending import request_head, send
from fencegate.gateway.targets.upstream import UpstreamBroken
from fencegate.testing.recording_upstream import RecordingUpstream

BODY = b"x" * 100_000
HEAD = request_head("POST", b"/x", b"Host: h\r\nContent-Length: %d\r\n" % len(BODY))


@dataclass
class Scene:
    """An upstream that demands a client's certificate of ``clients``, and our files in ``directory``."""

    upstream: RecordingUpstream
    directory: Path
    accepting: ssl.SSLContext
    servers: trustme.CA = field(default_factory=trustme.CA)
    clients: trustme.CA = field(default_factory=trustme.CA)

    def serve(self, name: str = "localhost", not_after: datetime | None = None) -> None:
        self.servers.issue_cert(name, not_after=not_after).configure_cert(self.accepting)

    def trust(self, ca: trustme.CA) -> str:
        ca.cert_pem.write_to_path(self.directory / "ca.pem")
        return str(self.directory / "ca.pem")

    def show(self, signer: trustme.CA) -> tuple[str, str]:
        blob = signer.issue_cert("gw-1")
        cert, key = self.directory / "c.pem", self.directory / "k.pem"
        cert.write_bytes(blob.cert_chain_pems[0].bytes())
        key.write_bytes(blob.private_key_pem.bytes())
        return str(cert), str(key)

    def pool(self, *, cert: bool = True, ca: bool = True, server_name: str | None = None) -> UpstreamPool:
        pair = self.show(self.clients) if cert else (None, None)
        files = ClientFiles("upstream.tls", self.trust(self.servers) if ca else None, *pair, server_name)
        return UpstreamPool(self.upstream.url, ssl_context=ClientTls(files, alpn=["http/1.1"]), idle_timeout=0)


@pytest.fixture(params=["TLSv1_2", "TLSv1_3"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.maximum_version = ssl.TLSVersion[request.param]
    accepting.verify_mode = ssl.CERT_REQUIRED
    made = Scene(RecordingUpstream(tls=accepting), tmp_path, accepting)
    made.serve()
    made.clients.configure_trust(accepting)
    async with made.upstream:
        yield made


async def write(pool: UpstreamPool) -> int:
    """One write on a connection of the pool; the answer's status."""
    connection = await pool.acquire(5.0)
    try:
        head = await send(connection, "POST", HEAD, BODY, None, chunked=False)
        assert (await collect(connection, 1000, patient=True))[0] is not None
    finally:
        pool.release(connection)
    return head.status


async def refusal(pool: UpstreamPool, kind: type[Exception] | tuple[type[Exception], ...] = ConnectFailed) -> str:
    with pytest.raises(kind) as caught:
        await write(pool)
    await pool.close()
    return str(caught.value)


async def test_a_write_goes_to_the_upstream_that_is_verified_and_knows_us(scene: Scene) -> None:
    pool = scene.pool()
    for _ in range(3):
        assert await write(pool) == 200
    await pool.close()
    assert [request.body for request in scene.upstream.requests] == [BODY] * 3


async def test_a_connection_under_tls_is_kept_for_the_next_write(scene: Scene) -> None:
    files = ClientFiles("upstream.tls", scene.trust(scene.servers), *scene.show(scene.clients))
    pool = UpstreamPool(scene.upstream.url, ssl_context=ClientTls(files))
    for _ in range(3):
        assert await write(pool) == 200
    await pool.close()
    assert scene.upstream.connections == 1


@pytest.mark.parametrize(
    ("spoil", "key"),
    [
        (lambda scene: scene.pool(ca=False), "set upstream.tls.ca"),
        (lambda scene: scene.pool(server_name="other.example"), "upstream.tls.server_name"),
        (lambda scene: scene.serve("other.example"), "the route's target"),
        (lambda scene: scene.serve(not_after=datetime(2020, 1, 1, tzinfo=UTC)), "renew it"),
    ],
    ids=["unknown CA", "another name expected", "wrong name", "expired"],
)
async def test_nothing_is_sent_to_an_upstream_that_is_not_the_one(
    scene: Scene, spoil: Callable[[Scene], UpstreamPool | None], key: str
) -> None:
    assert key in await refusal(spoil(scene) or scene.pool())
    assert not scene.upstream.requests


async def test_an_upstream_that_is_called_otherwise_inside_is_verified_by_that_name(scene: Scene) -> None:
    scene.serve("inside.example")
    pool = scene.pool(server_name="inside.example")
    assert await write(pool) == 200
    await pool.close()


def certificate_of_ours(scene: Scene, stranger: bool) -> UpstreamPool:
    pool = scene.pool(cert=stranger)
    if stranger:
        scene.show(trustme.CA())
    return pool


@pytest.mark.parametrize("stranger", [False, True], ids=["none", "a stranger's"])
async def test_an_upstream_that_does_not_know_us_takes_no_write(scene: Scene, stranger: bool) -> None:
    told = await refusal(certificate_of_ours(scene, stranger), (ConnectFailed, UpstreamBroken))
    assert "upstream.tls.cert" in told or scene.accepting.maximum_version is ssl.TLSVersion.TLSv1_3
    assert not scene.upstream.requests


@pytest.mark.parametrize("stranger", [False, True], ids=["none", "a stranger's"])
async def test_an_upstream_that_says_why_it_does_not_know_us_is_quoted_with_the_key(
    scene: Scene, stranger: bool
) -> None:
    """asyncio's servers, as above, hang up without a word; those of OpenSSL, Go or Java send an alert first.

    Under TLS 1.3 it comes when the request is on its way: its outcome is not known, and the reason is.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            plain, _ = listening.accept()
            secured = scene.accepting.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            with pytest.raises(ssl.SSLError):
                secured.do_handshake()
            # Read to its end, as such servers do: a reset would overtake the alert.
            with socket.socket(fileno=secured.detach()) as rest:
                rest.shutdown(socket.SHUT_WR)
                while rest.recv(65536):
                    pass

        accepting = asyncio.create_task(asyncio.to_thread(accept))
        pool = certificate_of_ours(scene, stranger)
        url = f"https://localhost:{listening.getsockname()[1]}"
        told = await refusal(UpstreamPool(url, ssl_context=pool.ssl_context), (ConnectFailed, UpstreamBroken))
        await accepting
    assert "set upstream.tls.cert" in told


async def test_files_that_rotate_are_used_by_the_next_connection(scene: Scene) -> None:
    pool = scene.pool()
    assert await write(pool) == 200
    scene.servers, scene.clients = trustme.CA(), trustme.CA()
    scene.serve()
    scene.clients.configure_trust(scene.accepting)
    scene.trust(scene.servers)
    scene.show(scene.clients)
    assert await write(pool) == 200
    scene.trust(trustme.CA())
    assert "set upstream.tls.ca" in await refusal(pool)
