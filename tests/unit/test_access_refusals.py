"""What is said of a TLS handshake that failed. That real servers' refusals are told apart: integration tests."""

from __future__ import annotations

import ssl

import aiohttp
import pytest

from fencegate.access.refusals import advice, advice_on_text


def verification(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (verification(20, "unable to get local issuer certificate"), "set election.tls.ca"),
        (verification(18, "self-signed certificate"), "set election.tls.ca"),
        (verification(62, "Hostname mismatch"), "election.endpoints"),
        (verification(64, "IP address mismatch"), "election.endpoints"),
        (verification(10, "certificate has expired"), "renew it"),
        (alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "set election.tls.cert"),
        (alert("TLSV1_ALERT_UNKNOWN_CA"), "set election.tls.cert"),
        (alert("SSLV3_ALERT_CERTIFICATE_UNKNOWN"), "set election.tls.cert"),
        (alert("WRONG_VERSION_NUMBER"), "does it speak TLS on this port"),
    ],
)
def test_each_failure_names_the_key_to_set(error: ssl.SSLError, key: str) -> None:
    assert key in advice(error)
    wrapped = OSError("cannot connect")
    wrapped.__cause__ = error
    assert advice(wrapped) == advice(error)


def test_what_aiohttp_wraps_is_found() -> None:
    wrong_ca = verification(20, "unable to get local issuer certificate")
    wrapped = aiohttp.ClientConnectorCertificateError(None, wrong_ca)  # type: ignore[arg-type]
    assert advice(wrapped) == advice(wrong_ca)


def test_what_is_no_matter_of_tls_is_told_as_it_is() -> None:
    assert advice(ConnectionRefusedError(111, "Connection refused")) == "[Errno 111] Connection refused"
    assert advice(TimeoutError()) == "TimeoutError"
    assert advice_on_text("no leader") == "no leader"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Ssl handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: self signed certificate", "election.tls.ca"),
        ("SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: certificate has expired", "renew it"),
        ("Hostname Verification Check failed", "election.endpoints"),
        ("Peer name 127.0.0.1 is not in peer certificate", "election.endpoints"),
        ("Ssl handshake failed: TLSV1_ALERT_UNKNOWN_CA", "election.tls.cert"),
        ("Ssl handshake failed: WRONG_VERSION_NUMBER", "does it speak TLS on this port"),
    ],
)
def test_the_words_of_grpc_name_the_key_too(text: str, key: str) -> None:
    told = advice_on_text(text)
    assert key in told
    assert text in told
