"""Who calls: names in certificates, headers of trusted proxies, lists of callers. Nobody gets another's name."""

from __future__ import annotations

from hashlib import blake2b
from ipaddress import ip_network
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway.authz import route_for
from fencegate.gateway.caller import LONGEST, Allowed, Callers, distinguished_name, name_in
from fencegate.gateway.exchange import Exchange
from fencegate.gateway.request import BufferedBody, Refused, Request
from fencegate.gateway.routes import Route, RouteTable

BILLING = ((("countryName", "DE"),), (("organizationName", "Example, Inc."),), (("commonName", "billing"),))
NAMES = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "localityName": "L"}
BY_PROXY = Callers(header="X-Forwarded-User", proxies=[ip_network("10.0.0.0/8"), ip_network("fd00::/8")])


def certificate(*uris: str, subject: Any = BILLING) -> dict[str, Any]:
    return {"subject": subject, "subjectAltName": (("DNS", "billing"), *(("URI", uri) for uri in uris))}


def request(*headers: tuple[bytes, bytes], peer: str = "10.1.2.3", certificate: str = "") -> Request:
    made = Request("POST", "/v1/entries", "", list(headers), BufferedBody(), 0, peer, 0.0)
    made.certificate = certificate
    return made


# -- certificates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        (None, ""),
        ({}, ""),
        (certificate(), "CN=billing,O=Example\\, Inc.,C=DE"),
        (certificate("https://billing.example"), "CN=billing,O=Example\\, Inc.,C=DE"),
        (certificate("spiffe://example.org/ns/billing"), "spiffe://example.org/ns/billing"),
        (certificate("spiffe://example.org/billing", "spiffe://example.org/ledger"), ""),
        (certificate("https://billing.example", "spiffe://example.org/ledger"), ""),
        (certificate("SPIFFE://example.org/ledger"), ""),
        (certificate("spiffe://example.org"), ""),
        (certificate("spiffe://example.org/a/../ledger"), ""),
        (certificate("spiffe://example.org/ledger\n"), ""),
        (certificate("spiffe://example.org/led ger"), ""),
        (certificate("spiffe://example.org/" + "x" * LONGEST), ""),
        (certificate(subject=()), ""),
        (certificate(subject=((("commonName", "x" * LONGEST),),)), ""),
    ],
)
def test_a_certificate_names_its_spiffe_id_or_else_its_subject_and_an_unclear_one_nobody(
    shown: dict[str, Any] | None, name: str
) -> None:
    assert name_in(shown) == name


def test_a_subject_is_written_in_ascii_and_what_could_end_a_line_is_written_as_a_number() -> None:
    subject = ((("organizationName", " Größe\r\n\0"),), (("commonName", "#a"), ("userId", 'b+c<d>;"\\ ')))
    assert distinguished_name(subject) == r"CN=\#a+UID=b\+c\<d\>\;\"\\\ ,O=\ Gr\C3\B6\C3\9Fe\0D\0A\00"


subjects = st.lists(
    st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.text(max_size=12)), min_size=1, max_size=2), max_size=4
)


@given(subjects, subjects)
def test_two_subjects_never_have_one_name(one: Any, other: Any) -> None:
    if one != other:
        assert distinguished_name(one) != distinguished_name(other)


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.text(min_size=1, max_size=12)), max_size=4))
def test_a_name_is_read_as_its_subject_by_a_library_of_x509(pairs: list[tuple[str, str]]) -> None:
    """Except NUL, which no attribute of a certificate that OpenSSL has verified can hold unescaped."""
    pairs = [(kind, value.replace("\0", "")) for kind, value in pairs if value.replace("\0", "")]
    name = distinguished_name([[pair] for pair in pairs])
    assert name.isascii()
    assert name.isprintable()
    read = x509.Name.from_rfc4514_string(name)
    assert [(each.rfc4514_attribute_name, each.value) for each in read] == [(NAMES[k], v) for k, v in pairs]


def test_only_where_it_is_configured_does_a_certificate_name_its_caller() -> None:
    shown = request(peer="192.0.2.1", certificate="CN=billing")
    assert Callers(certificate=True).of(shown) == "CN=billing"
    assert BY_PROXY.of(shown) == ""


# -- headers ------------------------------------------------------------------------------------------

USER = (b"X-Forwarded-User", b"alice@example.org")


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1"])
def test_a_proxy_that_is_trusted_names_the_caller(peer: str) -> None:
    assert BY_PROXY.of(request(USER, peer=peer)) == "alice@example.org"
    assert BY_PROXY.of(request((b"x-forwarded-USER", b"bob"), peer=peer)) == "bob"


@pytest.mark.parametrize("peer", ["11.1.2.3", "::ffff:11.1.2.3", "fe80::1%eth0", "fd", "", "10.1.2.3:80", "unix:"])
def test_nobody_elses_header_is_believed(peer: str) -> None:
    assert BY_PROXY.of(request(USER, peer=peer)) == ""
    assert BY_PROXY.of(request(USER, USER, peer=peer)) == "", "nor judged"


