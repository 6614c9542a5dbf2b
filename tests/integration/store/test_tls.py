"""Store and election in a Postgres that takes nobody without TLS and a certificate that is made out to the user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from fencegate.access.database import Database
from fencegate.cli import connections, elections
from fencegate.config import Flag, Settings, parse
from fencegate.embedded.process import EmbeddedServerError
from fencegate.errors import Unavailable
from fencegate.lease import Candidate, ElectionUnavailable, Won
from fencegate.store import migrate
from fencegate.store.link import Link
from fencegate.store.postgres import PostgresStore
from fencegate.testing.postgres_tls import USER, PostgresUnderTls, ServerFiles
from store.writing import until

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""
ENCRYPTED = "SELECT ssl, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


class Place:
    """A Postgres, the authorities of both sides, and a directory with our files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = PostgresUnderTls(directory / "postgres")
        self.servers, self.clients = trustme.CA(), trustme.CA()
        (directory / "ours").mkdir()

    def ours(self, name: str) -> str:
        return str(self.directory / "ours" / name)

    def start(self) -> None:
        self.server.start(self._served())
        Path(self.ours("password")).write_text(f"{self.server.password}\n")
        self.put()

    def _served(self, name: str = "127.0.0.1") -> ServerFiles:
        blob = self.servers.issue_cert(name)
        chain = b"".join(pem.bytes() for pem in blob.cert_chain_pems)
        return ServerFiles(chain, blob.private_key_pem.bytes(), self.clients.cert_pem.bytes())

    def serve(self, name: str = "127.0.0.1") -> None:
        self.server.show(self._served(name))

    def put(self, signer: trustme.CA | None = None, user: str = USER) -> None:
        """Our files: the CA that we trust, and a certificate for ``user``."""
        self.servers.cert_pem.write_to_path(self.ours("ca"))
        blob = (signer or self.clients).issue_cert(common_name=user)
        blob.cert_chain_pems[0].write_to_path(self.ours("cert"))
        blob.private_key_pem.write_to_path(self.ours("key"))

    def rotate(self) -> None:
        """New authorities on both sides, and nothing left of the old."""
        self.servers, self.clients = trustme.CA(), trustme.CA()
        self.put()
        self.serve()

    def settings(self, table: str = "store", *without: str, host: str = "127.0.0.1", **more: str) -> Settings:
        keys = {"store.dsn": self.server.dsn(host)} | ({"election.dsn": self.server.dsn()} if table != "store" else {})
        keys |= {f"{table}.tls.{name}": self.ours(name) for name in ("ca", "cert", "key") if name not in without}
        keys |= {f"{table}.password_file": self.ours("password")} | more
        return parse(file=("F", TEXT), flags=[Flag("--set", key, value) for key, value in keys.items()])

    def database(self, *without: str, host: str = "127.0.0.1") -> Database:
        chosen = self.settings("store", *without, host=host)
        return connections.store(chosen, chosen.store.dsn or "")


@pytest.fixture
def place(running: Place) -> Place:
    """As it was made, whatever the test before did to our files."""
    running.put()
    return running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("tls"))
    try:
        made.start()
    except EmbeddedServerError as problem:
        pytest.skip(str(problem))
    yield made
    made.server.stop()


async def encrypted(database: Database) -> tuple[bool, str]:
    """What the server says of a new session with us. Raises :class:`Unavailable`."""
    link = Link(database, "test", limit=5.0, statement_timeout=5.0)
    try:
        row = (await link.read(5.0, ENCRYPTED))[0]
        return row["ssl"], row["client_dn"]
    finally:
        await link.close()


async def refusal(database: Database) -> str:
    with pytest.raises(Unavailable) as caught:
        await encrypted(database)
    return str(caught.value)


async def is_taken(database: Database) -> bool:
    try:
        return (await encrypted(database))[0]
    except Unavailable:
        return False


