"""``fencegate doctor`` on real files with certificates, and on an upstream that wants one of ours."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from fencegate.cli import doctor_measures
from fencegate.cli.doctor_checks import examine
from fencegate.cli.doctor_findings import Finding, Severity
from fencegate.config import parse
from fencegate.testing.recording_upstream import RecordingUpstream

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://127.0.0.1:9"
[store]
dsn = "{dsn}"
[listen.tls]
cert = "{directory}/listen.pem"
key = "{directory}/listen.key"
client_ca = "{directory}/ca.pem"
[upstream.tls]
ca = "{directory}/ca.pem"
{pair}
[[route]]
path = "/v1/*"
role = "ledger"
target = "{upstream}"
"""
PAIR = 'cert = "{directory}/upstream.pem"\nkey = "{directory}/upstream.key"'
CA = trustme.CA()


def put(directory: Path, name: str, ends_in: timedelta) -> None:
    blob = CA.issue_cert("gw-1", not_after=datetime.now(UTC) + ends_in)
    (directory / f"{name}.pem").write_bytes(blob.cert_chain_pems[0].bytes())
    (directory / f"{name}.key").touch(mode=0o600)
    (directory / f"{name}.key").write_bytes(blob.private_key_pem.bytes())


@pytest.fixture
async def upstream() -> AsyncIterator[RecordingUpstream]:
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.verify_mode = ssl.CERT_REQUIRED
    CA.issue_cert("localhost").configure_cert(accepting)
    CA.configure_trust(accepting)
    async with RecordingUpstream(tls=accepting) as running:
        yield running


async def examined(dsn: str, directory: Path, upstream: RecordingUpstream, pair: str = PAIR) -> dict[str, Finding]:
    CA.cert_pem.write_to_path(directory / "ca.pem")
    pair = pair.format(directory=directory)
    settings = parse(file=("F", TEXT.format(dsn=dsn, directory=directory, upstream=upstream.url, pair=pair)))
    found = examine(settings, await doctor_measures.measure(settings, 5.0))
    return {finding.check: finding for finding in found}


async def test_certificates_that_end_soon_or_have_ended_are_found(
    migrated_dsn: str, tmp_path: Path, upstream: RecordingUpstream
) -> None:
    put(tmp_path, "listen", timedelta(days=3, hours=1))
    put(tmp_path, "upstream", timedelta(days=-1))
    found = await examined(migrated_dsn, tmp_path, upstream)
    assert found["listen.certificate"].severity is Severity.WARNING
    assert "in 3 days" in found["listen.certificate"].measured
    assert (found["upstream.certificate"].severity, found["upstream.ca"].severity) == (Severity.FAULT, Severity.FINE)
    assert "has expired" in found["upstream.certificate"].measured
    assert found["listen.client_ca"].severity is Severity.FINE
    assert found["files.upstream.tls.key"].severity is Severity.FINE
    assert found["upstream.reachable"].severity is Severity.WARNING


async def test_an_upstream_that_knows_us_is_reachable_and_one_that_wants_a_certificate_is_not(
    migrated_dsn: str, tmp_path: Path, upstream: RecordingUpstream
) -> None:
    put(tmp_path, "listen", timedelta(days=90))
    put(tmp_path, "upstream", timedelta(days=90))
    known = await examined(migrated_dsn, tmp_path, upstream)
    assert known["upstream.reachable"].severity is Severity.FINE
    stranger = (await examined(migrated_dsn, tmp_path, upstream, pair=""))["upstream.reachable"]
    assert stranger.severity is Severity.WARNING
    assert "upstream.tls.cert" in stranger.measured
    assert not upstream.requests
