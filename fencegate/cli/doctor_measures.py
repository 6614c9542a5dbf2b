"""The measuring of ``fencegate doctor``: everything at once, each part within its limit, and nothing changed anywhere.

What could not be measured is a sentence that says why. The verdicts are elsewhere (``doctor_checks.py``).
"""

from __future__ import annotations

import asyncio
import http.client
import os
import resource
import socket
import ssl
import stat
import time
from collections.abc import Awaitable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit

from fencegate.access import pem
from fencegate.access.database import key_in
from fencegate.access.refusals import advice
from fencegate.cli import connections, elections, parts
from fencegate.cli.loading import key_ring
from fencegate.config import Settings, TlsSettings
from fencegate.config.dsn import parameters
from fencegate.config.several_stores import by_store
from fencegate.election import survey
from fencegate.election.survey import ElectionSurvey, Member
from fencegate.errors import ConfigurationError, FencegateError, Unavailable
from fencegate.gateway.targets.upstream import KEYS as UPSTREAM
from fencegate.lease import LeadershipSource
from fencegate.store import survey as stores
from fencegate.store.survey import PostgresSurvey
from fencegate.tokens import HEADER_REGION

T = TypeVar("T")

_MOST_ROLES: Final = 256
_LAST_WORD: Final = 0.3
"""Seconds after a handshake in which a server may still refuse it."""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Why something could not be measured."""

    why: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one role: what the issuer said at the start and at the end of the examination, and who leads."""

    issued: int
    issued_later: int
    leader: str | None


@dataclass(frozen=True, slots=True)
class Advertised:
    """``addresses`` that the name resolves to; ``region``: whose gateway answered, "" for an answer of no gateway."""

    addresses: tuple[str, ...]
    region: str


@dataclass(frozen=True, slots=True)
class Secret:
    """A file that a setting names: ``mode`` as of ``stat``, or why it could not be read.

    ``faulty``: what is wrong with what it holds, where that is keys of proofs or grants.
    """

    path: str
    mode: int
    why: str = ""
    faulty: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """In a file: ``left`` s until it expires, 0 or less: it has; ``None``: not known. Or the ``faults``.

    ``notice``: seconds before that in which it is time for another.
    """

    path: str
    left: float | None
    notice: float = 0.0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measures:
    """All that was found out. ``election_postgres``: the election's own Postgres, where it is not the store's.

    ``stores``: each of several by name, of which ``store`` is the first; empty where there is one.
    ``upstreams``: by host and port, "" where it takes connections. ``open_files``: this process' limit.
    ``certificates``: by the name of the check. ``default_sslmode``: what a DSN means that has no ``sslmode``, "" for
    the driver's own.
    """

    store: PostgresSurvey | Unmeasured
    election: ElectionSurvey | Unmeasured
    members: tuple[Member, ...]
    election_postgres: PostgresSurvey | Unmeasured | None
    numbers: Mapping[str, Numbers | Unmeasured]
    advertised: Advertised | Unmeasured
    upstreams: Mapping[str, str]
    secrets: Mapping[str, Secret]
    open_files: int
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    default_sslmode: str = ""
    stores: Mapping[str, PostgresSurvey | Unmeasured] = field(default_factory=dict)

    def of(self, store: str, roles: Collection[str]) -> Measures:
        """As they are for that one of several stores and its roles."""
        told = {role: found for role, found in self.numbers.items() if role in roles}
        return replace(self, store=self.stores[store], stores={}, numbers=told)


