"""Who calls, by a verified client certificate, on either edge and loop. Real certificates of a small CA."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import ssl
import subprocess
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fencegate.gateway.caller import Allowed, Callers
from fencegate.observations import WriteRefused
from fencegate.testing.raw_http import Answer, Line, assert_accepted, assert_refusal, request
from fencegate.testing.wire_world import HTTP, LEDGER, World, WorldFactory, routes

SERVER = trustme.CA()
BY_CERTIFICATE = partial(Callers, certificate=True)
BILLING = "CN=billing,O=Example\\, Inc."
SPIFFE = "spiffe://example.org/ns/billing"


_MAY_SIGN = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


def _is_critical(extension: x509.ExtensionType, subject: x509.Name) -> bool:
    if isinstance(extension, x509.SubjectAlternativeName):
        return not subject
    return isinstance(extension, (x509.BasicConstraints, x509.KeyUsage))


class ClientCa:
    """A CA for clients, whose certificates name exactly what a test wants."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clients")])
        self._made = 0
        self.certificate = self._signed(self._name, self._key.public_key(), x509.BasicConstraints(True, None))

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key)
        # With what RFC 5280 asks of a CA and its certificates: later Pythons verify by it.
        ca = isinstance(extensions[0] if extensions else None, x509.BasicConstraints)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        own = [x509.SubjectKeyIdentifier.from_public_key(key), _MAY_SIGN] if ca else [issuer]
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        for extension in (*extensions, *own):
            made = made.add_extension(extension, critical=_is_critical(extension, subject))
        return made.sign(self._key, hashes.SHA256())

    def client(self, *names: tuple[x509.ObjectIdentifier, str], uris: tuple[str, ...] = ()) -> ssl.SSLContext:
        """What a client with such a certificate calls with."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternative = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in names])
        certificate = self._signed(subject, key.public_key(), *([alternative] if uris else []))
        self._made += 1
        both = self._folder / f"client-{self._made}.pem"
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        both.write_bytes(pem + certificate.public_bytes(Encoding.PEM))
        context = calling()
        context.load_cert_chain(both)
        return context

    def accepting(self, clients: ssl.VerifyMode = ssl.CERT_OPTIONAL) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        SERVER.issue_cert("127.0.0.1").configure_cert(context)
        context.verify_mode = clients
        context.load_verify_locations(cadata=self.certificate.public_bytes(Encoding.PEM).decode())
        return context


def calling() -> ssl.SSLContext:
    context = ssl.create_default_context()
    SERVER.configure_trust(context)
    return context


@pytest.fixture
def ca(tmp_path: Path) -> ClientCa:
    return ClientCa(tmp_path)


@pytest.fixture
def billing(ca: ClientCa) -> ssl.SSLContext:
    return ca.client((NameOID.ORGANIZATION_NAME, "Example, Inc."), (NameOID.COMMON_NAME, "billing"))


async def ask(world: World, context: ssl.SSLContext, *messages: bytes) -> list[Answer]:
    """The answers to these requests, in a row on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=context)
    try:
        line = Line(reader, writer)
        return [await line.ask(message) for message in messages]
    finally:
        writer.transport.abort()


def refusals(world: World) -> list[tuple[str, str]]:
    return [(fact.code, fact.caller) for fact in world.seen if isinstance(fact, WriteRefused)]


def only(world: World, *callers: str) -> None:
    allowed = Allowed(callers)
    world.gateway.use_routes(replace(route, callers=allowed) for route in routes(world.upstream.url))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_certificate_names_its_caller_by_its_subject_or_its_spiffe_id(
    new_world: WorldFactory, ca: ClientCa, billing: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    service = ca.client((NameOID.COMMON_NAME, "anything"), uris=(SPIFFE,))
    nameless = ca.client(uris=(SPIFFE,))
    unclear = ca.client((NameOID.COMMON_NAME, "billing"), uris=(SPIFFE, "spiffe://example.org/ns/ledger"))
    async with new_world(callers=BY_CERTIFICATE(), ssl_context=ca.accepting()) as world:
        for context in (billing, service, nameless, unclear, calling()):
            context.minimum_version = context.maximum_version = version
            await ask(world, context, request("POST", HTTP.path), request("POST", HTTP.path, token=41))
        names = [BILLING, SPIFFE, SPIFFE, "", ""]
        assert refusals(world) == [("stale_token", name) for name in names]
        sent = [each.values("X-Fencing-Caller") for each in world.upstream.requests]
        assert sent == [[name] if name else [] for name in names]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_a_subject_is_written_as_openssl_prints_it(new_world: WorldFactory, ca: ClientCa, tmp_path: Path) -> None:
    context = ca.client(
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.DOMAIN_COMPONENT, "example"),
        (NameOID.ORGANIZATION_NAME, '#1 "Größe" <a>; b+c, d=e\\f '),
        (NameOID.LOCALITY_NAME, " Köln"),
        (NameOID.EMAIL_ADDRESS, "a@example.org"),
        (NameOID.USER_ID, "七"),
    )
    command = ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253", "-in", tmp_path / "client-1.pem"]
    printed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    async with new_world(callers=BY_CERTIFICATE(), ssl_context=ca.accepting()) as world:
        await ask(world, context, request("POST", LEDGER.path, token=41))
        assert refusals(world) == [("stale_token", printed.stdout.removeprefix("subject=").removesuffix("\n"))]


