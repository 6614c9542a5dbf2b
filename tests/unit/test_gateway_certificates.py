"""Certificates of the listeners: faults name key, file and reason; a broken pair changes nothing."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from fencegate.access.pem import LONGEST_NOTICE
from fencegate.errors import ConfigurationError
from fencegate.gateway.certificates import Certificates, TlsFiles, load
from fencegate.observations import CertificateExpiring, CertificatesLoaded, CertificatesRefused, Observation

NOW = datetime.now(UTC).timestamp()
CA = trustme.CA()


def put(directory: Path, blob: trustme.LeafCert | None = None) -> TlsFiles:
    """A pair and the CA as files; a new pair each time."""
    blob = blob or CA.issue_cert("127.0.0.1")
    (directory / "c.pem").write_bytes(b"".join(pem.bytes() for pem in blob.cert_chain_pems))
    (directory / "k.pem").write_bytes(blob.private_key_pem.bytes())
    CA.cert_pem.write_to_path(directory / "ca.pem")
    return TlsFiles("listen.tls", *(str(directory / name) for name in ("c.pem", "k.pem", "ca.pem")))


def faults(files: TlsFiles) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(files, NOW)
    return caught.value.faults


def encrypted(files: TlsFiles) -> bytes:
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_a_context_is_of_tls_1_2_or_newer_and_asks_for_certificates_as_told(tmp_path: Path) -> None:
    files = put(tmp_path)
    context = load(files, NOW).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1, "the clients' CA, and none of the system's"
    optional = TlsFiles("listen.tls", files.cert, files.key, files.client_ca, required=False)
    assert load(optional, NOW).context.verify_mode is ssl.CERT_OPTIONAL
    assert load(TlsFiles("listen.tls", files.cert, files.key), NOW).context.verify_mode is ssl.CERT_NONE


def test_every_file_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    files = TlsFiles("listen.tls", f"{tmp_path}/c", f"{tmp_path}/k", f"{tmp_path}/ca")
    assert faults(files) == [
        f"listen.tls.cert: cannot read {tmp_path}/c: No such file or directory",
        f"listen.tls.key: cannot read {tmp_path}/k: No such file or directory",
        f"listen.tls.client_ca: cannot read {tmp_path}/ca: No such file or directory",
    ]


def test_a_directory_in_place_of_a_file_is_a_fault(tmp_path: Path) -> None:
    files = put(tmp_path)
    assert faults(TlsFiles("listen.tls", files.cert, str(tmp_path))) == [
        f"listen.tls.key: cannot read {tmp_path}: Is a directory"
    ]


def test_a_key_of_another_certificate_is_said_to_be_that(tmp_path: Path) -> None:
    files = put(tmp_path)
    Path(files.key).write_bytes(CA.issue_cert("127.0.0.1").private_key_pem.bytes())
    assert faults(files) == [f"listen.tls.key: {files.key} is not the key of the certificate in {files.cert}"]


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    files = put(tmp_path)
    Path(files.key).write_bytes(encrypted(files))
    assert faults(files) == [f"listen.tls.key: cannot use {files.key}: expected a key without a passphrase"]


@pytest.mark.parametrize("name", ["cert", "key", "client_ca"])
@pytest.mark.parametrize("broken", [b"", b"junk", b"s3cret\x00\xff", None], ids=["empty", "text", "binary", "cut"])
def test_a_file_that_holds_something_else_is_named_and_not_quoted(
    tmp_path: Path, name: str, broken: bytes | None
) -> None:
    files = put(tmp_path)
    path = Path(getattr(files, name))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if broken is None else broken)
    (fault,) = faults(files)
    assert str(path) in fault
    assert "s3cret" not in fault
    assert whole.splitlines()[2].decode() not in fault
    assert fault.startswith(f"listen.tls.{name}:") or (broken is None and fault.startswith("listen.tls.cert:"))


def test_the_end_of_a_certificate_is_known(tmp_path: Path) -> None:
    files = put(tmp_path, CA.issue_cert("127.0.0.1", not_after=datetime(2040, 1, 2, tzinfo=UTC)))
    assert load(files, NOW).expires == datetime(2040, 1, 2, tzinfo=UTC).timestamp()


def test_a_short_lived_certificate_is_told_of_in_the_last_third_of_its_life(tmp_path: Path) -> None:
    begin, end = datetime.fromtimestamp(int(NOW), UTC), datetime.fromtimestamp(int(NOW) + 3600, UTC)
    found = load(put(tmp_path, CA.issue_cert("127.0.0.1", not_before=begin, not_after=end)), NOW)
    assert (found.expires, found.notice) == (end.timestamp(), 1200.0)


def test_an_expired_certificate_is_used_and_said_loudly(tmp_path: Path) -> None:
    past = datetime(2020, 1, 2, tzinfo=UTC)
    seen: list[Observation] = []
    files = put(tmp_path, CA.issue_cert("127.0.0.1", not_before=datetime(2019, 1, 1, tzinfo=UTC), not_after=past))
    Certificates(files, seen.append, clock=lambda: NOW)
    assert seen == [CertificateExpiring("listen.tls", files.cert, 0.0)]


async def test_an_end_that_comes_near_is_said_once_and_again_when_it_is_there(tmp_path: Path) -> None:
    end = datetime(2040, 1, 2, tzinfo=UTC).timestamp()
    now, seen = [end - LONGEST_NOTICE - 1], list[Observation]()
    files = put(tmp_path, CA.issue_cert("127.0.0.1", not_after=datetime(2040, 1, 2, tzinfo=UTC)))
    one = Certificates(files, seen.append, clock=lambda: now[0])
    for now[0] in (end - 100, end - 90, end + 1, end + 2):
        await one.look(unwanted)
    assert seen == [
        CertificateExpiring("listen.tls", files.cert, 100.0),
        CertificateExpiring("listen.tls", files.cert, -1.0),
    ]


async def unwanted(context: ssl.SSLContext) -> None:
    pytest.fail("nothing has changed")


async def test_files_that_change_are_loaded_and_a_broken_pair_keeps_the_old_one(tmp_path: Path) -> None:
    seen: list[Observation] = []
    used: list[ssl.SSLContext] = []

    async def use(context: ssl.SSLContext) -> None:
        used.append(context)

    files = put(tmp_path)
    one = Certificates(files, seen.append)
    first = one.context
    await one.look(unwanted)

    Path(files.key).write_bytes(CA.issue_cert("127.0.0.1").private_key_pem.bytes())
    await one.look(unwanted)
    await one.look(unwanted)
    fault = f"listen.tls.key: {files.key} is not the key of the certificate in {files.cert}"
    assert seen == [CertificatesRefused("listen.tls", (fault,))], "said once"
    assert one.context is first

    put(tmp_path)
    await one.look(use)
    await one.look(unwanted)
    assert used == [one.context] != [first]
    assert seen[1:] == [CertificatesLoaded("listen.tls", files.cert)]

    one.look_now()
    await one.look(use)
    assert len(used) == 2, "loaded as told, changed or not"


async def test_a_listener_that_cannot_take_them_gets_them_again(tmp_path: Path) -> None:
    one = Certificates(put(tmp_path), lambda fact: None)
    first = one.context
    put(tmp_path)

    async def cannot(context: ssl.SSLContext) -> None:
        raise OSError(24, "Too many open files")

    with pytest.raises(OSError, match="Too many"):
        await one.look(cannot)
    assert one.context is first
