"""``[identity]`` and ``callers``: what is taken, and what could never know a caller or would believe anybody."""

from __future__ import annotations

import pytest

from fencegate.config import Flag, Settings, differences, parse
from fencegate.errors import ConfigurationError

BASE = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[store]
dsn = "postgresql://fencegate@localhost/ledger"
[listen.tls]
cert = "/c"
key = "/k"
client_ca = "/ca"
{identity}
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
{route}
"""
TLS = '[listen.tls]\ncert = "/c"\nkey = "/k"\nclient_ca = "/ca"\n'
BY_HEADER = '[identity]\nheader = "X-Forwarded-User"\nfrom = ["10.1.0.0/16", "10.2.3.4", "fd00::/8"]\n'
BY_CERTIFICATE = "[identity]\ncertificate = true\n"
CALLERS = 'callers = ["CN=billing,*", "spiffe://example.org/ns/*/ledger"]'


def settings(identity: str = "", route: str = "", text: str = BASE) -> Settings:
    return parse(file=("F", text.format(identity=identity, route=route)))


def faults(identity: str = "", route: str = "", text: str = BASE) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settings(identity, route, text)
    return caught.value.faults


def test_without_a_word_about_it_no_caller_has_an_identity() -> None:
    found = settings()
    assert not found.identity.known
    assert found.route[0].callers is None


def test_the_tables_are_taken_as_they_stand_and_reach_a_worker_whole() -> None:
    for identity in (BY_HEADER, BY_CERTIFICATE, BY_HEADER + "certificate = true\nrequired = true\n"):
        found = settings(identity, CALLERS)
        assert found.identity.known
        assert Settings.model_validate(found.document()) == found
    assert found.identity.proxies == ["10.1.0.0/16", "10.2.3.4", "fd00::/8"]


def test_it_can_be_set_by_variables_and_flags() -> None:
    found = parse(
        file=("F", BASE.format(identity="", route="")),
        environment={"FENCEGATE_IDENTITY_HEADER": "X-User", "FENCEGATE_IDENTITY_FROM": "10.0.0.0/8, fd00::1"},
        flags=[Flag("--set", "identity.required", "true")],
    ).identity
    assert (found.header, found.proxies, found.required) == ("X-User", ["10.0.0.0/8", "fd00::1"], True)


@pytest.mark.parametrize(
    ("identity", "route", "key", "told"),
    [
        (BY_HEADER.replace("10.1.0.0/16", "10.1.0.1/16"), "", "identity.from", "'10.1.0.1/16' is none"),
        (BY_HEADER.replace("10.1.0.0/16", "proxy.example"), "", "identity.from", "'proxy.example' is none"),
        (BY_HEADER.replace("10.1.0.0/16", "0.0.0.0/0"), "", "identity.from", "anybody could name any caller"),
        (BY_HEADER.replace("fd00::/8", "::/0"), "", "identity.from", "anybody could name any caller"),
        ('[identity]\nheader = "X-User"\n', "", "identity.from", "missing; expected with identity.header"),
        ('[identity]\nfrom = ["10.0.0.0/8"]\n', "", "identity.from", "expected identity.header with it"),
        ("[identity]\nrequired = true\n", "", "identity.required", "identity.certificate or identity.header"),
        ("[identity]\nrequired = 1\n", "", "identity.required", "expected true or false"),
        ("", CALLERS, "callers", "identity.certificate or identity.header"),
        (BY_HEADER, "callers = []", "callers", "at least one caller"),
        (BY_HEADER, 'callers = ["a", "a"]', "callers", "each once"),
        (BY_HEADER, 'callers = ["Größe"]', "callers", "printable ASCII"),
        (BY_HEADER, 'callers = [""]', "callers", "1 to 512"),
        (BY_HEADER, 'callers = "alice"', "callers", "expected a list of callers"),
    ],
)
def test_a_fault_names_the_key_and_what_was_expected(identity: str, route: str, key: str, told: str) -> None:
    (fault,) = faults(identity, route)
    assert key in fault
    assert told in fault


@pytest.mark.parametrize(
    "header",
    [
        "Authorization",
        "cookie",
        "Host",
        "Idempotency-Key",
        "X-Fencing-Caller",
        "X-Forwarded-For",
        "Connection",
        "X_User",
    ],
)
def test_a_header_with_another_meaning_is_nobodys_name(header: str) -> None:
    (fault,) = faults(BY_HEADER.replace("X-Forwarded-User", header))
    assert fault.startswith(f'identity.header = "{header}": expected a header')


def test_a_certificate_names_a_caller_only_where_it_is_verified() -> None:
    (fault,) = faults(BY_CERTIFICATE, text=BASE.replace(TLS, ""))
    assert fault.startswith("identity.certificate = true: expected listen.tls.client_ca with it")


@pytest.mark.parametrize(
    ("identity", "route"), [(BY_CERTIFICATE, CALLERS), (BY_CERTIFICATE + "required = true\n", ""), (BY_HEADER, "")]
)
def test_an_authorizer_that_could_know_no_caller_is_refused(identity: str, route: str) -> None:
    text = BASE.replace('path = "/v1/entries"', 'path = "/-/authz/ledger"').replace('"ledger"\n{', '"authz"\n{')
    if identity == BY_HEADER:
        settings(identity, CALLERS, text)
        return
    (fault,) = faults(identity, route, text)
    assert '"authz": expected identity.header' in fault


def test_callers_can_be_reloaded_and_how_they_are_known_cannot() -> None:
    old, new = settings(BY_HEADER, CALLERS), settings(BY_CERTIFICATE, 'callers = ["*"]')
    reloaded, restart = differences(old, new)
    assert reloaded == ("route.0.callers",)
    assert restart == ("identity.certificate", "identity.from", "identity.header")
