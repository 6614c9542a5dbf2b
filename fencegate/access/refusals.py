"""What a failed TLS handshake means and what to do about it, in one sentence: OpenSSL's own words name neither."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Keys:
    """What to set: the ``table`` with the certificates, and the key (or the words for it) that ``names`` the server."""

    table: str
    names: str


ELECTION: Final = Keys("election.tls", "election.endpoints")

_NAME_MISMATCH: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_EXPIRED: Final = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

_WRONG_NAME: Final = (
    "the server's certificate is for another name ({}): name the server in {keys.names} as its certificate "
    "does, set {keys.table}.server_name, or give it a certificate for this name"
)
_WRONG_CA: Final = (
    "the server's certificate is not signed by a CA that is trusted here ({}): set {keys.table}.ca to the "
    "certificate of the CA that signed it"
)
_OUT_OF_DATE: Final = "the server's certificate is not valid now ({}): renew it, or set the clock"
_CLIENT_CERTIFICATE: Final = (
    "the server refused our client certificate, or that there is none ({}): set {keys.table}.cert and "
    "{keys.table}.key to one that is signed by a CA that the server trusts"
)
_NO_TLS: Final = "the server broke the TLS handshake off ({}): does it speak TLS on this port, and TLS 1.2 or newer?"

_ALERTS: Final = (
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_HANDSHAKE_FAILURE",
    "ALERT_UNKNOWN_CA",
)
"""What a server sends that refuses the client's certificate: which of them depends on its library."""


def advice(error: BaseException, keys: Keys = ELECTION) -> str:
    """What to tell of an ``error`` of connecting: its own text, where TLS has no part in it."""
    return tls_advice(error, keys) or str(error) or type(error).__name__


def tls_advice(error: BaseException | None, keys: Keys) -> str:
    """The same; "" where TLS has no part in it."""
    found = _ssl_error_in(error)
    if found is None:
        return ""
    if isinstance(found, ssl.SSLCertVerificationError):
        said = found.verify_message.rstrip(".")
        if found.verify_code in _NAME_MISMATCH:
            return _WRONG_NAME.format(said, keys=keys)
        return (_OUT_OF_DATE if found.verify_code in _EXPIRED else _WRONG_CA).format(said, keys=keys)
    said = str(found.reason or found.strerror or found).lower().replace("_", " ")
    if any(alert in str(found.reason) for alert in _ALERTS):
        return _CLIENT_CERTIFICATE.format(said, keys=keys)
    return _NO_TLS.format(said)


def _ssl_error_in(error: BaseException | None) -> ssl.SSLError | None:
    """The error of TLS that ``error`` is or wraps: aiohttp keeps it in an attribute, redis-py names no cause."""
    while error is not None:
        for found in (getattr(error, "certificate_error", None), getattr(error, "os_error", None), error):
            if isinstance(found, ssl.SSLError):
                return found
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def advice_on_text(text: str, keys: Keys = ELECTION) -> str:
    """The same for gRPC, which tells of TLS in words alone; ``text`` itself where it tells of something else."""
    upper = text.upper()
    if "IS NOT IN PEER CERTIFICATE" in upper or "HOSTNAME VERIFICATION" in upper:
        return _WRONG_NAME.format(text, keys=keys)
    if "CERTIFICATE_VERIFY_FAILED" in upper:
        expired = "EXPIRED" in upper or "NOT YET VALID" in upper
        return (_OUT_OF_DATE if expired else _WRONG_CA).format(text, keys=keys)
    if any(alert in upper for alert in _ALERTS):
        return _CLIENT_CERTIFICATE.format(text, keys=keys)
    return _NO_TLS.format(text) if "SSL" in upper and "HANDSHAKE" in upper else text