async def measure(settings: Settings, limit: float, config: str | None = None) -> Measures:
    """Everything, within ``limit`` seconds and a moment. ``config`` is the file that the settings came from."""
    parts_of = by_store(settings)
    dsn = settings.store.dsn or ""
    own = settings.election.dsn if settings.election.over_postgres else None
    roles = settings.roles[:_MOST_ROLES]
    targets = [(route.parsed_target.kind, route.parsed_target.argument) for route in settings.route]
    async with AsyncExitStack() as stack:
        places = connections.stores(settings, dsn)
        home = connections.home(settings, places)
        apart = connections.election(settings, home) if own and own != dsn else None
        upstream_tls = connections.upstream_tls(settings)
        backend = elections.source(_looking_only(settings), home)
        stack.push_async_callback(backend.close)
        async with asyncio.TaskGroup() as group:
            found = {
                name: group.create_task(_within(limit, stores.survey(places[name], limit, _functions(part))))
                for name, part in parts_of.items()
            }
            other = group.create_task(_within(limit, stores.survey(apart, limit))) if apart else None
            election = group.create_task(_within(limit, survey.survey(backend, limit)))
            members = group.create_task(_within(limit, survey.members_of(backend, limit * 0.9)))
            numbers = [group.create_task(_within(limit, _numbers(backend, role, limit))) for role in roles]
            advertised = group.create_task(_within(limit, _advertised(settings.advertise, settings.roles[0], limit)))
            upstreams = {
                origin: group.create_task(_within(limit, _connect(origin, upstream_tls)))
                for kind, origin in targets
                if kind == "http"
            }
    each = members.result()
    return Measures(
        store=next(iter(found.values())).result(),
        stores={name: task.result() for name, task in found.items()} if settings.stores else {},
        election=election.result(),
        members=() if isinstance(each, Unmeasured) else each,
        election_postgres=other.result() if other else None,
        numbers={role: task.result() for role, task in zip(roles, numbers, strict=True)},
        advertised=advertised.result(),
        upstreams={origin: _why(task.result()) for origin, task in upstreams.items()},
        secrets={
            **{key: _secret(path) for key, path in _files(settings, config)},
            **{key: _key_ring(path) for key, path in _key_rings(settings)},
        },
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        certificates=_certificates(settings, time.time()),
        default_sslmode=os.environ.get("PGSSLMODE", ""),
    )


def _functions(settings: Settings) -> list[str]:
    return [target.argument for route in settings.route if (target := route.parsed_target).kind == "function"]


def _looking_only(settings: Settings) -> Settings:
    """A follower of foreign Leases gives their terms a number: an examination must not."""
    election = settings.election.model_copy(update={"mode": "campaign"})
    return settings.model_copy(update={"election": election})


async def _within(limit: float, work: Awaitable[T]) -> T | Unmeasured:
    """A part that fails, or hangs in spite of its own limit, must not take the others along."""
    try:
        async with asyncio.timeout(limit + 0.5):
            return await work
    except TimeoutError:
        return Unmeasured(f"no answer within {limit:g} s")
    except NotImplementedError as error:
        return Unmeasured(str(error))
    except (FencegateError, OSError) as error:
        return Unmeasured(str(error) or type(error).__name__)


def _why(outcome: Unmeasured | None) -> str:
    return outcome.why if outcome else ""


async def _numbers(backend: LeadershipSource, role: str, limit: float) -> Numbers:
    third = limit / 3
    issued = await backend.issued_up_to(role, third)
    term = await backend.read(role, third)
    leader = f"{term.region}/{term.node}, token {term.token}" if term and term.active else None
    return Numbers(issued, await backend.issued_up_to(role, third), leader)


# -- what clients and upstreams are reached by ------------------------------------------------------


async def _advertised(origin: str, role: str, limit: float) -> Advertised:
    parts_of = urlsplit(origin)
    host, secure = parts_of.hostname or "", parts_of.scheme == "https"
    port = parts_of.port or (443 if secure else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = tuple(dict.fromkeys(str(address[4][0]) for address in found))
    region = await asyncio.to_thread(_ask, host, port, secure, role, limit / 2)
    return Advertised(addresses, region)


def _ask(host: str, port: int, secure: bool, role: str, limit: float) -> str:
    """The region that discovery there speaks for; "" where no gateway answers."""
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, port, timeout=limit)
    try:
        connection.request("GET", f"/.well-known/fencegate/leader/{quote(role)}")
        return connection.getresponse().getheader(HEADER_REGION) or ""
    except http.client.HTTPException as error:
        raise Unavailable(f"no HTTP there: {error or type(error).__name__}") from None
    finally:
        connection.close()


async def _connect(origin: str, tls: ssl.SSLContext | None) -> None:
    """A connection, with TLS where the origin says so, and not one byte of a request."""
    parts_of = urlsplit(origin)
    secure = parts_of.scheme == "https"
    port = parts_of.port or (443 if secure else 80)
    try:
        reader, writer = await asyncio.open_connection(parts_of.hostname, port, ssl=tls if secure else None)
        try:
            if secure:
                await _not_refused(reader)
        finally:
            writer.transport.abort()
    except OSError as error:
        raise Unavailable(advice(error, UPSTREAM)) from error


async def _not_refused(reader: asyncio.StreamReader) -> None:
    """Of TLS 1.3: a server says after the handshake that it wants another certificate of ours. Raises ``OSError``."""
    try:
        async with asyncio.timeout(_LAST_WORD):
            if not await reader.read(1):
                raise ConnectionError("it hung up after the handshake: does it want a certificate (upstream.tls.cert)?")
    except TimeoutError:
        return


