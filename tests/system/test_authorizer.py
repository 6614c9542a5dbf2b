"""fencegate as the authorizer of real front proxies, by the configurations that are shipped."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fencegate.embedded.process import free_port
from fencegate.grant import grant_for, sign
from fencegate.key_ring import SharedKey
from system.serving import Answer, Serving, ask, until

pytestmark = pytest.mark.system

RECIPES = Path(__file__).parents[2] / "deploy" / "authorizer"
PROXIES = {
    "nginx": ("nginx.conf", ["nginx", "-g", "daemon off; pid {folder}/pid; error_log stderr;", "-c", "{file}"]),
    "caddy": ("Caddyfile", ["caddy", "run", "--adapter", "caddyfile", "--config", "{file}"]),
    "haproxy": ("haproxy.cfg", ["haproxy", "-db", "-f", "{file}"]),
}


@dataclass
class Upstream:
    """Notes every request, and answers with the status that it is told."""

    server: ThreadingHTTPServer
    status: int = 201
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    @property
    def writes(self) -> int:
        return sum(method != "GET" for method, _, _ in self.seen)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found.seen.append((self.command, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(found.status)
            self.send_header("X-Fencing-Outcome", "forged")
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"done")

        do_GET = do_PUT = do_POST

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Upstream(server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()


@dataclass
class Front:
    """A proxy before the upstream, and the gateway that it asks."""

    address: str
    gateway: Serving
    token: int
    upstream: Upstream

    def write(self, token: int | str | None, **headers: str) -> Answer:
        given = {} if token is None else {"X-Fencing-Token": str(token)}
        return ask(self.address, "POST", "/v1/entries?x=1", {"decision": "approve"}, **given, **headers)


@pytest.fixture
def lines() -> str:
    """Of the gateway's file, besides."""
    return ""


@pytest.fixture(params=PROXIES)
def front(
    request: pytest.FixtureRequest,
    fresh_dsn: str,
    serve: Callable[..., Serving],
    configuration: Callable[[str], str],
    upstream: Upstream,
    tmp_path: Path,
    lines: str,
) -> Iterator[Front]:
    recipe, command = PROXIES[request.param]
    program = shutil.which(command[0]) or shutil.which(command[0], path="/usr/sbin")
    if program is None:
        pytest.skip(f"{command[0]} is not installed (Debian: {request.param})")
    text = (
        'node = "gw-1"\nregion = "eu"\nadvertise = "http://127.0.0.1:1"\n'
        f'[store]\ndsn = "{fresh_dsn}"\n[election]\nsource = "postgres"\n'
        '[[route]]\npath = "/-/authz/ledger"\nrole = "ledger"\ntarget = "authz"\n'
    )
    if request.param == "nginx":  # whose recipe sets the header; with any other a client could send it
        text += 'method_from = "X-Original-Method"\n'
    gateway = serve("--migrate", "--config", configuration(text + lines.format(folder=tmp_path))).listens()
    token = gateway.leads()
    port = free_port()
    folder = tmp_path / "proxy"
    shutil.copytree(RECIPES, folder)
    file = folder / recipe
    places = {"127.0.0.1:8080": gateway.data, "127.0.0.1:8090": f"127.0.0.1:{port}"}
    places["127.0.0.1:9000"] = f"127.0.0.1:{upstream.server.server_address[1]}"
    written, count = re.subn("|".join(map(re.escape, places)), lambda at: places[at.group()], file.read_text())
    assert count >= 3
    file.write_text(written)
    # A caller's name goes with the question, as the page says.
    asked = folder / "fencegate.lua"
    asked.write_text(asked.read_text().replace("local SENT = { ", 'local SENT = { "x-forwarded-user", '))
    filled = [part.format(folder=folder, file=file) for part in command[1:]]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *filled], cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        address = f"127.0.0.1:{port}"
        until(f"{request.param} to answer", lambda: process.poll() is None and _answers(address))
        yield Front(address, gateway, token, upstream)
    finally:
        process.terminate()
        process.wait(10)


def _answers(address: str) -> bool:
    try:
        return ask(address, "GET", "/").status > 0
    except OSError:
        return False


def test_a_write_of_the_leader_passes_with_its_body_and_any_other_gets_the_whole_contract(front: Front) -> None:
    accepted = front.write(front.token)
    assert (accepted.status, accepted.body, accepted.outcome) == (201, b"done", "accepted")
    method, headers, body = front.upstream.seen[-1]
    assert (method, body) == ("POST", b'{"decision": "approve"}')
    assert headers["x-fencing-token"] == headers["x-fencing-max-seen"] == str(front.token)

    before = front.upstream.writes
    for token, status, code in (
        (None, 428, "token_required"),
        ("007", 400, "token_malformed"),
        (front.token + 1000, 403, "token_not_issued"),
    ):
        refused = front.write(token)
        assert (refused.status, refused.outcome) == (status, code)
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["x-fencing-applied"] == "no"
        assert refused.headers["x-fencing-retry"] == "never"
        document = refused.json
        assert (document["status"], document["code"], document["role"] if token else "ledger") == (
            status,
            code,
            "ledger",
        )
    assert front.upstream.writes == before


