"""``fencegate serve`` that knows its callers by their certificates: who may write, and who is told of as a zombie."""

from __future__ import annotations

import signal
import ssl
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
[listen.tls]
cert = "{directory}/cert.pem"
key = "{directory}/key.pem"
client_ca = "{directory}/clients.pem"
client = "data"
[identity]
certificate = true
[store]
dsn = "{dsn}"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
callers = ["CN=billing,*"{more}]
"""


def put(directory: Path, dsn: str, more: str = "") -> str:
    (directory / "f.toml").write_text(TEXT.format(directory=directory, dsn=dsn, more=more))
    return str(directory / "f.toml")


def calling(server: trustme.CA, clients: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    server.configure_trust(context)
    clients.issue_cert(
        "caller@example.org", common_name=name, organization_name="Example", organization_unit_name="Ledger"
    ).configure_cert(context)
    return context


# Field case A15.
def test_only_listed_callers_write_and_a_zombie_is_called_by_its_name(
    serve: Callable[..., Serving], migrated_dsn: str, tmp_path: Path
) -> None:
    server, clients = trustme.CA(), trustme.CA()
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    server.cert_pem.write_to_path(tmp_path / "server-ca.pem")
    pair = server.issue_cert("127.0.0.1")
    pair.private_key_pem.write_to_path(tmp_path / "key.pem")
    pair.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    config = put(tmp_path, migrated_dsn)
    gateway = serve("--config", config).listens(60)
    token = gateway.leads()
    billing, audit = (calling(server, clients, name) for name in ("billing", "audit"))

    def write(context: ssl.SSLContext, number: int = token, **headers: str) -> Answer:
        return ask(
            gateway.data, "POST", "/v1/entries", {"n": 1}, context, **{"X-Fencing-Token": str(number), **headers}
        )

    until("the first write", lambda: write(billing).status == 201)
    refused = write(audit)
    assert (refused.status, refused.outcome) == (403, "caller_not_allowed")
    assert "CN=audit,OU=Ledger,O=Example" in refused.json["detail"]
    until("its line of log", lambda: gateway.facts_of("write_refused"))
    (line,) = gateway.facts_of("write_refused")
    assert (line["code"], line["caller"]) == ("caller_not_allowed", "CN=audit,OU=Ledger,O=Example")

    assert write(billing, token + 7).status == 403
    listener = ("--config", config, "--set", f"listen.admin={gateway.admin}")
    told = fencegate("status", "--zombies", *listener, SSL_CERT_FILE=str(tmp_path / "server-ca.pem"))
    assert 'caller="CN=billing,OU=Ledger,O=Example"' in told.stdout, told.stderr
    assert "audit" not in told.stdout, "not a wrong belief about who leads"

    operator = ssl.create_default_context(cafile=str(tmp_path / "server-ca.pem"))
    page = ask(gateway.admin, "GET", "/metrics", None, operator).body.decode()
    assert 'fencing_rejections_total{reason="caller_not_allowed",region="eu",role="ledger"} 1.0' in page
    assert "CN=" not in page

    put(tmp_path, migrated_dsn, ', "CN=audit,OU=Ledger,O=Example"')
    gateway.signal(signal.SIGHUP)
    until("the longer list", lambda: write(audit).status == 201)
    assert write(audit, **{"Idempotency-Key": "k-1"}).status == 201
    first = write(billing, **{"Idempotency-Key": "k-1"})
    assert (first.status, first.headers.get("idempotent-replayed")) == (201, None), "another caller's key"
    assert write(billing, **{"Idempotency-Key": "k-1"}).json == first.json
    assert gateway.stop() == 0