def _certificates(settings: Settings, now: float) -> dict[str, Certificate]:
    """Every file with a certificate in it, by the name of its check."""
    found: dict[str, Certificate] = {}
    files = parts.tls_files(settings)
    if files is not None:
        found["listen.certificate"] = _pair(files.cert, files.key, "listen.tls", now)
        if files.client_ca is not None:
            found["listen.client_ca"] = _authorities(files.client_ca, now)
    for each in _shown(settings):
        if each.cert is not None:
            found[f"{each.name}.certificate{each.mark}"] = _pair(each.cert, each.key or each.cert, each.table, now)
        if each.ca is not None:
            found[f"{each.name}.ca{each.mark}"] = _authorities(each.ca, now)
    return found


@dataclass(frozen=True, slots=True)
class _Shown:
    """CA, certificate and key, and whose connections they are for; ``mark``: which of several stores'."""

    name: str
    mark: str
    table: str
    ca: str | None
    cert: str | None
    key: str | None


def _shown(settings: Settings) -> list[_Shown]:
    """As the tables say, or the DSN by itself."""
    found = [_shown_by("upstream", settings.upstream.tls)]
    for name, part in by_store(settings).items():
        table = connections.table_of(part.store)
        found.append(_shown_by("store", part.store.tls, part.store.dsn, _mark(name), key_in(table, "tls")))
    return [*found, _shown_by("election", settings.election.tls, settings.election.dsn)]


def _shown_by(name: str, tls: TlsSettings, dsn: str | None = None, mark: str = "", table: str = "") -> _Shown:
    said = parameters(dsn or "")
    files = (tls.ca or said.get("sslrootcert"), tls.cert or said.get("sslcert"), tls.key or said.get("sslkey"))
    return _Shown(name, mark, table or f"{name}.tls", *files)


def _mark(store: str) -> str:
    """What the name of a check on one of several stores ends with."""
    return f"[{store}]" if store else ""


def _pair(cert: str, key: str, table: str, now: float) -> Certificate:
    if faults := pem.use_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), table, cert, key):
        return Certificate(cert, None, faults=tuple(faults))
    valid = pem.validity(cert, key, now)
    return Certificate(cert, None) if valid is None else Certificate(cert, valid[1] - now, pem.notice(valid))


def _authorities(path: str, now: float) -> Certificate:
    try:
        end = pem.authorities_end(path)
    except OSError as error:
        return Certificate(path, None, faults=(f"{path}: {pem.reason(error)}",))
    return Certificate(path, None if end is None else end - now, pem.LONGEST_NOTICE)


# -- this machine -----------------------------------------------------------------------------------


def _files(settings: Settings, config: str | None) -> list[tuple[str, str]]:
    """The files with a secret in them, by the setting that names them."""
    election = settings.election
    named = [
        ("admin.token_file", settings.admin.token_file),
        ("admin.read_token_file", settings.admin.read_token_file),
        ("election.password_file", election.password_file),
        ("election.token_file", election.token_file),
        ("election.tls.key", election.tls.key),
        ("listen.tls.key", settings.listen.tls.key),
        ("upstream.tls.key", settings.upstream.tls.key),
    ]
    for name, part in by_store(settings).items():
        named.append((f"store.password_file{_mark(name)}", part.store.password_file))
        named.append((f"store.tls.key{_mark(name)}", part.store.tls.key))
    dsns = [settings.store.dsn, election.dsn, *(store.dsn for store in settings.stores)]
    if any("@" in (dsn or "") and urlsplit(dsn or "").password for dsn in dsns):
        named.append(("config", config))
    return [(key, path) for key, path in named if path]


def _key_rings(settings: Settings) -> list[tuple[str, str]]:
    """The files with the keys of proofs and grants, each once, by its setting and the number of its first route."""
    found: dict[str, str] = {}
    for number, route in enumerate(settings.route, 1):
        for setting in ("proof_key_file", "grant_key_file"):
            path = getattr(route, setting)
            if path is not None:
                found.setdefault(path, f"route.{setting}[{number}]")
    return [(key, path) for path, key in found.items()]


def _key_ring(path: str) -> Secret:
    secret = _secret(path)
    if not secret.why:
        try:
            key_ring(path, "")
        except ConfigurationError as error:
            return replace(secret, faulty=str(error).removeprefix(": "))
    return secret


def _secret(path: str) -> Secret:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        with open(path, "rb"):
            return Secret(path, mode)
    except OSError as error:
        return Secret(path, 0, error.strerror or str(error))
