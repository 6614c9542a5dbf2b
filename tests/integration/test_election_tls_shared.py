"""TLS where elections share a way: HTTP (Consul, Kubernetes, Patroni), against a server of ours; a real Redis Sentinel.

In each case with a certificate of ours, and with files that are put right while the source runs.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import ssl
from pathlib import Path

import pytest
import trustme

from fencegate.access.client_tls import ClientFiles, ClientTls
from fencegate.election.http_endpoints import HttpEndpoints
from fencegate.election.redis_sentinel import RedisSentinelSource, SentinelAccess
from fencegate.embedded.process import clean_environment, free_port, spawn
from fencegate.lease import ElectionUnavailable, LeaseTimings
from fencegate.testing.recording_upstream import RecordingUpstream
from fencegate.testing.redis_sentinels import CLUSTER, program

CA = trustme.CA()
TIMINGS = LeaseTimings(6.0, 4.0, 0.5, 0.5)


class Ours:
    """Our files, which are wrong at first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.trust(trustme.CA())
        self.show(trustme.CA())
        paths = [str(directory / name) for name in ("ca.pem", "c.pem", "k.pem")]
        self.tls = ClientTls(ClientFiles("election.tls", *paths))

    def trust(self, ca: trustme.CA) -> None:
        ca.cert_pem.write_to_path(self._directory / "ca.pem")

    def show(self, signer: trustme.CA) -> None:
        blob = signer.issue_cert("gw-1")
        blob.cert_chain_pems[0].write_to_path(self._directory / "c.pem")
        blob.private_key_pem.write_to_path(self._directory / "k.pem")


async def test_an_election_over_http_goes_by_files_that_are_put_right(tmp_path: Path) -> None:
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.verify_mode = ssl.CERT_REQUIRED
    CA.issue_cert("localhost").configure_cert(accepting)
    CA.configure_trust(accepting)
    ours = Ours(tmp_path)
    async with RecordingUpstream(tls=accepting) as server:
        http = HttpEndpoints("consul", [server.url], example="", judge=lambda *_: None, credentials=dict, tls=ours.tls)
        with pytest.raises(ElectionUnavailable, match=r"set election\.tls\.ca"):
            await http.call("GET", "/v1/kv/x", 1.0)
        ours.trust(CA)
        with pytest.raises(ElectionUnavailable):
            await http.call("GET", "/v1/kv/x", 1.0)
        assert not server.requests, "without a certificate that it knows it reads nothing"
        ours.show(CA)
        assert (await http.call("GET", "/v1/kv/x", 5.0)).status == 200
        await http.close()


async def test_a_sentinel_goes_by_files_that_are_put_right(tmp_path: Path) -> None:
    if shutil.which("redis-sentinel") is None:
        pytest.skip("no redis-sentinel: install the package of that name")
    server = CA.issue_cert("localhost")
    CA.cert_pem.write_to_path(tmp_path / "clients.pem")
    server.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    port = free_port()
    (tmp_path / "sentinel.conf").write_text(
        f"port 0\ntls-port {port}\nbind 127.0.0.1\ntls-auth-clients yes\ntls-ca-cert-file {tmp_path}/clients.pem\n"
        f"tls-cert-file {tmp_path}/server.pem\ntls-key-file {tmp_path}/server.pem\n"
        f"sentinel monitor {CLUSTER} 127.0.0.1 1 1\n"
    )
    sentinel = spawn(
        [program("redis-sentinel"), str(tmp_path / "sentinel.conf")],
        log=tmp_path / "log",
        death_signal=signal.SIGKILL,
        environment=clean_environment(),
    )
    ours = Ours(tmp_path)
    source = RedisSentinelSource([f"localhost:{port}"], CLUSTER, TIMINGS, SentinelAccess(tls=ours.tls))

    async def told_until(word: str) -> str:
        """What is said of it once it is up: the first with this word in it, of the term or of a refusal."""
        async with asyncio.timeout(60):
            while True:
                try:
                    term = await source.read("ledger", 10.0)
                    said = f"token {term.token}" if term is not None else ""
                except ElectionUnavailable as error:
                    said = str(error)
                if word in said:
                    return said
                await asyncio.sleep(0.05)

    try:
        assert "election.tls.ca" in await told_until("not signed by a CA")
        ours.trust(CA)
        assert "0 of 1 sentinels answered" in await told_until("0 of 1")
        ours.show(CA)
        assert await told_until("token") == "token 1"
    finally:
        sentinel.kill()
        sentinel.wait()
        await source.close()