async def test_the_store_serves_under_tls_and_knows_whose_certificate_it_is(place: Place) -> None:
    is_encrypted, name = await encrypted(place.database())
    assert is_encrypted
    assert name.startswith("/O=trustme")
    await migrate.apply(place.database())
    store = await PostgresStore.open(place.database(), gateway="gw-1")
    assert store.up
    await store.close()


async def test_each_refusal_says_which_key_to_set(place: Place) -> None:
    assert "set store.tls.ca" in await refusal(place.database("ca"))
    assert "store.dsn" in (told := await refusal(place.database(host="localhost")))
    assert "is for another name" in told
    assert "certificate" in await refusal(place.database("cert", "key"))
    place.put(user="somebody")
    assert 'failed for user "fencegate"' in await refusal(place.database()), "of our CA, for somebody else"
    place.put(trustme.CA())
    for _ in range(20):  # The server's word may be lost with the connection, which it closes behind it.
        if "store.tls.cert" in (told := await refusal(place.database())):
            break
    assert "store.tls.cert" in told
    place.put()
    assert (await encrypted(place.database()))[0]


async def test_a_server_without_tls_is_sent_nothing(place: Place, fresh_dsn: str) -> None:
    bare = Database(fresh_dsn, place.database().tls)
    assert "rejected SSL upgrade" in await refusal(bare)


async def test_new_sessions_are_by_the_files_as_they_are_then_and_old_ones_stay(place: Place) -> None:
    database = place.database()
    link = Link(database, "test", limit=5.0, statement_timeout=5.0)
    before = (await link.read(5.0, "SELECT pg_backend_pid()"))[0][0]
    place.rotate()

    # A server takes its files anew a moment after it was told to.
    await until(lambda: is_taken(database))
    assert (await link.read(5.0, "SELECT pg_backend_pid()"))[0][0] == before
    await link.close()
    assert (await encrypted(place.database()))[0]


async def test_a_password_that_rotates_is_read_by_the_next_session(place: Place) -> None:
    database = place.database()
    link = Link(database, "test", limit=5.0, statement_timeout=5.0)
    await link.read(5.0, f"ALTER ROLE {USER} PASSWORD 'another'")
    assert "password" in await refusal(database)
    Path(place.ours("password")).write_text("another")
    assert (await encrypted(database))[0]
    await link.close()


@pytest.mark.parametrize("source", ["postgres", "postgres-advisory"])
async def test_an_election_with_a_dsn_of_its_own_has_certificates_of_its_own(place: Place, source: str) -> None:
    await migrate.apply(place.database())
    chosen = place.settings("election", **{"election.source": source})
    election = elections.backend(chosen, "postgresql://unused")
    won = await election.acquire(f"ledger-{source}", Candidate("gw-1", "eu", "https://h"), 10)
    assert isinstance(won, Won)
    await election.close()

    strange = elections.backend(place.settings("election", "ca", **{"election.source": source}), "unused")
    with pytest.raises(ElectionUnavailable, match=r"set election\.tls\.ca"):
        await strange.read("ledger", 5)
    await strange.close()


async def test_an_election_in_the_stores_database_is_under_the_stores_tls(place: Place) -> None:
    chosen = place.settings(**{"election.source": "postgres"})
    election = elections.backend(chosen, place.database())
    assert await election.read("nobody", 10) is None
    await election.close()


@pytest.mark.parametrize(("mode", "verified"), [("verify-full", True), ("require", True), ("disable", False)])
async def test_a_dsn_may_say_it_all_by_itself(place: Place, mode: str, verified: bool) -> None:
    files = f"&sslrootcert={place.ours('ca')}&sslcert={place.ours('cert')}&sslkey={place.ours('key')}"
    database = Database(f"{place.server.dsn()}?sslmode={mode}{files}", password_file=place.ours("password"))
    if verified:
        assert (await encrypted(database))[0]
    else:
        assert "no encryption" in await refusal(database)