async def test_the_same_key_under_two_certificates_is_two_operations(
    new_world: WorldFactory, ca: ClientCa, billing: ssl.SSLContext
) -> None:
    other = ca.client((NameOID.COMMON_NAME, "ledger"))
    async with new_world(callers=BY_CERTIFICATE(), ssl_context=ca.accepting(ssl.CERT_REQUIRED)) as world:
        message = request("POST", LEDGER.path, key="k-1")
        first, again = await ask(world, billing, message, message)
        (others,) = await ask(world, other, message)
        (later,) = await ask(world, billing, message)
        assert_accepted(first)
        assert_accepted(others)
        for answer in (again, later):
            assert_accepted(answer, replayed=True)
            assert answer.body == first.body
        assert await world.effects(LEDGER) == 2


# Field case A10.
async def test_a_captured_write_is_refused_from_whoever_lacks_its_callers_certificate(
    new_world: WorldFactory, ca: ClientCa, billing: ssl.SSLContext
) -> None:
    captured = request("POST", LEDGER.path)
    async with new_world(callers=BY_CERTIFICATE(required=True), ssl_context=ca.accepting()) as world:
        only(world, "CN=billing,*")
        assert_accepted((await ask(world, billing, captured))[0])
        stranger = ca.client((NameOID.COMMON_NAME, "mallory"))
        imitator = ca.client((NameOID.ORGANIZATION_NAME, "x"), (NameOID.COMMON_NAME, "x,CN=billing"))
        assert_refusal((await ask(world, stranger, captured))[0], "caller_not_allowed")
        assert_refusal((await ask(world, imitator, captured))[0], "caller_not_allowed")
        assert_refusal((await ask(world, calling(), captured))[0], "caller_required")
        assert await world.effects(LEDGER) == 1


async def test_a_certificate_of_another_ca_gets_nobody_in(
    new_world: WorldFactory, ca: ClientCa, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    forged = ClientCa(tmp_path / "other").client((NameOID.COMMON_NAME, "billing"))
    async with new_world(callers=BY_CERTIFICATE(), ssl_context=ca.accepting()) as world:
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await ask(world, forged, request("POST", LEDGER.path))
        assert await world.effects(LEDGER) == 0


async def test_a_proxys_certificate_is_never_its_clients_name(
    new_world: WorldFactory, ca: ClientCa, billing: ssl.SSLContext
) -> None:
    callers = Callers(certificate=True, header="X-User", proxies=[ip_network("127.0.0.1")], required=True)
    async with new_world(callers=callers, ssl_context=ca.accepting()) as world:
        message = partial(request, "POST", LEDGER.path, token=41)
        answers = await ask(world, billing, message(), message(("X-User", "alice")), message(("X-User", "bob")))
        assert [answer.one("X-Fencing-Outcome") for answer in answers] == ["caller_required", *["stale_token"] * 2]
        assert refusals(world) == [("caller_required", ""), ("stale_token", "alice"), ("stale_token", "bob")]


async def test_the_certificate_of_whoever_asks_the_authorizer_is_not_the_callers(
    new_world: WorldFactory, ca: ClientCa, billing: ssl.SSLContext
) -> None:
    async with new_world(callers=BY_CERTIFICATE(), ssl_context=ca.accepting()) as world:
        only(world, "*")
        (answer,) = await ask(world, billing, request("GET", "/-/authz/web", body=b""))
        assert_refusal(answer, "caller_required")


async def test_where_it_is_not_configured_a_certificate_is_no_identity(
    new_world: WorldFactory, ca: ClientCa, billing: ssl.SSLContext
) -> None:
    async with new_world(ssl_context=ca.accepting()) as world:
        await ask(world, billing, request("POST", HTTP.path), request("POST", HTTP.path, token=41))
        assert refusals(world) == [("stale_token", "")]
        assert world.upstream.requests[0].values("X-Fencing-Caller") == []
