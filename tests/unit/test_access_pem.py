"""How long certificates are valid, whatever they are good for. The faults of files: test_gateway_certificates.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fencegate.access.pem import LONGEST_NOTICE, authorities_end, notice, stamp, validity

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def pair(directory: Path, usages: list[x509.ObjectIdentifier], begin: datetime, end: datetime) -> tuple[str, str]:
    """A self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gw-1")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(begin).not_valid_after(end)
    if usages:
        made = made.add_extension(x509.ExtendedKeyUsage(usages), critical=True)
    private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (directory / "c").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (directory / "k").write_bytes(key.private_bytes(*private))
    return str(directory / "c"), str(directory / "k")


@pytest.mark.parametrize(
    "usages",
    [[], [ExtendedKeyUsageOID.SERVER_AUTH], [ExtendedKeyUsageOID.CLIENT_AUTH]],
    ids=["any use", "servers only", "clients only"],
)
def test_the_end_of_a_certificate_is_known_whatever_it_is_good_for(
    usages: list[x509.ObjectIdentifier], tmp_path: Path
) -> None:
    begin, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)
    assert validity(*pair(tmp_path, usages, begin, end), NOW.timestamp()) == (begin.timestamp(), end.timestamp())
    past = pair(tmp_path, usages, begin, datetime(2021, 1, 1, tzinfo=UTC))
    assert validity(*past, NOW.timestamp()) == (NOW.timestamp(), NOW.timestamp())


def test_the_notice_is_a_fortnight_or_a_third_of_a_short_life() -> None:
    assert notice((0, timedelta(days=365).total_seconds())) == LONGEST_NOTICE
    assert notice((0, 3000)) == 1000


def test_of_several_authorities_the_one_that_lasts_longest_counts(tmp_path: Path) -> None:
    authorities = [trustme.CA(), trustme.CA()]
    (tmp_path / "ca").write_bytes(b"".join(ca.cert_pem.bytes() for ca in authorities))
    ends = [x509.load_pem_x509_certificate(ca.cert_pem.bytes()).not_valid_after_utc.timestamp() for ca in authorities]
    assert authorities_end(str(tmp_path / "ca")) == max(ends)


def test_a_stamp_is_of_the_contents(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("a")
    (tmp_path / "v2").write_text("b")
    link = tmp_path / "link"
    link.symlink_to("v1")
    before = stamp((str(link), None))
    assert stamp((str(link), None)) == before
    link.unlink()
    link.symlink_to("v2")
    assert stamp((str(link), None)) != before
    assert stamp((str(tmp_path / "gone"), None)) != before
