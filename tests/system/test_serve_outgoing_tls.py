"""``fencegate serve`` with TLS to its store and its upstream: all of it rotates under it, and it goes on."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
import trustme

from fencegate.access.client_tls import ClientFiles, ClientTls
from fencegate.embedded.process import EmbeddedServerError
from fencegate.testing.postgres_tls import USER, PostgresUnderTls, ServerFiles
from system.serving import Serving, Upstream, ask, fencegate, until

pytestmark = pytest.mark.system

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "http://ledger.eu.example"
[store]
dsn = "{dsn}"
password_file = "{files}/password"
[store.tls]
ca = "{files}/store-ca.pem"
cert = "{files}/gw.pem"
key = "{files}/gw.key"
[upstream.tls]
ca = "{files}/upstream-ca.pem"
cert = "{files}/gw.pem"
key = "{files}/gw.key"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
[[route]]
path = "/up"
role = "ledger"
target = "{upstream}"
"""


SEVERAL = """\
node = "gw-1"
region = "eu"
advertise = "http://ledger.eu.example"
[[store]]
name = "north"
dsn = "{north}"
roles = ["shards/n-*"]
[[store]]
name = "south"
dsn = "{dsn}"
roles = ["shards/s-*"]
password_file = "{files}/password"
[store.tls]
ca = "{files}/store-ca.pem"
cert = "{files}/gw.pem"
key = "{files}/gw.key"
[election]
source = "postgres"
dsn = "{dsn}"
[[route]]
path = "/shards/{{shard}}"
role = "shards/{{shard}}"
members = ["n-1", "s-1"]
target = "ledger"
"""
"""The election is in the store under TLS, and has no table of its own: it goes that store's way."""


class World:
    """The authorities, the servers that they vouch for, and the gateway's files."""

    def __init__(self, files: Path, postgres: PostgresUnderTls, accepting: ssl.SSLContext) -> None:
        self.files = files
        self.postgres = postgres
        self.accepting = accepting
        self.renew()

    def renew(self) -> None:
        """New authorities and new files for everybody; the servers do not show theirs yet."""
        self.servers, self.clients = trustme.CA(), trustme.CA()
        ours = self.clients.issue_cert(common_name=USER)
        ours.cert_chain_pems[0].write_to_path(self.files / "gw.pem")
        ours.private_key_pem.write_to_path(self.files / "gw.key")
        for name in ("store-ca.pem", "upstream-ca.pem"):
            self.servers.cert_pem.write_to_path(self.files / name)
        self.servers.issue_cert("localhost").configure_cert(self.accepting)
        self.clients.configure_trust(self.accepting)

    def of_the_store(self) -> ServerFiles:
        blob = self.servers.issue_cert("127.0.0.1")
        return ServerFiles(blob.cert_chain_pems[0].bytes(), blob.private_key_pem.bytes(), self.clients.cert_pem.bytes())

    async def end_sessions(self) -> None:
        """As a store does that is restarted. Raises ``OSError`` until it has taken its new files."""
        tls = ClientTls(
            ClientFiles("store.tls", *(str(self.files / name) for name in ("store-ca.pem", "gw.pem", "gw.key")))
        )
        connection = await asyncpg.connect(self.postgres.dsn(), ssl=tls, password=self.postgres.password)
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'fencegate%'"
        await connection.execute(others)
        await connection.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.verify_mode = ssl.CERT_REQUIRED
    made = World(tmp_path, PostgresUnderTls(tmp_path / "postgres"), accepting)
    try:
        made.postgres.start(made.of_the_store())
    except EmbeddedServerError as problem:
        pytest.skip(str(problem))
    (tmp_path / "password").write_text(made.postgres.password)
    yield made
    made.postgres.stop()


def configured(world: World, upstream: Upstream) -> str:
    url = f"https://localhost:{upstream.server.server_port}"
    path = world.files / "fencegate.toml"
    path.write_text(TEXT.format(dsn=world.postgres.dsn(), files=world.files, upstream=url))
    return str(path)


