"""The certificates of fencegate's own listeners: PEM files into a TLS context, again each time the files change.

A new context is used only when it is whole: all of its files could be loaded, and fit together. Until then, and where
that fails, the one in use stays. A change is seen by the content, so that a mounted volume that swaps its links counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fencegate.access.pem import LONGEST_NOTICE, Expiry, notice, reason, stamp, use_authorities, use_pair, validity
from fencegate.errors import ConfigurationError
from fencegate.observations import CertificatesLoaded, CertificatesRefused, Observer

_log = logging.getLogger("fencegate.gateway.certificates")

LOOK_PERIOD: Final = 5.0
"""Seconds between two looks at the files."""


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
    faults = use_pair(context, files.setting, files.cert, files.key)
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED if files.required else ssl.CERT_OPTIONAL
        faults += use_authorities(context, f"{files.setting}.client_ca", files.client_ca)
    if faults:
        raise ConfigurationError(faults)
    try:
        valid = validity(files.cert, files.key, now)
    except ssl.SSLError as error:
        raise ConfigurationError([f"{files.setting}.cert: cannot use {files.cert}: {reason(error)}"]) from None
    return Loaded(context, valid[1], notice(valid)) if valid is not None else Loaded(context, None)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _paths(files: TlsFiles) -> tuple[str, str, str | None]:
    return files.cert, files.key, files.client_ca


class Certificates:
    """The context of one listener. Raises :class:`ConfigurationError` where there can be none.

    :meth:`follow` looks at the files until it is cancelled; ``clock`` is seconds since 1970.
    """

    def __init__(self, files: TlsFiles, observe: Observer, *, clock: Callable[[], float] = time.time) -> None:
        self._files = files
        self._observe = observe
        self._clock = clock
        self._seen = stamp(_paths(files))
        self._wake = asyncio.Event()
        self._expiry = Expiry(files.setting, files.cert, observe, clock)
        self._loaded = load(files, clock())
        self._expiry.look(self._loaded.expires, self._loaded.notice)

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
        found = stamp(_paths(self._files))
        if found != self._seen:
            # Before the load: a file that is written meanwhile is loaded again at the next look.
            self._seen = found
            try:
                loaded = load(self._files, self._clock())
            except ConfigurationError as error:
                self._observe(CertificatesRefused(self._files.setting, tuple(error.faults)))
            else:
                await use(loaded.context)
                self._loaded = loaded
                self._expiry.begin_anew()
                self._observe(CertificatesLoaded(self._files.setting, self._files.cert))
        self._expiry.look(self._loaded.expires, self._loaded.notice)
