"""The TLS of our connections to another system, from PEM files that may change while the process runs."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fencegate.access import pem
from fencegate.errors import ConfigurationError
from fencegate.observations import CertificatesLoaded, CertificatesRefused, Observer, ignore


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """What the table ``setting`` says. ``ca`` signs the servers' certificates; ``None``: the system's authorities do.

    ``cert`` and ``key`` are shown to the servers; both or none. ``server_name``: what their certificates are to be
    for, in place of the name that is connected to.
    """

    setting: str
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """The files themselves, for libraries that take no ``ssl.SSLContext``."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    contents: Contents
    expires: float | None
    notice: float


class ClientTls(ssl.SSLContext):
    """A context that each new connection takes as its files make it now; connections that are there go on.

    The server's certificate and its name are verified, always. Files that changed and cannot be used leave those
    before in use, and are told of once. ``alpn``: the protocols that are offered; ``clock``: seconds since 1970.
    Raises :class:`~fencegate.errors.ConfigurationError` with every fault where no context can be made at all.

    It can be given to whatever takes an ``ssl.SSLContext`` and opens its connections by ``wrap_bio`` or
    ``wrap_socket``, from any thread; ``observe`` is called in the thread that connects.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(
        self,
        files: ClientFiles,
        observe: Observer = ignore,
        *,
        alpn: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._observe = observe
        self._alpn = list(alpn)
        self._clock = clock
        self._lock = threading.Lock()
        self._expiry = pem.Expiry(files.setting, files.cert or "", observe, clock)
        self._seen = self._stamp()
        self._loaded = self._load()
        self._expiry.look(self._loaded.expires, self._loaded.notice)

    @property
    def server_name(self) -> str | None:
        """What the servers' certificates are to be for, where that is not the name that is connected to."""
        return self._files.server_name

    @property
    def contents(self) -> Contents:
        """The files as they are now, or as they last could be used."""
        self._look()
        return self._loaded.contents

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        self._look()
        return self._loaded.context.wrap_bio(
            incoming, outgoing, server_side, self.server_name or server_hostname, session
        )

    def wrap_socket(self, sock: socket.socket, *_: Any, server_hostname: Any = None, **options: Any) -> ssl.SSLSocket:
        self._look()
        name = self.server_name or server_hostname
        return self._loaded.context.wrap_socket(sock, server_hostname=name, **options)

    def _look(self) -> None:
        with self._lock:
            stamp = self._stamp()
            if stamp != self._seen:
                # Before the load: a file that is written meanwhile is loaded again by the next connection.
                self._seen = stamp
                try:
                    self._loaded = self._load()
                except ConfigurationError as error:
                    self._observe(CertificatesRefused(self._files.setting, tuple(error.faults)))
                else:
                    self._expiry.begin_anew()
                    self._observe(CertificatesLoaded(self._files.setting, self._files.cert or self._files.ca or ""))
            self._expiry.look(self._loaded.expires, self._loaded.notice)

    def _stamp(self) -> tuple[str, ...]:
        return pem.stamp((self._files.ca, self._files.cert, self._files.key))

    def _load(self) -> _Loaded:
        files = self._files
        context = ssl.create_default_context() if files.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self._alpn:
            context.set_alpn_protocols(self._alpn)
        faults: list[str] = []
        if files.ca is not None:
            faults += pem.use_authorities(context, f"{files.setting}.ca", files.ca)
        if files.cert is not None and files.key is not None:
            faults += pem.use_pair(context, files.setting, files.cert, files.key)
        if faults:
            raise ConfigurationError(faults)
        valid = None
        try:
            if files.cert is not None and files.key is not None:
                valid = pem.validity(files.cert, files.key, self._clock())
            contents = Contents(_content(files.ca), _content(files.cert), _content(files.key))
        except OSError as error:  # among them OpenSSL's: the files changed just now, or are good for nothing
            raise ConfigurationError([f"{files.setting}: cannot use its files: {pem.reason(error)}"]) from None
        return _Loaded(context, contents, valid and valid[1], pem.notice(valid) if valid else 0.0)


def _content(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
