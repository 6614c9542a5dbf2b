"""A secret in every setting that takes one, and none of them in anything that a running gateway says or shows."""

from __future__ import annotations

import base64
import json
import secrets
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import trustme

from system.serving import Serving, ask, fencegate, until

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
workers = 2
[listen.tls]
cert = "{folder}/cert.pem"
key = "{folder}/key.pem"
[store]
dsn = "{dsn}"
[election]
{election}
[admin]
token_file = "{folder}/act"
read_token_file = "{folder}/read"
[console]
peers = ["http://{echo}"]
token_file = "{folder}/peer"
[log]
level = "debug"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
grant_key_file = "{folder}/grant"
[[route]]
path = "/up/*"
role = "ledger"
target = "http://{echo}"
proof_key_file = "{folder}/proof"
grant_key_file = "{folder}/grant"
[identity]
header = "X-User"
from = ["127.0.0.1"]
"""


@dataclass
class Mirror:
    """Where a server listens that says to everybody's face what he sent; and all that it was sent."""

    address: str
    heard: list[str]


@pytest.fixture
def echo() -> Iterator[Mirror]:
    heard: list[str] = []

    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            # The secret first, and all in one line: errors are quoted by their beginning.
            told = (self.headers.get("Authorization"), self.headers.get("X-Consul-Token"), sent.decode("latin-1"))
            words = " ".join(each for each in told if each)
            heard.append(words)
            # Consul's errors are text; an etcd's and an API server's are these.
            said = json.dumps({"message": words, "code": 7, "kind": "Status", "reason": words}).encode()
            self.send_response_only(403, words)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_PUT = do_DELETE = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield Mirror(f"127.0.0.1:{server.server_port}", heard)
    server.shutdown()
    thread.join()
    server.server_close()


class Planted:
    """The secrets of one gateway, by the setting that holds each."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.secrets = {name: secrets.token_hex(16) for name in ("act", "read", "peer", "election")}
        for name, secret in self.secrets.items():
            (folder / name).write_text(secret + "\n")
            (folder / name).chmod(0o600)
        for name in ("proof", "grant"):
            self.secrets[name] = secrets.token_hex(16)
            (folder / name).write_text(f"k1 {self.secrets[name]}\n")
            (folder / name).chmod(0o600)
        pair = trustme.CA().issue_cert("127.0.0.1")
        pair.private_key_pem.write_to_path(folder / "key.pem")
        pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        key = pair.private_key_pem.bytes().decode().splitlines()
        self.secrets |= {"dsn": urlsplit(dsn).password or "", "key": key[len(key) // 2]}
        assert all(len(secret) >= 16 for secret in self.secrets.values()), "too short to be looked for"

    def found_in(self, what: dict[str, str]) -> list[tuple[str, str]]:
        """Which secret is where, as it is or as it travels."""
        return [
            (name, where)
            for name, secret in self.secrets.items()
            for form in (secret, quote(secret, safe=""), *_encoded(secret))
            for where, text in what.items()
            if form in text
        ]


def _encoded(secret: str) -> list[str]:
    """Its base64, wherever in a longer text it begins: what surely belongs to it."""
    return [base64.b64encode(b"x" * before + secret.encode()).decode()[4:-4] for before in range(3)]


def _command_lines(leader: int) -> dict[str, str]:
    """Of every process of the gateway's session, by what ``ps`` would show."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found[f"ps {entry.name}"] = (entry / "cmdline").read_text()
        except OSError:
            continue
    return found


def _answers(gateway: Serving, planted: Planted, trust: ssl.SSLContext) -> dict[str, str]:
    found = {}
    read = {"Authorization": f"Bearer {planted.secrets['read']}"}
    pages = [
        "/live",
        "/ready",
        "/metrics",
        "/-/roles",
        "/-/console",
        "/-/console/act",
        "/-/config",
        "/config",
        "/nothing",
    ]
    for page in pages:
        for headers in ({}, read, {"Authorization": "Bearer wrong"}):
            answer = ask(gateway.admin, "GET", page, None, trust, **headers)
            found[f"admin {page}"] = found.get(f"admin {page}", "") + str(answer)
    for method, path, headers in (
        ("POST", "/v1/entries", {"X-Fencing-Token": "1"}),
        ("POST", "/v1/entries", {"X-Fencing-Token": "no"}),
        ("GET", "/v1/entries?after=0", {}),
        ("GET", "/.well-known/fencegate/leader/ledger", {"X-User": "alice"}),
        ("POST", "/v1/entries", {"X-Fencing-Token": "1", "X-User": "alice", "X-Fencing-Grant": "fg1.k1.a.b"}),
        ("POST", "/-/authz/ledger", {}),
        ("POST", "/nothing", {}),
    ):
        answer = ask(gateway.data, method, path, {"n": 1}, trust, **headers)
        found[f"data {method} {path}"] = str(answer)
    return found


ELECTIONS = {
    "postgres": 'source = "postgres"\ndsn = "{dsn}"',
    "etcd": 'source = "etcd"\nendpoints = ["http://{echo}"]\nusername = "u"\npassword_file = "{folder}/election"',
    "consul": 'source = "consul"\nendpoints = ["http://{echo}"]\ntoken_file = "{folder}/election"',
    "kubernetes": (
        'source = "kubernetes"\nendpoints = ["http://{echo}"]\nnamespace = "n"\ntoken_file = "{folder}/election"'
    ),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("election", ELECTIONS)
def test_no_secret_is_in_anything_that_a_gateway_says_or_shows(
    serve: Callable[..., Serving], migrated_dsn: str, echo: Mirror, tmp_path: Path, election: str
) -> None:
    planted = Planted(tmp_path, migrated_dsn)
    filled = {"folder": str(tmp_path), "dsn": migrated_dsn, "echo": echo.address}
    text = TEXT.format(election=ELECTIONS[election].format(**filled), **filled)
    (tmp_path / "f.toml").write_text(text)
    gateway = serve("--config", str(tmp_path / "f.toml")).listens(60)
    if election == "postgres":
        gateway.leads()
    else:
        until("the secret at the election", lambda: planted.secrets["election"] in "".join(list(echo.heard)))
        until("word of it", lambda: [line for line in list(gateway.err) if "unavailable" in line or "403" in line])
    trust = _trusting()
    shown = _answers(gateway, planted, trust) | _command_lines(gateway.process.pid)
    assert sum(where.startswith("ps ") for where in shown) >= 3, "the supervisor and its workers"

    # A reload of a file that is wrong in every place that holds a secret.
    wrong = text.replace("postgresql://", "postgres-ql://").replace('"/', '"http://u:p@/').replace(str(tmp_path), "/x")
    (tmp_path / "f.toml").write_text(wrong)
    gateway.signal(signal.SIGHUP)
    until("the refused reload", lambda: gateway.facts_of("reload_refused"))
    (tmp_path / "f.toml").write_text(text)
    for command in (("status",), ("doctor", "--limit", "2"), ("doctor", "--json", "--limit", "2")):
        done = fencegate(*command, "--config", str(tmp_path / "f.toml"))
        shown[" ".join(command)] = done.stdout + done.stderr
    gateway.stop()
    shown |= {"stdout": "".join(gateway.out), "stderr": "".join(gateway.err)}
    assert planted.secrets["peer"] in "".join(echo.heard), "the console has asked its peer"
    assert shown["stderr"]
    assert planted.found_in(shown) == []


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
