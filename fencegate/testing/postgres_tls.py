"""A real Postgres that is spoken to under TLS alone, by clients that show a certificate made out to their user.

It is the system's: the one in the wheel is built without OpenSSL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fencegate.embedded.binaries import POSTGRES_VARIABLE
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import EmbeddedServerError

USER: Final = "fencegate"
"""What a client's certificate has to be made out to, as its common name."""
_RULES: Final = """\
local all all trust
hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-full
"""


@contextmanager
def _of_the_system() -> Iterator[None]:
    named = os.environ.get(POSTGRES_VARIABLE)
    found = named or max(map(str, Path("/usr/lib/postgresql").glob("*/bin")), default=None)
    if found is None:
        raise EmbeddedServerError("there is no Postgres of the system, which alone speaks TLS (Debian: postgresql)")
    os.environ[POSTGRES_VARIABLE] = found
    try:
        yield
    finally:
        if named is None:
            del os.environ[POSTGRES_VARIABLE]


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """In PEM: its certificate with the chain, the key, and the CA of its clients."""

    cert: bytes
    key: bytes
    client_ca: bytes


class PostgresUnderTls:
    """:meth:`start` and :meth:`stop` once each, where no event loop runs.

    :meth:`start` raises :class:`EmbeddedServerError` where the system has no Postgres.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server = EmbeddedPostgres(directory)

    def start(self, files: ServerFiles) -> None:
        with _of_the_system():
            self._start(files)

    def _start(self, files: ServerFiles) -> None:
        # The first start makes the data, and tells as whom the server runs: its key may be no other's.
        self._server.start_sync()
        self._server.stop_sync()
        self._put(files)
        (self._directory / "hba.conf").write_text(_RULES)
        settings = {"ssl": "on", "hba_file": str(self._directory / "hba.conf")}
        settings |= {
            f"ssl_{name}_file": str(self._directory / "data" / f"{name}.pem") for name in ("cert", "key", "ca")
        }
        self._server = EmbeddedPostgres(self._directory, port=0, settings=settings)
        self._server.start_sync()

    def stop(self) -> None:
        self._server.stop_sync()

    @property
    def password(self) -> str:
        """Of the user, at the start."""
        return urlsplit(self._server.dsn).password or ""

    def dsn(self, host: str = "127.0.0.1") -> str:
        """Without a password."""
        parts = urlsplit(self._server.dsn)
        return f"postgresql://{USER}@{host}:{parts.port}{parts.path}"

    def show(self, files: ServerFiles) -> None:
        """Other files, for connections from a moment later on; those that are there stay."""
        self._put(files)
        os.kill(self._server.pid, signal.SIGHUP)

    def _put(self, files: ServerFiles) -> None:
        data = self._directory / "data"
        owner = data.stat()
        for name, content in (("cert", files.cert), ("key", files.key), ("ca", files.client_ca)):
            path = data / f"{name}.pem"
            path.write_bytes(content)
            path.chmod(0o600)
            os.chown(path, owner.st_uid, owner.st_gid)