def test_a_stale_token_is_a_409_with_the_hint_and_reads_need_none(front: Front, fresh_dsn: str) -> None:
    import asyncio

    import asyncpg

    async def take_over() -> int:
        connection = await asyncpg.connect(fresh_dsn)
        try:
            token: int = await connection.fetchval(
                "UPDATE fencegate.fence SET max_token_seen = max_token_seen + 1, "
                "valid_until = clock_timestamp() + '60 s' RETURNING max_token_seen"
            )
            return token
        finally:
            await connection.close()

    newer = asyncio.run(take_over())
    before = front.upstream.writes
    refused = front.write(newer - 1)
    assert (refused.status, refused.outcome) == (409, "stale_token")
    assert refused.headers["x-fencing-max-seen"] == str(newer)
    assert refused.headers["x-fencing-retry"] == "rediscover"
    assert refused.json["max_token_seen"] == newer
    assert front.upstream.writes == before

    read = ask(front.address, "GET", "/v1/entries")
    assert (read.status, read.body, read.outcome) == (201, b"done", None)


def test_a_client_cannot_declare_its_write_to_be_a_read(front: Front) -> None:
    before = front.upstream.writes
    for name in ("X-Original-Method", "X-Forwarded-Method", "X-HTTP-Method-Override"):
        assert front.write(None, **{name: "GET"}).status in (400, 428)
    assert front.upstream.writes == before


def test_no_read_carries_another_method_to_the_upstream(front: Front) -> None:
    overrides = ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"]
    for name in (*overrides, *(name.replace("-", "_") for name in overrides), "X-HTTP_Method-Override"):
        read = ask(front.address, "GET", "/v1/entries", **{name: "DELETE"})
        assert read.status in (201, 400, 428)
    folded = {name.replace("_", "-") for _, headers, _ in front.upstream.seen for name in headers}
    before = len(front.upstream.seen)
    for query in ("_method=DELETE", "a=1&%5Fmethod=DELETE"):
        assert ask(front.address, "GET", f"/v1/entries?{query}").status in (400, 428)
    assert len(front.upstream.seen) == before
    assert not folded & {name.lower() for name in overrides}
    assert front.upstream.writes == 0
    assert ask(front.address, "GET", "/v1/entries?method=card").status == 201


GRANTS = """\
grant = "required"
grant_key_file = "{folder}/grant.keys"
[identity]
header = "X-Forwarded-User"
from = ["127.0.0.1"]
"""


@pytest.fixture
def grant_key(tmp_path: Path) -> SharedKey:
    key = SharedKey("one", b"s" * 32)
    (tmp_path / "grant.keys").write_text(f"{key.id} {key.secret.decode()}\n")
    return key


@pytest.mark.parametrize("lines", [GRANTS])
@pytest.mark.usefixtures("lines")
def test_a_grant_is_asked_for_through_the_proxy_and_goes_no_further(grant_key: SharedKey, front: Front) -> None:
    grant = sign(grant_key, grant_for("ledger", front.token, "alice", time.time()))
    for caller, given, status, code in (
        ("alice", {}, 428, "grant_required"),
        ("mallory", {"X-Fencing-Grant": grant}, 403, "grant_invalid"),
        ("alice", {"X-Fencing-Grant": grant}, 201, "accepted"),
    ):
        answer = front.write(front.token, **{"X-Forwarded-User": caller}, **given)
        assert (answer.status, answer.outcome) == (status, code)
    assert front.upstream.writes == 1
    assert ask(front.address, "GET", "/v1/entries", **{"X-Fencing-Grant": grant}).status == 201
    assert not any(grant in headers.values() for _, headers, _ in front.upstream.seen)


def test_no_client_tells_the_upstream_who_calls(front: Front) -> None:
    # What a WSGI upstream takes for the same name counts as the same.
    forged = dict.fromkeys(("X-Fencing-Caller", "X_Fencing_Caller", "X-Fencing_Caller"), "mallory")
    forged |= {"X-Fencing-Max-Seen": "9999999", "X_Fencing-Max-Seen": "mallory"}
    assert front.write(front.token, **forged).status == 201
    assert ask(front.address, "GET", "/v1/entries", **forged).status in (201, 428)
    (written,) = [headers for method, headers, _ in front.upstream.seen if method == "POST"]
    assert int(written["x-fencing-max-seen"]) == front.token
    assert not any("mallory" in headers.values() for _, headers, _ in front.upstream.seen)


def test_an_error_of_the_upstream_is_no_acceptance_and_a_silent_authorizer_lets_nothing_through(front: Front) -> None:
    front.upstream.status = 500
    failed = front.write(front.token)
    assert (failed.status, failed.outcome) == (500, None), "nobody here knows whether it was applied"

    front.gateway.process.kill()
    front.gateway.ends()
    before = front.upstream.writes
    closed: Any = front.write(front.token)
    assert closed.status >= 500
    assert closed.outcome in (None, "fence_unavailable")
    assert front.upstream.writes == before
