"""How a Postgres is come to: its DSN, and what the DSN does not hold, a TLS context and the file with the password."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fencegate.access.refusals import Keys, tls_advice
from fencegate.access.secret import secret_line


class PasswordUnreadable(ConnectionError):
    """The file with the password holds none, or cannot be read."""


def key_in(table: str, name: str) -> str:
    """How messages call a key of a table: ``store.dsn``, and of one of several ``[[store]] north dsn``."""
    return f"{table} {name}" if table.startswith("[[") else f"{table}.{name}"


@dataclass(frozen=True, slots=True)
class Database:
    """A Postgres. ``tls`` of ``None``: as the DSN says. ``password_file`` is read anew by each connection.

    ``name`` is the table of the settings that says all this: ``store``, ``election``, or ``[[store]] north``.
    ``portable``: a store that relies on row conflicts alone (``docs/portability.md``); ``clock_offset`` is the
    furthest, in seconds, that the clocks of its nodes are apart.
    """

    dsn: str
    tls: ssl.SSLContext | None = None
    password_file: str | None = None
    name: str = "store"
    portable: bool = False
    clock_offset: float = 0.0

    @classmethod
    def at(cls, address: str | Database) -> Database:
        """``address`` where it is one already, else the database at that DSN."""
        return address if isinstance(address, Database) else cls(address)

    def key(self, name: str) -> str:
        """How messages call a key of its table."""
        return key_in(self.name, name)

    def options(self, *, writable: bool) -> dict[str, Any]:
        """What asyncpg's ``connect`` is given beside the DSN. ``writable``: of several hosts the one that takes writes.

        Raises :class:`PasswordUnreadable`.
        """
        options: dict[str, Any] = {}
        if writable and "target_session_attrs" not in urlsplit(self.dsn).query:
            options["target_session_attrs"] = "read-write"
        if self.tls is not None:
            options["ssl"] = self.tls
        if self.password_file is not None:
            try:
                options["password"] = secret_line(self.password_file)
            except ValueError as fault:
                raise PasswordUnreadable(f"{self.key('password_file')}: {fault}") from None
        return options

    def tls_advice(self, error: BaseException) -> str:
        """What to do about a connection that failed for reasons of TLS; "" where TLS has no part in it."""
        return tls_advice(error, Keys(self.key("tls"), self.key("dsn")))