def test_a_proxys_own_certificate_is_not_its_clients() -> None:
    both = Callers(certificate=True, header="X-Forwarded-User", proxies=[ip_network("10.0.0.0/8")])
    assert both.of(request(certificate="CN=proxy")) == ""
    assert both.of(request(USER, certificate="CN=proxy")) == "alice@example.org"
    assert both.of(request(USER, peer="192.0.2.1", certificate="CN=billing")) == "CN=billing"


def test_an_empty_header_names_nobody() -> None:
    assert BY_PROXY.of(request((b"X-Forwarded-User", b""))) == ""


@pytest.mark.parametrize(
    "lines",
    [
        [USER, USER],
        [USER, (b"x-forwarded-user", b"")],
        [USER, (b"X_Forwarded_User", b"mallory")],
        [(b"X_Forwarded_User", b"mallory")],
        [(b"X-Forwarded-User", b"al\tice")],
        [(b"X-Forwarded-User", b"al\x00ice")],
        [(b"X-Forwarded-User", b"al\xc3\xafce")],
        [(b"X-Forwarded-User", b"a" * (LONGEST + 1))],
    ],
)
def test_what_a_proxy_says_unclearly_is_refused_and_not_repeated(lines: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Refused) as caught:
        BY_PROXY.of(request(*lines))
    assert caught.value.refusal.problem.code == "request_malformed"
    assert "mallory" not in caught.value.refusal.detail


header_names = st.sampled_from([b"X-Forwarded-User", b"x_forwarded-user", b"X-FORWARDED_USER", b"X-Other", b"X-User"])


@given(
    st.lists(st.tuples(header_names, st.binary(max_size=20)), max_size=4), st.sampled_from(["10.0.0.1", "192.0.2.1"])
)
def test_no_word_about_a_caller_goes_on_but_the_gateways_own(headers: list[tuple[bytes, bytes]], peer: str) -> None:
    made = request(*headers, peer=peer)
    try:
        caller = BY_PROXY.of(made)
    except Refused:
        return
    sent = BY_PROXY.for_upstream(list(headers), made, caller)
    told = [(name, value) for name, value in sent if name.lower().replace(b"_", b"-") == b"x-forwarded-user"]
    assert told == ([(b"X-Forwarded-User", caller.encode())] if caller else [])
    assert [value for name, value in sent if name == b"X-Fencing-Caller"] == ([caller.encode()] if caller else [])
    assert [pair for pair in sent if pair[0] in (b"X-Other", b"X-User")] == [
        pair for pair in headers if pair[0] in (b"X-Other", b"X-User")
    ]


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    for number in range(3000):
        assert BY_PROXY.of(request(USER, peer=f"192.0.{number // 256}.{number % 256}")) == ""
    assert BY_PROXY.of(request(USER)) == "alice@example.org"
    assert len(BY_PROXY._known) <= 1024


# -- lists of callers ---------------------------------------------------------------------------------


def test_a_star_stands_for_any_characters_and_all_else_for_itself() -> None:
    allowed = Allowed(["CN=billing,*", "spiffe://example.org/ns/*/ledger", "a.c"])
    for caller in ("CN=billing,O=Example", "spiffe://example.org/ns/eu/ledger", "a.c"):
        assert caller in allowed
    for caller in ("", "CN=billing", "cn=billing,O=x", "XCN=billing,O=x", "spiffe://example.org/ns/eu/ledger2", "abc"):
        assert caller not in allowed
    assert "whoever" in Allowed(["*"])
    assert "" not in Allowed(["*"])
    assert "whoever" not in Allowed([])


def test_an_authorizer_that_is_not_declared_lets_through_whom_every_list_of_the_role_has() -> None:
    def table(*lists: list[str] | None) -> RouteTable:
        return RouteTable(
            Route(f"/{n}", "ledger", "ledger", callers=None if one is None else Allowed(one))
            for n, one in enumerate(lists)
        )

    assert route_for("ledger", table(None, None)).callers is None
    assert route_for("ledger", table(["a", "b"], None, ["b", "c"])).callers == Allowed(["b"])
    assert route_for("ledger", table(["a"], ["b"])).callers == Allowed([])


# -- keys ---------------------------------------------------------------------------------------------


def digest(caller: str, key: str) -> bytes:
    exchange = Exchange.__new__(Exchange)
    exchange.caller, exchange.key = caller, key
    return exchange.key_digest()


# What stands in stores since before there were identities: a retry across the upgrade must find it.
def test_the_key_of_a_caller_without_an_identity_has_the_scope_that_it_always_had() -> None:
    assert digest("", "k-1") == blake2b(b"\0k-1", digest_size=16).digest()
    assert digest("", "k-1").hex() == "2c68161f7ebc3798937ec6ae06808a44"
    assert digest("alice", "") == b""


@given(st.tuples(st.text("ab =,", max_size=3), st.text("ab =,", min_size=1, max_size=3)), st.data())
def test_one_callers_key_is_no_other_callers(one: tuple[str, str], data: st.DataObject) -> None:
    other = data.draw(st.tuples(st.text("ab =,", max_size=3), st.text("ab =,", min_size=1, max_size=3)))
    assert (digest(*one) == digest(*other)) == (one == other)
