"""``fencegate serve`` with ``[listen.tls]``, in one process and with workers: both listeners, reload, broken files."""

from __future__ import annotations

import os
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from system.serving import Answer, Serving, ask, fencegate, until

pytestmark = pytest.mark.system

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
workers = {workers}
[listen.tls]
cert = "{directory}/cert.pem"
key = "{directory}/key.pem"
client_ca = "{directory}/clients.pem"
client = "data"
[store]
dsn = "{dsn}"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""


def put(directory: Path, ca: trustme.CA) -> str:
    """A new pair, key first, as a careless tool writes it. The key's text."""
    blob = ca.issue_cert("127.0.0.1")
    blob.private_key_pem.write_to_path(directory / "key.pem")
    (directory / "key.pem").chmod(0o600)
    blob.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    return blob.private_key_pem.bytes().decode()


def calling(ca: trustme.CA, clients: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if clients is not None:
        clients.issue_cert("caller@example.org").configure_cert(context)
    return context


def write(gateway: Serving, token: int, context: ssl.SSLContext) -> Answer | None:
    """``None``: TLS let nobody in."""
    try:
        return ask(gateway.data, "POST", "/v1/entries", {"n": 1}, context, **{"X-Fencing-Token": str(token)})
    except OSError:
        return None


def taken(gateway: Serving, token: int, context: ssl.SSLContext, times: int) -> bool:
    """Whether so many writes in a row are taken, each on a connection of its own: whichever worker accepts it."""
    answers = [write(gateway, token, context) for _ in range(times)]
    return all(answer is not None and answer.status == 201 for answer in answers)


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"))]
)
def test_both_listeners_speak_tls_and_take_new_certificates_while_they_run(
    serve: Callable[..., Serving], migrated_dsn: str, tmp_path: Path, workers: int
) -> None:
    first, second, clients = trustme.CA(), trustme.CA(), trustme.CA()
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    secret = put(tmp_path, first)
    (tmp_path / "f.toml").write_text(TEXT.format(workers=workers, directory=tmp_path, dsn=migrated_dsn))
    gateway = serve("--config", str(tmp_path / "f.toml")).listens(60)
    assert any("requests at https://" in line and "operators at https://" in line for line in gateway.out)
    token = gateway.leads()
    context = calling(first, clients)
    until("the first writes", lambda: taken(gateway, token, context, 6))
    assert write(gateway, token, calling(first)) is None, "no certificate"
    assert write(gateway, token, calling(first, second)) is None, "somebody else's"
    assert ask(gateway.admin, "GET", "/live", None, calling(first)).status == 200, "operators need none"

    whole = (tmp_path / "key.pem").read_bytes()
    (tmp_path / "key.pem").write_bytes(trustme.CA().issue_cert("127.0.0.1").private_key_pem.bytes())
    gateway.signal(signal.SIGHUP)
    until("the refusal", lambda: len(gateway.facts_of("certificates_refused")) >= workers)
    assert taken(gateway, token, context, 4), "the old pair stays"
    (tmp_path / "key.pem").write_bytes(whole)

    put(tmp_path, second)
    gateway.signal(signal.SIGHUP)
    after = calling(second, clients)
    until("the second pair", lambda: taken(gateway, token, after, 6))
    assert write(gateway, token, context) is None

    secret_too = put(tmp_path, first)
    until("the files that changed by themselves", lambda: taken(gateway, token, context, 6))
    until("the operators' too", lambda: _live(gateway, calling(first)))

    text = ("--config", str(tmp_path / "f.toml"), "--set", f"listen.admin={gateway.admin}")
    first.cert_pem.write_to_path(tmp_path / "server-ca.pem")
    assert fencegate("status", *text).returncode == 1, "an unknown CA"
    told = fencegate("status", *text, SSL_CERT_FILE=str(tmp_path / "server-ca.pem"))
    assert "ledger" in told.stdout, told.stderr

    assert gateway.stop() == 0
    said = "".join([*gateway.out, *gateway.err])
    assert not [line for text in (secret, secret_too) for line in text.splitlines()[1:-1] if line in said]


def _live(gateway: Serving, context: ssl.SSLContext) -> bool:
    try:
        return ask(gateway.admin, "GET", "/live", None, context).status == 200
    except OSError:
        return False


def test_files_that_cannot_be_used_are_named_and_nothing_starts(
    tmp_path: Path, configuration: Callable[[str], str]
) -> None:
    put(tmp_path, trustme.CA())
    os.unlink(tmp_path / "key.pem")
    dsn = "postgresql://nobody@127.0.0.1:1/none"
    found = fencegate("serve", "--config", configuration(TEXT.format(workers=1, directory=tmp_path, dsn=dsn)))
    assert found.returncode == 78
    assert f"listen.tls.key: cannot read {tmp_path}/key.pem: No such file or directory" in found.stderr
    assert f"listen.tls.client_ca: cannot read {tmp_path}/clients.pem" in found.stderr
