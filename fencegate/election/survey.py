"""What an election store is like, for ``fencegate doctor``: measured here, judged elsewhere, nothing changed.

The Postgres of an election is looked at by :mod:`fencegate.store.survey`.
"""

from __future__ import annotations

import asyncio
import email.utils
import ssl
import time
from dataclasses import dataclass
from typing import Final

import aiohttp

from fencegate.election.consul import ConsulElection
from fencegate.election.etcd import EtcdElection
from fencegate.election.etcd_gateway import EtcdRefused
from fencegate.election.strange_answers import reading
from fencegate.election.zookeeper_timings import EnsembleTimings, timings_of
from fencegate.errors import Unavailable
from fencegate.lease import LeadershipSource

_PROBES: Final = 5
_LEAST: Final = 0.05


@dataclass(frozen=True, slots=True)
class Member:
    """One configured endpoint. ``why``: what it said instead of an answer. ``cluster``: whose member it says it is.

    ``complaints`` are the alarms that it reports. ``clock_offset`` is its clock less ours in seconds, give or take
    ``clock_error``; ``None`` where it tells no time.
    """

    endpoint: str
    why: str = ""
    cluster: str = ""
    complaints: tuple[str, ...] = ()
    clock_offset: float | None = None
    clock_error: float = 0.0


@dataclass(frozen=True, slots=True)
class ElectionSurvey:
    """``round_trips``: seconds of linearizable reads. ``voters``: how many members decide, ``None`` where unknown.

    ``ensemble`` is what a ZooKeeper says of its own timings.
    """

    round_trips: tuple[float, ...]
    voters: int | None
    ensemble: EnsembleTimings | None = None


async def survey(backend: LeadershipSource, limit: float) -> ElectionSurvey:
    """Looks for ``limit`` seconds at most. Raises :class:`Unavailable` where the election itself cannot be used."""
    ends = time.monotonic() + limit
    await backend.probe(limit)
    trips = []
    for _ in range(_PROBES):
        began = time.monotonic()
        await backend.read("doctor", max(_LEAST, ends - began))
        trips.append(time.monotonic() - began)
    voters = await _voters(backend, max(_LEAST, ends - time.monotonic()))
    return ElectionSurvey(tuple(trips), voters, await _ensemble(backend, max(_LEAST, ends - time.monotonic())))


async def members_of(backend: LeadershipSource, limit: float) -> tuple[Member, ...]:
    """Each endpoint by itself, also where the election cannot be used; empty where its members cannot be told apart."""
    if not isinstance(backend, EtcdElection):
        return ()
    return tuple(
        await asyncio.gather(*(_etcd_member(backend, endpoint, limit) for endpoint in backend.gateway.endpoints))
    )


async def _etcd_member(backend: EtcdElection, endpoint: str, limit: float) -> Member:
    gateway, ends = backend.gateway.only(endpoint), time.monotonic() + limit
    try:
        status = await gateway.call("/v3/maintenance/status", {}, limit)
        with reading("etcd"):
            cluster = str(status["header"].get("cluster_id", ""))
            complaints = tuple(str(each) for each in status.get("errors", ()))
    except (Unavailable, EtcdRefused) as error:
        return Member(endpoint, why=str(error))
    finally:
        await gateway.close()
    offset, give_or_take = await _clock(endpoint, backend.gateway.tls, ends - time.monotonic())
    return Member(endpoint, "", cluster, complaints, offset, give_or_take)


async def _clock(endpoint: str, tls: ssl.SSLContext | None, limit: float) -> tuple[float | None, float]:
    """By the ``Date`` of an answer over HTTP, which is good to a second."""
    if not endpoint.startswith(("http://", "https://")):
        return None, 0.0
    try:
        connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True)
        async with (
            asyncio.timeout(limit),
            aiohttp.ClientSession(connector=connector) as session,
        ):
            asked = time.time()
            async with session.get(f"{endpoint}/version", allow_redirects=False) as answer:
                half = (time.time() - asked) / 2
                said = email.utils.parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, TypeError):
        return None, 0.0
    return said + 0.5 - (asked + half), 0.5 + half


async def _voters(backend: LeadershipSource, limit: float) -> int | None:
    """``None`` where the election does not tell, or not now."""
    try:
        if isinstance(backend, EtcdElection):
            answer = await backend.gateway.call("/v3/cluster/member/list", {}, limit)
            with reading("etcd"):
                return sum(not member.get("isLearner", False) for member in answer.get("members", []))
        if isinstance(backend, ConsulElection):
            peers = (await backend.agent.http.call("GET", "/v1/status/peers", limit)).json
            return len(peers) if isinstance(peers, list) else None
    except (Unavailable, EtcdRefused):
        return None
    return None


async def _ensemble(backend: LeadershipSource, limit: float) -> EnsembleTimings | None:
    """By the first member that is named."""
    if backend.name != "zookeeper":
        return None
    from fencegate.election.zookeeper import ZookeeperElection  # an extra

    assert isinstance(backend, ZookeeperElection)
    try:
        return await timings_of(backend.link.hosts[0], backend.link.tls, limit)
    except Unavailable as error:
        return EnsembleTimings(why=str(error))
