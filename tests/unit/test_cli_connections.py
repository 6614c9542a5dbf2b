"""Settings into what connections are made with: verified always, and every fault named by its key."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path

import pytest
import trustme

from fencegate.access.client_tls import ClientTls
from fencegate.access.database import Database
from fencegate.cli import connections
from fencegate.config import Flag, Settings, parse
from fencegate.errors import ConfigurationError
from fencegate.observations import CertificatesLoaded, Observation

TEXT = """\
node = "n"
region = "r"
advertise = "https://h"
[store]
dsn = "postgresql://db.example/ledger"
[[route]]
path = "/x"
role = "ledger"
target = "{target}"
"""


def settings(*flags: tuple[str, str], target: str = "ledger") -> Settings:
    return parse(file=("F", TEXT.format(target=target)), flags=[Flag("--set", key, text) for key, text in flags])


def etcd(endpoint: str, *flags: tuple[str, str]) -> Settings:
    return settings(("election.source", "etcd"), ("election.endpoints", endpoint), *flags)


@pytest.fixture
def ca(tmp_path: Path) -> str:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


def test_tls_for_the_election_is_made_where_an_endpoint_or_a_setting_asks_for_it(ca: str) -> None:
    assert connections.election_tls(etcd("http://h:1")) is None
    for found in (
        connections.election_tls(etcd("https://h:1")),
        connections.election_tls(
            settings(("election.source", "zookeeper"), ("election.endpoints", "h:1"), ("election.tls.ca", ca))
        ),
    ):
        assert found is not None
        assert found.verify_mode is ssl.CERT_REQUIRED
        assert found.check_hostname


def test_the_store_is_under_tls_where_its_table_is_set(ca: str) -> None:
    assert connections.store(settings(), "postgresql://h/d") == Database("postgresql://h/d")
    portable = settings(
        ("election.source", "etcd"),
        ("election.endpoints", "http://e:1"),
        ("store.portability", "true"),
        ("store.clock_offset", "0.5"),
    )
    assert connections.store(portable, "postgresql://h/d") == Database(
        "postgresql://h/d", portable=True, clock_offset=0.5
    )
    found = connections.store(settings(("store.tls.ca", ca)), "postgresql://h/d")
    assert isinstance(found.tls, ClientTls)
    own = connections.election(settings(("election.dsn", "postgresql://e/d"), ("election.tls.ca", ca)), found)
    assert (own.dsn, own.name) == ("postgresql://e/d", "election")
    assert own.tls not in (None, found.tls)
    for named in ((), (("election.dsn", "postgresql://h/d"),)):
        assert connections.election(settings(("store.tls.ca", ca), *named), found) is found, "the store's own database"


SEVERAL = """\
[[store]]
name = "north"
dsn = "postgresql://north/d"
roles = ["ledger"]
[[store]]
dsn = "postgresql://south/d"
roles = ["other"]
password_file = "/p"
[store.tls]
ca = "{ca}"
[election]
source = "postgres"
dsn = "{elected}"
[[route]]
path = "/y"
role = "other"
target = "ledger"
"""


def several(ca: str, elected: str) -> Settings:
    text = TEXT.format(target="ledger").replace('[store]\ndsn = "postgresql://db.example/ledger"\n', "")
    return parse(file=("F", text + SEVERAL.format(ca=ca, elected=elected)))


def test_each_of_several_stores_has_its_own_table_and_an_election_in_one_goes_its_way(ca: str) -> None:
    chosen = several(ca, "postgresql://south/d")
    found = connections.stores(chosen, "")
    assert found["north"] == Database("postgresql://north/d", name="[[store]] north")
    south = found["2"]
    assert isinstance(south.tls, ClientTls)
    assert (south.dsn, south.password_file, south.key("dsn")) == ("postgresql://south/d", "/p", "[[store]] 2 dsn")
    assert connections.election(chosen, connections.home(chosen, found)) is south
    apart = several(ca, "postgresql://e/d")
    elected = connections.election(apart, connections.home(apart, connections.stores(apart, "")))
    assert elected == Database("postgresql://e/d", name="election")
    with pytest.raises(ConfigurationError, match=r"^\[\[store\]\] 2 tls\.ca: cannot read /no/ca"):
        connections.stores(several("/no/ca", "postgresql://e/d"), "")


def test_an_upstream_has_a_context_where_its_scheme_is_https(ca: str) -> None:
    assert connections.upstream_tls(settings()) is None
    assert connections.upstream_tls(settings(target="http://u:1")) is None
    assert connections.upstream_tls(settings(("upstream.tls.ca", ca), target="https://u:1")) is not None


def test_a_reload_may_bring_the_first_https_target(ca: str) -> None:
    pool = connections.upstream_pools(settings(), lambda fact: None)
    assert isinstance(pool("https://u:1").ssl_context, ClientTls)
    assert pool("http://u:1").ssl_context is None


@pytest.mark.parametrize("table", ["store", "election", "upstream"])
def test_a_file_that_cannot_be_used_is_a_fault_with_its_key(table: str, tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    pair = ((f"{table}.tls.cert", str(junk)), (f"{table}.tls.key", "/nowhere"), (f"{table}.tls.ca", "/no/ca"))
    elected = (("election.source", "etcd"), ("election.endpoints", "https://h:1"))
    chosen = settings(*pair, *elected, target="https://u:1")
    made = {
        "store": lambda: connections.store(chosen, "postgresql://h/d"),
        "election": lambda: connections.election_tls(chosen),
        "upstream": lambda: connections.upstream_tls(chosen),
    }
    with pytest.raises(ConfigurationError) as caught:
        made[table]()
    assert caught.value.faults == [
        f"{table}.tls.ca: cannot read /no/ca: No such file or directory",
        f"{table}.tls.cert: cannot use {junk}: there is no certificate in PEM in it",
        f"{table}.tls.key: cannot read /nowhere: No such file or directory",
    ]


async def test_what_a_thread_of_a_library_tells_is_heard_in_the_loop() -> None:
    heard: list[tuple[Observation, int]] = []
    told = connections.on_this_loop(lambda fact: heard.append((fact, threading.get_ident())))
    first, second = CertificatesLoaded("a", "/a"), CertificatesLoaded("b", "/b")
    told(first)
    await asyncio.to_thread(told, second)
    await asyncio.sleep(0)
    assert heard == [(first, threading.get_ident()), (second, threading.get_ident())]
