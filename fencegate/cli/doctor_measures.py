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

from fencegate.cli import elections, parts
from fencegate.config import Settings
from fencegate.config.several_stores import by_store
from fencegate.election import survey
from fencegate.election.survey import ElectionSurvey, Member
from fencegate.errors import ConfigurationError, FencegateError, Unavailable
from fencegate.gateway.certificates import load
from fencegate.lease import LeadershipSource
from fencegate.store import survey as stores
from fencegate.store.survey import PostgresSurvey
from fencegate.tokens import HEADER_REGION

T = TypeVar("T")

_MOST_ROLES: Final = 256


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
    """A file that a setting names: ``mode`` as of ``stat``, or why it could not be read."""

    path: str
    mode: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The listeners' own: ``left`` s until it expires, 0 or less: it has; ``None``: not known. Or the ``faults``.

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
    ``certificate``: ``None`` where the listeners are without TLS.
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
    certificate: Certificate | None = None
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
        backend = elections.source(_looking_only(settings), dsn)
        stack.push_async_callback(backend.close)
        async with asyncio.TaskGroup() as group:
            found = {
                name: group.create_task(_within(limit, stores.survey(part.store.dsn or "", limit, _functions(part))))
                for name, part in parts_of.items()
            }
            other = group.create_task(_within(limit, stores.survey(own, limit))) if own and own != dsn else None
            election = group.create_task(_within(limit, survey.survey(backend, limit)))
            members = group.create_task(_within(limit, survey.members_of(backend, limit * 0.9)))
            numbers = [group.create_task(_within(limit, _numbers(backend, role, limit))) for role in roles]
            advertised = group.create_task(_within(limit, _advertised(settings.advertise, settings.roles[0], limit)))
            upstreams = {
                origin: group.create_task(_within(limit, _connect(origin)))
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
        secrets={key: _secret(path) for key, path in _files(settings, config)},
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        certificate=_certificate(settings, time.time()),
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


async def _connect(origin: str) -> None:
    """A connection, with TLS where the origin says so, and not one byte of a request."""
    parts_of = urlsplit(origin)
    secure = parts_of.scheme == "https"
    context = ssl.create_default_context() if secure else None
    port = parts_of.port or (443 if secure else 80)
    _, writer = await asyncio.open_connection(parts_of.hostname, port, ssl=context)
    writer.transport.abort()


def _certificate(settings: Settings, now: float) -> Certificate | None:
    files = parts.tls_files(settings)
    if files is None:
        return None
    try:
        found = load(files, now)
    except ConfigurationError as error:
        return Certificate(files.cert, None, faults=tuple(error.faults))
    return Certificate(files.cert, None if found.expires is None else found.expires - now, found.notice)


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
    ]
    dsns = [settings.store.dsn, election.dsn, *(store.dsn for store in settings.stores)]
    if any("@" in (dsn or "") and urlsplit(dsn or "").password for dsn in dsns):
        named.append(("config", config))
    return [(key, path) for key, path in named if path]


def _secret(path: str) -> Secret:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        with open(path, "rb"):
            return Secret(path, mode)
    except OSError as error:
        return Secret(path, 0, error.strerror or str(error))