def test_certificates_of_both_ends_change_under_a_gateway_that_goes_on(
    serve: Callable[..., Serving], world: World, upstream: Upstream
) -> None:
    upstream.let_go.set()
    upstream.server.socket = world.accepting.wrap_socket(upstream.server.socket, server_side=True)
    upstream.server.RequestHandlerClass.protocol_version = "HTTP/1.0"  # a connection for each request
    config = configured(world, upstream)
    assert fencegate("migrate", "--config", config).returncode == 0
    gateway = serve("--config", config).listens()

    def written(path: str) -> bool:
        token = gateway.leads()
        headers = {"X-Fencing-Token": str(token)}
        return ask(gateway.data, "POST", path, {"n": 1}, **headers).status == 201

    for path in ("/v1/entries", "/up"):
        until(path, lambda path=path: written(path))

    world.renew()
    world.postgres.show(world.of_the_store())

    def ended() -> bool:
        try:
            asyncio.run(world.end_sessions())
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    until("the store's new files", ended)
    for path in ("/v1/entries", "/up"):
        until(f"{path} by the new files", lambda path=path: written(path))
    until("the word of it", lambda: _loaded(gateway) == {"store.tls", "upstream.tls"})
    assert not gateway.facts_of("certificates_refused")
    assert gateway.stop() == 0
    said = "".join([*gateway.out, *gateway.err])
    assert world.postgres.password not in said


@pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"))]
)
def test_of_several_stores_one_under_tls_is_written_to_and_so_is_the_other(
    workers: int, serve: Callable[..., Serving], world: World, fresh_dsn: str
) -> None:
    path = world.files / "several.toml"
    path.write_text(SEVERAL.format(north=fresh_dsn, dsn=world.postgres.dsn(), files=world.files))
    migrated = fencegate("migrate", "--config", str(path))
    assert migrated.stdout.count("applied 0001_") == 2, migrated.stderr
    gateway = serve("--config", str(path), "--workers", str(workers)).listens()

    def written(shard: str) -> bool:
        token = gateway.discovered(f"shards/{shard}")
        return gateway.write(token, path=f"/shards/{shard}").status == 201

    for shard in ("n-1", "s-1"):
        until(shard, lambda shard=shard: written(shard))
    examined = json.loads(fencegate("doctor", "--config", str(path), "--json").stdout)
    measured = {check["check"]: check["measured"] for check in examined["checks"]}
    assert measured["store.transport[south]"] == "[store.tls]"
    assert {"store.reachable[south]", "store.certificate[south]", "store.ca[south]"} <= measured.keys()
    assert {"files.store.tls.key[south]", "files.store.password_file[south]"} <= measured.keys()
    rebased = fencegate("rebase", "shards/s-1", "--config", str(path), "--confirm", "shards/s-1")
    assert rebased.returncode == 0, rebased.stderr
    assert gateway.stop() == 0
    assert world.postgres.password not in "".join([*gateway.out, *gateway.err])

    (world.files / "gw.key").unlink()
    for command in ("serve", "doctor", "migrate"):
        found = fencegate(command, "--config", str(path))
        assert found.returncode == 78, found.stderr
        assert f"[[store]] south tls.key: cannot read {world.files}/gw.key: No such file" in found.stderr


def _loaded(gateway: Serving) -> set[str]:
    return {fact["setting"] for fact in gateway.facts_of("certificates_loaded")}


def test_files_that_are_missing_are_named_and_nothing_starts(world: World, upstream: Upstream) -> None:
    config = configured(world, upstream)
    (world.files / "gw.key").unlink()
    for command in ("serve", "doctor", "migrate"):
        found = fencegate(command, "--config", config)
        assert found.returncode == 78, found.stderr
        assert f"store.tls.key: cannot read {world.files}/gw.key: No such file or directory" in found.stderr
