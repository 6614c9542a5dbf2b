"""The certificates of fencegate's own listeners: PEM files into a TLS context, again each time the files change.

A new context is used only when it is whole: all of its files could be loaded, and fit together. Until then, and where
that fails, the one in use stays. A change is seen by the content, so that a mounted volume that swaps its links counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencegate.errors import ConfigurationError
from fencegate.observations import CertificateExpiring, CertificatesLoaded, CertificatesRefused, Observer

_log = logging.getLogger("fencegate.gateway.certificates")

LOOK_PERIOD: Final = 5.0
"""Seconds between two looks at the files."""
LONGEST_NOTICE: Final = 14 * 86400.0
"""Seconds before its end from which a certificate is told of; of one that lives shorter, the last third of its life."""
_EXPIRED: Final = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files, and the ``key`` of the settings that faults name. ``required``: no client without a certificate.

    ``client_ca`` signs the clients' certificates; without it none is asked for.
    """

    setting: str
    cert: str
    key: str
    client_ca: str | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Loaded:
    """A context to accept with. ``expires``: when its certificate does, in seconds since 1970; ``None``: unknown.

    ``notice``: seconds before that in which it is time for another.
    """

    context: ssl.SSLContext
    expires: float | None
    notice: float = LONGEST_NOTICE


def load(files: TlsFiles, now: float) -> Loaded:
    """The context that the files make, at ``now`` seconds since 1970.

    Raises :class:`ConfigurationError` with every fault: key, file and reason; never what is in a file.
    """
    context = _context()
    faults = [fault for fault in (_unreadable(files, name) for name in ("cert", "key", "client_ca")) if fault]
    if not any(fault.startswith((f"{files.setting}.cert:", f"{files.setting}.key:")) for fault in faults):
        faults += _pair(context, files)
    if files.client_ca is not None and not any(fault.startswith(f"{files.setting}.client_ca:") for fault in faults):
        context.verify_mode = ssl.CERT_REQUIRED if files.required else ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cafile=files.client_ca)
        except (OSError, ValueError) as error:
            faults.append(f"{files.setting}.client_ca: cannot use {files.client_ca}: {_reason(error)}")
    if faults:
        raise ConfigurationError(faults)
    try:
        valid = _validity(files, now)
    except ssl.SSLError as error:
        raise ConfigurationError([f"{files.setting}.cert: cannot use {files.cert}: {_reason(error)}"]) from None
    if valid is None:
        return Loaded(context, None)
    return Loaded(context, valid[1], min(LONGEST_NOTICE, (valid[1] - valid[0]) / 3))


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _unreadable(files: TlsFiles, name: str) -> str:
    path: str | None = getattr(files, name)
    if path is None:
        return ""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return f"{files.setting}.{name}: cannot read {path}: {error.strerror or type(error).__name__}"
    expected = b"PRIVATE KEY-----" if name == "key" else b"-----BEGIN CERTIFICATE-----"
    if expected not in content:
        return f"{files.setting}.{name}: cannot use {path}: there is no {_KIND[name]} in PEM in it"
    if name == "key" and b"ENCRYPTED" in content:
        return f"{files.setting}.{name}: cannot use {path}: expected a key without a passphrase"
    return ""


_KIND: Final = {"cert": "certificate", "key": "private key", "client_ca": "certificate"}


def _pair(context: ssl.SSLContext, files: TlsFiles) -> list[str]:
    try:
        # A password, or OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.cert, files.key, password="-")
    except (OSError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            return [f"{files.setting}.key: {files.key} is not the key of the certificate in {files.cert}"]
        return [f"{files.setting}.cert: cannot use {files.cert} with {files.key}: {_reason(error)}"]
    return []


def _reason(error: Exception) -> str:
    """OpenSSL's reason, or the system's. Neither quotes a file."""
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__)


def _validity(files: TlsFiles, now: float) -> tuple[float, float] | None:
    """From when to when the certificate is valid: what a client that trusts just this one reads in a handshake here."""
    server_context = _context()
    server_context.load_cert_chain(files.cert, files.key, password="-")
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(cafile=files.cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        # Of an expired one nothing more is told than that.
        return (now, now) if error.verify_code == _EXPIRED else None
    found = client.getpeercert() or {}
    return _seconds(found["notBefore"]), _seconds(found["notAfter"])


def _seconds(written: object) -> float:
    return float(ssl.cert_time_to_seconds(str(written)))


def _stamp(files: TlsFiles) -> tuple[str, ...]:
    """What tells the files' contents from others."""
    found = []
    for path in (files.cert, files.key, files.client_ca):
        try:
            found.append(hashlib.sha256(Path(path).read_bytes()).hexdigest() if path is not None else "")
        except OSError as error:
            found.append(str(error.errno))
    return tuple(found)


class Certificates:
    """The context of one listener. Raises :class:`ConfigurationError` where there can be none.

    :meth:`follow` looks at the files until it is cancelled; ``clock`` is seconds since 1970.
    """

    def __init__(self, files: TlsFiles, observe: Observer, *, clock: Callable[[], float] = time.time) -> None:
        self._files = files
        self._observe = observe
        self._clock = clock
        self._seen = _stamp(files)
        self._wake = asyncio.Event()
        self._warned = ""
        self._loaded = load(files, clock())
        self._look_at_expiry()

    @property
    def context(self) -> ssl.SSLContext:
        """What new connections are accepted with now."""
        return self._loaded.context

    def look_now(self) -> None:
        """Have :meth:`follow` load the files now, changed or not."""
        self._seen = ()
        self._wake.set()

    async def follow(self, use: Callable[[ssl.SSLContext], Awaitable[None]]) -> None:
        """Hand each further context to ``use``. Never ends of itself."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_PERIOD):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.look(use)
            except Exception:
                # The certificates in use stay; the next look may do better.
                self._seen = ()
                _log.exception("a look at the certificates failed")

    async def look(self, use: Callable[[ssl.SSLContext], Awaitable[None]]) -> None:
        """One look at the files. Raises what ``use`` raises."""
        stamp = _stamp(self._files)
        if stamp != self._seen:
            # Before the load: a file that is written meanwhile is loaded again at the next look.
            self._seen = stamp
            try:
                loaded = load(self._files, self._clock())
            except ConfigurationError as error:
                self._observe(CertificatesRefused(self._files.setting, tuple(error.faults)))
            else:
                await use(loaded.context)
                self._loaded, self._warned = loaded, ""
                self._observe(CertificatesLoaded(self._files.setting, self._files.cert))
        self._look_at_expiry()

    def _look_at_expiry(self) -> None:
        expires = self._loaded.expires
        if expires is None:
            return
        left = expires - self._clock()
        word = "expired" if left <= 0 else "soon" if left < self._loaded.notice else ""
        if word and word != self._warned:
            self._observe(CertificateExpiring(self._files.setting, self._files.cert, left))
        self._warned = word
