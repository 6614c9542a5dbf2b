"""``[store]`` and each ``[[store]]``; and the TLS of connections to others, which each of their tables has."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fencegate.config import stores
from fencegate.config.values import Dsn, File, Name, Table, checked


class TlsSettings(Table):
    """TLS of our connections to others, from files in PEM. The server's certificate and name are verified, always.

    ``ca`` signs the servers' certificates (default: the system's authorities do); ``cert`` with its chain, and ``key``
    without a passphrase, are shown to servers that ask for one. ``server_name``: what their certificates are for, where
    that is another name than the one that is connected to.
    """

    ca: File | None = None
    cert: File | None = None
    key: File | None = None
    server_name: (
        Annotated[
            str, Field(pattern=r"^[A-Za-z0-9:]([A-Za-z0-9.:-]{0,252})$", description="a host's name, or an IP address")
        ]
        | None
    ) = None

    @property
    def is_set(self) -> bool:
        return self != TlsSettings()


class StoreSettings(Table):
    """A region's store, or with ``[[store]]`` one of several. ``roles``: which it holds; the only store holds all.

    A pattern is a role, or a beginning with ``*`` after it; the most specific one that matches a role places it.
    ``name`` is what metrics and messages call one of several; default: its number in the file, from 1. ``dsn`` is
    left out only under ``--embedded``, which brings its own. ``password_file``: for a DSN without one.
    ``portability``: for an engine that only speaks Postgres' protocol; the fence then relies on row conflicts alone,
    and ``clock_offset`` is the furthest, in seconds, that the clocks of two of its nodes may be apart.
    """

    dsn: Dsn | None = None
    name: Name | None = None
    roles: Annotated[list[str], checked(stores.check_patterns), Field(description=stores.EXPECTED)] = []
    password_file: File | None = None
    portability: Annotated[bool, Field(description="true or false")] = False
    clock_offset: (
        Annotated[
            float, Field(ge=0, le=3600, allow_inf_nan=False, description="a number of seconds, 0 for a single node")
        ]
        | None
    ) = None
    tls: TlsSettings = TlsSettings()
