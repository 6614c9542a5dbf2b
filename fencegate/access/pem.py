"""PEM files: whether they can be used, how long they are valid, and whether they have changed.

A fault names the key of the settings, the file and the reason; never what is in a file.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from fencegate.observations import CertificateExpiring, Observer

LONGEST_NOTICE: Final = 14 * 86400.0
"""Seconds before its end from which a certificate is told of; of one that lives shorter, the last third of its life."""

CERTIFICATE: Final = "certificate"
PRIVATE_KEY: Final = "private key"

_MARKS: Final = {CERTIFICATE: b"-----BEGIN CERTIFICATE-----", PRIVATE_KEY: b"PRIVATE KEY-----"}
_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""


def unreadable(setting: str, path: str, kind: str) -> str:
    """Why the file of ``setting`` holds no ``kind`` of PEM; "" where it does."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return f"{setting}: cannot read {path}: {error.strerror or type(error).__name__}"
    if _MARKS[kind] not in content:
        return f"{setting}: cannot use {path}: there is no {kind} in PEM in it"
    if kind == PRIVATE_KEY and b"ENCRYPTED" in content:
        return f"{setting}: cannot use {path}: expected a key without a passphrase"
    return ""


def use_pair(context: ssl.SSLContext, table: str, cert: str, key: str) -> list[str]:
    """Loads ``<table>.cert`` and ``<table>.key`` into ``context``. The faults."""
    faults = [unreadable(f"{table}.cert", cert, CERTIFICATE), unreadable(f"{table}.key", key, PRIVATE_KEY)]
    if any(faults):
        return [fault for fault in faults if fault]
    try:
        # A password, or OpenSSL would ask for one at the terminal.
        context.load_cert_chain(cert, key, password="-")
    except (OSError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            return [f"{table}.key: {key} is not the key of the certificate in {cert}"]
        return [f"{table}.cert: cannot use {cert} with {key}: {reason(error)}"]
    return []


def use_authorities(context: ssl.SSLContext, setting: str, path: str) -> list[str]:
    """Has ``context`` trust the certificates in the file of ``setting``. The faults."""
    if fault := unreadable(setting, path, CERTIFICATE):
        return [fault]
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        return [f"{setting}: cannot use {path}: {reason(error)}"]
    return []


def reason(error: Exception) -> str:
    """OpenSSL's reason, or the system's. Neither quotes a file."""
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__)


def validity(cert: str, key: str, now: float) -> tuple[float, float] | None:
    """From when to when the certificate is valid, in seconds since 1970; ``None``: not known. Raises ``ssl.SSLError``.

    It is what one end reads of the other in a handshake in which both show it, and each trusts just this one: a
    certificate may be good for servers only, or for clients only. ``now`` stands for the end of one that has expired.
    """
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    for context in (server_side, client_side):
        context.load_cert_chain(cert, key, password="-")
    for reading, shown in ((client_side, server_side), (server_side, client_side)):
        reading.verify_mode, shown.verify_mode = ssl.CERT_REQUIRED, ssl.CERT_NONE
        reading.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        reading.load_verify_locations(cafile=cert)
        try:
            found = _shown(client_side, server_side, to_client=reading is client_side)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code == _EXPIRED:
                return now, now  # Of an expired one nothing more is told than that.
            continue
        if "notAfter" in found:
            return _seconds(found["notBefore"]), _seconds(found["notAfter"])
    return None


def _shown(client_side: ssl.SSLContext, server_side: ssl.SSLContext, *, to_client: bool) -> dict[str, object]:
    to_server_bytes, to_client_bytes = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client_bytes, to_server_bytes)
    server = server_side.wrap_bio(to_server_bytes, to_client_bytes, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return dict((client if to_client else server).getpeercert() or {})


def authorities_end(path: str) -> float | None:
    """When the last authority in the file ends, in seconds since 1970. Raises ``OSError``, ``ssl.SSLError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=path)
    return max((_seconds(each["notAfter"]) for each in context.get_ca_certs() if "notAfter" in each), default=None)


def notice(valid: tuple[float, float]) -> float:
    """Seconds before the end of a certificate that is valid from when to when, in which it is time for another."""
    return min(LONGEST_NOTICE, (valid[1] - valid[0]) / 3)


def stamp(paths: Iterable[str | None]) -> tuple[str, ...]:
    """What tells the contents of the files from others: so that a mounted volume that swaps its links counts."""
    found = []
    for path in paths:
        try:
            found.append(hashlib.sha256(Path(path).read_bytes()).hexdigest() if path is not None else "")
        except OSError as error:
            found.append(str(error.errno))
    return tuple(found)


def _seconds(written: object) -> float:
    return float(ssl.cert_time_to_seconds(str(written)))


class Expiry:
    """Says once that the certificate in use is about to expire, and once that it has.

    ``setting`` and ``cert`` are what it is called by; ``clock`` is seconds since 1970.
    """

    def __init__(self, setting: str, cert: str, observe: Observer, clock: Callable[[], float]) -> None:
        self._setting = setting
        self._cert = cert
        self._observe = observe
        self._clock = clock
        self._said = ""

    def begin_anew(self) -> None:
        """Another certificate is in use now."""
        self._said = ""

    def look(self, expires: float | None, notice: float) -> None:
        """``expires`` is an instant of the clock, ``None`` where it is not known; ``notice`` the seconds before it."""
        if expires is None:
            return
        left = expires - self._clock()
        word = "expired" if left <= 0 else "soon" if left < notice else ""
        if word and word != self._said:
            self._observe(CertificateExpiring(self._setting, self._cert, left))
        self._said = word
