"""The TLS of our connections: each new one by the files as they are now; files that are broken change nothing."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from fencegate.access import pem
from fencegate.access.client_tls import ClientFiles, ClientTls
from fencegate.errors import ConfigurationError
from fencegate.observations import CertificateExpiring, CertificatesLoaded, CertificatesRefused, Observation

OURS, OTHERS = trustme.CA(), trustme.CA()
NAME = "server.example"


class Files:
    """A CA and a pair of ours in a directory."""

    def __init__(self, directory: Path) -> None:
        self.ca, self.cert, self.key = (directory / name for name in ("ca.pem", "c.pem", "k.pem"))
        self.trust(OURS)
        self.show(OURS)

    def trust(self, ca: trustme.CA) -> None:
        ca.cert_pem.write_to_path(self.ca)

    def show(self, ca: trustme.CA, not_after: datetime | None = None) -> None:
        blob = ca.issue_cert("gw-1", not_after=not_after)
        self.cert.write_bytes(blob.cert_chain_pems[0].bytes())
        self.key.write_bytes(blob.private_key_pem.bytes())

    def named(self, **more: str) -> ClientFiles:
        return ClientFiles("store.tls", str(self.ca), str(self.cert), str(self.key), **more)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def handshake(tls: ssl.SSLContext, signer: trustme.CA = OURS, clients: trustme.CA = OURS, name: str = NAME) -> None:
    """With a server that ``signer`` vouches for and that takes the clients of ``clients``. Raises ``ssl.SSLError``."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signer.issue_cert(name).configure_cert(server_side)
    server_side.verify_mode = ssl.CERT_REQUIRED
    clients.configure_trust(server_side)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.wrap_bio(to_client, to_server, server_hostname=NAME)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client.version() in ("TLSv1.2", "TLSv1.3")


def test_the_server_is_verified_and_so_is_its_name(files: Files) -> None:
    tls = ClientTls(files.named())
    handshake(tls)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        handshake(tls, OTHERS)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tls, name="other.example")


def test_another_name_can_be_expected_and_no_other_will_do(files: Files) -> None:
    tls = ClientTls(files.named(server_name="other.example"))
    handshake(tls, name="other.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tls)


def test_a_connection_after_the_files_changed_is_by_the_new_ones_alone(files: Files) -> None:
    seen: list[Observation] = []
    tls = ClientTls(files.named(), seen.append)
    handshake(tls)
    files.trust(OTHERS)
    files.show(OTHERS)
    handshake(tls, OTHERS, OTHERS)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls, OURS, OTHERS)
    assert seen == [CertificatesLoaded("store.tls", str(files.cert))]


def test_files_that_cannot_be_used_are_told_of_once_and_those_before_stay(files: Files) -> None:
    seen: list[Observation] = []
    tls = ClientTls(files.named(), seen.append)
    files.key.write_bytes(OURS.issue_cert("gw-1").private_key_pem.bytes())
    handshake(tls)
    handshake(tls)
    fault = f"store.tls.key: {files.key} is not the key of the certificate in {files.cert}"
    assert seen == [CertificatesRefused("store.tls", (fault,))]
    files.ca.unlink()
    handshake(tls)
    assert "store.tls.ca: cannot read" in str(seen[-1])
    files.trust(OURS)
    files.show(OURS)
    handshake(tls)
    assert seen[-1] == CertificatesLoaded("store.tls", str(files.cert))
    assert len(seen) == 3


def test_without_a_ca_the_systems_authorities_count(files: Files) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ClientTls(ClientFiles("upstream.tls")))


def test_there_is_no_context_without_the_files(files: Files) -> None:
    files.ca.unlink()
    files.cert.write_text("s3cret")
    with pytest.raises(ConfigurationError) as caught:
        ClientTls(files.named())
    assert [fault.partition(": ")[0] for fault in caught.value.faults] == ["store.tls.ca", "store.tls.cert"]
    assert "s3cret" not in str(caught.value)


def test_a_certificate_that_ends_is_told_of_in_time_and_once(files: Files) -> None:
    seen: list[Observation] = []
    end = datetime(2040, 1, 2, tzinfo=UTC).timestamp()
    now = [end - 15 * 86400]
    files.show(OURS, not_after=datetime(2040, 1, 2, tzinfo=UTC))
    tls = ClientTls(files.named(), seen.append, clock=lambda: now[0])
    for now[0] in (end - 100, end - 90, end + 1):
        handshake(tls)
    assert [(fact.setting, fact.left) for fact in seen if isinstance(fact, CertificateExpiring)] == [
        ("store.tls", 100.0),
        ("store.tls", -1.0),
    ]


def test_the_contents_are_those_of_the_files_in_use(files: Files) -> None:
    tls = ClientTls(files.named())
    files.show(OURS)
    assert tls.contents.cert == files.cert.read_bytes()
    whole = tls.contents
    files.key.write_text("junk")
    assert tls.contents == whole


def test_files_that_openssl_takes_apart_and_cannot_use_are_no_failure_of_a_connection(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Observation] = []
    tls = ClientTls(files.named(), seen.append)

    def useless(*_: object) -> None:
        raise ssl.SSLError(1, "EE_KEY_TOO_SMALL")

    monkeypatch.setattr(pem, "validity", useless)
    files.show(OURS)
    handshake(tls)
    (told,) = seen
    assert isinstance(told, CertificatesRefused)
