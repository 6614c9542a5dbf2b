"""TLS to real election stores, configured as a user does it. Refusals are clear: each says which key to set."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from fencegate.cli import elections
from fencegate.config import Flag, parse
from fencegate.embedded.binaries import etcd_binary
from fencegate.embedded.process import (
    EmbeddedServerError,
    clean_environment,
    finish,
    free_port,
    last_lines,
    spawn,
)
from fencegate.embedded.zookeeper import JARS_VARIABLE, SYSTEM_JARS, EmbeddedZookeeper, command
from fencegate.errors import Unavailable
from fencegate.lease import Candidate, ElectionBackend, SealRecord, Won
from fencegate.testing.waiting import until

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
[store]
dsn = "postgresql://localhost/ledger"
"""
FOR_TLS = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar"
"""Debian's zookeeper.jar does not name these two of netty's, and only TLS needs them."""
KINDS = ["etcd", "etcd over gRPC", "zookeeper"]
EU = Candidate("gw-1", "eu", "https://ledger.eu.example")


@dataclass(frozen=True)
class Pki:
    """The CA of the deployment, certificates that it signed, and one that somebody else did. Paths of PEM files."""

    ca: str
    server: Path
    client: str
    client_key: str
    stranger: str
    stranger_key: str
    other_ca: str


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    directory = tmp_path_factory.mktemp("pki")
    ours, others = trustme.CA(), trustme.CA()

    def written(blob: trustme.Blob, name: str) -> str:
        blob.write_to_path(directory / name)
        return str(directory / name)

    server, client, stranger = ours.issue_cert("localhost"), ours.issue_cert("gw-1"), others.issue_cert("gw-1")
    key = serialization.load_pem_private_key(server.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(  # ZooKeeper's JVM reads keys in no other form
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "server.pem").write_bytes(pkcs8 + b"".join(pem.bytes() for pem in server.cert_chain_pems))
    return Pki(
        written(ours.cert_pem, "ca.pem"),
        directory / "server.pem",
        written(client.cert_chain_pems[0], "client.pem"),
        written(client.private_key_pem, "client.key"),
        written(stranger.cert_chain_pems[0], "stranger.pem"),
        written(stranger.private_key_pem, "stranger.key"),
        written(others.cert_pem, "other-ca.pem"),
    )


@contextmanager
def etcd(directory: Path, pki: Pki, *, clients: bool) -> Iterator[int]:
    """One real etcd that speaks TLS alone; ``clients``: and wants certificates. Yields its port."""
    server, port = _serving_etcd(directory, pki, clients=clients)
    try:
        yield port
    finally:
        server.kill()
        server.wait()


def _serving_etcd(directory: Path, pki: Pki, *, clients: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Another process may take a port before etcd binds it; etcd ends then, and is started on others."""
    demand = ["--client-cert-auth", f"--trusted-ca-file={pki.ca}"] if clients else []
    log = directory / "etcd.log"
    for _ in range(3):
        port, peers = free_port(), free_port()
        server = spawn(
            [
                etcd_binary(),
                f"--data-dir={directory / f'etcd-{port}'}",
                f"--listen-client-urls=https://127.0.0.1:{port}",
                f"--advertise-client-urls=https://localhost:{port}",
                f"--listen-peer-urls=http://127.0.0.1:{peers}",
                f"--cert-file={pki.server}",
                f"--key-file={pki.server}",
                *demand,
            ],
            log=log,
            death_signal=signal.SIGKILL,
            environment=clean_environment("ETCD"),
        )
        finish(until(partial(_up_or_down, server, port), f"etcd at port {port}", 30))
        if server.poll() is None:
            return server, port
    pytest.fail(f"no etcd was to be had; its log ends:\n{last_lines(log, 0)}")


def _up_or_down(server: subprocess.Popen[bytes], port: int) -> bool:
    if server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
    return True


class TlsZookeeper(EmbeddedZookeeper):
    """A ZooKeeper with a second port, for TLS."""

    def __init__(self, directory: Path, pki: Pki, *, clients: bool) -> None:
        super().__init__(directory)
        self.secure_port = free_port()
        self._pki, self._clients = pki, clients

    def _configuration(self, node: object) -> str:
        return super()._configuration(node) + "".join(  # type: ignore[arg-type]
            f"{line}\n"
            for line in (
                f"secureClientPort={self.secure_port}",
                "secureClientPortAddress=127.0.0.1",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={self._pki.server}",
                "ssl.keyStore.type=PEM",
                f"ssl.trustStore.location={self._pki.ca}",
                "ssl.trustStore.type=PEM",
                "ssl.hostnameVerification=false",
                f"ssl.clientAuth={'need' if self._clients else 'none'}",
            )
        )


@contextmanager
def zookeeper(directory: Path, pki: Pki, *, clients: bool) -> Iterator[int]:
    server = TlsZookeeper(directory / "zookeeper", pki, clients=clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(JARS_VARIABLE, f"{os.environ.get(JARS_VARIABLE, SYSTEM_JARS)}:{FOR_TLS}")
        server.start_sync()
    try:
        yield server.secure_port
    finally:
        server.stop_sync()


Election = Callable[..., ElectionBackend]


@pytest.fixture(scope="module", params=[False, True], ids=["open", "with client certificates"])
def clients(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=KINDS)
def election(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pki: Pki, clients: bool
) -> Iterator[Election]:
    """Makes elections of one kind on a server of its own, as ``fencegate serve`` makes them of these keys."""
    directory, kind = tmp_path_factory.mktemp("tls"), str(request.param)
    serve, scheme, source = (zookeeper, "", "zookeeper") if kind == "zookeeper" else (etcd, "https://", "etcd")
    if kind == "zookeeper":
        try:
            command()
        except EmbeddedServerError as problem:
            pytest.skip(str(problem))
    with serve(directory, pki, clients=clients) as port:

        def make(host: str = "localhost", **tls: str) -> ElectionBackend:
            keys = {
                "election.source": source,
                "election.endpoints": f"{scheme}{host}:{port}",
                **({"election.client": "etcd3"} if "gRPC" in kind else {}),
                **{f"election.tls.{name}": path for name, path in tls.items()},
            }
            settings = parse(file=("F", TEXT), flags=[Flag("--set", key, text) for key, text in keys.items()])
            return elections.backend(settings, "unused")

        yield make


async def leads(backend: ElectionBackend, within: float = 60.0) -> int:
    """One whole term: proof that every call goes through."""
    ends = time.monotonic() + within
    async with closing(backend):
        while True:
            try:
                won = await backend.acquire("ledger", EU, 20)
                break
            except Unavailable:
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(0.1)
        assert isinstance(won, Won)
        await backend.renew("ledger", won.token, EU, active=True, deadline=20)
        assert await backend.release("ledger", won.token, SealRecord(won.token, "eu"), 20)
    return won.token


async def refusal(backend: ElectionBackend) -> str:
    async with closing(backend):
        with pytest.raises(Unavailable) as caught:
            await backend.read("ledger", 1.0)
    return str(caught.value)


@asynccontextmanager
async def closing(backend: ElectionBackend) -> AsyncIterator[None]:
    """Closed whatever happens: a session left open would fail another test."""
    try:
        yield
    finally:
        await backend.close()


async def test_the_right_certificates_serve_and_wrong_ones_are_refused_saying_what_to_do(
    election: Election, pki: Pki, clients: bool
) -> None:
    ours = {"cert": pki.client, "key": pki.client_key} if clients else {}
    assert await leads(election(ca=pki.ca, **ours)) > 0

    wrong_ca = await refusal(election(ca=pki.other_ca, **ours))
    assert "set election.tls.ca" in wrong_ca

    wrong_name = await refusal(election("127.0.0.1", ca=pki.ca, **ours))
    assert "is for another name" in wrong_name
    assert "election.endpoints" in wrong_name

    if clients:
        for theirs in ({}, {"cert": pki.stranger, "key": pki.stranger_key}):
            refused = await refusal(election(ca=pki.ca, **theirs))
            assert "election.tls.cert" in refused, refused
    assert await leads(election(ca=pki.ca, **ours)) > 0


async def test_files_that_are_put_right_are_used_without_a_restart(
    election: Election, pki: Pki, clients: bool, tmp_path: Path
) -> None:
    theirs = {"ca": pki.other_ca, **({"cert": pki.stranger, "key": pki.stranger_key} if clients else {})}
    right = {"ca": pki.ca, **({"cert": pki.client, "key": pki.client_key} if clients else {})}
    for name, path in theirs.items():
        shutil.copy(path, tmp_path / name)
    backend = election(**{name: str(tmp_path / name) for name in theirs})
    async with closing(backend):
        with pytest.raises(Unavailable, match=r"set election\.tls\.ca"):
            await backend.read("ledger", 1.0)

        shutil.copy(right["ca"], tmp_path / "ca")
        if clients:
            with pytest.raises(Unavailable, match=r"election\.tls\.cert"):
                await backend.read("ledger", 2.0)
        for name, path in right.items():
            shutil.copy(path, tmp_path / name)
        assert await leads(backend) > 0
