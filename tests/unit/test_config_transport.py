"""The rules of TLS and passwords: what was to be protected goes nowhere in the clear, and each fault names its key."""

from __future__ import annotations

import pytest

from fencegate.config import Flag, Settings, parse
from fencegate.errors import ConfigurationError

TEXT = """\
node = "n"
region = "r"
advertise = "https://h"
{top}
[[route]]
path = "/x"
role = "ledger"
target = "ledger"
{routes}
"""
STORE = {"store.dsn": "postgresql://f@db.example/ledger"}
ETCD = {"election.source": "etcd", "election.endpoints": "https://e:1"}


def route(target: str) -> str:
    return f'[[route]]\npath = "/{abs(hash(target))}"\nrole = "other"\ntarget = "{target}"\n'


def settings(keys: dict[str, str], *targets: str, **options: bool) -> Settings:
    text = TEXT.format(top="", routes="".join(route(target) for target in targets))
    flags = [Flag("--set", key, value) for key, value in keys.items()]
    return parse(file=("F", text), flags=flags, **options)


def faults(keys: dict[str, str], *targets: str, **options: bool) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settings(keys, *targets, **options)
    return caught.value.faults


def test_each_table_is_taken_with_what_it_protects() -> None:
    tables = {
        f"{table}.tls.{name}": f"/{name}" for table in ("store", "election", "upstream") for name in ("ca", "key")
    }
    pairs = {f"{table}.tls.cert": "/cert" for table in ("store", "election", "upstream")}
    found = settings({**STORE, **ETCD, **tables, **pairs, "upstream.tls.server_name": "u.example"}, "https://u:1")
    assert (found.store.tls.ca, found.upstream.tls.server_name) == ("/ca", "u.example")


@pytest.mark.parametrize("table", ["store", "election", "upstream"])
@pytest.mark.parametrize(("given", "missing"), [("cert", "key"), ("key", "cert")])
def test_a_certificate_without_its_key_and_a_key_without_its_certificate_are_refused(
    table: str, given: str, missing: str
) -> None:
    (fault,) = faults({**STORE, **ETCD, f"{table}.tls.{given}": "/x"}, "https://u:1")
    assert f"{table}.tls.{given}" in fault
    assert f"expected {table}.tls.{missing} with it" in fault


@pytest.mark.parametrize("parameter", ["sslmode=prefer", "sslmode=verify-full", "sslrootcert=/ca", "sslkey=/k"])
def test_a_dsn_says_nothing_of_tls_beside_the_table(parameter: str) -> None:
    keys = {"store.dsn": f"postgresql://u:s3cret@h/d?{parameter}"}
    settings(keys)
    (fault,) = faults({**keys, "store.tls.ca": "/ca"})
    assert fault.startswith("store.dsn = ")
    assert parameter.partition("=")[0] in fault
    assert "s3cret" not in fault


@pytest.mark.parametrize(
    "dsn", ["postgresql:///d", "postgresql://u@/d?host=/run/postgresql", "postgresql://%2Frun%2Fpostgresql/d"]
)
def test_there_is_no_tls_over_a_socket(dsn: str) -> None:
    (fault,) = faults({"store.dsn": dsn, "store.tls.ca": "/ca"})
    assert "there is no TLS over a Unix socket" in fault


@pytest.mark.parametrize("dsn", ["postgresql://u:s3cret@h/d", "postgresql://u@h/d?password=s3cret"])
def test_there_is_one_password_only(dsn: str) -> None:
    (fault,) = faults({"store.dsn": dsn, "store.password_file": "/p"})
    assert "expected no password in it with store.password_file" in fault
    assert "s3cret" not in fault


SEVERAL = """\
node = "n"
region = "r"
advertise = "https://h"
[[store]]
dsn = "postgresql://a.example/d"
roles = ["ledger"]
[[store]]
dsn = "{dsn}"
roles = ["other"]
{keys}
[store.tls]
{tls}
[election]
source = "etcd"
endpoints = ["http://e:1"]
[[route]]
path = "/x"
role = "ledger"
target = "ledger"
[[route]]
path = "/y"
role = "other"
target = "ledger"
"""


