"""A route's keys for grants: what is taken, and what nobody could satisfy or would hold nothing."""

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
{identity}
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
{route}
[[route]]
path = "/v1/more"
role = "{other}"
target = "http://upstream"
{second}
"""
BY_HEADER = '[identity]\nheader = "X-Forwarded-User"\nfrom = ["10.1.0.0/16"]\n'
BY_CERTIFICATE = "[listen.tls]\ncert='/c'\nkey='/k'\nclient_ca='/ca'\n[identity]\ncertificate = true\n"
KEYS = 'grant_key_file = "/etc/grant.keys"\n'
REQUIRED = KEYS + 'grant = "required"\n'


def settings(
    route: str = "", second: str = "", other: str = "other", identity: str = BY_HEADER, flags: list[Flag] | None = None
) -> Settings:
    text = BASE.format(identity=identity, route=route, second=second, other=other)
    return parse(file=("F", text), flags=flags or [])


def faults(route: str = "", second: str = "", other: str = "other", identity: str = BY_HEADER) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settings(route, second, other, identity)
    return caught.value.faults


def test_without_a_word_about_it_there_are_no_grants() -> None:
    found = settings(identity="").route[0]
    assert (found.grant, found.grant_key_file, found.grant_lifetime) == ("off", None, 300.0)


@pytest.mark.parametrize("identity", [BY_HEADER, BY_CERTIFICATE])
def test_they_are_taken_as_they_stand_and_reach_a_worker_whole(identity: str) -> None:
    found = settings(REQUIRED + "grant_lifetime = 60\n", identity=identity)
    assert (found.route[0].grant, found.route[0].grant_lifetime) == ("required", 60.0)
    assert Settings.model_validate(found.document()) == found


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ('grant = "required"', "expected grant_key_file with it, or off"),
        ('grant = "accepted"', "off or required"),
        ('grant_key_file = ""', "the path of a file"),
        ("grant_lifetime = 60", "expected grant_key_file with it"),
        (KEYS + "grant_lifetime = 0", "seconds, 1 to 86400"),
        (KEYS + "grant_lifetime = 86401", "seconds, 1 to 86400"),
        (REQUIRED + "rehearsal = true", "a game day's clients"),
    ],
)
def test_what_nobody_could_satisfy_is_refused_by_name(route: str, words: str) -> None:
    [fault] = faults(route)
    assert fault.startswith("[[route]] 1")
    assert words in fault


@pytest.mark.parametrize("route", [KEYS, REQUIRED])
def test_a_grant_needs_a_caller_that_it_is_bound_to(route: str) -> None:
    [fault] = faults(route, identity="")
    assert "grant_key_file" in fault
    assert "identity.certificate or identity.header" in fault


def test_the_routes_of_a_role_agree_for_through_one_of_them_a_number_would_do() -> None:
    for route, second in ((REQUIRED, ""), (REQUIRED, KEYS), (KEYS, "grant_key_file = '/etc/other.keys'")):
        assert any("grants are the role ledger's" in fault for fault in faults(route, second, "ledger"))
    assert settings(REQUIRED, REQUIRED, "ledger").route[1].grant == "required"
    assert settings(REQUIRED, "", "other").route[1].grant == "off"


def test_no_upstream_gets_the_secrets_of_grants_by_being_given_those_of_proofs() -> None:
    proofs = 'proof_key_file = "/etc/grant.keys"\n'
    for route, second in (("", KEYS + proofs), (KEYS, proofs)):
        assert any("an upstream that checks proofs could make grants" in fault for fault in faults(route, second))


def test_an_authorizer_has_its_callers_by_the_header_alone() -> None:
    text = BASE.format(identity=BY_CERTIFICATE, route=REQUIRED, other="other", second="")
    text += '[[route]]\npath = "/-/authz/ledger"\nrole = "ledger"\ntarget = "authz"\n' + REQUIRED
    with pytest.raises(ConfigurationError, match=r"expected identity\.header with it"):
        parse(file=("F", text))


def test_a_reload_changes_them_without_a_restart() -> None:
    assert differences(settings(KEYS), settings(REQUIRED)) == (("route.0.grant",), ())


@pytest.mark.parametrize(
    ("source", "mode", "applications"),
    [
        ("postgres", "campaign", False),
        ("postgres", "follow", True),
        ("etcd", "follow", True),
        ("kafka", "follow", False),
    ],
)
def test_who_signs_is_who_elects(source: str, mode: str, applications: bool) -> None:
    flags = [Flag("--set", "election.source", source), Flag("--set", "election.mode", mode)]
    if source != "postgres":
        flags.append(Flag("--set", "election.endpoints", "http://e:2379" if source == "etcd" else "k:9092"))
    assert settings(flags=flags).election.led_by_applications is applications