@pytest.mark.parametrize(
    ("dsn", "keys", "tls", "begin", "words"),
    [
        ("postgresql://b/d", "", 'cert = "/c"', "[[store]] 2 tls.cert", "store.tls.key with it (file F, line 12)"),
        ("postgresql://b/d?sslmode=prefer", "", 'ca = "/c"', "[[store]] 2 dsn", "with [store.tls]"),
        ("postgresql:///d", "", 'ca = "/c"', "[[store]] 2 dsn", "no TLS over a Unix socket"),
        ("postgresql://u:s3cret@b/d", 'password_file = "/p"', "", "[[store]] 2 dsn", "expected no password in it"),
    ],
)
def test_each_of_several_stores_is_held_to_the_rules_of_its_own_table(
    dsn: str, keys: str, tls: str, begin: str, words: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(file=("F", SEVERAL.format(dsn=dsn, keys=keys, tls=tls)))
    (fault,) = caught.value.faults
    assert fault.startswith(begin)
    assert words in fault
    assert "s3cret" not in fault


def test_an_election_in_the_stores_database_has_the_stores_table() -> None:
    (fault,) = faults({**STORE, "election.tls.ca": "/ca"})
    assert fault.startswith("election.tls")
    assert "expected [store.tls]" in fault
    own = {
        **STORE,
        "election.dsn": "postgresql://e.example/d",
        "election.tls.ca": "/ca",
        "election.password_file": "/p",
    }
    assert settings(own).election.tls.ca == "/ca"
    (fault,) = faults({**STORE, "election.password_file": "/p"})
    assert fault.startswith("election.password_file")


@pytest.mark.parametrize("source", ["etcd", "consul"])
def test_an_endpoint_in_the_clear_is_refused_beside_the_table(source: str) -> None:
    keys = {**STORE, "election.source": source, "election.tls.ca": "/ca"}
    (fault,) = faults({**keys, "election.endpoints": "https://a:1,http://b:1"})
    assert fault.startswith("election.endpoints")
    assert "goes in the clear" in fault


def test_patronis_rest_api_may_be_in_the_clear_and_its_etcd_may_not() -> None:
    keys = {**STORE, "election.source": "patroni", "election.mode": "follow", "election.cluster": "c"}
    keys |= {"election.endpoints": "http://a:8008", "election.tls.ca": "/ca"}
    settings({**keys, "election.dcs": "https://e:1"})
    assert any(fault.startswith("election.dcs") for fault in faults({**keys, "election.dcs": "http://e:1"}))


def test_the_upstreams_table_needs_an_https_target_and_its_name_one_alone() -> None:
    (fault,) = faults({**STORE, "upstream.tls.ca": "/ca"}, "http://u:1")
    assert fault.startswith("upstream.tls")
    assert "https:// target" in fault
    name = {**STORE, "upstream.tls.server_name": "u.example"}
    settings(name, "https://u:1", "http://v:1")
    (fault,) = faults(name, "https://u:1", "https://v:1")
    assert fault.startswith("upstream.tls.server_name")


@pytest.mark.parametrize("key", ["store.tls.ca", "store.password_file"])
def test_an_embedded_store_is_protected_by_nothing_of_ours(key: str) -> None:
    (fault,) = faults({key: "/x"}, embedded=True)
    assert "--embedded" in fault


def test_what_only_campaigns_is_held_to_the_rules_of_where_it_campaigns() -> None:
    (fault,) = faults({**STORE, "store.tls.cert": "/c"}, only_election=True)
    assert fault.startswith("store.tls.cert")


@pytest.mark.parametrize("name", ["", "a b", "https://h", "-h"])
def test_a_server_name_is_a_hosts_name(name: str) -> None:
    (fault,) = faults({**STORE, "store.tls.server_name": name})
    assert "expected a host's name, or an IP address" in fault
